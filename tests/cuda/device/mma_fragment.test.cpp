// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/mma_fragment.cuh"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tensor_cores.hpp"
#include "cuda/tile_case.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_device_mma_fragment {

namespace {

using cuda::MmaShape;

constexpr int stride = 24, width = 48;

// copies two matrices (16,16) to shared memory
template <class T>
__device__ void load_tiles(const T* left, const T* right, T* a, T* b) {
  for (int e = static_cast<int>(threadIdx.x); e < 256; e += 32) {
    a[e / 16 * stride + e % 16] = left[e];
    b[e / 16 * stride + e % 16] = right[e];
  }
  __syncthreads();
}

// calls f(i, j, n, h, c) for the entries x[n][2 h + c] of this lane, at row i and column j
template <class F, class Function>
__device__ void for_entries(Function&& f) {
  for (int n = 0; n < 2; ++n)
    for (int h = 0; h < 2; ++h)
      for (int c = 0; c < 2; ++c) f(F::row() + h * F::row_step, F::column() + n * F::column_step + c, n, h, c);
}

// columns 0 to 15 of y: left right; 16 to 31: left times row 0 of right, in each column; 32 to 47: left times ones
template <class T, MmaShape shape, bool left_transposed, bool right_transposed>
__global__ void product_kernel(const T* left, const T* right, float* y) {
  cuda::start_kernel();
  using F = cuda::Fragments<T, shape>;
  T *a = cuda::shared_memory<T>(), *b = a + 16 * stride;
  load_tiles(left, right, a, b);
  typename F::Sum sum = {};
  typename F::RowSum column = {}, ones = {};
  const auto multiply = [&](const auto& x) {
    if constexpr (right_transposed)
      F::multiply_add(sum, x, F::load_right_transposed(b, stride));
    else
      F::multiply_add(sum, x, F::load_right(b, stride));
    F::multiply_add(column, x, F::load_right_column(b));
    F::multiply_add(ones, x, F::right_ones());
  };
  if constexpr (left_transposed)
    multiply(F::load_left_transposed(a, stride));
  else
    multiply(F::load_left(a, stride));
  for_entries<F>([&](int i, int j, int n, int h, int c) {
    y[i * width + j] = sum.x[n][2 * h + c];
    y[i * width + 16 + j] = column.of(h);
    y[i * width + 32 + j] = ones.of(h);
  });
}

// columns 0 to 15 of y: (left right) right, of a product that is exact in T; columns 16 to 31: the largest entry of its
// row, in each column
template <class T, MmaShape shape>
__global__ void chain_kernel(const T* left, const T* right, float* y) {
  cuda::start_kernel();
  using F = cuda::Fragments<T, shape>;
  T *a = cuda::shared_memory<T>(), *b = a + 16 * stride;
  load_tiles(left, right, a, b);
  typename F::Sum sum = {}, chain = {};
  F::multiply_add(sum, F::load_left(a, stride), F::load_right(b, stride));
  unsigned words[2][2];
  float largest[2];
  for (int h = 0; h < 2; ++h) {
    for (int n = 0; n < 2; ++n) words[n][h] = cuda::pack<T>(sum.x[n][2 * h], sum.x[n][2 * h + 1]);
    largest[h] =
        F::row_max(fmaxf(fmaxf(sum.x[0][2 * h], sum.x[0][2 * h + 1]), fmaxf(sum.x[1][2 * h], sum.x[1][2 * h + 1])));
  }
  F::multiply_add(chain, F::left_of(words), F::load_right(b, stride));
  for_entries<F>([&](int i, int j, int n, int h, int c) {
    y[i * width + j] = chain.x[n][2 * h + c];
    y[i * width + 16 + j] = largest[h];
  });
}

template <class T>
__global__ void pack_kernel(const float* x, unsigned* both) {
  cuda::start_kernel();
  const int lane = static_cast<int>(threadIdx.x);
  both[lane] = cuda::pack<T>(x[2 * lane], x[2 * lane + 1]);
}

Matrix<float> integers(float size, std::uint64_t seed) { return (size * normal<float>(16, 16, seed)).array().round(); }

template <class T, class Kernel>
Matrix<float> result_of(Kernel* kernel, const Matrix<float>& a, const Matrix<float>& b) {
  const DeviceArray<T> da(stored<T>(a)), db(stored<T>(b));
  const DeviceArray<float> dy(16 * width);
  cuda::launch("test", kernel, dim3{1, 1, 1}, dim3{32, 1, 1}, sizeof(T) * 2 * 16 * stride, nullptr, da.data(),
               db.data(), dy.data());
  return as_floats(dy.fetch(), 16, width);
}

template <class T, MmaShape shape, bool left_transposed, bool right_transposed>
void check_product() {
  const Matrix<float> a = integers(10, 1), b = integers(10, 2);
  const Matrix<float> y = result_of<T>(product_kernel<T, shape, left_transposed, right_transposed>, a, b);
  const Matrix<float> left = left_transposed ? Matrix<float>(a.transpose()) : a,
                      right = right_transposed ? Matrix<float>(b.transpose()) : b;
  INFO("left " << (left_transposed ? "transposed" : "not transposed") << ", right "
               << (right_transposed ? "transposed" : "not transposed"));
  CHECK(y.leftCols(16) == left * right);
  for (Index k = 0; k < 16; ++k) {
    CHECK(y.col(16 + k) == left * b.row(0).transpose());
    CHECK(y.col(32 + k) == left.rowwise().sum());
  }
}

}  // namespace

TEMPLATE_TEST_CASE("the product of two fragments is the product of the matrices", "[cuda]",
                   (TileTypes<__nv_bfloat16, __nv_bfloat16>), (TileTypes<__half, __half, MmaShape::m16n8k16>),
                   (TileTypes<__half, __half, MmaShape::m16n8k8>), (TileTypes<__half, __half, MmaShape::m8n8k4>)) {
  using T = typename TestType::Feature;
  constexpr MmaShape shape = TestType::shape;
  if (!can_multiply<T, shape>()) return;
  check_product<T, shape, false, false>();
  check_product<T, shape, false, true>();
  check_product<T, shape, true, false>();
  check_product<T, shape, true, true>();
}

TEMPLATE_TEST_CASE("a sum becomes a left factor", "[cuda]", (TileTypes<__nv_bfloat16, __nv_bfloat16>),
                   (TileTypes<__half, __half, MmaShape::m16n8k16>), (TileTypes<__half, __half, MmaShape::m16n8k8>),
                   (TileTypes<__half, __half, MmaShape::m8n8k4>)) {
  using T = typename TestType::Feature;
  constexpr MmaShape shape = TestType::shape;
  if (!can_multiply<T, shape>()) return;
  const Matrix<float> a = integers(1, 1), b = integers(1, 2), product = a * b;
  REQUIRE(product.cwiseAbs().maxCoeff() < 256);  // exact in bfloat16
  const Matrix<float> y = result_of<T>(chain_kernel<T, shape>, a, b);
  CHECK(y.leftCols(16) == product * b);
  for (Index k = 0; k < 16; ++k) CHECK(y.col(16 + k) == product.rowwise().maxCoeff());
}

TEMPLATE_TEST_CASE("pack rounds two floats to the nearest, ties to even", "[cuda]", __half, __nv_bfloat16) {
  using T = TestType;
  if (!can_multiply<T>()) return;
  constexpr float u = std::is_same_v<T, __half> ? 0x1p-10f : 0x1p-7f;  // the distance of numbers near 1
  std::vector<float> x(64);
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = (k % 2 == 0 ? 1.0f : -3.0f) * (1 + static_cast<float>(k) * u / 8);
  const DeviceArray<float> dx(x);
  const DeviceArray<unsigned> dboth(32);
  cuda::launch("test", pack_kernel<T>, dim3{1, 1, 1}, dim3{32, 1, 1}, 0, nullptr, dx.data(), dboth.data());
  const std::vector<unsigned> both = dboth.fetch();
  for (std::size_t k = 0; k < 32; ++k) {
    const auto value = [&](unsigned half) {
      const auto lower = static_cast<std::uint16_t>(half);
      T y;
      std::memcpy(&y, &lower, sizeof(y));
      return as_float(y);
    };
    for (std::size_t e = 0; e < 2; ++e) {
      const float exact = x[2 * k + e], step = std::abs(exact) < 2 ? u : std::abs(exact) < 4 ? 2 * u : 4 * u;
      CHECK(value(both[k] >> 16 * e & 0xffff) == std::nearbyint(exact / step) * step);
    }
  }
}

}  // namespace nprf::test::cuda_device_mma_fragment
