// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/recompute/recomputed_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_recompute_pair_weights {

using toeplitz::PairWeights;

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();

// weights of tokens with gaps, up to a last lag, and the expected ones
template <class T>
struct Case {
  explicit Case(Index last_lag, bool with_exponents = false)
      : x(70, 90, random_slots(70, 0.6, 1), random_slots(90, 0.6, 2), 2, 2) {
    for (Index lag = last_lag + 1; lag <= x.c.last(); ++lag) x.c.values[lag - x.c.first] = 0;
    if (with_exponents) {
      e = 30 * normal_vector<double>(x.B.rows(), 5);
      e[0] = never;
    }
  }

  // the largest log-scale of the keys up to the last slot that row i has a weight for
  double largest(Index i) const {
    double most = never;
    for (Index j = 0; j < x.B.rows(); ++j)
      if (x.keys[j] <= x.queries[i] + x.c.support().last) most = std::max(most, e[j]);
    return most;
  }
  double expected(Index i, Index j) const {
    const double c = static_cast<double>(x.c[x.keys[j] - x.queries[i]]);
    return c == 0 || e.size() == 0 ? c : e[j] == never ? 0 : c * std::exp(e[j] - largest(i));
  }

  InSlots<T> x;
  Vector<double> e;
};

// use(case, weights)
template <class T, class Use>
void with_weights(Use&& use) {
  for (const Index last : {89, 0, 7, -7})
    for (const bool with_exponents : {false, true}) {
      INFO("last lag " << last << (with_exponents ? ", exponents" : ""));
      const Case<T> of(last, with_exponents);
      Workspace workspace;
      const Team team(workspace);
      const MatrixView<T> a = of.x.A, b = of.x.B, u = of.x.U;
      use(of, PairWeights<T>(of.x.c.view(), {a, b, u, of.x.queries, of.x.keys, of.e.size() > 0 ? of.e.data() : nullptr},
                             team));
    }
}

}  // namespace

TEMPLATE_TEST_CASE("weights of pairs are those of their lags and log-scales", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  with_weights<T>([](const Case<T>& of, const PairWeights<T>& weights) {
    // the ranges contain all pairs of non-zero weight, and nothing before the first or after the last lag
    const LagRange support = of.x.c.support();
    const auto lag_of = [&](Index i, Index j) { return of.x.keys[j] - of.x.queries[i]; };
    const auto attends = [&](Index i, Index j) {
      return support.first <= lag_of(i, j) && lag_of(i, j) <= support.last;
    };
    const auto count = [&](Index i, Index i_last, Index j, Index j_last) {
      Index pairs = 0;
      for (Index k = i; k <= i_last; ++k)
        for (Index l = j; l <= j_last; ++l) pairs += attends(k, l);
      return pairs;
    };
    const Index n_q = of.x.A.rows(), n_k = of.x.B.rows();
    for (Index i = 0; i < n_q; i += 5)
      for (Index i_last = i; i_last < std::min(n_q, i + 4); ++i_last) {
        const toeplitz::RowRange keys = weights.keys_of(i, i_last);
        CHECK(count(i, i_last, 0, keys.begin - 1) + count(i, i_last, keys.end, n_k - 1) == 0);
        if (keys.size() > 0)
          CHECK((lag_of(i, keys.begin) >= support.first && lag_of(i_last, keys.end - 1) <= support.last));
      }
    for (Index j = 0; j < n_k; j += 5)
      for (Index j_last = j; j_last < std::min(n_k, j + 4); ++j_last) {
        const toeplitz::RowRange queries = weights.queries_of(j, j_last);
        CHECK(count(0, queries.begin - 1, j, j_last) + count(queries.end, n_q - 1, j, j_last) == 0);
        if (queries.size() > 0)
          CHECK((lag_of(queries.begin, j) <= support.last && lag_of(queries.end - 1, j_last) >= support.first));
      }
    for (Index lag = -80; lag < 100; ++lag) CHECK(weights.at_lag(lag) == of.x.c[lag]);
    const double lost = 4 * static_cast<double>(std::numeric_limits<T>::denorm_min());
    for (Index i = 0; i < of.x.A.rows(); ++i)
      for (Index j = 0; j < of.x.B.rows(); ++j) {
        const double expected = of.expected(i, j);
        CHECK(std::abs(static_cast<double>(weights(i, j)) - expected) <= 4 * epsilon<T> * std::abs(expected) + lost);
        const Index lag = of.x.keys[j] - of.x.queries[i];
        if (of.x.c[lag] != 0) CHECK(weights(i, j) == of.x.c[lag] * weights.factor(i, j));
        CHECK((weights.factor(i, j) >= 0 && weights.factor(i, j) <= 1));
      }
  });
}

TEMPLATE_TEST_CASE("the factor of a key that no query attends to is 0, however large its log-scale", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Case<T> of(0, true);
  const Index last = of.x.B.rows() - 1;
  of.e[last] = 1e300;
  Workspace workspace;
  const Team team(workspace);
  const MatrixView<T> a = of.x.A, b = of.x.B, u = of.x.U;
  const PairWeights<T> weights(of.x.c.view(), {a, b, u, of.x.queries, of.x.keys, of.e.data()}, team);
  REQUIRE(of.x.keys[last] > of.x.queries[of.x.A.rows() - 1]);
  for (Index i = 0; i < of.x.A.rows(); ++i) CHECK(weights.factor(i, last) == 0);
}

}  // namespace nprf::test::toeplitz_recompute_pair_weights
