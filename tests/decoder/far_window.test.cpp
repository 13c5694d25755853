// SPDX-License-Identifier: MIT
#include "nprf/decoder/far_window.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::decoder_far_window {

namespace {

// tokens with random features, and the weights of a table; the formula is evaluated in double
template <Real T>
struct Case {
  Case(Index tokens, Index of_r, Index of_d_v, Index limit, bool has_signs)
      : n(tokens),
        r(of_r),
        d_v(of_d_v),
        signals({of_r, of_d_v, 0}, has_signs),
        bias(RelativePosition<T>(random_table<T>(limit, 3)).bias().view(), 0, 0, false),
        B(has_signs ? normal<T>(n, r, 1) : Matrix<T>(normal<T>(n, r, 1).array().exp())),
        v(normal<T>(n, d_v, 2)),
        log_scales(normal<double>(n, 1, 5).col(0)),
        ring({r, d_v, 0}, n) {
    v.row(1) *= T(1000);
    ring.reserve(n);
    for (Index j = 0; j < n; ++j) put(j);
  }

  void put(Index j) {
    const RowMax<T> values = row_max(v.row(j).data(), d_v);
    ring.put(
        j,
        {B.row(j).data(), 1, v.row(j).data(), log_scales[j], B.row(j).norm(), values.largest, true, values.is_finite},
        v.row(j).data());
  }

  // D, the sum of |phi|, and N of the query at a position with features A, in units of exp(unit)
  Vector<double> expected(const Window& window, Index limit, Index position, const Vector<T>& A, double unit) const {
    Vector<double> sums = Vector<double>::Zero(2 + d_v);
    for (Index s = std::max<Index>(window.first - limit + 1, 0); s < window.far_end(); ++s) {
      if (position - s >= limit) continue;
      const double c = std::exp(bias(position - s) + log_scales[s] - unit);
      const double weight = c * B.row(s).transpose().template cast<double>().dot(A.template cast<double>());
      sums[0] += weight, sums[1] += c * static_cast<double>(B.row(s).norm());
      for (Index p = 0; p < d_v; ++p)
        if (std::isfinite(v(s, p))) sums[2 + p] += weight * static_cast<double>(v(s, p));
    }
    return sums;
  }

  Index n, r, d_v;
  FarSignals<T> signals;
  StepBias<T> bias;
  Matrix<T> B, v;
  Vector<double> log_scales;
  TokenRing<T> ring;
};

template <Real T>
void check(Case<T>& x, const Window& window, Index limit) {
  WindowKernels<T> kernels(window.size, x.bias, limit);
  kernels.reserve(x.bias, window.far_end());
  Workspace scratch;
  Vector<T> sums(4 * window.size * fft::lane_count<T>);
  FarWindow<T> far;
  far.reserve(x.signals, window.size);
  far.start(window);
  const Index units = FarWindow<T>::units(x.signals, kernels.blocks(window));
  for (Index until = 0; far.done() < units; until = std::min(until + 3, units))
    far.advance(kernels, x.signals, x.ring, until, sums.data(), scratch);
  const Index padded = padded_to_lanes(x.d_v);
  for (Index position = window.first; position < window.end(); ++position) {
    Vector<T> A = Vector<T>::Zero(padded_to_lanes(x.r)), N = Vector<T>::Zero(padded);
    A.head(x.r) = normal<T>(1, x.r, static_cast<std::uint64_t>(position)).row(0).transpose();
    const auto row = far.add_product(x.signals, position, A.data(), T(0.5), N.data());
    const auto errors = far.errors(x.signals, A.data());
    const Vector<double> expected =
        0.5 * x.expected(window, limit, position, A.head(x.r), far.log_unit() + kernels.log_unit());
    // the FFT's errors, and those of the sums over features
    const double eps = static_cast<double>(epsilon<T>), sums_of = eps * static_cast<double>(x.r + 8);
    const double of_D = 0.5 * errors.D + sums_of * static_cast<double>(A.cwiseAbs().maxCoeff()) * expected[1],
                 v_max = static_cast<double>(far.largest_value()),
                 of_N = 0.5 * errors.N + sums_of * v_max * expected[1] * static_cast<double>(A.cwiseAbs().maxCoeff());
    CHECK(std::abs(static_cast<double>(row.D) - expected[0]) <= of_D);
    if (x.signals.lanes_of_ones > x.r) CHECK(static_cast<double>(row.norms) == Approx(expected[1]).epsilon(1e-4));
    for (Index p = 0; p < x.d_v; ++p) CHECK(std::abs(static_cast<double>(N[p]) - expected[2 + p]) <= of_N);
    CHECK(N.tail(padded - x.d_v).isZero(0));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("far window: sums and errors are those of the formula", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const bool has_signs : {false, true})
    for (const Index d_v : {1, 17}) {
      Case<T> x(300, 16, d_v, 400, has_signs);
      for (const Window window : {Window{32, 16}, Window{96, 32}, Window{240, 16}}) check(x, window, 390);
      check(x, {240, 16}, 100);  // older tokens have no weight
    }
}

TEST_CASE("far window: slots begin again, and values are non-finite", "[decoder]") {
  using T = float;
  Case<T> x(160, 5, 3, 100, false);
  x.v(40, 1) = std::numeric_limits<T>::infinity(), x.v(50, 0) = std::numeric_limits<T>::quiet_NaN();
  TokenRing<T> ring({5, 3, 0}, 130);
  ring.reserve(160);
  std::swap(x.ring, ring);
  for (Index j = 0; j < 160; ++j) x.put(j);
  check(x, {144, 16}, 100);
}

TEST_CASE("far window: no value is too large or too small", "[decoder]") {
  using T = float;
  for (const T size : {T(1e-37), T(1e30)}) {
    Case<T> x(100, 5, 3, 200, false);
    x.v *= size / 1000;
    for (Index j = 0; j < 100; ++j) x.put(j);
    check(x, {64, 16}, 190);
  }
}

TEST_CASE("far window: the bits do not depend on when it is computed", "[decoder]") {
  using T = float;
  Case<T> x(200, 6, 4, 300, false);
  WindowKernels<T> kernels(16, x.bias, 290), grown = kernels;
  kernels.reserve(x.bias, 200);
  for (const Index tokens : {10, 60, 200}) grown.reserve(x.bias, tokens);
  Workspace scratch;
  Vector<T> sums(4 * 16 * fft::lane_count<T>);
  const Window window{176, 16};
  const Index units = FarWindow<T>::units(x.signals, kernels.blocks(window));
  FarWindow<T> once, in_parts;
  once.reserve(x.signals, 16), in_parts.reserve(x.signals, 16);
  once.start(window), in_parts.start({160, 16});
  once.advance(kernels, x.signals, x.ring, units, sums.data(), scratch);
  in_parts.advance(grown, x.signals, x.ring, 5, sums.data(), scratch);  // another window, not completed
  in_parts.start(window);
  for (Index until = 1; until <= units; ++until)
    in_parts.advance(grown, x.signals, x.ring, until, sums.data(), scratch);
  const Vector<T> A = Vector<T>::Ones(padded_to_lanes(6));
  Matrix<T> a = Matrix<T>::Zero(16, padded_to_lanes(4)), b = a;
  for (Index i = 0; i < 16; ++i) {
    once.add_product(x.signals, 176 + i, A.data(), T(1), a.row(i).data());
    in_parts.add_product(x.signals, 176 + i, A.data(), T(1), b.row(i).data());
  }
  CHECK(same_bits(a, b));
}

}  // namespace nprf::test::decoder_far_window
