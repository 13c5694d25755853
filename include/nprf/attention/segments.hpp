// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/index.hpp"

namespace nprf {

/// The rows of one of the sequences that are packed in an array: the first query and the number of queries, the first
/// key and the number of keys.
struct Segment {
  Index q_begin, n_q, k_begin, n_k;
};

/// Whether CallOptions::lengths are the numbers of keys alone, or of queries and of keys. Later tokens are padding. A
/// query that is padding is not computed: y keeps its entries there.
enum class Lengths { of_keys, of_queries_and_keys };

}  // namespace nprf
