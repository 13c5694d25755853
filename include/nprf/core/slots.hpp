// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/config.hpp"
#include "nprf/core/index.hpp"

namespace nprf {

/// The slots of tokens: their positions on the axis along which lags are measured. Token i has slot `first + i`, or
/// slot `at[i]` if `at` is not null. Slots increase with i.
///
/// The slots of a sequence are consecutive. A masked token leaves its slot empty. Consecutive rows of an image start at
/// slots that differ by a fixed pitch. The caller owns the array `at`.
struct Slots {
  Index count = 0;
  Index first = 0;
  const Index* at = nullptr;

  Index operator[](Index i) const { return at ? at[i] : first + i; }

  /// The number of tokens whose slot is less than `slot`.
  Index below(Index slot) const {
    if (!at) return std::clamp<Index>(slot - first, 0, count);
    return std::lower_bound(at, at + count, slot) - at;
  }
};

/// The queries or the keys that take part in attention, in order: first the tokens without a slot (the extra tokens of
/// a grid), then the tokens with slots. The caller owns the array `token_indices`.
struct Placement {
  Placement() = default;
  Placement(const Slots& in_slots, Index without_slot = 0, const Index* indices_of_tokens = nullptr)
      : slots(in_slots), outside(without_slot), token_indices(indices_of_tokens) {}

  Slots slots;
  Index outside = 0;                     // the number of tokens without a slot
  const Index* token_indices = nullptr;  // each token's index among all tokens of the call, increasing; null: 0, 1, ...

  Index count() const { return outside + slots.count; }
  Index token_index(Index i) const { return token_indices ? token_indices[i] : i; }

  /// The first n of these tokens, or all if there are fewer.
  Placement first(Index n) const {
    const Index without_slot = std::min(outside, n);
    return {{std::min(slots.count, n - without_slot), slots.first, slots.at}, without_slot, token_indices};
  }
};

/// The biases or the weights of the pairs of which a token has no slot, for E tokens without a slot (the extra tokens
/// of a grid): a matrix (E,E+2) in the caller's storage. In row e, column 0 is for query e and every key with a slot,
/// column 1 for every query with a slot and key e, and column 2 + f for query e and key f, both without a slot.
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

/// Whether the pairs of a column in row e of a Border do not attend in causal attention, because their key is later
/// than their query. Tokens without a slot come before those with one.
NPRF_HOST_DEVICE constexpr bool is_later_in_border(Index e, Index column) { return column == 0 || column - 2 > e; }

/// Whether a column of a Border is for queries without a slot: in row e for query e. Column 1 is for the other queries
/// and key e. The weights of a query without a slot are relative to the largest bias of that query.
NPRF_HOST_DEVICE constexpr bool is_own_in_border(Index column) { return column != 1; }

/// The weight of an entry of a Border with bias b, on the CPU and on GPUs: exp(b - largest) in column 1, where
/// `largest` is the largest bias of the queries with a slot; exp(b - largest_of_row) in other columns, where
/// `largest_of_row` is the largest bias of the query of the row. 0 for b = -infinity.
template <class T>
NPRF_HOST_DEVICE inline T border_weight(double b, Index column, double largest, double largest_of_row) {
  return b > detail::minus_infinity
             ? static_cast<T>(std::exp(b - (is_own_in_border(column) ? largest_of_row : largest)))
             : T(0);
}

}  // namespace nprf
