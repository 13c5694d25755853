// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <cstdlib>

namespace nprf::fuzz {

/// Stops the fuzzer, which keeps the input, unless `holds`.
inline void check(bool holds, const char* sentence) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", sentence);
  std::abort();
}

}  // namespace nprf::fuzz
