// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/power_of_two_scaling.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"

namespace nprf::test::toeplitz_block_causal_power_of_two_scaling {

using toeplitz::BlockMaxima;
using toeplitz::SourceScales;

namespace {

template <class T>
constexpr Index W = fft::lane_count<T>;

// the same in all lanes
template <class T>
BlockMaxima<T> largest(double exponent, T feature, T value) {
  const fft::Lanes<T> zeros{};
  return {exponent, zeros + feature, zeros + value};
}

// the growth above a scale that no longer fits
template <class T>
T most() {
  return std::ldexp(T(1), sizeof(T) == 4 ? 20 : 160);
}

template <class T>
T above(T x) {
  return std::nextafter(x, std::numeric_limits<T>::infinity());
}

}  // namespace

TEMPLATE_TEST_CASE("scales of sources are powers of two, and fit while no maximum is too far above its scale",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const SourceScales<T> scales(largest<T>(-3, T(1.5), T(7)));
  CHECK(scales.log_scale == -3);
  for (Index l = 0; l < W<T>; ++l) CHECK((scales.b[l] == 2 && scales.u[l] == 8));
  const auto fits = [&](T feature, T value, double exponent = -3) {
    return scales.fit(largest(exponent, feature, value));
  };
  CHECK(fits(T(1.5), T(7)));
  CHECK(fits(T(1.5), 8 * most<T>()));
  CHECK_FALSE(fits(T(1.5), above(8 * most<T>())));
  CHECK(fits(2 * most<T>(), T(7)));
  CHECK_FALSE(fits(above(2 * most<T>()), T(7)));
  // log-scales grow too
  const double growth = std::log(static_cast<double>(most<T>()));
  CHECK(fits(T(1e-3), T(7), -3 + 0.999 * growth));
  CHECK_FALSE(fits(T(1e-3), T(7), -3 + 1.001 * growth));
  CHECK_FALSE(fits(T(2.1), T(7), -3 + 0.9999 * growth));
  for (const T never : {std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()}) {
    CHECK_FALSE(fits(never, T(7)));
    CHECK_FALSE(fits(T(1.5), never));
  }
  // one lane is enough
  BlockMaxima<T> other = largest<T>(-3, T(1.5), T(7));
  other.u[W<T> - 1] = above(8 * most<T>());
  CHECK_FALSE(scales.fit(other));
  other = largest<T>(-3, T(1.5), T(7));
  other.b[W<T> - 1] = above(2 * most<T>());
  CHECK_FALSE(scales.fit(other));
}

TEMPLATE_TEST_CASE("scales of zeros only fit zeros", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const T least = std::numeric_limits<T>::denorm_min();
  const SourceScales<T> scales(largest<T>(0, T(0), T(0)));
  CHECK(scales.fit(largest<T>(0, T(0), T(0))));
  CHECK_FALSE(scales.fit(largest<T>(0, least, T(0))));
  CHECK_FALSE(scales.fit(largest<T>(0, T(0), least)));
  // without any key so far
  const SourceScales<T> nothing(BlockMaxima<T>::none());
  CHECK(nothing.fit(BlockMaxima<T>::none()));
  CHECK_FALSE(nothing.fit(largest<T>(-700, T(1), T(0))));
}

}  // namespace nprf::test::toeplitz_block_causal_power_of_two_scaling
