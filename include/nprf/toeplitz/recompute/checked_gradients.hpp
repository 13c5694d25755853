// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/core/pack.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"
#include "nprf/toeplitz/product.hpp"
#include "nprf/toeplitz/recompute/recomputed_gradients.hpp"

namespace nprf::toeplitz {

/// What the rounding errors of gradients are compared with, for an engine with error bounds. Every entry of G is at
/// most 1 in magnitude, and entry i of its last column, which belongs to the column of ones of U, at most s_i. Then for
/// positive features and values of at most 1 in magnitude, with K_j and S_l as in GradientSizes,
///
///     dA_i: sum_r |A_ir dA_ir| <= rows_i s_i    dB_j: sum_r |B_jr dB_jr| <= 2 K_j
///     dU_j: <= K_j                              c_l dc_l: <= 2 c_l S_l
///
/// With features of both signs |A_i| |B_j| replaces A_i.B_j, in K and S too.
template <Real T>
struct GradientMeasure {
  const T* sizes;  // s_i (n_q)
  const T* rows;   // sum_j c[j-i] A_i.B_j (n_q), or less
  bool all_positive;
  double tolerance;  // relative to the right-hand sides above
};

/// How many gradients were recomputed, and the error bound of the others.
struct GradientChecks {
  Index queries = 0, keys = 0, lags = 0;  // recomputed
  double error_bound = 0;                 // the largest of the other bounds, relative as in GradientMeasure
};

/// The gradients of a product with U = [V 1] for G (n_q,p). Gradients whose error bound exceeds half of the tolerance
/// are recomputed. If most of them exceed it, all gradients are recomputed.
template <Real T>
class CheckedGradients {
 public:
  CheckedGradients(const Product<T>& product, const Factors<T>& x, const MatrixView<T>& G, const GradientMeasure<T>& by,
                   const Team& team)
      : m_product(product), m_x(x), m_G(G), m_by(by), m_team(team) {}

  /// Writes the gradients to `out`; out.dc may be empty. Throws like Product::gradients().
  GradientChecks find(GradientRefs<T> out) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    if (m_product.rounding() == Rounding::per_row || m_x.A.size() == 0 || m_x.B.size() == 0) {
      m_product.gradients(m_x, m_G, out, {}, m_team);
      return {};
    }
    const Index n_q = m_x.A.rows(), n_k = m_x.B.rows(), lags = m_product.num_lags();
    const GradientSizes<T> sums{m_by.sizes, workspace.template take<T>(n_k), workspace.template take<T>(lags)};
    find_with_sums(out, sums);

    const Index num_dc = out.dc.size();
    const GradientErrorBounds bounds{workspace.template take<double>(n_k),
                                     workspace.template take<double>(n_k),
                                     workspace.template take<double>(num_dc),
                                     workspace.template take<double>(num_dc),
                                     num_dc,
                                     !m_by.all_positive};
    const ValueNorms values = value_norms();
    m_product.gradient_error_bounds(m_x, {m_by.sizes, values.two, sums.lags}, bounds, m_team);

    GradientChecks checks;
    const auto failed_queries = flagged_queries(values.max, checks);
    const auto failed_keys = flagged(n_k, checks, [&](Index j) {
      const double of_dU = bounds.keys[j], of_sum = bounds.key_sizes[j], one = static_cast<double>(values.one[j]);
      return over(std::max(1.0, one) * of_dU + of_sum, static_cast<double>(sums.keys[j]) - error_margin * of_sum);
    });
    const PairWeights<T> weights(m_product.weights(), m_x, m_team);
    const Index first = m_product.first_lag();
    const auto failed_lags = flagged(num_dc, checks, [&](Index l) {
      if (weights.at_lag(first + l) == T(0)) return 0.0;
      return over(bounds.lags[l], static_cast<double>(sums.lags[l]) - error_margin * bounds.lag_sizes[l]);
    });

    const RecomputedGradients<T> recomputed(weights, m_x, m_G, out, m_team);
    const auto count = [](std::span<const Index> failed) { return static_cast<double>(failed.size()); };
    const double pairs = count(failed_queries) * static_cast<double>(n_k) +
                         2 * count(failed_keys) * static_cast<double>(n_q) + 4 * pairs_of(failed_lags, first, lags);
    if (pairs > 3 * static_cast<double>(n_q) * static_cast<double>(n_k)) {
      recomputed.all(first);
      return {n_q, n_k, num_dc, 0};
    }
    if (!failed_queries.empty()) recomputed.queries(failed_queries);
    if (!failed_keys.empty()) recomputed.keys(failed_keys);
    for (Index& l : failed_lags) l += first;
    if (!failed_lags.empty()) recomputed.lags(failed_lags, first);
    checks.queries = static_cast<Index>(failed_queries.size());
    checks.keys = static_cast<Index>(failed_keys.size());
    checks.lags = static_cast<Index>(failed_lags.size());
    return checks;
  }

 private:
  // writes the gradients by the engine to `out`, and the sums K_j and S_l, also by the engine, to `sums`
  void find_with_sums(GradientRefs<T>& out, const GradientSizes<T>& sums) const {
    if (m_by.all_positive) return m_product.gradients(m_x, m_G, out, sums, m_team);
    m_product.gradients(m_x, m_G, out, {}, m_team);
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index n_q = m_x.A.rows(), n_k = m_x.B.rows();
    auto a = workspace.template matrix<T>(n_q, 1), b = workspace.template matrix<T>(n_k, 1),
         ones = workspace.template matrix<T>(n_k, 1), zeros = workspace.template matrix<T>(n_q, 1),
         dA = workspace.template matrix<T>(n_q, 1), dB = workspace.template matrix<T>(n_k, 1),
         dU = workspace.template matrix<T>(n_k, 1);
    auto dc = workspace.template vector<T>(m_product.num_lags());
    set_norms(a.data(), m_x.A);
    set_norms(b.data(), m_x.B);
    ones.setOnes();
    zeros.setZero();
    const MatrixView<T> A = a, B = b, U = ones;
    m_product.gradients({A, B, U, m_x.queries, m_x.keys, m_x.key_log_scales}, zeros, {dA, dB, dU, dc}, sums, m_team);
  }

  // |V_j|_1, |[V_j 1]|_2 and max |V_j| of each key (n_k)
  struct ValueNorms {
    T *one, *two, *max;
  };
  ValueNorms value_norms() const {
    using P = Pack<T>;
    const Index n_k = m_x.U.rows(), values = m_x.U.cols() - 1;
    Workspace& workspace = m_team.workspace();
    const ValueNorms norms{workspace.template take<T>(n_k), workspace.template take<T>(n_k),
                           workspace.template take<T>(n_k)};
    m_team.run_tiles(n_k, [&](Index j0, Index rows, Workspace&) {
      for (Index j = j0; j < j0 + rows; ++j) {
        const T* v = row_of(m_x.U, j).data();
        P one = P::all(0), square = P::all(0), max = P::all(0);
        for (Index p = 0; p < values; p += P::size) {
          const P size = abs(P::load(v + p, values - p));
          one = one + size;
          square = multiply_add(size, size, square);
          max = larger(max, size);
        }
        norms.one[j] = one.sum(), norms.two[j] = std::sqrt(square.sum() + 1), norms.max[j] = max.largest();
      }
    });
    return norms;
  }

  // the queries whose dA_i fails its error bound. The bound of a row is as in attention/fallback/row_error_bound.hpp,
  // with G_i in place of the output
  std::span<Index> flagged_queries(const T* sizes, GradientChecks& checks) const {
    Workspace& workspace = m_team.workspace();
    const Index n_q = m_x.A.rows(), values = m_x.U.cols() - 1;
    const RowErrorBounds bounds{workspace.template take<double>(n_q), workspace.template take<double>(n_q),
                                !m_by.all_positive};
    m_product.row_error_bounds(m_x, sizes, bounds, m_team);
    return flagged(n_q, checks, [&](Index i) {
      double of_values = 0;
      for (Index p = 0; p < values; ++p) of_values += static_cast<double>(std::abs(m_G(i, p)));
      const double of_ones = std::abs(static_cast<double>(m_G(i, values)));
      return over(std::sqrt(2.0) * (of_values * bounds.Y[i] + of_ones * bounds.sums[i]),
                  static_cast<double>(m_by.rows[i]) * static_cast<double>(m_by.sizes[i]));
    });
  }

  // bound / sum; infinity if the sum has overflowed, or may be so small that what it is added from is subnormal: the
  // bound has no errors of subnormal numbers
  static double over(double bound, double sum) {
    constexpr double least = static_cast<double>(std::numeric_limits<T>::min()) / std::numeric_limits<T>::epsilon();
    return bound == 0 ? 0 : sum >= least && std::isfinite(sum) ? bound / sum : std::numeric_limits<double>::infinity();
  }

  // the k < n whose error(k) may exceed half of the tolerance; checks.error_bound becomes the largest bound of the
  // other k
  template <class Error>
  std::span<Index> flagged(Index n, GradientChecks& checks, Error&& error) const {
    Index *list = m_team.workspace().template take<Index>(n), count = 0;
    for (Index k = 0; k < n; ++k) {
      const double bound = error_margin * error(k);
      if (passes_error_bound(bound, m_by.tolerance))
        checks.error_bound = std::max(checks.error_bound, bound);
      else
        list[count++] = k;
    }
    return {list, static_cast<std::size_t>(count)};
  }

  // the number of pairs of slots whose lag is first + l for an l of `numbers`; `lags` is the number of all lags
  static double pairs_of(std::span<const Index> numbers, Index first, Index lags) {
    double pairs = 0;
    for (const Index l : numbers) pairs += static_cast<double>(std::min({l + 1, lags - l, 1 - first, lags + first}));
    return pairs;
  }

  const Product<T>& m_product;
  const Factors<T>& m_x;
  const MatrixView<T>& m_G;
  const GradientMeasure<T>& m_by;
  const Team& m_team;
};

}  // namespace nprf::toeplitz
