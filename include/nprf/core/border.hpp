// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "nprf/config.hpp"
#include "nprf/core/index.hpp"

namespace nprf {

/// The biases or the weights of E tokens without a slot (the extra tokens of a grid): a matrix (E,E+2) in the caller's
/// storage. In row e, column 0 is for query e and every key with a slot, column 1 for every query with a slot and key
/// e, and column 2 + f for query e and key f, both without a slot.
template <class T>
struct Border {
  Index count = 0;            // E
  const T* values = nullptr;  // (E,E+2)

  Index size() const { return count * (count + 2); }
  /// The index in `values` of the entry of a query and a key, given by their token indices. At least one of them has no
  /// slot.
  Index index(Index query, Index key) const {
    if (query >= count) return key * (count + 2) + 1;
    return query * (count + 2) + (key < count ? 2 + key : 0);
  }
  T operator()(Index query, Index key) const { return values[index(query, key)]; }
};

namespace detail {
// in a variable, because device code may not call std::numeric_limits
inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
}  // namespace detail

/// Whether a causal query e of the border does not attend to the keys of column f, because they are later: tokens
/// without a slot come before those with one.
NPRF_HOST_DEVICE constexpr bool is_later_in_border(Index e, Index column) { return column == 0 || column - 2 > e; }

/// Whether the entry of a column is one of query e's own: column 1 is for other queries and key e. The weights of a
/// query's own entries are relative to the largest bias of them.
NPRF_HOST_DEVICE constexpr bool is_own_in_border(Index column) { return column != 1; }

/// The weight of an entry of the border in some column, with bias b, the same for the CPU and for GPUs: exp(b -
/// largest), but the row of a query without a slot is relative to its own largest bias. 0 for b = -infinity.
template <class T>
NPRF_HOST_DEVICE inline T border_weight(double b, Index column, double largest, double largest_of_row) {
  return b > detail::minus_infinity
             ? static_cast<T>(std::exp(b - (is_own_in_border(column) ? largest_of_row : largest)))
             : T(0);
}

}  // namespace nprf
