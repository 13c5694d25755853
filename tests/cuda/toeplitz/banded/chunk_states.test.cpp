// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/banded/chunk_states.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_banded_chunk_states {

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
