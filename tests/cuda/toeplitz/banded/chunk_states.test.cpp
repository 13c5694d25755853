// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/banded/chunk_states.cuh"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tile_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_banded_chunk_states {

TEMPLATE_TEST_CASE("running sums of chunks of integers are exact, forward and backward", "[cuda]",
                   (TileTypes<float, float>), (TileTypes<__half, __nv_bfloat16>)) {
  using S = typename TestType::S;
  using Feature = typename TestType::Feature;
  using Task = cuda::ChunkTask<S, Feature>;
  using Case = TileCase<S, Feature>;
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
    cuda::queue_chunks<S, Feature>(
        {{x.operand(B.data(), n_k), x.operand(B.data(), n_k), U, {}}, before.data(), after.data()}, z, nullptr);
    const Matrix<float> left = as_floats(before.fetch(), z * (chunks + 1) * r, p + 1),
                        right = as_floats(after.fetch(), z * (chunks + 1) * r, p + 1);
    for (int s = 0; s < z; ++s)
      for (int k = 0; k <= chunks; ++k) {
        // M of the keys first to end - 1
        const auto sum = [&](int first, int end) {
          Matrix<float> M = Matrix<float>::Zero(r, p + 1);
          for (int j = s * n_k + first; j < s * n_k + end; ++j) {
            M.topLeftCorner(x.r, p) += data.B.row(j).transpose() * data.V.row(j);
            M.col(p).head(x.r) += data.B.row(j).transpose();
          }
          return M;
        };
        const int at = std::min(k * Task::chunk, n_k), row = (s * (chunks + 1) + k) * r;
        INFO("n_k " << n_k << ", r " << r << ", p " << p << ", z " << s << ", chunk " << k);
        CHECK(left.middleRows(row, r) == sum(0, at));
        CHECK(right.middleRows(row, r) == sum(at, n_k));
      }
  }
}

}  // namespace nprf::test::cuda_toeplitz_banded_chunk_states
