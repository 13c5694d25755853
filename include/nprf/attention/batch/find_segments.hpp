// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "nprf/attention/options.hpp"
#include "nprf/attention/segments.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/index.hpp"

namespace nprf {

namespace detail {

inline void check_cumulative(std::span<const Index> lengths, Index n, const char* name) {
  require(lengths.front() == 0, name, "[0]: expected 0, got ", lengths.front());
  for (std::size_t s = 1; s < lengths.size(); ++s)
    require(lengths[s - 1] <= lengths[s], name, "[", s, "]: expected at least ", lengths[s - 1],
            " (the one before), got ", lengths[s]);
  require(lengths.back() == n, name, ": expected to end at ", n, " (the number of tokens), got ", lengths.back());
}

}  // namespace detail

/// Whether each sequence of the batch has one segment, of its own length; otherwise all have the same segments.
inline bool differ_by_sequence(const CallOptions& call, Lengths lengths) {
  return lengths == Lengths::of_queries_and_keys && !call.lengths.empty();
}

/// Sets `segments` to the packed sequences of an array of n_q queries and n_k keys, or to the whole array; all
/// sequences of the batch share these segments. But if differ_by_sequence(), sets it to one segment for each sequence
/// of the batch. Packed sequences without queries and keys are left out. Throws InvalidArgument if the masks, lengths
/// or offset of the call do not fit a batch of such arrays.
inline void find_segments(const CallOptions& call, Index batch, Index n_q, Index n_k, std::vector<Segment>& segments,
                          Lengths lengths = Lengths::of_keys) {
  constexpr Index farthest = Index{1} << 40;
  require(-farthest <= call.offset && call.offset <= farthest, "offset: expected -2^40 to 2^40, got ", call.offset);
  require(call.key_mask.empty() || static_cast<Index>(call.key_mask.size()) == batch * n_k, "key_mask: expected ",
          batch * n_k, " entries (batch x keys), got ", call.key_mask.size());
  require(call.lengths.empty() || static_cast<Index>(call.lengths.size()) == batch, "lengths: expected ", batch,
          " entries (one a sequence), got ", call.lengths.size());
  for (std::size_t s = 0; s < call.lengths.size(); ++s)
    require(0 <= call.lengths[s] && call.lengths[s] <= n_k, "lengths[", s, "]: expected 0 to ", n_k,
            " (the number of keys), got ", call.lengths[s]);

  segments.clear();
  const std::span<const Index> q = call.cumulative_lengths;
  const std::span<const Index> k = call.key_cumulative_lengths.empty() ? q : call.key_cumulative_lengths;
  if (q.empty()) {
    require(k.empty(), "key_cumulative_lengths: expected none without cumulative_lengths, got ", k.size());
    if (differ_by_sequence(call, lengths))
      for (const Index length : call.lengths) segments.push_back({0, length, 0, length});
    else
      segments.push_back({0, n_q, 0, n_k});
    return;
  }
  require(call.lengths.empty(), "lengths: expected none for packed sequences, got ", call.lengths.size());
  require(q.size() == k.size(), "key_cumulative_lengths: expected ", q.size(), " entries (as cumulative_lengths), got ",
          k.size());
  detail::check_cumulative(q, n_q, "cumulative_lengths");
  detail::check_cumulative(k, n_k,
                           call.key_cumulative_lengths.empty() ? "cumulative_lengths" : "key_cumulative_lengths");
  for (std::size_t s = 1; s < q.size(); ++s)
    if (const Segment x{q[s - 1], q[s] - q[s - 1], k[s - 1], k[s] - k[s - 1]}; x.n_q > 0 || x.n_k > 0)
      segments.push_back(x);
}

}  // namespace nprf
