// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/banded/tail_states.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_banded_tail_states {

using toeplitz::ExponentialTail;
using toeplitz::Side;
using toeplitz::TailStates;
using toeplitz::TailTiles;
using toeplitz::Windows;

namespace {

// the tolerance of a sum of n terms, each decayed and rounded in up to `tiles` tiles
template <class T>
double growth(Index n, Index tiles = 0) {
  return epsilon<T> * std::sqrt(static_cast<double>(16 + n + 2 * tiles));
}

// factor P_i^T Q_i, and the same with absolute values
struct Sum {
  Sum(Index r, Index p) : values(Matrix<double>::Zero(r, p)), magnitude(values) {}

  template <class T>
  void add(const Matrix<T>& P, const Matrix<T>& Q, Index i, double factor = 1) {
    const Matrix<double> term = P.row(i).template cast<double>().transpose() * Q.row(i).template cast<double>();
    values += factor * term;
    magnitude += factor * term.cwiseAbs();
  }

  Matrix<double> values, magnitude;
};

}  // namespace

TEST_CASE("each row is scaled by its factor", "[toeplitz]") {
  Workspace workspace;
  const Matrix<double> X = normal<double>(11, 3, 1);
  const auto factor = [](Index i) { return static_cast<double>(i + 1); };
  for (const Index rows : {0, 1, 7}) {
    const auto Z = toeplitz::scaled_rows<double>(X, 4, rows, workspace, factor);
    REQUIRE((Z.rows() == rows && Z.cols() == 3));
    for (Index i = 0; i < rows; ++i) CHECK(Z.row(i) == factor(4 + i) * X.row(4 + i));
  }
}

TEMPLATE_TEST_CASE("a sum over all rows is P^T Q or P^T [Q 1], and no bit of it depends on the number of threads",
                   "[toeplitz][threads]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index n : {0, 1, 127, 1023, 1024, 2049, 5003, 40009}) {
    const Matrix<T> P = normal<T>(n, 3, 1), Q = normal<T>(n, 5, 2), Q1 = with_ones(Q);
    Sum expected(3, 6);
    for (Index i = 0; i < n; ++i) expected.add(P, Q1, i);
    for (const Index cols : {5, 6}) {
      Matrix<T> first;
      with_team_sizes([&](const Team& team) {
        auto S = team.workspace().template matrix<T>(3, cols);
        S.setConstant(17);
        toeplitz::sum_of_outer<T>(P, Q, S, team);
        if (team.size() == 1) first = S;
        INFO(n << " rows, " << cols << " columns, " << team.size() << " threads");
        CHECK(worst_ratio(S, expected.values.leftCols(cols), growth<T>(n) * expected.magnitude.leftCols(cols)) <= 1);
        CHECK(same_bits<T>(S, first));
      });
    }
  }
}

//     of keys      S_I = sum of exp(slope |t_j - (pivot_I + edge)|) P_j^T Q_j
//     of queries   S_I = sum of exp(slope |s_i - pivot_I|) P_i^T Q_i: on the way to pivot_I lies pivot_J
// with a column of ones after Q for keys
TEMPLATE_TEST_CASE(
    "the sums of a tile are those over its keys in the tail, and over the queries with these keys in their tail",
    "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n_q = 230, n_k = 311, r = 3, p = 2;
  const std::vector<Index> q = random_slots(n_q, 0.6, 1), k = random_slots(n_k, 0.8, 2);
  const Slots queries{static_cast<Index>(q.size()), 0, q.data()}, keys{static_cast<Index>(k.size()), 0, k.data()};
  const Matrix<T> A = normal<T>(queries.count, r, 3), G = normal<T>(queries.count, p, 4),
                  B = normal<T>(keys.count, r, 5), U = normal<T>(keys.count, p, 6), U1 = with_ones(U);
  const MatrixView<T> a = A, g = G, b = B, u = U;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  for (const Side side : {Side::before, Side::after})
    for (const double slope : {0.0, -0.003, -0.5}) {
      const bool before = side == Side::before;
      INFO((before ? "before" : "after") << ", slope " << slope);
      const LagWeights<T> c = exp_weights(LagBias<T>{-3, normal_vector<T>(8, 7), T(slope), T(slope)}, {-229, 310});
      const ExponentialTail<T> tail(side, c.view(), {n_q, n_k, r, p});
      const TailTiles<T> at(tail, {a, b, u, queries, keys}, 7);
      const auto power = [&](Index distance) { return std::exp(tail.slope * static_cast<double>(std::abs(distance))); };
      const auto of_keys = [&](Index I) {
        Sum sum(r, p + 1);
        if (I < 0 || I >= at.tiles()) return sum;
        const Index edge = at.pivot(I) + tail.edge;
        for (Index j = 0; j < keys.count; ++j)
          if (before ? keys[j] <= edge : keys[j] >= edge) sum.add(B, U1, j, power(keys[j] - edge));
        return sum;
      };
      const auto of_queries = [&](Index I) {
        Sum sum(r, p);
        if (I < 0 || I >= at.tiles()) return sum;
        for (Index i = 0; i < queries.count; ++i)
          if (before ? i >= at.first(I) : i < at.first(I) + at.rows(I))
            sum.add(A, G, i, power(queries[i] - at.pivot(I)));
        return sum;
      };
      const auto check = [&](const TailStates<T>& sums, Index I, const Sum& expected) {
        const double tolerance = growth<T>(keys.count, at.tiles());
        INFO("tile " << I << " of " << at.tiles());
        CHECK(worst_ratio(sums.at(I), expected.values, tolerance * expected.magnitude) <= 1);
      };
      const Windows windows{at.tiles(), 5};
      TailStates<T> S(TailStates<T>::Of::keys, at, b, u, windows, team, 1),
          N(TailStates<T>::Of::queries, at, a, g, windows, team);
      for (Index window = 0; window < windows.count(); ++window) {
        S.fill(window, team);
        N.fill(window, team);
        const Index begin = windows.begin(window), end = windows.end(window);
        for (Index I = begin; I < end; ++I) check(S, I, of_keys(I)), check(N, I, of_queries(I));
        // the tile before the window in the order of the sum, zeros if there is none
        const Index inner = before ? begin - 1 : end, outer = before ? end : begin - 1;
        check(S, inner, of_keys(inner));
        check(N, outer, of_queries(outer));
      }
    }
}

TEST_CASE("a tile sums very many keys in its tail, and errors do not grow with their number", "[toeplitz]") {
  const Index n_q = 3, n_k = 40011, r = 1, p = 1;
  const Matrix<float> A = Matrix<float>::Ones(n_q, r), B = Matrix<float>::Constant(n_k, r, 0.7f),
                      U = Matrix<float>::Ones(n_k, p);
  const MatrixView<float> a = A, b = B, u = U;
  Workspace workspace;
  const Team team(workspace);
  for (const Side side : {Side::before, Side::after}) {
    const bool before = side == Side::before;
    const LagWeights<float> c = exp_weights(LagBias<float>{}, {-n_k, n_k});
    const ExponentialTail<float> tail(side, c.view(), {n_q, n_k, r, p});
    // queries after all keys, or before them
    std::vector<Index> slots(static_cast<std::size_t>(n_q)), at_keys(static_cast<std::size_t>(n_k));
    for (Index i = 0; i < n_q; ++i) slots[static_cast<std::size_t>(i)] = before ? n_k + i : i;
    for (Index j = 0; j < n_k; ++j) at_keys[static_cast<std::size_t>(j)] = before ? j : n_q + 1 + j;
    const Slots queries{n_q, 0, slots.data()}, keys{n_k, 0, at_keys.data()};
    const TailTiles<float> at(tail, {a, b, u, queries, keys}, n_q);
    const Windows windows{at.tiles(), 1};
    TailStates<float> S(TailStates<float>::Of::keys, at, b, u, windows, team);
    S.fill(0, team);
    CHECK(std::abs(static_cast<double>(S.at(0)(0, 0)) / (0.7f * static_cast<double>(n_k)) - 1) <= 20 * epsilon<float>);
  }
}

}  // namespace nprf::test::toeplitz_banded_tail_states
