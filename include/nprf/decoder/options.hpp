// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "nprf/attention/options.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/index.hpp"

namespace nprf {

/// How a decoder chooses the windows of its online convolution (window_kernels.hpp).
struct WindowOptions {
  Index size = -1;    // the size of all windows; 0: no windows; -1: sizes are chosen by cost
  double memory = 1;  // the most that windows chosen by cost may take, relative to the memory of the stored tokens
};

/// Options of a decoder, fixed when it is built.
struct DecoderOptions {
  Index batch = 1;             // the number of sequences
  Index rollback = 0;          // how many of its last tokens a sequence can take back
  Index most_tokens = 0;       // the most tokens that a sequence can have; 0: any number
  WindowOptions windows = {};  // of the online convolution, for tables with a bias for every lag

  /// Returns these options. Throws InvalidArgument unless the attention is causal, batch >= 1, rollback is in 0..2^24,
  /// most_tokens >= 0, windows.memory >= 0, and windows.size is -1, 0 or a power of two up to 2^24 that is at least
  /// each of 16, AttentionOptions::near and rollback + 1.
  const DecoderOptions& checked(const AttentionOptions& attention) const {
    constexpr Index most = Index{1} << 24;
    require(attention.direction == Direction::causal,
            "attention: expected one with Direction::causal, got a bidirectional one");
    require(batch >= 1, "batch: expected at least 1, got ", batch);
    require(0 <= rollback && rollback <= most, "rollback: expected 0 to ", most, ", got ", rollback);
    require(most_tokens >= 0, "most_tokens: expected 0 or more, got ", most_tokens);
    const Index least = std::max({Index{16}, attention.near, rollback + 1});
    require(windows.size == -1 || windows.size == 0 ||
                (least <= windows.size && windows.size <= most &&
                 std::has_single_bit(static_cast<std::uint64_t>(windows.size))),
            "windows.size: expected -1, 0 or a power of two of at least ", least,
            " (16, AttentionOptions::near and 1 + DecoderOptions::rollback) and at most ", most, ", got ",
            windows.size);
    require(windows.memory >= 0, "windows.memory: expected 0 or more, got ", windows.memory);
    return *this;
  }
};

}  // namespace nprf
