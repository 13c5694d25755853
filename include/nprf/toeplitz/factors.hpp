// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"

namespace nprf::toeplitz {

/// The rows begin..end-1 of a matrix; none if end <= begin.
struct RowRange {
  Index begin, end;

  Index size() const { return end - begin; }
};

/// References to the factors of Y = ((A B^T) o C) U, and the slots of their rows.
///
/// `key_log_scales` are optional log-scales e_j of the keys: the features of key j are then exp(e_j) B_j. Row i of Y is
/// divided by exp(M_i), where M_i is the largest log-scale among the keys up to the last slot at which row i has a
/// weight. The numerators and the denominator of a row share this factor, so it cancels. Each key's features can
/// therefore be scaled by their own maximum. Only engines with accepts_key_log_scales (engine.hpp) support log-scales.
template <class T>
struct Factors {
  MatrixView<T> A, B, U;                   // (n_q,r) (n_k,r) (n_k,p)
  Placement queries, keys;                 // of the rows of A, and of B and U
  const double* key_log_scales = nullptr;  // (n_k); null: all are 0

  /// Of tokens that fill the slots 0, 1, ...
  static Factors without_gaps(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U) {
    return {A, B, U, Slots{A.rows()}, Slots{B.rows()}};
  }

  /// The same factors for other values U (n_k,p).
  Factors with_values(const MatrixView<T>& values) const { return {A, B, values, queries, keys, key_log_scales}; }

  /// Without the tokens that have no slot.
  Factors in_slots() const {
    return {A.bottomRows(queries.slots.count),
            B.bottomRows(keys.slots.count),
            U.bottomRows(keys.slots.count),
            queries.slots,
            keys.slots,
            key_log_scales ? key_log_scales + keys.outside : nullptr};
  }
};

}  // namespace nprf::toeplitz
