// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/types.hpp"

namespace nprf {

/// Where tokens stand on the axis along which lags are measured: token i in slot `first + i`, or in slot `at[i]`,
/// rising.
///
/// A sequence fills its slots without gaps; a masked token leaves its slot empty; the rows of a picture lie a pitch
/// apart. The slots of `at` belong to the caller.
struct Slots {
  Index count = 0;
  Index first = 0;
  const Index* at = nullptr;

  Index operator[](Index i) const { return at ? at[i] : first + i; }

  /// The number of tokens in slots below `slot`.
  Index below(Index slot) const {
    if (!at) return std::clamp<Index>(slot - first, 0, count);
    return std::lower_bound(at, at + count, slot) - at;
  }
};

/// The tokens of one side that take part in attention, in their order: first those that stand outside of the axis (a
/// grid's extra tokens), then those in slots. The numbers belong to the caller.
struct Placement {
  Placement() = default;
  Placement(const Slots& in_slots, Index tokens_outside = 0, const Index* token_numbers = nullptr)
      : slots(in_slots), outside(tokens_outside), numbers(token_numbers) {}

  Slots slots;
  Index outside = 0;
  const Index* numbers = nullptr;  // which of all tokens they are, rising; null: 0, 1, ...

  Index count() const { return outside + slots.count; }
  Index number(Index i) const { return numbers ? numbers[i] : i; }
};

}  // namespace nprf
