// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>

#include "nprf/core/buffer.hpp"
#include "nprf/fft/lanes.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

/// Lanes for tests, and the numbers of a lane as complex numbers in long double, for reference results.
namespace nprf::test {

using Complex = std::complex<long double>;

template <Real T>
constexpr T nan_of = std::numeric_limits<T>::quiet_NaN();

/// e^(2 pi i part / whole)
inline Complex unit_root(Index part, Index whole) {
  return std::polar(1.0L, 2 * std::numbers::pi_v<long double> * static_cast<long double>(part % whole) /
                              static_cast<long double>(whole));
}

template <Real T>
Complex lane(const fft::ComplexLanes<T>& z, Index l) {
  return {z.re[l], z.im[l]};
}

/// N(0,1) deviates, different in each lane.
template <Real T>
Buffer<fft::ComplexLanes<T>> normal_lanes(Index n, std::uint64_t seed) {
  constexpr Index W = fft::lane_count<T>;
  const Matrix<T> x = normal<T>(n, 2 * W, seed);
  Buffer<fft::ComplexLanes<T>> z(n);
  for (Index j = 0; j < n; ++j) z.data()[j] = {fft::load_lanes(&x(j, 0)), fft::load_lanes(&x(j, W))};
  return z;
}

/// Collects |got - expected| and |expected|.
class Errors {
 public:
  void add(const Complex& got, const Complex& expected) {
    const long double error = std::norm(got - expected);
    m_error += error;
    m_worst = std::max(m_worst, error);
    m_magnitude += std::norm(expected);
    ++m_count;
  }

  /// The ratio of the 2-norms; infinity if there is a NaN or nothing was added.
  double relative() const { return m_count > 0 ? ratio(m_error) : std::numeric_limits<double>::infinity(); }

  /// The largest error divided by the root mean square of `expected`.
  double worst() const { return ratio(m_worst * static_cast<long double>(m_count)); }

 private:
  double ratio(long double error) const {
    if (std::isnan(m_error)) return std::numeric_limits<double>::infinity();
    return error == 0 ? 0 : static_cast<double>(std::sqrt(error / m_magnitude));
  }

  long double m_error = 0, m_worst = 0, m_magnitude = 0;
  Index m_count = 0;
};

}  // namespace nprf::test
