// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/index.hpp"

namespace nprf {

/// The rows of one of the sequences that are packed in an array.
struct Segment {
  Index q_begin, n_q, k_begin, n_k;
};

/// Of which rows CallOptions::lengths are the numbers; later ones are padding. Queries that are padding have no row: y
/// keeps its entries there.
enum class Lengths { of_keys, of_queries_and_keys };

}  // namespace nprf
