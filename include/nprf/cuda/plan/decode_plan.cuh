// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include "nprf/config.hpp"
#include "nprf/cuda/decoder/states.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/model.hpp"

namespace nprf::cuda {

/// The sizes of a DecodePlan.
struct DecodeShape {
  std::ptrdiff_t batch = 1, heads = 1, d_v = 0;
  std::ptrdiff_t max_tokens = 0;  // of a sequence; 0: no limit
  std::ptrdiff_t heads_k = 0;     // heads of keys and values, as in PlanShape; 0: as many as `heads`
  std::ptrdiff_t rollback = 0;    // how many of its last tokens a sequence can take back
};

/// Options of a call.
struct DecodeCall {
  // on the device, [batch]: sequence b gets the first lengths[b] of the n tokens of the call: all if lengths[b] is more
  // than n, and none if it is negative; null: each sequence gets all n
  const int* lengths = nullptr;
};

/// Causal attention of sequences that grow token by token, on a GPU, as Decoder (decoder/decoder.hpp) computes it on
/// the CPU.
///
///     DecodePlan<float> plan(model_of(attention), {.batch = 8, .heads = 16, .d_v = 64});
///     plan.append(prompt_k, prompt_v, stream);      // [batch, heads_k, tokens, channels] on the device
///     plan.step(q, k, v, y, stream);                // one token, or a few, of each sequence
///     plan.rollback(rejected, stream);              // sequence b takes back its last rejected[b] tokens
///     plan.reorder(best, stream);                   // beam search: sequence b becomes a copy of sequence best[b]
///
/// A step launches one kernel, a rollback one, and a reordering two. None of them allocates or synchronises. The
/// numbers of tokens are on the device and the kernels change them, so that a CUDA graph of these calls can be launched
/// for each token. Let K be the larger of the width of the near field and the reach of the position
/// (decoder/step_bias.hpp). The reach is 0 without a position and for ALiBi, the clipping distance of a table, or the
/// distance from which T5 has one bucket. Let R be DecodeShape::rollback. A head has a ring of its last K + R tokens,
/// and sums over all earlier ones. With p = d_v + 1 and r features, a step of a head takes O(r (d + p)) operations, and
/// O((K + R + 1) (r + p)) for the ring. The state of a head takes 2 r p floats, and (K + R + 1) (r + p) floats for the
/// ring, or max_tokens (r + p) if that is less: then the ring is a cache of all tokens. The plan allocates the states
/// of all sequences.
///
/// The last AttentionModel::near tokens and the attention sinks, the first AttentionModel::sinks tokens of a sequence,
/// have the weights exp(q.k + b) of softmax. They add O(near d + sinks (d + d_v)) operations to a step. To a state they
/// add sinks (d + d_v) floats and, with a near field, d floats for each token of the ring. The ring also has the
/// features of the tokens of the near field, which are needed when these tokens become far.
///
/// With grouped queries (DecodeShape::heads_k) each head of queries has a state of its own. So the block of threads of
/// a head waits for no other one, and the maps and positions of a group may differ; but the states take the memory of
/// `heads` heads of keys, and each block computes the features of its keys.
///
/// Features may be of any kind without a tilt, centred or not. There is one map for all heads or one for each head; the
/// same holds for positions. A near field and sinks need features other than elu. The position must not be a grid. A
/// curve needs DecodeShape::max_tokens, at most its reach + 1; its state is a ring of as many tokens, as for a table. A
/// row whose denominator underflows or overflows is NaN, since there is no exact softmax as on the CPU. With a series,
/// a near field or sinks, a row whose terms cancel is returned as it is. DecodeCounts::failing_rows counts both. A
/// non-finite query makes its own row NaN; a non-finite key makes the rows NaN that attend to it, and a non-finite
/// value makes its channel NaN in the rows that attend to its key. If the position has a tail, these are all later rows
/// until the sequence is reset, or until a rollback takes the token back.
///
/// Bits: the same tokens give the same bits, however they were divided between append and steps, and whatever the other
/// sequences are. After a rollback the sums may contain tokens that would otherwise still be in the ring: then rows
/// agree within their error bounds. Sums are in float and compensated, as on the CPU. S is the storage type of q, k, v
/// and y; a state is in float. A plan belongs to the device that was current at construction. Calls must run one after
/// another.
template <Storage S>
class DecodePlan {
 public:
  using View = DeviceMatrixView<const S>;

  /// Makes all sequences empty. Waits until the model is on the device. Throws InvalidArgument if the sizes do not fit
  /// together or are not supported, BackendError if there is no device of compute capability 7.0 or newer, not enough
  /// memory, or if the kernels were compiled with -use_fast_math.
  DecodePlan(AttentionModel model, const DecodeShape& shape, cudaStream_t stream = nullptr);
  /// A plan that was moved from can only be assigned to and destroyed.
  DecodePlan(DecodePlan&&) noexcept = default;
  DecodePlan& operator=(DecodePlan&&) noexcept = default;

  const AttentionModel& model() const;
  const DecodeShape& shape() const;

  /// Appends the tokens of k [batch, heads_k, n, d] and v [batch, heads_k, n, d_v], one after another: O(n) steps of a
  /// block of threads for each head of queries. Throws InvalidArgument if the views do not have these shapes,
  /// BackendError if CUDA reports an error.
  void append(const View& k, const View& v, const DecodeCall& call, cudaStream_t stream);
  void append(const View& k, const View& v, cudaStream_t stream = nullptr) { append(k, v, {}, stream); }

  /// Appends as append() does, and sets y [batch, heads, n, d_v] to the rows of the queries q [batch, heads, n, d]. In
  /// sequence b the rows from DecodeCall::lengths[b] on are zero. Throws as append().
  void step(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const DecodeCall& call,
            cudaStream_t stream);
  void step(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, cudaStream_t stream = nullptr) {
    step(q, k, v, y, {}, stream);
  }

  /// Takes back the last tokens[b] tokens of each sequence b. `tokens` [batch] is on the device. While a sequence has
  /// had at most K + R tokens since it was empty, all of them can be taken back. After that, it cannot become shorter
  /// than the most tokens that it has had, minus R. If tokens[b] is more than can be taken back, or negative, the
  /// sequence stays as it is, and DecodeCounts::rejected_rollbacks counts it. O(batch heads). Throws InvalidArgument
  /// for a null pointer, BackendError if CUDA reports an error.
  void rollback(const int* tokens, cudaStream_t stream);
  /// Takes back the last `tokens` tokens of one sequence, by the same rule. Throws InvalidArgument if there is no such
  /// sequence or `tokens` is negative, BackendError if CUDA reports an error.
  void rollback(std::ptrdiff_t sequence, std::ptrdiff_t tokens, cudaStream_t stream);

  /// Makes each sequence b a copy of what sequence from[b] was before the call, as beam search selects beams. `from`
  /// [batch] is on the device. Copies only the states that are selected more than once: O(batch heads + bytes of these
  /// copies). If some from[b] is no sequence, nothing changes, and DecodeCounts::rejected_reorders counts the call.
  /// Throws InvalidArgument for a null pointer, BackendError if CUDA reports an error.
  void reorder(const int* from, cudaStream_t stream);
  /// Makes sequence `to` a copy of sequence `from`. Throws InvalidArgument if one of them does not exist, BackendError
  /// if CUDA reports an error.
  void fork(std::ptrdiff_t from, std::ptrdiff_t to, cudaStream_t stream);

  /// Removes all tokens of a sequence. Throws InvalidArgument if there is no such sequence, BackendError if CUDA
  /// reports an error.
  void reset(std::ptrdiff_t sequence, cudaStream_t stream);
  /// Removes all tokens of all sequences, and clears the counts. Throws BackendError if CUDA reports an error.
  void reset(cudaStream_t stream = nullptr);

  /// The numbers of tokens [batch, heads], in device memory; all heads of a sequence have the same number.
  const int* tokens() const;
  /// The statistics, in device memory.
  const DecodeCounts* counts() const;
  /// Waits for all work of the stream, and returns a copy of the statistics on the host. Throws BackendError if CUDA
  /// reports an error, for example one of the work of the stream.
  DecodeCounts host_counts(cudaStream_t stream = nullptr) const;
  /// K: the larger of the reach of the position and the width of the near field.
  std::ptrdiff_t reach() const;
  /// The memory of the states of all sequences, in bytes.
  std::size_t bytes() const;

 private:
  struct Implementation;  // decode_plan_definition.cuh

  std::shared_ptr<Implementation> m_implementation;  // has one owner; a unique_ptr would need the complete class
};

}  // namespace nprf::cuda

#if NPRF_CUDA_EXTERN_INSTANCES  // instances.cuh
extern template class nprf::cuda::DecodePlan<float>;
extern template class nprf::cuda::DecodePlan<__half>;
extern template class nprf::cuda::DecodePlan<__nv_bfloat16>;
#else
#include "nprf/cuda/plan/decode_plan_definition.cuh"
#endif
