// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// What a row of y has. normalized: N / D. indefinite: N / D, but D <= 0. empty: zeros, since the query attends to no
/// key. non_finite: NaN. to_recompute: nothing yet, or the row of exact softmax. recomputed: N / D, recomputed from its
/// features.
enum class RowState : char { normalized, indefinite, empty, non_finite, to_recompute, recomputed };

/// The state of a row, and the error of its numbers relative to the largest |v| that the query attends to: at most
/// fft_error + other_error, where other_error is the error of a row of condition 1, multiplied by `condition`
/// (RowErrorBound).
struct RowOutcome {
  RowState state;
  double fft_error = 0, other_error = 0, condition = 0;

  double error() const { return fft_error + other_error; }
  /// Whether y has numbers that depend on the keys.
  bool has_numbers() const { return state != RowState::empty && state != RowState::non_finite; }
};

/// The outcomes of the n_q rows of a sequence, in scratch memory.
class RowOutcomes {
 public:
  RowOutcomes(Index n_q, Workspace& scratch) : m_rows(scratch.take<RowOutcome>(n_q), static_cast<std::size_t>(n_q)) {}

  RowOutcome& operator[](Index i) const { return m_rows[static_cast<std::size_t>(i)]; }

  Index count(RowState state) const { return std::ranges::count(m_rows, state, &RowOutcome::state); }
  /// The rows of this state, in scratch memory. O(n_q).
  std::span<const Index> rows_of(RowState state, Workspace& scratch) const {
    const std::span<Index> found(scratch.take<Index>(count(state)), static_cast<std::size_t>(count(state)));
    auto next = found.begin();
    for (std::size_t i = 0; i < m_rows.size(); ++i)
      if (m_rows[i].state == state) *next++ = static_cast<Index>(i);
    return found;
  }

  /// The largest value of one member of RowOutcome over all rows, at least 0. Example: largest(&RowOutcome::condition).
  /// O(n_q).
  template <class Number>
  double largest(Number number) const {
    double most = 0;
    for (const RowOutcome& row : m_rows) most = std::max(most, std::invoke(number, row));
    return most;
  }

 private:
  std::span<RowOutcome> m_rows;
};

}  // namespace nprf
