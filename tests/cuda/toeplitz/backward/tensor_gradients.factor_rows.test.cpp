// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/backward/tensor_gradients.cuh"

#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_toeplitz_backward_factor_rows {

namespace {

// x (n,channels) of each of z matrices as rows of T, in float, with and without scales
template <class T>
struct RowsCase {
  int z, n, channels, row;
  Matrix<float> x;  // (z n,channels)

  std::vector<float> by_channel() const {
    std::vector<float> values(static_cast<std::size_t>(x.size()));
    for (int s = 0; s < z; ++s)
      for (int t = 0; t < n; ++t)
        for (int k = 0; k < channels; ++k)
          values[static_cast<std::size_t>((s * channels + k) * n + t)] = x(s * n + t, k);
    return values;
  }
  Matrix<float> rows(std::vector<float>* scales) const {
    const DeviceArray<float> in(by_channel()), factors(static_cast<std::size_t>(z * n));
    const DeviceArray<T> out(static_cast<std::size_t>(z * n * row));
    cuda::queue_factor_rows(
        cuda::FactorRowsTask<T>{in.data(), channels, n, n, row, out.data(), scales ? factors.data() : nullptr}, z,
        nullptr);
    if (scales) *scales = factors.fetch();
    return as_floats(out.fetch(), z * n, row);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("rows of features are rounded, with the scale of their type", "[cuda]", __half, __nv_bfloat16) {
  using T = TestType;
  for (const int n : {1, 32, 70})
    for (const int channels : {1, 16, 33}) {
      const int row = (channels + 15) / 16 * 16;
      const RowsCase<T> x{2, n, channels, row, normal<float>(2 * n, channels, 1).cwiseAbs().cwiseMin(1.0f)};
      Matrix<float> expected = Matrix<float>::Zero(2 * n, row);
      expected.leftCols(channels) = cuda::feature_scale<T> * x.x;
      INFO("n " << n << ", " << channels << " channels");
      CHECK(x.rows(nullptr) == as_floats(stored<T>(expected), 2 * n, row));
    }
}

TEMPLATE_TEST_CASE("rows of any scale have scales of their own in half", "[cuda]", __half, __nv_bfloat16) {
  using T = TestType;
  constexpr bool is_half = std::is_same_v<T, __half>;
  constexpr int n = 70, channels = 20, row = 32;
  RowsCase<T> x{1, n, channels, row, normal<float>(n, channels, 1)};
  for (int t = 0; t < n; ++t) x.x.row(t) *= std::ldexp(1.0f, 2 * t - 70);
  x.x.row(5).setZero();
  std::vector<float> scales;
  const Matrix<float> got = x.rows(&scales);
  CHECK(got.rightCols(row - channels).isZero(0));
  for (int t = 0; t < n; ++t) {
    const float scale = scales[static_cast<std::size_t>(t)], largest = x.x.row(t).cwiseAbs().maxCoeff();
    INFO("row " << t << ", scale " << scale);
    if (!is_half) CHECK(scale == 1);
    // small entries have an error of 2^-39 of the largest
    const Matrix<float> bound = ((is_half ? 0x1p-11f : 0x1p-8f) * x.x.row(t).cwiseAbs()).array() + 0x1p-39f * largest;
    CHECK(((scale * got.row(t).head(channels) - x.x.row(t)).array().abs() <= bound.array()).all());
  }
}

TEST_CASE("a non-finite entry of a factor does not change the others of its row", "[cuda]") {
  constexpr int n = 3, channels = 16;
  RowsCase<__half> x{1, n, channels, channels, Matrix<float>::Constant(n, channels, 1e-9f)};
  x.x(1, 4) = std::numeric_limits<float>::infinity();
  x.x(2, 7) = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> scales;
  const Matrix<float> got = x.rows(&scales);
  CHECK(got(1, 4) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(got(2, 7)));
  for (int t = 0; t < n; ++t) CHECK(got(t, 0) == got(0, 0));
  CHECK(scales[1] == scales[0]);
  CHECK(scales[2] == scales[0]);
}

}  // namespace nprf::test::cuda_toeplitz_backward_factor_rows
