// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/row_loader.cuh"

#include <cstddef>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tile_case.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_device_row_loader {

namespace {

constexpr int tokens = 32, width = cuda::MmaTileShape::channels, stride = cuda::MmaTileShape::stride;
constexpr int n = 50, channels = 80;

// loads the tiles of x and of U at (t0,k0), and stores the first `some` channels of x's tile and all of U's
template <class S, class T>
__global__ void rows_kernel(cuda::Operand<T> x, cuda::Columns<S> U, int t0, int k0, int some, float* y) {
  cuda::start_kernel();
  T *a = cuda::shared_memory<T>(), *b = a + tokens * stride;
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < 2 * tokens * stride; e += cuda::MmaTileShape::threads) cuda::store(a + e, -1);
  __syncthreads();
  cuda::RowLoader<T, tokens> rows, values;
  rows.fetch(x, x.of(1), t0, k0);
  values.fetch(U.of(1), t0, k0);
  rows.put(a, some);
  values.template put<S>(b);
  __syncthreads();
  for (int e = thread; e < 2 * tokens * stride; e += cuda::MmaTileShape::threads) y[e] = cuda::to_float(a[e]);
}

template <class S>
__global__ void has_aligned_rows_kernel(cuda::Columns<S> U, int* result) {
  cuda::start_kernel();
  *result = cuda::has_aligned_rows(U.of(0));
}

}  // namespace

TEMPLATE_TEST_CASE("the row loader copies tiles, with zeros beyond the end and for padding", "[cuda]",
                   (TileTypes<__half, __nv_bfloat16>), (TileTypes<__nv_bfloat16, __nv_bfloat16>),
                   (TileTypes<__half, __half>)) {
  using S = typename TestType::S;
  using T = typename TestType::Feature;
  const Matrix<float> x = (10 * normal<float>(2 * n, channels, 1)).array().round();
  std::vector<unsigned char> mask(2 * n, 1);
  mask[n + 3] = mask[n + 40] = 0;
  const DeviceArray<T> features(stored<T>(x));
  const DeviceArray<S> values(stored<S>(x));
  const DeviceArray<unsigned char> on_device(mask);
  const DeviceArray<float> y(2 * tokens * stride);
  const cuda::DeviceMatrixView<const T> A(features.data(), 2, 1, n, channels);
  const cuda::DeviceMatrixView<const S> V(values.data(), 2, 1, n, channels);
  for (const int t0 : {0, 32})
    for (const int k0 : {0, 64}) {
      const int some = k0 == 0 ? width : 16;
      cuda::launch("test", rows_kernel<S, T>, dim3{1, 1, 1}, dim3{cuda::MmaTileShape::threads, 1, 1},
                   cuda::MmaTileShape::bytes(2 * tokens), nullptr, A,
                   cuda::Columns<S>{V, reinterpret_cast<const bool*>(on_device.data())}, t0, k0, some, y.data());
      Matrix<float> expected = Matrix<float>::Constant(2 * tokens, stride, -1);
      for (int t = 0; t < tokens; ++t)
        for (int k = 0; k < width; ++k) {
          const bool inside = t0 + t < n && k0 + k < channels;
          const float scalar = inside ? x(n + t0 + t, k0 + k) : 0;
          if (k < some) expected(t, k) = scalar;
          expected(tokens + t, k) = inside && mask[static_cast<std::size_t>(n + t0 + t)] == 0 ? 0 : scalar;
        }
      INFO("tile at token " << t0 << " and channel " << k0);
      CHECK(as_floats(y.fetch(), 2 * tokens, stride) == expected);
    }
}

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
