// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/decoder/running_log_scale.hpp"

namespace nprf::cuda {

/// Statistics of a DecodePlan since it was made, or since the last reset of all sequences, in device memory. Rows and
/// tokens count for each head, so that a token that is rejected counts as many times as there are heads of queries; a
/// row that is NaN, since its query or a key that it attends to is not finite, does not count.
struct DecodeCounts {
  int empty_rows;          // attend to no key, and are zero
  int indefinite_rows;     // their denominator is not positive
  int failing_rows;        // are NaN, since the denominator underflows or overflows; or their terms cancel (DecodePlan)
  int rejected_tokens;     // beyond DecodeShape::max_tokens: not appended, and their rows are NaN
  int rejected_rollbacks;  // of sequences, by a negative number of tokens or by more than they can take back
  int rejected_reorders;   // with a sequence that does not exist
};

/// The sizes of DecodeStates.
struct DecodeSizes {
  int batch, heads, slots, r, d, d_v;
  int near, sinks;  // tokens of the near field, at most `slots`; attention sinks
  bool has_sums;    // otherwise S and Z are empty
};

/// What a state becomes a copy of: the state `from`, as far as a sequence of `tokens` tokens needs it. If from is -1,
/// the state stays as it is.
struct StateCopy {
  int from, tokens;
};

/// The numbers DecodeStates::tokens and left of one head.
struct HeadTokens {
  int tokens, left;
};

/// The states of sequences, on the device. Sequence b has the state state[b]; these are a permutation. In `tokens` and
/// `left` z is (sequence, head of queries), and in all arrays of states z is (state, head of queries). The last `slots`
/// tokens of a head are in a ring: token j in slot j mod slots. The tokens 0, 1, ..., left-1 have left it. The sums
/// over them, without the sinks,
///
///     S = sum_j w_j phi(k_j)^T v_j   (r,d_v)      Z = sum_j w_j phi(k_j)   (r)
///
/// have the weights w_j and the unit of the CPU's sums (decoder/running_sums.hpp). Where a head has no token, only
/// tokens[z] is meaningful.
struct DecodeStates : DecodeSizes {
  int *tokens, *left;              // [z]  of sequences: all tokens, and those that have left the ring
  int* state;                      // [batch]  of a sequence
  RunningLogScale* log_scale;      // [z]  of S and Z
  float* norms;                    // [z]  sum_j w_j |phi(k_j)|, if features can be negative
  float *S, *S_errors;             // [z, r, d_v]  sums, and the errors of their last additions
  float *Z, *Z_errors;             // [z, r]
  float* features;                 // [z, r, slots]
  float* values;                   // [z, slots, d_v]
  float* log_scales;               // [z, slots]
  float* feature_norms;            // [z, slots]  if features can be negative
  float* keys;                     // [z, slots, d]  normalised, if there is a near field
  float *sink_keys, *sink_values;  // [z, sinks, d] [z, sinks, d_v]
  float* weights;                  // [z, slots + sinks]  of the keys, numbered as in HeadKeys, for the query that is
                                   // computed; null: in shared memory, since there are few
  StateCopy* copies;               // [batch]  of states, for a reordering
  HeadTokens* reordered;           // [z]  of sequences, for a reordering
  int* lists;                      // [4, batch]  scratch memory of a reordering

  static constexpr int most_in_shared = 4096;  // weights

  NPRF_HOST_DEVICE int z() const { return batch * heads; }
  bool has_shared_weights() const { return slots <= most_in_shared && sinks <= most_in_shared - slots; }
  std::size_t shared_weights() const { return has_shared_weights() ? static_cast<std::size_t>(slots + sinks) : 0; }

  static DecodeStates take(Scratch& scratch, const DecodeSizes& size) {
    const auto [batch, heads, slots, r, d, d_v, near, sinks, has_sums] = size;
    const int z = batch * heads, of_sums = has_sums ? z : 0;
    DecodeStates x{};
    static_cast<DecodeSizes&>(x) = size;
    x.tokens = scratch.take<int>(z);
    x.left = scratch.take<int>(z);
    x.state = scratch.take<int>(batch);
    x.log_scale = scratch.take<RunningLogScale>(z);
    x.norms = scratch.take<float>(z);
    x.S = scratch.take<float>(of_sums, r, d_v);
    x.S_errors = scratch.take<float>(of_sums, r, d_v);
    x.Z = scratch.take<float>(of_sums, r);
    x.Z_errors = scratch.take<float>(of_sums, r);
    x.features = scratch.take<float>(z, r, slots);
    x.values = scratch.take<float>(z, slots, d_v);
    x.log_scales = scratch.take<float>(z, slots);
    x.feature_norms = scratch.take<float>(z, slots);
    x.keys = scratch.take<float>(near > 0 ? z : 0, slots, d);
    x.sink_keys = scratch.take<float>(z, sinks, d);
    x.sink_values = scratch.take<float>(z, sinks, d_v);
    if (!x.has_shared_weights()) x.weights = scratch.take<float>(z, slots + sinks);
    x.copies = scratch.take<StateCopy>(batch);
    x.reordered = scratch.take<HeadTokens>(z);
    x.lists = scratch.take<int>(4, batch);
    return x;
  }
};

/// The biases of all positions by the age of a key (decoder/step_bias.hpp), on the device.
struct DecodeBias {
  const double* table;   // [position, reach + 1]  the last one is the first of the tail; -infinity: no tail
  const double* slopes;  // [position]  of the tail
  int positions, reach;
  bool attends_to_all;  // no bias is -infinity
};

}  // namespace nprf::cuda
