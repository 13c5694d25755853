// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/launch.cuh"

#include <cstddef>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_device_launch {

namespace {

// reverses the block's numbers, by way of the end of the dynamic shared memory
template <int threads>
__global__ void reverse_kernel(int* numbers, int first) {
  cuda::start_kernel();
  int* shared = cuda::shared_memory<int>() + first;
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = numbers[thread];
  __syncthreads();
  numbers[thread] = shared[threads - 1 - thread];
}

}  // namespace

TEST_CASE("a kernel can use all the shared memory that its launch requests", "[cuda]") {
  constexpr int threads = 64;
  for (const std::size_t bytes : {std::size_t{1024}, std::size_t{64 * 1024}}) {
    std::vector<int> numbers(threads);
    for (int k = 0; k < threads; ++k) numbers[static_cast<std::size_t>(k)] = k;
    const DeviceArray<int> on_device(numbers);
    cuda::launch("test", reverse_kernel<threads>, dim3{1, 1, 1}, dim3{threads, 1, 1}, bytes, nullptr, on_device.data(),
                 static_cast<int>(bytes / sizeof(int)) - threads);
    const std::vector<int> reversed = on_device.fetch();
    for (std::size_t k = 0; k < numbers.size(); ++k) CHECK(reversed[k] == numbers[numbers.size() - 1 - k]);
  }
}

}  // namespace nprf::test::cuda_device_launch
