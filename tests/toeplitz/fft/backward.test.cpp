// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/backward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/gradient_sizes.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_fft_backward {

using toeplitz::ColumnSignals;
using toeplitz::GroupSignals;
using toeplitz::SignalBackward;

namespace {

template <class T>
struct Case : InSlots<T> {
  using InSlots<T>::A, InSlots<T>::B, InSlots<T>::U, InSlots<T>::G, InSlots<T>::c;

  Case(Index n_q, Index n_k, Index r, Index p) : InSlots<T>(n_q, n_k, Slots{n_q}, Slots{n_k}, r, p) {}

  Index lags() const { return A.rows() + B.rows() - 1; }

  // The gradients that SignalBackward adds to `before`, with the shares that add(signals) adds; correlations are of all
  // lags.
  template <class Add>
  SizedGradients<T> run(const Team& team, Add&& add, T before = 0) const {
    const Workspace::Scope scope(team.workspace());
    SizedGradients<T> got({A.rows(), B.rows(), A.cols(), U.cols()}, lags());
    toeplitz::Gradients<T>& d = got.d;
    d.dA.setConstant(before), d.dB.setConstant(before), d.dU.setConstant(before), got.keys.setConstant(before);
    const MatrixView<T> a = A, b = B, u = U, g = G;
    toeplitz::GradientRefs<T> out{d.dA, d.dB, d.dU, d.dc};
    const toeplitz::GradientSizes<T> of = sizes.size() > 0
                                              ? toeplitz::GradientSizes<T>{sizes.data(), got.keys.data(), nullptr}
                                              : toeplitz::GradientSizes<T>{};
    const auto x = toeplitz::Factors<T>::without_gaps(a, b, u);
    SignalBackward<T> backward(x, g, of, length, lags(), team);
    const auto add_to = [&](const auto& signals, Workspace&) { add(signals); };
    backward.run(out, team, add_to, add_to);
    d.dc = Vector<T>::Map(backward.correlation(), lags());
    got.lags = Vector<T>::Map(backward.size_correlation(), lags());
    return got;
  }

  // The same with the shares computed by plain loops.
  SizedGradients<T> run_loops(const Team& team, T before = 0) const {
    return run(
        team, [&](const auto& x) { add(x); }, before);
  }

  void add(const GroupSignals<T>& x) const {
    for (Index i = 0; i < A.rows(); ++i)
      for (Index j = 0; j < B.rows(); ++j) {
        const T weight = c[j - i], ab = x.a[i] * x.b[j], ug = fft::sum_lanes<T>(x.u[j] * x.g[i]);
        x.da[i] += weight * x.b[j] * ug;
        x.db[j] += weight * x.a[i] * ug;
        x.du[j] += weight * ab * x.g[i];
        x.correlation[j - i + A.rows() - 1] += ab * ug;
      }
  }
  void add(const ColumnSignals<T>& x) const {
    for (Index i = 0; i < A.rows(); ++i)
      for (Index j = 0; j < B.rows(); ++j) {
        const T weight = c[j - i], ug = x.u[j] * x.g[i];
        const fft::Lanes<T> a = x.a.row(i), b = x.b.row(j);
        const T ab = fft::sum_lanes<T>(a * b);
        if (x.da) x.a.add(weight * ug * b, *x.da, i);
        if (x.db) x.b.add(weight * ug * a, *x.db, j);
        x.du[j] += weight * ab * x.g[i];
        x.correlation[j - i + A.rows() - 1] += ab * ug;
      }
  }

  // with a column of ones after U
  void take_sizes(T factor = 1) {
    U.rightCols(1).setOnes();
    sizes = sizes_of(G, factor);
  }

  Index length = std::max(A.rows(), B.rows()) + 5;
  Vector<T> sizes;  // one for each query, or empty
};

// Scratch memory filled with NaN.
void make_dirty(Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  std::fill_n(workspace.take<double>(1 << 20), 1 << 20, std::numeric_limits<double>::quiet_NaN());
}

template <class T>
double error(const Case<T>& x, const SizedGradients<T>& got) {
  return gradients_error(Engine::direct, x.c, x.A, x.B, x.U, x.G, got.d);
}

}  // namespace

TEMPLATE_TEST_CASE("features and columns add up to all gradients and sums of sizes", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  Workspace workspace;
  make_dirty(workspace);
  const auto check = [&](Case<T>&& x) {
    INFO("n_q " << x.A.rows() << ", n_k " << x.B.rows() << ", r " << x.A.cols() << ", p " << x.U.cols());
    CHECK(error(x, x.run_loops(Team(workspace))) <= 1);
    x.take_sizes();
    const SizedGradients<T> got = x.run_loops(Team(workspace));
    CHECK(error(x, got) <= 1);
    const Matrix<T> sizes = x.sizes, ones = x.U.rightCols(1);
    CHECK(product_error<T>(Engine::direct, transposed(x.c), x.B, x.A, sizes, got.keys) <= 1);
    CHECK(lag_error<T>(Engine::direct, x.A, x.B, ones, sizes, got.lags) <= 1);
  };
  for (const Index p : {Index{1}, Index{2}, Index{3}, W, W + 1, 2 * W, 2 * W + 1, 2 * W + 2, 9 * W + 2})
    for (const Index r : {Index{1}, Index{2}, W, W + 1, Index{37}}) check({7, 9, r, p});
  check({1, 1, 1, 1});
  check({1, 131, 2, 3});
  check({131, 1, 2, 3});
  check({150, 140, 5, 3});
}

TEMPLATE_TEST_CASE("signals may have any length of at least the number of places", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  for (Index n = 1; n < 20; ++n)
    for (const Index beyond : {0, 1, 7}) {
      make_dirty(workspace);
      Case<T> x(n, n, 2, 4);
      x.take_sizes();
      x.length = n + beyond;
      const SizedGradients<T> got = x.run_loops(Team(workspace));
      INFO(n << " places in signals of " << x.length);
      CHECK(error(x, got) <= 1);
      CHECK(product_error<T>(Engine::direct, transposed(x.c), x.B, x.A, Matrix<T>(x.sizes), got.keys) <= 1);
    }
}

TEMPLATE_TEST_CASE("gradients of signals are added", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Workspace workspace;
  Case<T> x(13, 11, 5, 2 * fft::lane_count<T> + 3);
  for (Matrix<T>* each : {&x.A, &x.B, &x.U, &x.G}) *each = each->array().ceil();  // so that all sums are exact
  x.c.values = x.c.values.array().ceil();
  x.U.rightCols(1).setOnes();
  x.sizes = x.G.rightCols(1).cwiseAbs();
  const SizedGradients<T> from_zero = x.run_loops(Team(workspace)), from_one = x.run_loops(Team(workspace), 1);
  CHECK(from_one.d.dA == (from_zero.d.dA.array() + 1).matrix());
  CHECK(from_one.d.dB == (from_zero.d.dB.array() + 1).matrix());
  CHECK(from_one.d.dU == (from_zero.d.dU.array() + 1).matrix());
  CHECK(from_one.keys == (from_zero.keys.array() + 1).matrix());
  CHECK(from_one.d.dc == from_zero.d.dc);
  CHECK(from_one.lags == from_zero.lags);
}

TEMPLATE_TEST_CASE("each feature is combined with each column once, with columns of G and sizes of maximum 1",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>, r = W + 2, p = W + std::min<Index>(3, W - 1);  // one group, and columns
  Workspace workspace;
  for (const bool sized : {false, true}) {
    Case<T> x(20, 24, r, p);
    for (Index k = 0; k < p; ++k) x.G.col(k) *= std::ldexp(T(1), static_cast<int>(k) - 9);
    if (sized) x.take_sizes(9);  // far above the last column of G, so that their scales differ
    const auto scale = [&](Index k) {
      return power_of_two_scale<T>(sized && k == p - 1 ? x.sizes.maxCoeff() : x.G.col(k).cwiseAbs().maxCoeff());
    };
    // whether a signal is as expected, with zeros after its last token
    const auto is = [&](const auto& at, const auto& expected) {
      for (Index i = 0; i < x.length; ++i)
        if (at(i) != (i < expected.size() ? expected[i] : T(0))) return false;
      return true;
    };
    const auto scaled = [&](Index k) {
      return std::pair((x.U.col(k) * scale(k)).eval(), (x.G.col(k) / scale(k)).eval());
    };
    Matrix<int> met = Matrix<int>::Zero(r, p);
    int met_sizes = 0;
    const auto group = [&](const GroupSignals<T>& s) {
      for (Index f = 0; f < r; ++f)
        for (Index k = 0; k < W; ++k) {
          const auto [u, g] = scaled(k);
          met(f, k) += is([&](Index i) { return s.a[i]; }, x.A.col(f)) &&
                       is([&](Index j) { return s.b[j]; }, x.B.col(f)) && is([&](Index j) { return s.u[j][k]; }, u) &&
                       is([&](Index i) { return s.g[i][k]; }, g);
        }
    };
    const auto column = [&](const ColumnSignals<T>& s) {
      const auto of = [](const T* values) { return [=](Index i) { return values[i]; }; };
      const bool of_sizes = s.da == nullptr;
      CHECK(of_sizes == (s.db == nullptr));
      for (Index k = W; k < p; ++k) {
        const auto [u, g] = scaled(k);
        if (!is(of(s.u), u)) continue;
        if (of_sizes) {
          met_sizes += is(of(s.g), (x.sizes / scale(k)).eval());
          continue;
        }
        for (Index l = 0; l < W; ++l) {
          const Index f = s.a.first + l;
          bool same = is(of(s.g), g);
          for (Index i = 0; i < 20; ++i) same = same && s.a.row(i)[l] == (f < r ? x.A(i, f) : T(0));
          for (Index j = 0; j < 24; ++j) same = same && s.b.row(j)[l] == (f < r ? x.B(j, f) : T(0));
          CHECK(same);
          if (f < r) met(f, k) += same;
        }
      }
    };
    const auto got = x.run(Team(workspace), [&](const auto& s) {
      if constexpr (std::is_same_v<decltype(s), const ColumnSignals<T>&>)
        column(s);
      else
        group(s);
    });
    CHECK((met.array() == 1).all());
    CHECK(met_sizes == (sized ? 2 : 0));  // of both blocks of features
    CHECK((got.d.dA.isZero(0) && got.d.dB.isZero(0) && got.d.dU.isZero(0) && got.d.dc.isZero(0)));
    CHECK((got.keys.isZero(0) && got.lags.isZero(0)));
  }
}

TEMPLATE_TEST_CASE("columns of zeros get no gradient", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  Workspace workspace;
  Case<T> x(20, 24, W + 1, 2 * W + 4);
  const std::vector<Index> zeros{1, W + 1, 2 * W + 1, 2 * W + 3};
  for (const Index k : zeros) x.G.col(k).setZero();
  CHECK(error(x, x.run_loops(Team(workspace))) <= 1);
  const auto got = x.run(Team(workspace), [&](const auto& s) { std::fill_n(s.du, 24, *s.du + 1); });
  for (Index k = 0; k < x.U.cols(); ++k) {
    INFO("column " << k);
    CHECK((got.d.dU.col(k).array() == 0).all() == (std::count(zeros.begin(), zeros.end(), k) == 1));
  }
}

TEMPLATE_TEST_CASE("no bit of the gradients of signals depends on the number of threads", "[toeplitz][threads]",
                   NPRF_TEST_SCALARS) {
  for (const Index p : {4, 40}) {
    Case<TestType> x(150, 140, 37, p);
    x.take_sizes();
    SizedGradients<TestType> first({}, 0);
    with_team_sizes([&](const Team& team) {
      const SizedGradients<TestType> got = x.run_loops(team);
      if (team.size() == 1) first = got;
      CHECK(same_bits(got.d, first.d));
      CHECK((got.keys == first.keys && got.lags == first.lags));
    });
  }
}

}  // namespace nprf::test::toeplitz_fft_backward
