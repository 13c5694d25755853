// SPDX-License-Identifier: MIT
#include "nprf/cuda/fft/columns.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>
#include <vector>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_fft_columns {

namespace {

using Complex = std::complex<double>;

// two forward FFTs of (L,columns), then two inverse ones
template <class Shape>
__global__ void transform_kernel(const float2* x, float2* spectrum, float2* restored) {
  cuda::start_kernel();
  const cuda::fft::ColumnTransform<Shape> transform(cuda::shared_memory<float2>());
  float2 v[Shape::R];
  const auto at = [&](int s) { return (transform.t + s * Shape::R) * Shape::columns + transform.column; };
  for (int s = 0; s < Shape::R; ++s) v[s] = x[at(s)];
  transform.forward(v);
  for (int s = 0; s < Shape::R; ++s) spectrum[at(s)] = v[s];
  transform.forward(v);
  transform.inverse(v);
  transform.inverse(v);
  for (int s = 0; s < Shape::R; ++s) restored[at(s)] = v[s];
}

}  // namespace

TEMPLATE_TEST_CASE("a block computes the forward and the inverse FFT of each column", "[cuda]",
                   (cuda::fft::ColumnShape<4, 16>), (cuda::fft::ColumnShape<8, 16>), (cuda::fft::ColumnShape<16, 16>),
                   (cuda::fft::ColumnShape<16, 8>)) {
  using Shape = TestType;
  constexpr int L = Shape::L, columns = Shape::columns;
  const Vector<float> random = normal_vector<float>(2 * L * columns, 1);
  std::vector<float2> x(static_cast<std::size_t>(L * columns));
  for (std::size_t j = 0; j < x.size(); ++j)
    x[j] = {random[2 * static_cast<Index>(j)], random[2 * static_cast<Index>(j) + 1]};
  const DeviceArray<float2> dx(x), dspectrum(x.size()), dback(x.size());
  cuda::launch("test", transform_kernel<Shape>, dim3{1, 1, 1}, dim3{Shape::threads, 1, 1},
               sizeof(float2) * cuda::fft::ColumnTransform<Shape>::shared, nullptr, dx.data(), dspectrum.data(),
               dback.data());
  const std::vector<float2> spectrum = dspectrum.fetch(), restored = dback.fetch();
  const auto at = [](const std::vector<float2>& y, int row, int column) {
    const float2 value = y[static_cast<std::size_t>(row * columns + column)];
    return Complex(value.x, value.y);
  };

  // the rounding errors of log2 L passes are relative to the root mean square of the input
  const double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
  for (int column = 0; column < columns; ++column)
    for (int k = column % 3; k < L; k += 3) {
      Complex expected = 0;
      for (int j = 0; j < L; ++j)
        expected += at(x, j, column) * std::polar(1.0, -2 * std::numbers::pi * (j * k % L) / L);
      REQUIRE(std::abs(at(spectrum, k, column) - expected) <= 8 * eps * std::sqrt(2.0 * L));
      REQUIRE(std::abs(at(restored, k, column) / (1.0 * L * L) - at(x, k, column)) <= 40 * eps);
    }
}

TEMPLATE_TEST_CASE("addresses of column FFTs are distinct, and have no bank conflicts", "[cuda]",
                   (cuda::fft::ColumnShape<4, 16>), (cuda::fft::ColumnShape<8, 16>), (cuda::fft::ColumnShape<16, 16>),
                   (cuda::fft::ColumnShape<16, 8>)) {
  using Shape = TestType;
  constexpr int columns = Shape::columns;
  std::vector<int> places;
  for (int s = 0; s < Shape::R; ++s)
    // half a warp moves 16 values of 8 bytes at a time, each through two of 32 banks
    for (int first = 0; first < Shape::threads; first += 16) {
      std::array<int, 16> written{}, read{};
      for (int thread = first; thread < first + 16; ++thread) {
        const int t = thread / columns, column = thread % columns;
        ++written[static_cast<std::size_t>((Shape::place(t, s) + column) % 16)];
        ++read[static_cast<std::size_t>((Shape::place(s, t) + column) % 16)];
        places.push_back(Shape::place(t, s) + column);
      }
      REQUIRE(*std::max_element(written.begin(), written.end()) == 1);
      REQUIRE(*std::max_element(read.begin(), read.end()) == 1);
    }
  std::sort(places.begin(), places.end());
  REQUIRE(std::adjacent_find(places.begin(), places.end()) == places.end());
  REQUIRE(places.back() < cuda::fft::ColumnTransform<Shape>::places);
}

}  // namespace nprf::test::cuda_fft_columns
