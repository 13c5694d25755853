// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/gemm.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/product.hpp"
#include "nprf/toeplitz/recompute/checked_gradients.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U for a C that is Toeplitz in the slots s of queries and t of keys. Tokens without a slot come
/// first, and have their weights in a border:
///
///     C = [ between    to_slots ]
///         [ from_slots c[t - s] ]
///
/// Time and memory as of Product, plus time O(E (n_q + n_k)(r + p)) for E tokens without a slot.
template <Real T>
class BorderedProduct {
 public:
  BorderedProduct(Engine engine, LagWeightsView<T> lags, const Border<T>& border, const ProductShape& tokens,
                  const ProductShape& span, const Team& team)
      : m_product(engine, lags, tokens, span, team), m_border(border) {}
  BorderedProduct(Engine engine, LagWeightsView<T> lags, const Border<T>& border, const ProductShape& span,
                  const Team& team)
      : BorderedProduct(engine, lags, border, span, span, team) {}

  Engine engine() const { return m_product.engine(); }

  /// Whether keys may have log-scales (factors.hpp). They may if the engine accepts them and all tokens have slots.
  bool accepts_key_log_scales() const { return m_product.accepts_key_log_scales() && m_border.count == 0; }

  /// As Product::longest_plain_sum(). Keys without a slot are added last.
  Index longest_plain_sum(Index n_k) const {
    const Index in_slots = m_product.longest_plain_sum(n_k) + m_border.count;
    return std::min(n_k, m_border.count > 0 ? std::max(in_slots, nprf::longest_plain_sum(n_k)) : in_slots);
  }

  /// Writes Y (n_q,p). If sums is not null, also writes sums (n_q) = ((A B^T) o C) 1. Throws InvalidArgument for key
  /// log-scales unless accepts_key_log_scales().
  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    const Placement &q = x.queries, &k = x.keys;
    m_product.contract(in_slots(x), Y.bottomRows(q.slots.count), team, sums ? sums + q.outside : nullptr);
    Workspace& scratch = team.workspace();
    Y.topRows(q.outside).setZero();
    if (sums) std::fill_n(sums, q.outside, T(0));
    const auto add = [&](Index i0, Index rows, Index j0, Index cols, MatrixRef<T> y, T* ones) {
      const Workspace::Scope scope(scratch);
      auto S = scratch.matrix<T>(rows, cols);
      set_product(S, x.A.middleRows(i0, rows), x.B.middleRows(j0, cols).transpose());  // (rows,cols)
      multiply_by_c(q, i0, k, j0, S);
      add_product(y, S, x.U.middleRows(j0, cols));  // (rows,p)
      for (Index i = 0; ones && i < rows; ++i) ones[i] += S.row(i).sum();
    };
    if (q.outside > 0)
      add_in_chunks<T>(0, 0, k.count(), Y.topRows(q.outside), sums, scratch,
                       [&](Index from, Index to, MatrixRef<T> more, T* ones) {
                         for (Index j0 = from; j0 < to; j0 += tile)
                           add(0, q.outside, j0, std::min(tile, to - j0), more, ones);
                       });
    if (k.outside > 0)
      for (Index i0 = q.outside; i0 < q.count(); i0 += tile) {
        const Index rows = std::min(tile, q.count() - i0);
        add(i0, rows, 0, k.outside, Y.middleRows(i0, rows), sums ? sums + i0 : nullptr);
      }
  }

  /// The rounding of the rows of queries with a slot.
  Rounding rounding() const { return m_product.rounding(); }

  /// Writes to `out` bounds of the engine's rounding errors in contract(); 0 for queries without a slot. sizes[j] (n_k)
  /// is the largest |U_jp| of key j.
  void row_error_bounds(const Factors<T>& x, const T* sizes, RowErrorBounds out, const Team& team) const {
    const Index outside = x.queries.outside;
    for (double* of : {out.Y, out.sums}) std::fill_n(of, outside, 0.0);
    m_product.row_error_bounds(in_slots(x), sizes + x.keys.outside, {out.Y + outside, out.sums + outside}, team);
  }

  /// Writes to `out` the gradients for G (n_q,p) = dL/dY; out.dc is for the lags between slots. Adds the gradients of
  /// the weights of the border to `border` (E,E+2), which has the layout of Border (core/slots.hpp). Recomputes
  /// gradients that fail their error bound (recompute/checked_gradients.hpp). `by` has entries for all queries, also
  /// for those without a slot.
  GradientChecks gradients(const Factors<T>& x, const MatrixView<T>& G, const GradientMeasure<T>& by,
                           GradientRefs<T> out, MatrixMap<T> border, const Team& team) const {
    const Placement &q = x.queries, &k = x.keys;
    const Factors<T> factors = in_slots(x);
    const MatrixView<T> g = G.bottomRows(q.slots.count);
    const GradientMeasure<T> measure{by.sizes + q.outside, by.rows + q.outside, by.all_positive, by.tolerance};
    const GradientChecks checks = CheckedGradients<T>(m_product, factors, g, measure, team)
                                      .find({out.dA.bottomRows(q.slots.count), out.dB.bottomRows(k.slots.count),
                                             out.dU.bottomRows(k.slots.count), out.dc});
    // with S = A B^T and P = G U^T: dA += (P o C) B, dB += (P o C)^T A, dU += (S o C)^T G, and dc = S o P
    Workspace& scratch = team.workspace();
    out.dA.topRows(q.outside).setZero();
    out.dB.topRows(k.outside).setZero();
    out.dU.topRows(k.outside).setZero();
    for_each_strip(q, k, [&](Index i0, Index rows, Index j0, Index cols) {
      const Workspace::Scope scope(scratch);
      auto S = scratch.matrix<T>(rows, cols), P = scratch.matrix<T>(rows, cols);
      set_product(S, x.A.middleRows(i0, rows), x.B.middleRows(j0, cols).transpose());  // (rows,cols)
      set_product(P, G.middleRows(i0, rows), x.U.middleRows(j0, cols).transpose());    // (rows,cols)
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < cols; ++j)
          border.data()[m_border.index(q.token_index(i0 + i), k.token_index(j0 + j))] += S(i, j) * P(i, j);
      multiply_by_c(q, i0, k, j0, S);
      multiply_by_c(q, i0, k, j0, P);
      add_product(out.dA.middleRows(i0, rows), P, x.B.middleRows(j0, cols));              // (rows,r)
      add_product(out.dB.middleRows(j0, cols), P.transpose(), x.A.middleRows(i0, rows));  // (cols,r)
      add_product(out.dU.middleRows(j0, cols), S.transpose(), G.middleRows(i0, rows));    // (cols,p)
    });
    return checks;
  }

 private:
  static constexpr Index tile = Team::tile;

  Factors<T> in_slots(const Factors<T>& x) const {
    require(!x.key_log_scales || accepts_key_log_scales(), "key_log_scales: expected none, by ", name(engine()),
            " with ", m_border.count, " tokens without a slot");
    return x.in_slots();
  }

  // calls body(i0, rows, j0, cols) for the tiles of the border: the queries without a slot with all keys, then the
  // queries in slots with the keys without a slot
  template <class Body>
  static void for_each_strip(const Placement& q, const Placement& k, Body&& body) {
    if (q.outside > 0)
      for (Index j0 = 0; j0 < k.count(); j0 += tile) body(0, q.outside, j0, std::min(tile, k.count() - j0));
    if (k.outside > 0)
      for (Index i0 = q.outside; i0 < q.count(); i0 += tile) body(i0, std::min(tile, q.count() - i0), 0, k.outside);
  }

  template <class M>
  void multiply_by_c(const Placement& q, Index i0, const Placement& k, Index j0, M& S) const {
    for (Index i = 0; i < S.rows(); ++i)
      for (Index j = 0; j < S.cols(); ++j) {
        const T c = m_border(q.token_index(i0 + i), k.token_index(j0 + j));
        S(i, j) = c == T(0) ? T(0) : S(i, j) * c;
      }
  }

  Product<T> m_product;
  Border<T> m_border;
};

}  // namespace nprf::toeplitz
