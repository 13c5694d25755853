// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

#include "nprf/core/types.hpp"

namespace nprf {

/// The queries, keys and values of one sequence of a head. Keys from `length` on and keys whose mask is false are
/// padding, which is not read.
template <Real T>
struct SequenceInputs {
  MatrixView<T> q, k, v;       // (n_q,d) (n_k,d) (n_k,d_v)
  std::span<const bool> mask;  // (n_k); empty: all true
  Index length;
  double tolerance = 0;
  Index compared_rows = 0;             // to be compared with exact softmax
  std::uint64_t seed = 0, stream = 0;  // of the draw of these rows
};

}  // namespace nprf
