// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/banded/chunk_states.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tensor_cores.hpp"
#include "cuda/tile_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_banded_chunk_states {

TEMPLATE_TEST_CASE("running sums of chunks of integers are exact, forward and backward", "[cuda]",
                   (TileTypes<float, float>), (TileTypes<__half, __nv_bfloat16>), (TileTypes<__half, __half>),
                   (TileTypes<__half, __half, cuda::MmaShape::m8n8k4>)) {
  if (!can_multiply<typename TestType::Feature, TestType::shape>()) return;
  using S = typename TestType::S;
  using Feature = typename TestType::Feature;
  using Task = cuda::ChunkTask<S, Feature>;
  using Case = TileCaseOf<TestType>;
  for (const Case& x : {Case{.n_k = 1, .p = 1}, Case{.n_k = 128, .r = 1, .p = 0}, Case{.n_k = 129, .p = 64},
                        Case{.batch = 2, .n_k = 300, .r = 70, .p = 72, .masked = true}}) {
    const auto data = x.data();
    const int z = x.z(), n_k = x.n_k, p = x.p, r = x.stored_features(), chunks = Task::chunks_of(n_k);
    const DeviceArray<Feature> B(x.features(data.B, n_k));
    const DeviceArray<S> V(stored<S>(data.V));
    const DeviceArray<unsigned char> mask(data.mask);
    const DeviceArray<float> before(std::vector<float>(static_cast<std::size_t>(z * (chunks + 1) * r * (p + 1)), -1)),
        after(before.fetch());
    const cuda::Columns<S> U{cuda::DeviceMatrixView<const S>(V.data(), x.batch, x.heads, n_k, p),
                             x.masked ? reinterpret_cast<const bool*>(mask.data()) : nullptr};
    cuda::queue_chunks<S, Feature, TestType::shape>(
        {{x.operand(B.data(), n_k), x.operand(B.data(), n_k), U, {}}, before.data(), after.data()}, z, nullptr);
    const Matrix<float> left = as_floats(before.fetch(), z * (chunks + 1) * r, p + 1),
                        right = as_floats(after.fetch(), z * (chunks + 1) * r, p + 1);
    for (int s = 0; s < z; ++s)
      for (int k = 0; k <= chunks; ++k) {
        // M of the keys first to end - 1, with the scale of B
        const auto sum = [&](int first, int end) {
          Matrix<float> M = Matrix<float>::Zero(r, p + 1);
          for (int j = s * n_k + first; j < s * n_k + end; ++j) {
            M.topLeftCorner(x.r, p) += data.B.row(j).transpose() * data.V.row(j);
            M.col(p).head(x.r) += data.B.row(j).transpose();
          }
          return Matrix<float>(cuda::feature_scale<Feature> * M);
        };
        const int at = std::min(k * Task::chunk, n_k), row = (s * (chunks + 1) + k) * r;
        INFO("n_k " << n_k << ", r " << r << ", p " << p << ", z " << s << ", chunk " << k);
        CHECK(left.middleRows(row, r) == sum(0, at));
        CHECK(right.middleRows(row, r) == sum(at, n_k));
      }
  }
}

TEST_CASE("states decay over many chunks without accumulating rounding errors", "[cuda][long]") {
  using Task = cuda::ChunkTask<float>;
  constexpr int n_k = 500 * Task::chunk, chunks = 500;
  Matrix<float> B = Matrix<float>::Zero(n_k, 1);
  B(Task::chunk - 1, 0) = B(n_k - Task::chunk, 0) = 1;
  const DeviceArray<float> features(stored<float>(B)), values(std::size_t{1});
  for (const float falls : NPRF_TEST_FEW_CASES ? std::vector<float>{7.3e-5f, 0.003f}
                                               : std::vector<float>{3e-5f, 7.3e-5f, 1.1e-4f, 0.003f}) {
    const DeviceArray<float> parameters(std::vector<float>{falls});
    const DeviceArray<float> before(std::size_t{chunks + 1}), after(std::size_t{chunks + 1}),
        scaled_before(std::size_t{chunks + 1}), scaled_after(std::size_t{chunks + 1});
    const auto operand = cuda::Operand<float>::by_channel(features.data(), 1, n_k, 1, n_k);
    const cuda::Columns<float> U{cuda::Operand<float>::by_channel(values.data(), 1, n_k, 0, n_k), nullptr};
    const cuda::TailSlope slope{parameters.data(), 0};
    cuda::queue_chunks<float, float>({{operand, operand, U, {}}, before.data(), after.data(), slope}, 1, nullptr);
    cuda::queue_chunks<float, float>(
        {{operand, operand, U, {}}, scaled_before.data(), scaled_after.data(), slope, before.data(), after.data()}, 1,
        nullptr);
    const std::vector<float> states[] = {before.fetch(), after.fetch(), scaled_before.fetch(), scaled_after.fetch()};
    double worst = 0;
    for (int k = 1; k < chunks; ++k) {
      const double distance = Task::chunk * (k - 1), weight = std::exp(-static_cast<double>(falls) * distance);
      if (weight < 1e-30) continue;
      for (const bool forward : {true, false}) {
        const auto at = static_cast<std::size_t>(forward ? k : chunks - k);
        const double got = static_cast<double>(states[forward ? 0 : 1][at]),
                     moment = static_cast<double>(states[forward ? 2 : 3][at]);
        worst = std::max({worst, std::abs(got / weight - 1),
                          k == 1 ? std::abs(moment) : std::abs(moment / (distance * weight) - 1)});
      }
    }
    INFO("falls by " << falls);
    CHECK(worst <= 16 * 0x1p-23);  // a decay that is rounded to float has 500 errors of up to 2^-25
  }
}

}  // namespace nprf::test::cuda_toeplitz_banded_chunk_states
