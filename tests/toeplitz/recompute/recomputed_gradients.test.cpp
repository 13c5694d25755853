// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/recompute/recomputed_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "nprf/core/long_sums.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_recompute_recomputed_gradients {

using toeplitz::PairWeights;
using toeplitz::RecomputedGradients;

namespace {

// sums, and the sums of the magnitudes of their terms
struct Sums {
  Sums(Index rows, Index cols) : values(Matrix<double>::Zero(rows, cols)), magnitude(values) {}
  template <class Row>
  void add(Index row, double factor, double size, const Row& x) {
    values.row(row) += factor * x;
    magnitude.row(row) += size * x.cwiseAbs();
  }
  Matrix<double> values, magnitude;
};

// tokens in slots, their log-scales, and their gradients
template <class T>
struct Case {
  Case(std::vector<Index> q, std::vector<Index> k, Index span, LagRange support, bool with_exponents)
      : x(span, span + 20, std::move(q), std::move(k), 5, 3),
        dA(x.A.rows(), 5),
        dB(x.B.rows(), 5),
        dU(x.B.rows(), 3),
        dc(2 * span + 19, 1) {
    for (Index lag = x.c.first; lag <= x.c.last(); ++lag)
      if (lag < support.first || lag > support.last || lag == 3) x.c.values[lag - x.c.first] = 0;
    x.c.values = x.c.values.cwiseAbs();
    if (with_exponents) e = 20 * normal_vector<double>(x.B.rows(), 9);
    const auto wide = [](const Matrix<T>& X) { return Matrix<double>(X.template cast<double>()); };
    const Matrix<double> A = wide(x.A), B = wide(x.B), U = wide(x.U), G = wide(x.G);
    for (Index i = 0; i < A.rows(); ++i) {
      double largest = -std::numeric_limits<double>::infinity();
      for (Index j = 0; with_exponents && j < B.rows(); ++j)
        if (x.keys[j] <= x.queries[i] + x.c.support().last) largest = std::max(largest, e[j]);
      for (Index j = 0; j < B.rows(); ++j) {
        const Index lag = x.keys[j] - x.queries[i];
        const double factor = !with_exponents ? 1 : lag <= x.c.support().last ? std::exp(e[j] - largest) : 0;
        const double w = static_cast<double>(x.c[lag]) * factor, s = A.row(i).dot(B.row(j)), p = G.row(i).dot(U.row(j)),
                     s_size = A.row(i).cwiseAbs().dot(B.row(j).cwiseAbs()),
                     p_size = G.row(i).cwiseAbs().dot(U.row(j).cwiseAbs());
        dA.add(i, w * p, w * p_size, B.row(j));
        dB.add(j, w * p, w * p_size, A.row(i));
        dU.add(j, w * s, w * s_size, G.row(i));
        dc.values(lag + span - 1, 0) += s * p * factor;
        dc.magnitude(lag + span - 1, 0) += s_size * p_size * factor;
      }
    }
    growth = direct_growth<T>(A.cols() + U.cols(), A.rows() + B.rows());
  }

  Index first_lag() const { return 1 - x.span.n_q; }

  // the results of recompute(gradients), which are 17 before
  template <class Recompute>
  toeplitz::Gradients<T> after(const Team& team, Recompute&& recompute) const {
    const Workspace::Scope scope(team.workspace());
    toeplitz::Gradients<T> d({x.A.rows(), x.B.rows(), 5, 3});
    d.dc.resize(dc.values.rows());
    d.dA.setConstant(17), d.dB.setConstant(17), d.dU.setConstant(17), d.dc.setConstant(17);
    const MatrixView<T> a = x.A, b = x.B, u = x.U, g = x.G;
    const toeplitz::Factors<T> factors{a, b, u, x.queries, x.keys, e.size() > 0 ? e.data() : nullptr};
    const PairWeights<T> weights(x.c.view(), factors, team);
    toeplitz::GradientRefs<T> out{d.dA, d.dB, d.dU, d.dc};
    recompute(RecomputedGradients<T>(weights, factors, g, out, team));
    return d;
  }

  // these rows are the sums, and the others are as they were
  double error(const Matrix<T>& got, const Sums& sums, const std::vector<Index>& rows) const {
    Matrix<double> expected = Matrix<double>::Constant(got.rows(), got.cols(), 17),
                   tolerance = Matrix<double>::Zero(got.rows(), got.cols());
    // numbers below the smallest normal number may be lost
    const double lost =
        static_cast<double>(x.A.rows() + x.B.rows()) * static_cast<double>(std::numeric_limits<T>::min());
    for (const Index row : rows)
      expected.row(row) = sums.values.row(row), tolerance.row(row) = (growth * sums.magnitude.row(row)).array() + lost;
    return worst_ratio(got, expected, tolerance);
  }

  InSlots<T> x;
  Vector<double> e;
  Sums dA, dB, dU, dc;
  double growth;
};

// use(case) of tokens with and without gaps, of weights for the past, the future and both, with and without log-scales
template <class T, class Use>
void with_cases(Use&& use) {
  for (const Index span : {1, 7, 130, 210})
    for (const LagRange& support : {LagRange{-300, 300}, LagRange{-300, 0}, LagRange{-30, -9}, LagRange{2, 300}})
      for (const bool gaps : {false, true}) {
        const bool with_exponents = support.last < 300 && gaps == (span > 7);
        INFO(span << " slots, lags " << support.first << " to " << support.last << (gaps ? ", gaps" : "")
                  << (with_exponents ? ", exponents" : ""));
        if (gaps)
          use(Case<T>(random_slots(span, 0.6, 1), random_slots(span + 20, 0.6, 2), span, support, with_exponents));
        else
          use(Case<T>(all_rows(span), all_rows(span + 20), span, support, with_exponents));
      }
}

// some of n numbers, unevenly
std::vector<Index> some_of(Index n) { return n < 4 ? all_rows(n) : random_slots(n, 0.2, 11); }

}  // namespace

TEMPLATE_TEST_CASE(
    "gradients of some queries, keys and lags are the sums that define them, and the others do not change",
    "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  with_cases<T>([&](const Case<T>& of) {
    const std::vector<Index> queries = some_of(of.x.A.rows()), keys = some_of(of.x.B.rows());
    std::vector<Index> at = some_of(of.dc.values.rows());
    // log-scales are relative to keys that have a weight
    if (of.e.size() > 0) std::erase_if(at, [&](Index l) { return l + of.first_lag() > of.x.c.support().last; });
    std::vector<Index> lags = at;
    for (Index& lag : lags) lag += of.first_lag();
    const auto by_query = of.after(team, [&](const auto& again) { again.queries(queries); });
    CHECK(of.error(by_query.dA, of.dA, queries) <= 1);
    CHECK(of.error(by_query.dB, of.dB, {}) == 0);
    CHECK(of.error(by_query.dU, of.dU, {}) == 0);
    CHECK(of.error(by_query.dc, of.dc, {}) == 0);
    const auto by_key = of.after(team, [&](const auto& again) { again.keys(keys); });
    CHECK(of.error(by_key.dA, of.dA, {}) == 0);
    CHECK(of.error(by_key.dB, of.dB, keys) <= 1);
    CHECK(of.error(by_key.dU, of.dU, keys) <= 1);
    CHECK(of.error(by_key.dc, of.dc, {}) == 0);
    const auto by_lag = of.after(team, [&](const auto& again) { again.lags(lags, of.first_lag()); });
    CHECK(of.error(by_lag.dA, of.dA, {}) == 0);
    CHECK(of.error(by_lag.dB, of.dB, {}) == 0);
    CHECK(of.error(by_lag.dU, of.dU, {}) == 0);
    CHECK(of.error(by_lag.dc, of.dc, at) <= 1);
  });
}

TEMPLATE_TEST_CASE("all gradients recomputed at once are the sums that define them, and zero for lags without weight",
                   "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  with_cases<T>([&](const Case<T>& of) {
    toeplitz::Gradients<T> d = of.after(team, [&](const auto& again) { again.all(of.first_lag()); });
    CHECK(of.error(d.dA, of.dA, all_rows(of.x.A.rows())) <= 1);
    CHECK(of.error(d.dB, of.dB, all_rows(of.x.B.rows())) <= 1);
    CHECK(of.error(d.dU, of.dU, all_rows(of.x.B.rows())) <= 1);
    std::vector<Index> weighted;
    for (Index l = 0; l < d.dc.size(); ++l)
      if (of.x.c[l + of.first_lag()] != 0)
        weighted.push_back(l);
      else
        CHECK(std::exchange(d.dc[l], T(17)) == 0);
    CHECK(of.error(d.dc, of.dc, weighted) <= 1);
  });
}

TEST_CASE("pairs of a lag are each of its queries and keys once", "[toeplitz]") {
  const Case<double> of(random_slots(50, 0.5, 1), random_slots(70, 0.5, 2), 50, {-300, 300}, false);
  Workspace workspace;
  const Team team(workspace);
  of.after(team, [&](const RecomputedGradients<double>& again) {
    for (Index lag = -60; lag < 80; ++lag) {
      std::vector<std::pair<Index, Index>> expected, got;
      for (Index i = 0; i < of.x.A.rows(); ++i)
        for (Index j = 0; j < of.x.B.rows(); ++j)
          if (of.x.keys[j] - of.x.queries[i] == lag) expected.emplace_back(i, j);
      again.for_each_pair(lag, [&](Index i, Index j) { got.emplace_back(i, j); });
      CHECK(got == expected);
    }
  });
}

TEMPLATE_TEST_CASE("recomputed gradients: no bit depends on the number of threads", "[toeplitz][threads]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Case<T> of(random_slots(400, 0.8, 1), random_slots(420, 0.8, 2), 400, {-300, 0}, true);
  std::vector<toeplitz::Gradients<T>> first;
  with_team_sizes([&](const Team& team) {
    const std::vector<Index> queries = some_of(of.x.A.rows()), keys = some_of(of.x.B.rows()), lags = all_rows(300);
    std::vector<toeplitz::Gradients<T>> now;
    now.push_back(of.after(
        team, [&](const auto& again) { again.queries(queries), again.keys(keys), again.lags(lags, of.first_lag()); }));
    now.push_back(of.after(team, [&](const auto& again) { again.all(of.first_lag()); }));
    if (team.size() == 1) first = now;
    for (std::size_t k = 0; k < now.size(); ++k) CHECK(same_bits(now[k], first[k]));
  });
}

TEMPLATE_TEST_CASE("recomputed gradients: errors do not grow with the number of keys", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 7, n_k = 50 * chunk_keys + 5;
  const Matrix<T> A = Matrix<T>::Ones(n_q, 1), B = Matrix<T>::Ones(n_k, 1), U = Matrix<T>::Constant(n_k, 1, T(0.1)),
                  G = Matrix<T>::Ones(n_q, 1);
  const LagWeights<T> c{-(n_q - 1), Vector<T>::Ones(n_q + n_k - 1)};
  Workspace workspace;
  const Team team(workspace);
  const MatrixView<T> a = A, b = B, u = U, g = G;
  const toeplitz::Factors<T> factors{a, b, u, Slots{n_q}, Slots{n_k}};
  Matrix<T> dA(n_q, 1), dB(n_k, 1), dU(n_k, 1);
  Vector<T> dc(0);
  toeplitz::GradientRefs<T> out{dA, dB, dU, dc};
  const PairWeights<T> weights(c.view(), factors, team);
  RecomputedGradients<T>(weights, factors, g, out, team).queries(all_rows(n_q));
  // equal terms, by tiles of 64 keys
  const double roundings = 64 + static_cast<double>(chunk_keys) / 64 + 2;
  const double exact = static_cast<double>(T(0.1)) * static_cast<double>(n_k);
  CHECK(worst_ratio(dA, Matrix<double>::Constant(n_q, 1, exact), epsilon<T> / 2 * roundings * exact) <= 1);
}

}  // namespace nprf::test::toeplitz_recompute_recomputed_gradients
