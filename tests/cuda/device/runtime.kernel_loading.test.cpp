// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/runtime.hpp"

#include <vector>

#include "cuda/device_array.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"

namespace nprf::test::cuda_device_runtime_kernel_loading {

namespace {

template <int>
__global__ void increment_kernel(int* x) {
  cuda::start_kernel();
  ++*x;
}

}  // namespace

TEST_CASE("what is queued while kernels are only loaded is not run", "[cuda]") {
  const DeviceArray<int> x(std::vector<int>{7});
  const auto queue = [&] {
    cuda::queue_fill("test", x.data(), 0, sizeof(int), nullptr);
    cuda::launch("test", increment_kernel<0>, dim3{1, 1, 1}, dim3{1, 1, 1}, 0, nullptr, x.data());
  };
  {
    const cuda::KernelLoading loading;
    {
      const cuda::KernelLoading nested;
      queue();
    }
    CHECK(cuda::KernelLoading::is_active());
    queue();
    CHECK(x.fetch() == std::vector<int>{7});
  }
  CHECK(!cuda::KernelLoading::is_active());
  queue();
  CHECK(x.fetch() == std::vector<int>{1});
}

}  // namespace nprf::test::cuda_device_runtime_kernel_loading
