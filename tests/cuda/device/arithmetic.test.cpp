// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/arithmetic.cuh"

#include "cuda/device_array.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_device_arithmetic {

TEST_CASE("kernels compiled without fast math are accepted, and lost subnormal numbers are seen", "[cuda]") {
  CHECK_NOTHROW(cuda::check_arithmetic(nullptr));
  const DeviceArray<bool> is_kept(std::size_t{1});
  // a product that is zero in any arithmetic
  cuda::launch("test", cuda::subnormal_kernel<0>, dim3{1, 1, 1}, dim3{1, 1, 1}, 0, nullptr,
               smallest_normal_number<float>, 0x1p-40f, is_kept.data());
  bool kept = true;
  cuda::check(cudaMemcpyAsync(&kept, is_kept.data(), sizeof(kept), cudaMemcpyDeviceToHost, nullptr), "fetching");
  cuda::check(cudaStreamSynchronize(nullptr), "fetching");
  CHECK(!kept);
}

}  // namespace nprf::test::cuda_device_arithmetic
