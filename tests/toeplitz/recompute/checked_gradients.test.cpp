// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/recompute/checked_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/error_bound_case.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_recompute_checked_gradients {

using toeplitz::CheckedGradients;
using toeplitz::GradientChecks;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

template <class T>
struct Found {
  toeplitz::Gradients<T> d;
  GradientChecks checks;

  bool same(const Found& other) const {
    return same_bits(d, other.d) && checks.queries == other.checks.queries && checks.keys == other.checks.keys &&
           checks.lags == other.checks.lags && checks.error_bound == other.checks.error_bound;
  }
};

// A product whose G is at most 1, as those of attention are: each row's largest entry is about 1, and its size is no
// smaller than that of its last column.
template <class T>
struct Case {
  Case(Index n_q, Index n_k, const HostileBias& bias, Index last, Index r = 4, Index p = 3, double spread = 0.5)
      : c(bias.weights<T>(n_q, n_k, last)), queries{n_q}, keys{n_k} {
    x.A = (spread * normal<double>(n_q, r, 1)).array().exp().template cast<T>();
    x.B = (spread * normal<double>(n_k, r, 2)).array().exp().template cast<T>();
    x.U = normal<T>(n_k, p, 3) / T(5);
    x.U = x.U.cwiseMin(T(1)).cwiseMax(T(-1));
    x.U.col(p - 1).setOnes();
    x.G = normal<T>(n_q, p, 5);
    settle();
  }

  // the same with gradients at most 1, sizes and rows that fit them
  void settle() {
    x.G = x.G.rowwise().maxCoeff().cwiseMax(-x.G.rowwise().minCoeff()).cwiseInverse().asDiagonal() * x.G;
    x.sizes = x.G.cwiseAbs().rowwise().sum();
    // sum_j c[j-i] A_i.B_j
    rows.setZero(x.A.rows());
    for (Index i = 0; i < x.A.rows(); ++i)
      for (Index j = 0; j < x.B.rows(); ++j)
        rows[i] += static_cast<T>(c[keys[j] - queries[i]]) * std::abs(x.A.row(i).dot(x.B.row(j)));
  }

  // the largest ratio of the sum of magnitudes to the sum: a sum by tiles is rounded relative to its terms
  double condition() const {
    double worst = 1;
    for (Index i = 0; i < x.A.rows() && !x.all_positive; ++i) {
      double sum = 0;
      for (Index j = 0; j < x.B.rows(); ++j)
        sum += static_cast<double>(c[keys[j] - queries[i]]) * static_cast<double>(x.A.row(i).norm()) *
               static_cast<double>(x.B.row(j).norm());
      worst = std::max(worst, sum / static_cast<double>(rows[i]));
    }
    return worst;
  }

  Found<T> find(Engine engine, double tolerance, const Team& team, bool with_lags = true) const {
    const Workspace::Scope scope(team.workspace());
    const MatrixView<T> a = x.A, b = x.B, u = x.U, g = x.G;
    const ProductShape span{queries[queries.count - 1] + 1, keys[keys.count - 1] + 1, x.A.cols(), x.U.cols()};
    const toeplitz::Product<T> product(engine, c.view(), span, team);
    Found<T> found{toeplitz::Gradients<T>({x.A.rows(), x.B.rows(), x.A.cols(), x.U.cols()}), {}};
    found.d.dA.setConstant(17), found.d.dB.setConstant(17), found.d.dU.setConstant(17);
    found.d.dc = Vector<T>::Constant(with_lags ? product.num_lags() : 0, 17);
    found.checks = CheckedGradients<T>(product, {a, b, u, queries, keys, x.e.size() > 0 ? x.e.data() : nullptr}, g,
                                       {x.sizes.data(), rows.data(), x.all_positive, tolerance}, team)
                       .find({found.d.dA, found.d.dB, found.d.dU, found.d.dc});
    return found;
  }
  Found<T> find(Engine engine, double tolerance, bool with_lags = true) const {
    Workspace workspace;
    return find(engine, tolerance, Team(workspace), with_lags);
  }

  // the largest errors of dA, dB, dU and dc relative to their sums (GradientMeasure), for lags with a weight
  struct Errors {
    double queries = 0, keys = 0, values = 0, lags = 0;
    double most() const { return std::max({queries, keys, values, lags}); }
  };
  Errors errors(const Found<T>& found) const {
    Errors worst;
    const ExactGradients<T> exact(c, x);
    const auto add = [](double& to, double error, double sum) {
      if (!(error == 0)) to = std::max(to, std::isnan(error) ? never : error / sum);
    };
    const Matrix<Wide<T>> dA = (found.d.dA.template cast<Wide<T>>() - exact.dA).cwiseAbs(),
                          dB = (found.d.dB.template cast<Wide<T>>() - exact.dB).cwiseAbs(),
                          dU = (found.d.dU.template cast<Wide<T>>() - exact.dU).cwiseAbs();
    const auto along = [&](const auto& error, const Matrix<T>& X, Index i) {
      const auto row = X.row(i).cwiseAbs().template cast<Wide<T>>().eval();
      return static_cast<double>(x.all_positive ? error.dot(row) : error.norm() * row.norm());
    };
    for (Index i = 0; i < x.A.rows(); ++i)
      add(worst.queries, along(dA.row(i), x.A, i), static_cast<double>(rows[i]) * static_cast<double>(x.sizes[i]));
    for (Index j = 0; j < x.B.rows(); ++j) {
      const double sum = static_cast<double>(exact.keys[j]);
      add(worst.keys, along(dB.row(j), x.B, j), 2 * sum);
      add(worst.values, static_cast<double>(dU.row(j).maxCoeff()), sum);
    }
    for (Index l = 0; l < found.d.dc.size(); ++l)
      if (c[c.first + l] != 0)
        add(worst.lags, std::abs(static_cast<double>(found.d.dc[l] - exact.dc[l])),
            2 * static_cast<double>(exact.lags[l]));
    return worst;
  }

  LagWeights<T> c;
  Slots queries, keys;
  ErrorBoundCase<T> x;
  Vector<T> rows;
};

template <class T>
constexpr double tolerance_of = sizeof(T) == 4 ? 1e-4 : 1e-10;

}  // namespace

TEMPLATE_TEST_CASE("checked gradients: errors are at most the tolerance and direct rounding, whatever the bias",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 170, n_k = 150;
  GradientChecks sum;
  int turn = 0;
  for (const HostileBias& bias : hostile_biases())
    for (const char* kind : {"benign", "features of all sizes", "both signs", "long tokens", "columns apart"}) {
      const Index last = ++turn % 2 == 0 ? 0 : n_k, p = kind[0] == 'c' ? 18 : 3;
      Case<T> x(n_q, n_k, bias, last, 4, p, kind[0] == 'f' ? 3 : 0.5);
      switch (kind[0]) {
        case 'b':
          if (kind[1] == 'e') break;
          x.x.A = normal<T>(n_q, 4, 1), x.x.B = normal<T>(n_k, 4, 2), x.x.all_positive = false;
          break;
        case 'l':
          for (Index i = 0; i < n_q; ++i) x.x.A.row(i) *= std::exp(static_cast<T>(i % 7) - T(3));
          for (Index j = 0; j < n_k; ++j) x.x.B.row(j) *= std::exp(static_cast<T>(-2 * (j % 5)));
          break;
        case 'c':  // small columns of G that share a transform with one that is large in a single row
          x.x.U.setOnes();
          x.x.G.setConstant(T(1e-4));
          x.x.G.col(0).setOnes();
          x.x.G.row(n_q / 2).setOnes();
          for (Index k = 1; k < p; k += 2) x.x.G(n_q / 2, k) = T(1e-4);
          break;
        default: break;
      }
      x.settle();
      for (const Engine engine : fft_engines()) {
        const Found<T> found = x.find(engine, tolerance_of<T>);
        const auto e = x.errors(found);
        INFO(name(engine) << ", " << bias.name << ", last lag " << last << ", " << kind << ": dA " << e.queries
                          << ", dB " << e.keys << ", dU " << e.values << ", dc " << e.lags << "; recomputed "
                          << found.checks.queries << ", " << found.checks.keys << ", " << found.checks.lags);
        CHECK(e.most() <= found.checks.error_bound + 2 * direct_growth<T>(4 + p, n_q + n_k) * x.condition());
        CHECK(found.checks.error_bound <= tolerance_of<T> / 2);
        sum.queries += found.checks.queries, sum.keys += found.checks.keys, sum.lags += found.checks.lags;
      }
    }
  INFO(sum.queries << ", " << sum.keys << ", " << sum.lags);
  CHECK((sum.queries > 500 && sum.keys > 500 && sum.lags > 50));
}

TEMPLATE_TEST_CASE("checked gradients: none is recomputed if the weights are balanced", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Engine engine : fft_engines()) {
    INFO(name(engine));
    const Case<T> x(170, 150, hostile_biases()[0], 150);
    const Found<T> found = x.find(engine, tolerance_of<T>), engines_own = x.find(engine, never);
    CHECK((found.checks.queries == 0 && found.checks.keys == 0));
    CHECK(found.checks.lags <= (sizeof(T) == 4 ? 4 : 0));  // lags of one or two pairs
    CHECK((found.checks.error_bound > 0 && found.checks.error_bound <= tolerance_of<T> / 2));
    CHECK(same_bits(found.d.dA, engines_own.d.dA));
    CHECK(same_bits(found.d.dB, engines_own.d.dB));
    CHECK(same_bits(found.d.dU, engines_own.d.dU));
    if (found.checks.lags == 0) CHECK(found.same(engines_own));
    // the reported bound is the one that decides
    const double most = engines_own.checks.error_bound;
    CHECK(x.find(engine, 2 * most).same(engines_own));
    const GradientChecks stricter = x.find(engine, 1.99 * most).checks;
    CHECK(stricter.queries + stricter.keys + stricter.lags > 0);
    CHECK(stricter.error_bound < most);
  }
}

TEMPLATE_TEST_CASE("checked gradients: keys whose features cancel are measured by norms", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Case<T> x(170, 150, hostile_biases()[0], 150);
  x.x.all_positive = false;
  x.x.A.col(1) = -x.x.A.col(0), x.x.A.col(3) = -x.x.A.col(2);
  x.settle();
  for (const Engine engine : fft_engines()) CHECK(x.find(engine, tolerance_of<T>).checks.keys == 0);
}

TEMPLATE_TEST_CASE("checked gradients: if few fail their bound, only these are recomputed", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 300, few = 10;
  // the first queries and the last keys have very small weights
  const double small = sizeof(T) == 4 ? 1e-3 : 1e-8;
  const HostileBias bias{"a gap", [=](double lag) { return lag > -few ? std::log(small) : 0; }};
  const Case<T> x(n, n, bias, 0);
  for (const Engine engine : fft_engines()) {
    const Found<T> found = x.find(engine, tolerance_of<T>), own = x.find(engine, never);
    INFO(name(engine) << ": " << found.checks.queries << ", " << found.checks.keys << ", " << found.checks.lags);
    // rows that differ from those of the engine
    const auto changed = [](const Matrix<T>& X, const Matrix<T>& Y) {
      Index count = 0;
      for (Index i = 0; i < X.rows(); ++i) count += !(X.row(i).array() == Y.row(i).array()).all();
      return count;
    };
    CHECK(x.errors(found).most() <= found.checks.error_bound + 2 * direct_growth<T>(7, 2 * n));
    CHECK(changed(found.d.dA, own.d.dA) <= found.checks.queries);
    CHECK(changed(found.d.dB, own.d.dB) <= found.checks.keys);
    CHECK(changed(found.d.dU, own.d.dU) <= found.checks.keys);
    CHECK(changed(found.d.dc, own.d.dc) <= found.checks.lags);
    CHECK(found.checks.lags <= few);
    // these are in one block: block_causal has no transforms for them
    if (engine == Engine::block_causal) continue;
    CHECK((found.checks.queries >= few / 2 && found.checks.queries <= 3 * few));
    CHECK((found.checks.keys >= few / 2 && found.checks.keys <= 3 * few));
    CHECK(changed(found.d.dB, own.d.dB) >= few / 2);
  }
}

TEMPLATE_TEST_CASE("checked gradients: features of both signs whose squares overflow are measured too", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 166;
  // early rows have small weights and large features
  const double slope = sizeof(T) == 4 ? 0.5 : 2.2;
  Case<T> x(n, n, {"rising", [=](double lag) { return -slope * (lag + static_cast<double>(n - 1)); }}, 0);
  x.x.A = normal<T>(n, 4, 1), x.x.B = normal<T>(n, 4, 2), x.x.all_positive = false;
  for (Index i = 0; i < n; ++i) x.x.A.row(i) *= static_cast<T>(std::exp(slope * static_cast<double>(n - 1 - i)));
  x.settle();
  for (const Engine engine : fft_engines()) {
    const Found<T> found = x.find(engine, tolerance_of<T>, false);
    const auto e = x.errors(found);
    INFO(name(engine) << ": dB " << e.keys << ", dU " << e.values << "; recomputed " << found.checks.keys);
    CHECK(std::max(e.keys, e.values) <= found.checks.error_bound + 2 * direct_growth<T>(7, 2 * n));
  }
}

TEMPLATE_TEST_CASE(
    "checked gradients: all are recomputed with tolerance 0 or if most fail their bound, none if it is infinite",
    "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index few = 150, many = 170;
  const Case<T> steep(many, few, {"steep", [](double lag) { return 0.3 * lag; }}, few),
      even(few, many, hostile_biases()[0], many);
  for (const Engine engine : fft_engines()) {
    INFO(name(engine));
    const auto check_all = [&](const Case<T>& x, const Found<T>& found, Index lags) {
      CHECK((found.checks.queries == x.x.A.rows() && found.checks.keys == x.x.B.rows() && found.checks.lags == lags));
      CHECK(found.checks.error_bound == 0);
      CHECK(x.errors(found).most() <= direct_growth<T>(7, few + many));
    };
    check_all(even, even.find(engine, 0, false), 0);
    check_all(even, even.find(engine, 0), few + many - 1);
    const Found<T> found = steep.find(engine, sizeof(T) == 4 ? 1e-6 : 1e-15);
    check_all(steep, found, few + many - 1);
    CHECK(found.same(steep.find(engine, 0)));
    for (const HostileBias& bias : hostile_biases()) {
      const GradientChecks none = Case<T>(60, 170, bias, 170).find(engine, never).checks;
      CHECK((none.queries == 0 && none.keys == 0 && none.lags == 0));
    }
  }
}

TEST_CASE("checked gradients: with rounding per row none is recomputed", "[toeplitz]") {
  const Case<double> x(150, 170, hostile_biases()[1], 170);
  for (const Engine engine : {Engine::direct, Engine::banded}) {
    const Found<double> found = x.find(engine, 0);
    CHECK((found.checks.queries == 0 && found.checks.keys == 0 && found.checks.lags == 0 &&
           found.checks.error_bound == 0));
    CHECK(x.errors(found).most() <= direct_growth<double>(7, 320));
  }
}

TEST_CASE("checked gradients: without queries or keys they are zero", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const LagWeights<double> c = random_weights<double>(20, 30, 4);
  const Matrix<double> none(0, 4), B = normal<double>(30, 4, 1), U = normal<double>(30, 3, 2), no_rows(0, 3);
  const MatrixView<double> a = none, b = B, u = U, g = no_rows;
  for (const Engine engine : fft_engines()) {
    const toeplitz::Product<double> product(engine, c.view(), {20, 30, 4, 3}, team);
    toeplitz::Gradients<double> d({0, 30, 4, 3});
    d.dc.setZero(product.num_lags());
    d.dB.setConstant(17), d.dU.setConstant(17), d.dc.setConstant(17);
    const GradientChecks checks =
        CheckedGradients<double>(product, {a, b, u, Slots{0}, Slots{30}}, g, {nullptr, nullptr, true, 0}, team)
            .find({d.dA, d.dB, d.dU, d.dc});
    CHECK((checks.queries == 0 && checks.keys == 0 && checks.lags == 0 && checks.error_bound == 0));
    CHECK((d.dB.isZero(0) && d.dU.isZero(0) && d.dc.isZero(0)));
  }
}

TEMPLATE_TEST_CASE("checked gradients: no bit depends on the number of threads", "[toeplitz][threads]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const bool all_positive : {true, false})
    for (const HostileBias& bias : {hostile_biases()[1], hostile_biases()[3]}) {
      Case<T> x(400, 420, bias, 420);
      x.x.all_positive = all_positive;
      for (const Engine engine : fft_engines())
        for (const double tolerance : {0.0, tolerance_of<T>}) {
          Found<T> first{toeplitz::Gradients<T>({}), {}};
          with_team_sizes([&](const Team& team) {
            Found<T> now = x.find(engine, tolerance, team);
            if (team.size() == 1) first = now;
            INFO(name(engine) << ", " << bias.name << ", " << team.size() << " threads");
            CHECK(now.same(first));
          });
        }
    }
}

}  // namespace nprf::test::toeplitz_recompute_checked_gradients
