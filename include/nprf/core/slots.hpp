// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

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
};

}  // namespace nprf
