// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
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
/// Time and memory as of Product, plus time O(E (n_q + n_k)(r + p)) for E tokens without a slot, where E counts as a
/// multiple of 6.
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

  /// As Product::deviation().
  double deviation() const { return m_product.deviation(); }

  /// As Product::longest_plain_sum(). Keys without a slot are added last.
  Index longest_plain_sum(Index n_k) const {
    const Index in_slots = m_product.longest_plain_sum(n_k) + m_border.count;
    return std::min(n_k, m_border.count > 0 ? std::max(in_slots, nprf::longest_plain_sum(n_k)) : in_slots);
  }

  /// Writes Y (n_q,p). If sums is not null, also writes sums (n_q) = ((A B^T) o C) 1. Throws InvalidArgument for key
  /// log-scales unless accepts_key_log_scales().
  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    const Placement& q = x.queries;
    m_product.contract(in_slots(x), Y.bottomRows(q.slots.count), team, sums ? sums + q.outside : nullptr);
    Y.topRows(q.outside).setZero();
    if (sums) std::fill_n(sums, q.outside, T(0));
    for_each_strip(x, [&](RowRange rows, const TiledProduct<T>& product) {
      team.run_tiles(rows.size(), ForwardTile<T>::rows, [&](Index i0, Index count, Workspace& scratch) {
        const Index i = rows.begin + i0;
        product.add(i0, Y.middleRows(i, count), sums ? sums + i : nullptr, scratch);
      });
    });
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
    out.dA.topRows(q.outside).setZero();
    out.dB.topRows(k.outside).setZero();
    out.dU.topRows(k.outside).setZero();
    for_each_strip(x, [&](RowRange rows, const TiledProduct<T>& product) {
      const Workspace::Scope scope(team.workspace());
      GradientRefs<T> d{out.dA.middleRows(rows.begin, rows.size()), out.dB, out.dU, Eigen::Map<Vector<T>>(nullptr, 0)};
      const auto add = [&](const PairRow<T>& pairs, T* share) {
        for (Index j = 0; j < pairs.count; ++j)
          share[border_index(x, rows.begin + pairs.i, pairs.j0 + j)] += pairs.S[j] * pairs.P[j];
      };
      const auto shares = product.add_gradients(G.middleRows(rows.begin, rows.size()), d, border.size(), team, add);
      for (Index block = 0; block < shares.rows(); ++block)
        for (Index at = 0; at < border.size(); ++at) border.data()[at] += shares(block, at);
    });
    return checks;
  }

 private:
  Factors<T> in_slots(const Factors<T>& x) const {
    require(!x.key_log_scales || accepts_key_log_scales(), "key_log_scales: expected none, by ", name(engine()),
            " with ", m_border.count, " tokens without a slot");
    return x.in_slots();
  }

  // the index in the border of the weight of query i and key j
  Index border_index(const Factors<T>& x, Index i, Index j) const {
    return m_border.index(x.queries.token_index(i), x.keys.token_index(j));
  }

  // calls use(rows, product) for the products of the border, whose rows are the rows `rows` of Y: those of the queries
  // without a slot and all keys, and of the queries in slots and the keys without a slot
  template <class Use>
  void for_each_strip(const Factors<T>& x, Use&& use) const {
    const auto strip = [&](RowRange rows, Index n_k) {
      if (rows.size() == 0 || n_k == 0) return;
      const auto weight = [&](Index i, Index j) -> T { return m_border.values[border_index(x, rows.begin + i, j)]; };
      const auto keys = [=](Index, Index) { return RowRange{0, n_k}; };
      const EachWeight weights(weight, keys);
      const auto factors =
          Factors<T>::without_gaps(x.A.middleRows(rows.begin, rows.size()), x.B.topRows(n_k), x.U.topRows(n_k));
      use(rows, TiledProduct<T>(factors, weights));
    };
    strip({0, x.queries.outside}, x.keys.count());
    strip({x.queries.outside, x.queries.count()}, x.keys.outside);
  }

  Product<T> m_product;
  Border<T> m_border;
};

}  // namespace nprf::toeplitz
