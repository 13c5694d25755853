// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/core/option_span.hpp"
#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

/// What an attention is; fixed when it is built.
struct AttentionOptions {
  Direction direction = Direction::bidirectional;
  Normalization normalization = Normalization::unit(1);
  Engine engine = Engine::automatic;
};

/// What one call did. The error bound is of what rounding does, in features, weights and sums, by the formula for these
/// features in exact arithmetic; features of a map that does not tell its own rounding (feature_map.hpp) count as
/// exact.
struct Report {
  Engine engine = Engine::automatic;  // that ran, of the first sequence; automatic if there was nothing to compute
  Index repaired_rows = 0;            // computed again: by the engine's rounding or underflow they may have been off
  Index indefinite_rows = 0;          // their denominator is not positive: features of both signs, or all of them lost
  Index empty_rows = 0;               // they see no key, and are zero
  double error_bound = 0;             // the largest that remains possible of a row, relative to the largest |v| it sees
  std::size_t workspace_bytes = 0;    // scratch memory of all threads at its peak; what forward saves does not count
};

/// What one call adds.
///
/// Padding is of keys; every query has a row. A key that is padding takes no part: it leaves numerator and denominator,
/// and whatever it holds is never read; its gradients are zero. Sequences packed into one array see nothing of each
/// other; positions start anew in each.
///
/// Where the rounding of an engine may put a row of y farther off than half the tolerance, relative to the largest |v|
/// that the row sees, that row is computed again by itself, for up to 1.5 times what it costs the direct engine; or
/// where most are, all rows at once by tiles. Infinity leaves them all. The other half is for what no engine changes,
/// see Report::error_bound.
///
/// Where nothing is saved for gradients and features are positive, Engine::automatic may compute with biases that are
/// off by a quarter of the tolerance, if they then lie on straight lines and take an engine that is faster: those of a
/// table that ALiBi or T5 has been written out to.
///
/// A NaN or an infinity in a query is its own row's; in a key or a value it touches the rows that see it, as it does in
/// the formula, and no other. So do their gradients; a key that no query sees has the gradient 0, whatever it holds.
///
/// A call is refused, by InvalidArgument, before anything is written: y, the report and what was saved before stay.
/// Only where memory runs out, or a feature map or position of the user's own throws or returns another shape, y may be
/// written in part, and `saved` is nobody's until the next forward.
struct CallOptions {
  OptionSpan<bool> key_mask = {};  // one a key (and sequence of the batch): false is padding; empty: none is
  OptionSpan<Index> lengths = {};  // one a sequence of the batch: keys from there on are padding; empty: none is
  OptionSpan<Index> cumulative_lengths = {};      // packed: 0, n_1, n_1 + n_2, ..., n; empty: one sequence
  OptionSpan<Index> key_cumulative_lengths = {};  // the keys' own, for cross attention; empty: the same
  Index offset = 0;                               // query i stands at position i + offset, key j at position j
  double tolerance = 0;                           // 0: 1e-4 in float, 1e-10 in double
  bool check_finite = false;                      // throw InvalidArgument for a NaN or an infinity
  Report* report = nullptr;                       // filled in where given
};

}  // namespace nprf
