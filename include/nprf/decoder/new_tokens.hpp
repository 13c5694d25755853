// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/attention/batch/check_arrays.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/segments.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/sequence_states.hpp"
#include "nprf/decoder/step_features.hpp"

namespace nprf {

/// The arrays of a call of a decoder: queries, keys and values of the next tokens of all sequences, and the rows y
/// that the call sets. q [b,h,n,d] k [b,h_k,n,d] v [b,h_k,n,d_v] y [b,h,n,d_v].
template <Real T>
struct NewTokens {
  HeadsView<const T> q, k, v;
  HeadsView<T> y;

  DecoderShape shape() const { return {q.heads, k.heads, v.channels}; }

  /// The number of tokens that sequence b gets.
  Index count(const CallOptions& call, Index b) const {
    return call.lengths.empty() ? q.tokens : call.lengths[static_cast<std::size_t>(b)];
  }

  /// Whether the arrays of both calls have the same sizes and strides, and the same arrays are null.
  bool has_layout_of(const NewTokens& other) const {
    const auto are_alike = [](const auto& a, const auto& b) {
      return a.batch == b.batch && a.heads == b.heads && a.tokens == b.tokens && a.channels == b.channels &&
             a.strides.token == b.strides.token && a.strides.head == b.strides.head &&
             a.strides.batch == b.strides.batch && (a.data == nullptr) == (b.data == nullptr);
    };
    return are_alike(q, other.q) && are_alike(k, other.k) && are_alike(v, other.v) && are_alike(y, other.y);
  }

  /// Throws InvalidArgument unless a decoder with these states accepts the shapes, strides and pointers of the arrays.
  void check_layout(const SequenceStates<T>& states) const;
  /// Throws InvalidArgument unless the decoder accepts the options of the call, and the arrays apart from their layout,
  /// which check_layout() has checked. O(batch), and with CallOptions::check_finite O(size of the arrays).
  void check(const SequenceStates<T>& states, const CallOptions& call) const;
};

/// The address of token t of head h of sequence b of a view.
template <class T>
T* token_of(const HeadsView<T>& x, Index b, Index h, Index t) {
  const HeadStrides by = x.all_strides();
  return x.data + (b * by.batch + h * by.head + t * by.token);
}

/// The tokens first..first+count-1 of the heads h..h+heads-1 of sequence b.
template <Real T>
TokenRows<T> rows_of_tokens(const HeadsView<const T>& x, Index b, Index h, Index heads, Index first, Index count) {
  const HeadStrides by = x.all_strides();
  return {token_of(x, b, h, first), count, by.token, heads, by.head};
}

template <Real T>
void NewTokens<T>::check_layout(const SequenceStates<T>& states) const {
  const Index batch = states.batch(), input_dim = states.model(0).features.map().input_dim(),
              models = static_cast<Index>(states.models().size());
  check_heads(q, "queries", batch, q.heads, q.tokens, input_dim + states.model(0).rank());
  require(q.heads >= 1 && (models == 1 || q.heads == models), "queries: expected ", models == 1 ? 1 : models,
          models == 1 ? " head at least" : " heads (the number of feature maps or positions)", ", got ", q.heads);
  require(k.heads >= 1 && q.heads % k.heads == 0, "keys: expected a number of heads that ", q.heads,
          " (of queries) is a multiple of, got ", k.heads);
  check_heads(k, "keys", batch, k.heads, q.tokens, input_dim);
  check_heads(v, "values", batch, k.heads, q.tokens, v.channels);
  check_output(y, "y", batch, q.heads, q.tokens, v.channels);
  const DecoderShape& x = states.shape();
  require(states.count() == 0 || x == shape(), "queries, keys and values: expected ", x.heads, " and ", x.kv_heads,
          " heads and ", x.d_v, " channels of values (as in the first call), got ", q.heads, ", ", k.heads, " and ",
          v.channels);
}

template <Real T>
void NewTokens<T>::check(const SequenceStates<T>& states, const CallOptions& call) const {
  const Index batch = states.batch();
  require(!detail::may_overlap(y, q) && !detail::may_overlap(y, k) && !detail::may_overlap(y, v),
          "y: expected an array that shares no memory with queries, keys and values, got one that does");
  require(call.key_mask.empty(), "key_mask: expected none for a decoder, whose padding is at the end (lengths), got ",
          call.key_mask.size(), " entries");
  require(call.cumulative_lengths.empty() && call.key_cumulative_lengths.empty(),
          "cumulative_lengths: expected none for a decoder, got some");
  require(call.tolerance >= 0, "tolerance: expected 0 or more, got ", call.tolerance);
  require(call.offset == 0, "offset: expected 0 for a decoder, got ", call.offset);
  require(call.lengths.empty() || static_cast<Index>(call.lengths.size()) == batch, "lengths: expected ", batch,
          " entries (one a sequence), got ", call.lengths.size());
  for (std::size_t b = 0; b < call.lengths.size(); ++b)
    require(0 <= call.lengths[b] && call.lengths[b] <= q.tokens, "lengths[", b, "]: expected 0 to ", q.tokens,
            " (the number of tokens), got ", call.lengths[b]);
  const Index most_tokens = states.model(0).most_tokens;
  for (Index b = 0; b < batch; ++b)
    require(count(call, b) <= most_tokens - states.tokens(b), "tokens: expected at most ", most_tokens,
            " of a sequence (DecoderOptions::most_tokens), got ", states.tokens(b), " and ", count(call, b), " more");
  if (call.check_finite) {
    Workspace workspace;
    require_finite<T>(q, k, v, call, Team(workspace), Lengths::of_queries_and_keys);
  }
}

}  // namespace nprf
