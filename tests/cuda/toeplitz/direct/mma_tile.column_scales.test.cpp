// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/direct/mma_tile.cuh"

#include <cmath>
#include <cstddef>
#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_toeplitz_direct_column_scales {

namespace {

// the scales of columns p0 .. p0 + 63 of M (r,p + 1), then that of the last column
template <int threads>
__global__ void scales_kernel(const float* M, int r, int p0, int p, float* scales) {
  cuda::start_kernel();
  using Scales = cuda::ColumnScales<threads>;
  float* maxima = cuda::shared_memory<float>();
  Scales::find(maxima, r, p0, p, [&](int f, int column) { return M[f * (p + 1) + column]; });
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < Scales::columns) scales[thread] = Scales::of(maxima, thread);
  if (thread == Scales::columns) scales[thread] = Scales::of_last(maxima);
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("each column has the scale of its largest entry", "[cuda]", ((int threads), threads), 128, 256) {
  using Scales = cuda::ColumnScales<threads>;
  for (const int r : {1, 16, 300})
    for (const int p : {0, 5, 64, 100}) {
      Matrix<float> M = normal<float>(r, p + 1, 1);
      for (Index k = 0; k <= p; ++k) M.col(k) *= std::ldexp(1.0f, 4 * static_cast<int>(k % 30) - 60);
      const DeviceArray<float> dM(stored<float>(M)), scales(Scales::columns + 1);
      for (int p0 = 0; p0 <= p; p0 += Scales::columns) {
        cuda::launch("test", scales_kernel<threads>, dim3{1, 1, 1}, dim3{threads, 1, 1}, sizeof(float) * Scales::size,
                     nullptr, dM.data(), r, p0, p, scales.data());
        const std::vector<float> got = scales.fetch();
        for (int k = 0; k <= Scales::columns; ++k) {
          INFO("r " << r << ", p " << p << ", p0 " << p0 << ", column " << k);
          const float scale = got[static_cast<std::size_t>(k)];
          const bool is_last = k == Scales::columns;
          if (!is_last && p0 + k >= p) {
            CHECK(scale == 0x1p114f);
          } else {
            const float largest = scale * M.col(is_last ? p : p0 + k).cwiseAbs().maxCoeff();
            CHECK(largest >= cuda::largest_scaled / 2);
            CHECK(largest < cuda::largest_scaled);
          }
        }
      }
    }
}

}  // namespace nprf::test::cuda_toeplitz_direct_column_scales
