// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U by tiles of the n_q x n_k matrix (tiled_product.hpp): rounding errors are per row for every
/// bias. The fastest engine for short n.
///
/// Time O(n_q n_k (r + p)), where tiles outside the support of c are skipped; workspace O(n_q + n_k + r + p). Threads
/// share out tiles of queries.
template <Real T>
class DirectEngine {
 public:
  static constexpr Engine names[] = {Engine::direct};
  static constexpr Rounding rounding = Rounding::per_row;
  static constexpr bool accepts_key_log_scales = false, is_automatic = true;
  static Engine name_for(const LagWeightsView<T>&) { return names[0]; }

  /// The sum of (r + p + weight_cost) over the pairs whose lags are in the support of c or at most 48 lags beyond it.
  /// If slots are empty, weights are looked up one by one, which costs more. A pair with a subnormal weight costs more
  /// too.
  static double cost(const CostInputs<T>& x) {
    constexpr Index beyond = 48;
    constexpr double looked_up_weight = 40, subnormal_pair = 256;
    const LagRange support = x.weights.support();
    if (x.tokens.empty() || support.size() == 0) return 0;
    const auto pairs = [&](const LagRange& lags) { return pairs_in(lags, x.span.n_q, x.span.n_k); };
    double subnormal = 0;
    for (Index lag = support.first; lag <= support.last; ++lag)
      if (is_subnormal(x.weights[lag])) subnormal += pairs({lag, lag});
    // the fraction of the pairs of slots that have both a query and a key
    const double filled = static_cast<double>(x.tokens.n_q) * static_cast<double>(x.tokens.n_k) /
                          pairs({-(x.span.n_q - 1), x.span.n_k - 1});
    const double r = static_cast<double>(x.tokens.r), p = static_cast<double>(x.tokens.p);
    const bool has_gaps = x.tokens.n_q + x.tokens.n_k < x.span.n_q + x.span.n_k;
    return filled * (pairs({support.first - beyond, support.last + beyond}) *
                         (r + p + (has_gaps ? looked_up_weight : weight_cost)) +
                     subnormal * p * subnormal_pair);
  }
  /// The cost if all lags have weights and no slot is empty.
  static double dense_cost(const ProductShape& x) {
    return static_cast<double>(x.n_q) * static_cast<double>(x.n_k) * (static_cast<double>(x.r + x.p) + weight_cost);
  }

  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1.
  DirectEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : m_support(lags.support()), m_c(tabulate(lags, span, team.workspace())) {}

  /// Writes Y (n_q,p) = ((A B^T) o C) U. If sums is not null, also writes sums (n_q) = ((A B^T) o C) 1.
  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    const ToeplitzWeights<T> weights(x, m_c, m_support);
    TiledProduct<T>(x, weights).contract(Y, team, sums);
  }

  Index longest_plain_sum(Index n_k) const { return nprf::longest_plain_sum(n_k); }

  /// Writes to `out` the gradients for G (n_q,p) = dL/dY; out.dc may be empty.
  void gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const GradientSizes<T>&,
                 const Team& team) const {
    out.set_zero();
    const Workspace::Scope scope(team.workspace());
    const ToeplitzWeights<T> weights(x, m_c, m_support);
    const Index size = out.dc.size() > 0 ? m_c.size : 0;
    const auto add_dc = [&](const PairRow<T>& pairs, T* share) {
      if (size > 0) weights.add_gradient(pairs, share, m_c.first);
    };
    const auto dc = TiledProduct<T>(x, weights).add_gradients(G, out, size, team, add_dc);
    for (Index block = 0; block < dc.rows(); ++block)
      for (Index k = 0; k < size; ++k) out.dc[k] += dc(block, k);
  }

 private:
  static bool is_subnormal(T c) { return c != T(0) && std::abs(c) < std::numeric_limits<T>::min(); }

  LagRange m_support;
  LagWeightsView<T> m_c;  // of all lags that the slots can reach
};

}  // namespace nprf::toeplitz
