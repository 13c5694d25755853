// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/product.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_error.hpp"

/// Products of tokens that leave slots empty, compared with the product of all slots with zeros in the gaps.
namespace nprf::test {

/// Returns a function that makes a product by an engine from (lags, span, team).
constexpr auto make_product(Engine engine) {
  return [=]<class T>(LagWeightsView<T> lags, const ProductShape& span, const Team& team) {
    return toeplitz::Product<T>(engine, lags, span, team);
  };
}

/// Random slots of 0..n-1, each with the same probability.
inline std::vector<Index> random_slots(Index n, double chance, std::uint64_t seed) {
  std::vector<Index> slots;
  const Matrix<double> draw = normal<double>(n, 2, seed);  // a pair's angle is uniform
  for (Index s = 0; s < n; ++s)
    if (std::atan2(draw(s, 0), draw(s, 1)) < (2 * chance - 1) * std::numbers::pi) slots.push_back(s);
  return slots;
}

/// The rows of X in their slots 0..n-1; zeros in the gaps.
template <class T>
Matrix<T> spread(const Matrix<T>& X, const Slots& slots, Index n) {
  Matrix<T> all = Matrix<T>::Zero(n, X.cols());
  for (Index i = 0; i < X.rows(); ++i) all.row(slots[i]) = X.row(i);
  return all;
}

/// [U u]
template <class T>
Matrix<T> beside(const Matrix<T>& U, const Vector<T>& u) {
  Matrix<T> all(U.rows(), U.cols() + 1);
  for (Index i = 0; i < U.rows(); ++i) all.row(i) << U.row(i), u[i];
  return all;
}
/// [U 1]
template <class T>
Matrix<T> with_ones(const Matrix<T>& U) {
  return beside<T>(U, Vector<T>::Ones(U.rows()));
}

/// Tokens in some of the slots that an engine is made for.
template <class T>
struct InSlots {
  InSlots(Index span_q, Index span_k, std::vector<Index> q_at, std::vector<Index> k_at, Index r, Index p)
      : InSlots(span_q, span_k, r, p, static_cast<Index>(q_at.size()), static_cast<Index>(k_at.size())) {
    m_q_at = std::move(q_at), m_k_at = std::move(k_at);
    queries = {A.rows(), 0, m_q_at.data()}, keys = {B.rows(), 0, m_k_at.data()};
  }
  /// Without gaps.
  InSlots(Index span_q, Index span_k, Slots q, Slots k, Index r, Index p)
      : InSlots(span_q, span_k, r, p, q.count, k.count) {
    queries = q, keys = k;
  }
  InSlots(const InSlots&) = delete;
  InSlots& operator=(const InSlots&) = delete;

  ProductShape span;
  Matrix<T> A, B, U, G;
  LagWeights<T> c;
  Slots queries, keys;

  /// With any engine that is made from (lags, span, team).
  template <class MakeEngine>
  Matrix<T> contract(MakeEngine&& make, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    const auto engine = make(c.view(), span, team);
    Matrix<T> Y = Matrix<T>::Constant(A.rows(), U.cols(), T(17));
    const MatrixView<T> a = A, b = B, u = U;
    engine.contract({a, b, u, queries, keys}, Y, team);
    return Y;
  }

  /// The product with [U 1], as Y and sums.
  template <class MakeEngine>
  Matrix<T> contract_with_ones(MakeEngine&& make, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    const auto engine = make(c.view(), span, team);
    Matrix<T> Y = Matrix<T>::Constant(A.rows(), U.cols(), T(17));
    Vector<T> sums = Vector<T>::Constant(A.rows(), T(17));
    const MatrixView<T> a = A, b = B, u = U;
    engine.contract({a, b, u, queries, keys}, Y, team, sums.data());
    return beside(Y, sums);
  }

  template <class MakeEngine>
  toeplitz::Gradients<T> gradients(MakeEngine&& make, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    const auto engine = make(c.view(), span, team);
    toeplitz::Gradients<T> d({A.rows(), B.rows(), A.cols(), U.cols()});
    d.dc = Vector<T>(span.n_q + span.n_k - 1);
    d.dA.setConstant(17), d.dB.setConstant(17), d.dU.setConstant(17), d.dc.setConstant(17);
    const MatrixView<T> a = A, b = B, u = U, g = G;
    engine.gradients({a, b, u, queries, keys}, g, {d.dA, d.dB, d.dU, d.dc}, {}, team);
    return d;
  }

  /// The largest ratio of error to tolerance, of the product with U or with [U 1].
  double error(Engine engine, const Matrix<T>& Y) const {
    if (Y.rows() != A.rows()) return std::numeric_limits<double>::infinity();
    return product_error(engine, c, in_q(A), in_k(B), in_k(Y.cols() > U.cols() ? with_ones(U) : U), in_q(Y));
  }
  double error(Engine engine, const toeplitz::Gradients<T>& d) const {
    toeplitz::Gradients<T> all(span);
    all.dA = in_q(d.dA), all.dB = in_k(d.dB), all.dU = in_k(d.dU), all.dc = d.dc;
    return gradients_error(engine, c, in_q(A), in_k(B), in_k(U), in_q(G), all);
  }

  std::string name() const {
    return std::to_string(A.rows()) + " of " + std::to_string(span.n_q) + " queries, " + std::to_string(B.rows()) +
           " of " + std::to_string(span.n_k) + " keys, r " + std::to_string(span.r) + ", p " + std::to_string(span.p) +
           (sizeof(T) == 4 ? ", float" : ", double");
  }

 private:
  InSlots(Index span_q, Index span_k, Index r, Index p, Index n_q, Index n_k)
      : span{span_q, span_k, r, p},
        A(normal<T>(n_q, r, 1)),
        B(normal<T>(n_k, r, 2)),
        U(normal<T>(n_k, p, 3)),
        G(normal<T>(n_q, p, 5)),
        c(random_weights<T>(span_q, span_k, 4)) {}

  Matrix<T> in_q(const Matrix<T>& X) const { return spread(X, queries, span.n_q); }
  Matrix<T> in_k(const Matrix<T>& X) const { return spread(X, keys, span.n_k); }

  std::vector<Index> m_q_at, m_k_at;
};

/// Calls use(x) for tokens with all kinds of gaps, on spans of one tile of the direct engine and of several.
template <class T, class Use>
void with_gaps(Use&& use) {
  struct Span {
    Index n_q, n_k;
  };
  for (const auto& [n_q, n_k] :
       {Span{1, 1}, Span{3, 5}, Span{40, 33}, Span{128, 130}, Span{300, 280}, Span{150, 500}}) {
    std::vector<Index> q, k;
    for (const double chance : {0.1, 0.5, 0.95}) {
      const auto seed = static_cast<std::uint64_t>(n_q + n_k);
      q = random_slots(n_q, chance, seed), k = random_slots(n_k, chance, seed + 1);
      use(InSlots<T>(n_q, n_k, q, k, 3, 2));
    }
    use(InSlots<T>(n_q, n_k, all_rows(n_q), k, 2, 3));
    use(InSlots<T>(n_q, n_k, q, all_rows(n_k), 2, 1));
    // the first and the last slots empty, and nothing else
    std::erase_if(q = all_rows(n_q), [&, n = n_q](Index s) { return s < n / 4 || s >= n - n / 3; });
    std::erase_if(k = all_rows(n_k), [&, n = n_k](Index s) { return s < n / 3 || s >= n - n / 4; });
    use(InSlots<T>(n_q, n_k, q, k, 1, 4));
    use(InSlots<T>(n_q, n_k, Slots{n_q - n_q / 4 - n_q / 3, n_q / 4}, Slots{n_k - n_k / 3, n_k / 3}, 2, 2));
    // one token a side
    use(InSlots<T>(n_q, n_k, std::vector<Index>{n_q - 1}, std::vector<Index>{0}, 2, 2));
    use(InSlots<T>(n_q, n_k, std::vector<Index>{0}, std::vector<Index>{n_k - 1}, 2, 2));
  }
  // far apart: the tile of keys that a tile of queries reaches is not where its slots are
  std::vector<Index> q, k;
  for (Index i = 0; i < 290; ++i) q.push_back(i < 145 ? i : 300 + 2 * i), k.push_back(i < 20 ? 7 * i : 500 + i);
  use(InSlots<T>(900, 800, q, k, 2, 2));
}

/// Teams of 1, 2, 3 and 5 threads: use(team).
template <class Use>
void with_team_sizes(Use&& use) {
  for (const std::size_t size :
       NPRF_TEST_SANITIZED ? std::vector<std::size_t>{1, 3} : std::vector<std::size_t>{1, 2, 3, 5}) {
    std::vector<Workspace> workspaces(size);
    use(Team(workspaces));
  }
}

/// No bit of a product or of its gradients depends on the number of threads.
template <class T, class MakeEngine>
void check_thread_bits(const InSlots<T>& x, MakeEngine&& make) {
  Matrix<T> Y;
  toeplitz::Gradients<T> d({});
  with_team_sizes([&](const Team& team) {
    INFO(x.name() << ", " << team.size() << " threads");
    if (team.size() == 1) Y = x.contract(make, team), d = x.gradients(make, team);
    CHECK(same_bits(x.contract(make, team), Y));
    CHECK(same_bits(x.gradients(make, team), d));
  });
}

}  // namespace nprf::test
