// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/attention/options.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/index.hpp"

namespace nprf {

/// Options of a decoder, fixed when it is built.
struct DecoderOptions {
  Index batch = 1;        // the number of sequences
  Index rollback = 0;     // how many of its last tokens a sequence can take back
  Index most_tokens = 0;  // the most tokens that a sequence can have; 0: any number

  /// Returns these options. Throws InvalidArgument unless the attention is causal, batch >= 1, rollback is in 0..2^24
  /// and most_tokens >= 0.
  const DecoderOptions& checked(const AttentionOptions& attention) const {
    constexpr Index most = Index{1} << 24;
    require(attention.direction == Direction::causal,
            "attention: expected one with Direction::causal, got a bidirectional one");
    require(batch >= 1, "batch: expected at least 1, got ", batch);
    require(0 <= rollback && rollback <= most, "rollback: expected 0 to ", most, ", got ", rollback);
    require(most_tokens >= 0, "most_tokens: expected 0 or more, got ", most_tokens);
    return *this;
  }
};

}  // namespace nprf
