// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <limits>
#include <span>

#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

/// What an attention is; fixed when it is built.
struct AttentionOptions {
  Direction direction = Direction::bidirectional;
  Normalization normalization = Normalization::unit(1);
  Engine engine = Engine::automatic;
};

/// What one call did.
struct Report {
  Engine engine = Engine::automatic;  // that ran, of the first sequence; automatic if there was nothing to compute
  Index repaired_rows = 0;            // computed again: by the engine's rounding or underflow they may have been off
  Index indefinite_rows = 0;          // their denominator is not positive: features of both signs, or all of them lost
  Index empty_rows = 0;               // they see no key, and are zero
  double error_bound = std::numeric_limits<double>::infinity();  // largest relative row error; infinity: none is known
  std::size_t workspace_bytes = 0;  // scratch memory of all threads at its peak; what forward saves does not count
};

/// What one call adds.
///
/// Padding is of keys; every query has a row. A key that is padding takes no part: it leaves numerator and denominator,
/// and whatever it holds is never read; its gradients are zero. Sequences packed into one array see nothing of each
/// other; positions start anew in each.
///
/// Where the rounding of an engine may put a row of y farther off than the tolerance, relative to the largest |v| that
/// the row sees, that row is computed again by an engine that keeps each row's own digits, which may be quadratic in
/// their number; infinity leaves them all. So far lanes and grid know their rounding.
struct CallOptions {
  std::span<const bool> key_mask = {};  // one a key (and sequence of the batch): false is padding; empty: none is
  std::span<const Index> lengths = {};  // one a sequence of the batch: keys from there on are padding; empty: none is
  std::span<const Index> cumulative_lengths = {};      // packed: 0, n_1, n_1 + n_2, ..., n; empty: one sequence
  std::span<const Index> key_cumulative_lengths = {};  // the keys' own, for cross attention; empty: the same
  Index offset = 0;                                    // query i stands at position i + offset, key j at position j
  double tolerance = 0;                                // 0: 1e-4 in float, 1e-10 in double
  Report* report = nullptr;                            // filled in where given
};

}  // namespace nprf
