// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/signal_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_signal_gradients {

using toeplitz::SignalGradients;
using toeplitz::SignalPair;

namespace {

template <class T>
struct Case : InSlots<T> {
  using InSlots<T>::A, InSlots<T>::B, InSlots<T>::U, InSlots<T>::G, InSlots<T>::c;

  Case(Index n_q, Index n_k, Index r, Index p) : InSlots<T>(n_q, n_k, Slots{n_q}, Slots{n_k}, r, p) {}

  Index length() const { return std::max(A.rows(), B.rows()) + 5; }

  // What the frame makes of add(pair), added to what there is; the correlations are of all lags.
  template <class Add>
  toeplitz::Gradients<T> run(const toeplitz::ColumnGroups<T>& groups, const Team& team, Add&& add, T before = 0) const {
    const Workspace::Scope scope(team.workspace());
    const Index lags = A.rows() + B.rows() - 1;
    toeplitz::Gradients<T> d({A.rows(), B.rows(), A.cols(), U.cols()});
    d.dA.setConstant(before), d.dB.setConstant(before), d.dU.setConstant(before);
    const MatrixView<T> a = A, b = B, u = U, g = G;
    toeplitz::GradientRefs<T> out{d.dA, d.dB, d.dU, d.dc};
    SignalGradients<T> frame(a, b, length(), lags, team);
    frame.run(u, g, groups, out, team, [&](const SignalPair<T>& x, Workspace&) { add(x); });
    frame.add_to(out, team);
    std::copy_n(frame.summed_correlations(), lags, d.dc.data());
    return d;
  }

  // All columns in groups, and the sums that a pair is to add as obvious loops.
  toeplitz::Gradients<T> run(const Team& team, T before = 0) const {
    const auto add = [&](const SignalPair<T>& x) {
      for (Index i = 0; i < A.rows(); ++i)
        for (Index j = 0; j < B.rows(); ++j) {
          const T *a = x.a + 2 * i, *b = x.b + 2 * j, weight = c[j - i];
          const T ug = fft::sum_lanes<T>(x.u[j] * x.g[i]);
          for (const Index k : {0, 1}) {
            x.da[toeplitz::in_eights(i, k)] += weight * b[k] * ug;  // g t, t = sum_j c b u
            x.db[toeplitz::in_eights(j, k)] += weight * a[k] * ug;  // u z, z = sum_i c a g
          }
          x.du[j] += weight * (a[0] * b[0] + a[1] * b[1]) * x.g[i];
          x.correlation[j - i + A.rows() - 1] += (a[0] * b[0] + a[1] * b[1]) * ug;
        }
    };
    return run(toeplitz::ColumnGroups<T>(A.cols(), U.cols()).all(), team, add, before);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("pairs of features and groups of columns make all gradients", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  Workspace workspace;
  const auto check = [&](const Case<T>& x) {
    INFO("n_q " << x.A.rows() << ", n_k " << x.B.rows() << ", r " << x.A.cols() << ", p " << x.U.cols());
    CHECK(gradients_error(Engine::direct, x.c, x.A, x.B, x.U, x.G, x.run(Team(workspace))) <= 1);
  };
  for (const Index p : {Index{1}, W - 1, W, W + 1, 9 * W + 2})
    for (const Index r : {1, 2, 3, 37}) check({7, 9, r, p});
  check({1, 1, 1, 1});
  check({1, 131, 2, 3});
  check({131, 1, 2, 3});
  check({150, 140, 5, 3});
}

TEMPLATE_TEST_CASE("gradients of signals are added to what there is", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  Case<T> x(13, 11, 5, fft::lane_count<T> + 3);
  for (Matrix<T>* each : {&x.A, &x.B, &x.U, &x.G}) *each = each->array().ceil();  // so that all sums are exact
  x.c.values = x.c.values.array().ceil();
  const toeplitz::Gradients<T> from_zero = x.run(Team(workspace)), from_one = x.run(Team(workspace), 1);
  CHECK(from_one.dA == (from_zero.dA.array() + 1).matrix());
  CHECK(from_one.dB == (from_zero.dB.array() + 1).matrix());
  CHECK(from_one.dU == (from_zero.dU.array() + 1).matrix());
  CHECK(from_one.dc == from_zero.dc);
}

TEMPLATE_TEST_CASE("each pair of features meets each group of columns once, with signals of maximum 1", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  Workspace workspace;
  Case<T> x(20, 24, 5, 2 * W + 1);
  for (Index k = 0; k < 5; ++k)
    x.A.col(k) *= std::ldexp(T(1), static_cast<int>(7 * k)),
        x.B.col(k) *= std::ldexp(T(1), static_cast<int>(20 - 9 * k));
  for (Index k = 0; k < x.U.cols(); ++k) x.G.col(k) *= std::ldexp(T(1), static_cast<int>(k) - 9);
  const toeplitz::ColumnGroups<T> groups(40, x.U.cols());  // as for so many features: a column is left over
  REQUIRE((groups.count == 2 && groups.left_over == 1));
  Matrix<int> met = Matrix<int>::Zero(5, 2 * W);
  const auto in_units = [](const auto& column) {
    const T unit = toeplitz::unit_of<T>(column.cwiseAbs().maxCoeff());
    return std::pair(unit, (column / unit).eval());
  };
  const auto d = x.run(groups, Team(workspace), [&](const SignalPair<T>& s) {
    const auto signal = [&](const auto& at, Index n, const auto& expected) {
      for (Index i = 0; i < x.length(); ++i)
        if (at(i) != (i < n ? expected[i] : T(0))) return false;
      return true;
    };
    for (Index k = 0; k < 5; ++k)
      for (Index p = 0; p < 2 * W; ++p) {
        const auto [b_unit, b] = in_units(x.B.col(k));
        const auto [g_unit, g] = in_units(x.G.col(p));
        met(k, p) += signal([&](Index j) { return s.b[2 * j + k % 2]; }, 24, b) &&
                     signal([&](Index i) { return s.a[2 * i + k % 2]; }, 20, (x.A.col(k) * b_unit).eval()) &&
                     signal([&](Index i) { return s.g[i][p % W]; }, 20, g) &&
                     signal([&](Index j) { return s.u[j][p % W]; }, 24, (x.U.col(p) * g_unit).eval());
      }
  });
  CHECK((met.array() == 1).all());
  CHECK((d.dA.isZero(0) && d.dB.isZero(0) && d.dU.isZero(0) && d.dc.isZero(0)));
}

TEMPLATE_TEST_CASE("columns of zeros get no gradient from a neighbour's rounding", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  Case<T> x(20, 24, 7, 3);
  for (const Index k : {1, 2, 6}) x.B.col(k).setZero();
  for (const Index k : {3, 6}) x.A.col(k).setZero();
  CHECK(gradients_error(Engine::direct, x.c, x.A, x.B, x.U, x.G, x.run(Team(workspace))) <= 1);
  const auto d = x.run(toeplitz::ColumnGroups<T>(7, 3).all(), Team(workspace), [&](const SignalPair<T>& s) {
    for (T* sums : {s.da, s.db}) std::fill_n(sums, toeplitz::in_eights(24, 0), T(1));
  });
  for (Index k = 0; k < 7; ++k) {
    CHECK((d.dA.col(k).array() == 0).all() == (k == 1 || k == 2 || k == 6));
    CHECK((d.dB.col(k).array() == 0).all() == (k == 3 || k == 6));
  }
}

TEMPLATE_TEST_CASE("no bit of signals' gradients depends on the number of threads", "[toeplitz][threads]",
                   NPRF_TEST_SCALARS) {
  const Case<TestType> x(150, 140, 37, 40);
  toeplitz::Gradients<TestType> first({});
  with_team_sizes([&](const Team& team) {
    if (team.size() == 1) first = x.run(team);
    CHECK(same_bits(x.run(team), first));
  });
}

}  // namespace nprf::test::toeplitz_signal_gradients
