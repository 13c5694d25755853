// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/row_loader.cuh"

#include "cuda/device_array.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"

namespace nprf::test::cuda_device_row_loader {

namespace {

template <class S>
__global__ void has_aligned_rows_kernel(cuda::Columns<S> U, int* result) {
  cuda::start_kernel();
  *result = cuda::has_aligned_rows(U.of(0));
}

}  // namespace

TEST_CASE("rows are aligned only if address, stride and width are multiples of 8 scalars", "[cuda]") {
  const DeviceArray<__half> values(1000);
  const DeviceArray<int> result(1);
  const auto has_aligned_rows = [&](int first, int token_stride, int p) {
    cuda::DeviceMatrixView<const __half> V(values.data() + first, 9, p);
    V.token_stride = token_stride;
    cuda::launch("test", has_aligned_rows_kernel<__half>, dim3{1, 1, 1}, dim3{1, 1, 1}, 0, nullptr,
                 cuda::Columns<__half>{V, nullptr}, result.data());
    return result.fetch().front() != 0;
  };
  CHECK(has_aligned_rows(0, 24, 16));
  CHECK(has_aligned_rows(8, 16, 8));
  CHECK(!has_aligned_rows(4, 24, 16));
  CHECK(!has_aligned_rows(0, 20, 16));
  CHECK(!has_aligned_rows(0, 24, 12));
  CHECK(!has_aligned_rows(0, 24, 0));
}

}  // namespace nprf::test::cuda_device_row_loader
