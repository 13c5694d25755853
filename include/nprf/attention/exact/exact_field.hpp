// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/attention/exact/exponential_weights.hpp"
#include "nprf/attention/exact/softmax_tile.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/weights/pair_bias.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// The sums of the far pairs of each query, N (n_q,d_v) and D (n_q). They are in units of exp(log_scales_i): the weight
/// of a far pair is exp(log_scales_i) * (A_i.B_j) * c_ij.
template <Real T>
struct FarSums {
  MatrixRef<T> A, N;   // (n_q,r) (n_q,d_v)
  T* D;                // (n_q)
  double* log_scales;  // (n_q)
};

/// Pairs whose weights are those of exact softmax, beside the far pairs, whose weights are those of features: the pairs
/// of near tokens (NearBiases), or those of attention sinks (SinkBiases).
///
///     y_i = (N_i + sum_field w_ij v_j) / (D_i + sum_field w_ij)     w_ij = exp(q_i.k_j + b_ij - log_scale_i)
///
/// where N and D are the sums of the other pairs, in units of exp(log_scale_i). O(n w (d + d_v)) if the field has w
/// keys for each query.
template <Real T>
class ExactField {
 public:
  /// For normalised queries q (n_q,d) and keys k (n_k,d); the keys must be finite.
  ExactField(const FieldBiases<T>& biases, const MatrixView<T>& q, const MatrixView<T>& k, const Team& team)
      : m_biases(biases), m_q(q), m_k(k), m_team(team) {}

  /// Adds the field's pairs, for values v (n_k,d_v), to N_i and D_i of `far`, and their weights to the terms of
  /// `errors`. Where the sum of these weights is larger than that of the other pairs, the log-scale of row i becomes
  /// that of the field, so that no weight of the field overflows, and A_i, N_i and D_i are rescaled. A row whose far
  /// weights underflow keeps a D_i that has lost its precision (row_quotient.hpp). D_i becomes NaN, and remains NaN
  /// when other fields are added, in a row that has to be recomputed because the field's biases are so far below the
  /// largest of all that their differences from it are rounded too coarsely.
  void add(const MatrixView<T>& v, FarSums<T> far, RowErrorBound<T>& errors) const {
    if (m_biases.empty()) return;
    sum(v, [&](Index i, std::span<T> N, T D, T largest) { add_row(i, N, D, largest, far, errors); });
  }

  /// Calls emit(i, N_i, D_i, largest_i) with the sums of each query over the field's pairs (SoftmaxSums), of which it
  /// may overwrite N_i. May call it from several threads.
  template <class Emit>
  void sum(const MatrixView<T>& v, Emit&& emit) const {
    using Tile = SoftmaxTile<T>;
    m_team.run_tiles(m_q.rows(), Tile::rows, [&](Index i0, Index rows, Workspace& scratch) {
      auto N = scratch.matrix<T>(rows, v.cols());
      SoftmaxSums<T> sums{N, scratch.take<T>(rows), scratch.take<T>(rows)};
      Tile(m_k, v, m_biases, scratch).contract(i0, m_q.middleRows(i0, rows), sums);
      for (Index i = 0; i < rows; ++i) emit(i0 + i, writable_row(sums.N, i), sums.D[i], sums.largest[i]);
    });
  }

  /// Adds the gradients of the field's pairs to `out`, for G (n_q,d_v+1) = dL/d[N D] and U = [v 1] (n_k,d_v+1). What
  /// row i adds to dk, dU and db is multiplied by 2^exponents_i.
  void add_gradients(const MatrixView<T>& U, const MatrixView<T>& G, const double* log_scales, const int* exponents,
                     FieldGradients<T> out) const {
    if (m_biases.empty()) return;
    add_exponential_gradients<T>(m_biases, {m_q, m_k, U, G, log_scales, exponents}, out, m_team);
  }

 private:
  void add_row(Index i, std::span<T> N, T D, T largest, FarSums<T>& far, RowErrorBound<T>& errors) const {
    if (D == 0 || std::isnan(far.D[i])) return;  // no key is in the field, or the row is recomputed anyway
    const double reference = m_biases.reference(i), log_scale = static_cast<double>(largest) + reference,
                 rise = log_scale - far.log_scales[i];
    const double far_size = std::max(errors.size_of_terms(i, far.D[i]), smallest_sum(errors.largest_values()[i]));
    const double share = rise + std::log(static_cast<double>(D)) - std::log(far_size);  // log(field sum / far_size)
    const double largest_bias = std::min(largest, T(0)) + reference;                    // up to a score
    if (largest_bias < -largest_exponent<T>) {
      if (share > -largest_exponent<T>) far.D[i] = std::numeric_limits<T>::quiet_NaN();
    } else if (share > 0) {
      const T factor = static_cast<T>(std::exp(-rise));
      scale(writable_row(far.A, i), factor);
      add_scaled(N, factor, row_of(far.N, i));
      std::ranges::copy(N, writable_row(far.N, i).begin());
      far.D[i] = factor * far.D[i] + D;
      far.log_scales[i] = log_scale;
      errors.scale(i, factor);
      errors.add_exact(i, D);
    } else {
      const T factor = static_cast<T>(std::exp(rise));
      add_scaled<T>(writable_row(far.N, i), factor, N);
      far.D[i] += factor * D;
      errors.add_exact(i, factor * D);
    }
  }

  // the smallest D that row_keeps_precision() accepts: beside a smaller D, far terms that underflowed would matter
  double smallest_sum(T v_max) const {
    constexpr double of_D = static_cast<double>(smallest_denominator<T>),
                     of_N = static_cast<double>(smallest_normal_number<T>);
    return v_max == 0 ? of_D : std::max(of_D, of_N * static_cast<double>(m_k.rows()) / static_cast<double>(v_max));
  }

  const FieldBiases<T>& m_biases;
  const MatrixView<T>&m_q, &m_k;
  const Team& m_team;
};

}  // namespace nprf
