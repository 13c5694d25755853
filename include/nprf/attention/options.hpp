// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <limits>

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
  Engine engine = Engine::automatic;  // the engine that ran; automatic if there was nothing to compute
  Index repaired_rows = 0;            // computed again one by one: their denominator was lost to rounding or underflow
  Index indefinite_rows = 0;          // their denominator is not positive: features of both signs, or all of them lost
  Index empty_rows = 0;               // they see no key, and are zero
  double error_bound = std::numeric_limits<double>::infinity();  // largest relative row error; infinity: none is known
  std::size_t workspace_bytes = 0;  // memory beyond inputs and output; copies of column-major inputs do not count
};

/// What one call adds.
struct CallOptions {
  Index offset = 0;          // query i stands at position i + offset, key j at position j
  Report* report = nullptr;  // filled in where given
};

}  // namespace nprf
