// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/mma_fragment.cuh"

#include "cuda/device_array.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_device_mma_fragment {

namespace {

constexpr int stride = 24;

// columns 0 to 15 of y: left right; columns 16 to 23: left times row 0 of right; columns 24 to 31: left times ones
template <bool left_transposed, bool right_transposed>
__global__ void product_kernel(const __nv_bfloat16* left, const __nv_bfloat16* right, float* y) {
  __nv_bfloat16 *a = cuda::shared_memory<__nv_bfloat16>(), *b = a + 16 * stride;
  for (int e = static_cast<int>(threadIdx.x); e < 256; e += 32) {
    a[e / 16 * stride + e % 16] = left[e];
    b[e / 16 * stride + e % 16] = right[e];
  }
  __syncthreads();
  const cuda::LeftFragment x = left_transposed ? cuda::load_left_transposed(a, stride) : cuda::load_left(a, stride);
  cuda::RightFragment z[2];
  if (right_transposed)
    cuda::load_right_transposed(z, b, stride);
  else
    cuda::load_right(z, b, stride);
  cuda::SumFragment sum[2] = {}, column{}, row_sum{};
  for (int n = 0; n < 2; ++n) cuda::multiply_add(sum[n], x, z[n]);
  cuda::multiply_add(column, x, cuda::load_right_column(b));
  cuda::multiply_add(row_sum, x, cuda::right_ones());
  for (int e = 0; e < 4; ++e) {
    const int i = cuda::SumFragment::row() + e / 2 * 8, j = cuda::SumFragment::column() + e % 2;
    for (int n = 0; n < 2; ++n) y[i * 32 + 8 * n + j] = sum[n].x[e];
    y[i * 32 + 16 + j] = column.x[e];
    y[i * 32 + 24 + j] = row_sum.x[e];
  }
}

template <bool left_transposed, bool right_transposed>
void check_product() {
  const Matrix<float> a = (10 * normal<float>(16, 16, 1)).array().round(),
                      b = (10 * normal<float>(16, 16, 2)).array().round();
  const DeviceArray<__nv_bfloat16> da(stored<__nv_bfloat16>(a)), db(stored<__nv_bfloat16>(b));
  const DeviceArray<float> dy(16 * 32);
  cuda::launch("test", product_kernel<left_transposed, right_transposed>, dim3{1, 1, 1}, dim3{32, 1, 1},
               sizeof(__nv_bfloat16) * 2 * 16 * stride, nullptr, da.data(), db.data(), dy.data());
  const Matrix<float> y = as_floats(dy.fetch(), 16, 32);
  const Matrix<float> left = left_transposed ? Matrix<float>(a.transpose()) : a,
                      right = right_transposed ? Matrix<float>(b.transpose()) : b;
  INFO("left " << (left_transposed ? "transposed" : "not transposed") << ", right "
               << (right_transposed ? "transposed" : "not transposed"));
  CHECK(y.leftCols(16) == left * right);
  for (Index k = 0; k < 8; ++k) {
    CHECK(y.col(16 + k) == left * b.row(0).transpose());
    CHECK(y.col(24 + k) == left.rowwise().sum());
  }
}

}  // namespace

TEST_CASE("the product of two fragments is the product of the matrices", "[cuda]") {
  if (!has_tensor_cores()) return;
  check_product<false, false>();
  check_product<false, true>();
  check_product<true, false>();
  check_product<true, true>();
}

}  // namespace nprf::test::cuda_device_mma_fragment
