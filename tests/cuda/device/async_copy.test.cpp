// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/async_copy.cuh"

#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"

namespace nprf::test::cuda_device_async_copy {

namespace {

// Each thread copies four of x to the place of its neighbour, and zeros after those of all; y: what threads find there.
template <int threads>
__global__ void copy_kernel(const float* x, float* y) {
  cuda::start_kernel();
  float* shared = cuda::shared_memory<float>();
  const int thread = static_cast<int>(threadIdx.x), neighbour = thread ^ 1;
  cuda::start_copy<0>(shared + 4 * neighbour, x + 4 * thread, true);
  cuda::start_copy<16 * threads>(shared + 4 * neighbour, x, false);
  cuda::wait_for_copies();
  __syncthreads();
  for (int k = 0; k < 4; ++k) {
    y[4 * thread + k] = shared[4 * thread + k];
    y[4 * (threads + thread) + k] = shared[4 * (threads + thread) + k];
  }
}

}  // namespace

TEST_CASE("copies have been made once they have been waited for", "[cuda]") {
  if (!can_multiply<__nv_bfloat16>()) return;  // of the same compute capability
  constexpr int threads = 64;
  std::vector<float> x(4 * threads);
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(k + 1);
  const DeviceArray<float> from(x), to(2 * x.size());
  cuda::launch("test", copy_kernel<threads>, dim3{1, 1, 1}, dim3{threads, 1, 1}, 2 * x.size() * sizeof(float), nullptr,
               from.data(), to.data());
  const std::vector<float> got = to.fetch();
  for (std::size_t k = 0; k < x.size(); ++k) {
    CHECK(got[k] == x[k ^ 4]);
    CHECK(got[x.size() + k] == 0);
  }
}

}  // namespace nprf::test::cuda_device_async_copy
