// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/power_of_two_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/product.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_block_causal_power_of_two_scaling {

using toeplitz::BlockMaxima;
using toeplitz::SourceScales;

namespace {

template <class T>
constexpr Index W = fft::lane_count<T>;

constexpr double none = -std::numeric_limits<double>::infinity();

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

TEMPLATE_TEST_CASE("the maxima of two blocks are those of each entry, whatever log-scales they are relative to",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Vector<T> x = normal_vector<T>(4 * W<T>, 1).cwiseAbs();
  const auto part = [&](Index k) { return fft::load_lanes(&x[k * W<T>]); };
  for (const double e : {0.0, 3.0, -40.0, 700.0, -700.0, none}) {
    const BlockMaxima<T> one{2.5, part(0), part(1)}, other{e, part(2), part(3)};
    BlockMaxima<T> both = one;
    both.include(other);
    INFO("exponents 2.5 and " << e);
    CHECK(both.log_scale == std::max(2.5, e));
    for (Index l = 0; l < W<T>; ++l) {
      const double expected = std::max(static_cast<double>(one.b[l]) * std::exp(2.5 - both.log_scale),
                                       static_cast<double>(other.b[l]) * std::exp(e - both.log_scale));
      CHECK(std::abs(static_cast<double>(both.b[l]) - expected) <= epsilon<T> * expected);
      CHECK(both.u[l] == std::max(one.u[l], other.u[l]));
    }
    // none() is less than any other
    BlockMaxima<T> alone = BlockMaxima<T>::none();
    alone.include(other);
    CHECK(alone.log_scale == e);
    for (Index l = 0; l < W<T>; ++l) CHECK((alone.b[l] == other.b[l] && alone.u[l] == other.u[l]));
  }
}

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

TEMPLATE_TEST_CASE("the maxima of a source block are those of its keys, at each level, ignoring NaN", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 4100, r = 2 * W<T> + 3, p = W<T> + 2;
  LagWeights<T> c = random_weights<T>(n, n, 4);
  c.values.tail(n - 1 + 7).setZero();  // the last lag is -7: keys are moved by 7 places
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  const toeplitz::CausalAxis axis(c.support(), {n, n, r, p});
  const toeplitz::CausalLevels<T> levels(c.view(), axis, team);
  REQUIRE(levels.count() == 2);
  Matrix<T> B = normal<T>(axis.keys.end, r, 1), U = normal<T>(axis.keys.end, p, 2);
  B.topRows(7).setZero(), U.topRows(7).setZero();
  B.middleRows(1024, 300).setZero(), U.middleRows(1024, 300).setZero();
  B(50, 1) = U(60, 0) = std::numeric_limits<T>::quiet_NaN();
  B(400, 2) = -std::numeric_limits<T>::infinity();
  const MatrixView<T> b = B, u = U;
  for (const double spread : {0.0, 20.0}) {
    Vector<double> e = spread * normal_vector<double>(axis.keys.end, 3);
    if (spread > 0) e.head(7).setConstant(none);
    const double* given = spread > 0 ? e.data() + 7 : nullptr;
    const toeplitz::RunningKeyMax<T> exponents({b, b, u, Slots{n}, Slots{n}, given}, levels, team);
    const toeplitz::LevelMaxima<T> sources(b, u, exponents, levels, team);
    for (Index level = 0; level < levels.count(); ++level)
      for (Index k = 0; k * levels[level].size < axis.length(); ++k) {
        const Index first = k * levels[level].size, end = std::min(first + levels[level].size, axis.keys.end);
        const double top = e.segment(first, end - first).maxCoeff();
        // and zeros for features beyond r, values beyond p
        Vector<double> b_top = Vector<double>::Zero(r + 2 * W<T>), u_top = Vector<double>::Zero(p + W<T>);
        for (Index j = first; j < end; ++j) {  // a NaN is ignored
          for (Index f = 0; f < r; ++f)
            b_top[f] = std::max(b_top[f], std::exp(e[j] - top) * std::abs(static_cast<double>(B(j, f))));
          for (Index f = 0; f < p; ++f) u_top[f] = std::max(u_top[f], std::abs(static_cast<double>(U(j, f))));
        }
        const auto near = [](T x, double y) {
          return static_cast<double>(x) == y || std::abs(static_cast<double>(x) - y) <= 4 * epsilon<T> * y;
        };
        const auto is = [&](const BlockMaxima<T>& got, Index l, Index feature, double value) {
          return got.log_scale == top && near(got.b[l], b_top[feature]) && static_cast<double>(got.u[l]) == value;
        };
        bool right = true;
        for (Index l = 0; l < W<T>; ++l) {
          for (Index f = 0; f < r; ++f)
            right = right && is(sources.feature(level, k, f, 1, 3), l, f, l < 3 ? u_top[1 + l] : 0);
          for (Index f = 0; f < r; f += W<T>)
            right = right && is(sources.column(level, k, toeplitz::FeatureLanes<T>(b, f), 2), l, f + l, u_top[2]);
        }
        INFO("level " << level << ", block " << k << ", exponents spread over " << spread);
        CHECK(right);
      }
  }
}

}  // namespace nprf::test::toeplitz_block_causal_power_of_two_scaling
