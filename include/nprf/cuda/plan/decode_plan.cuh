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
  std::ptrdiff_t heads_k = 0;     // of keys and values, as in PlanShape; 0: as many as of queries
  std::ptrdiff_t rollback = 0;    // how many of its last tokens a sequence can take back
};

/// Options of a call.
struct DecodeCall {
  // on the device, [batch]: sequence b gets its first lengths[b] tokens, as many as there are if that is more, and none
  // if it is negative; null: all
  const int* lengths = nullptr;
};

/// Causal attention of sequences that grow token by token, on a GPU: the rows of Decoder (decoder/decoder.hpp).
///
///     DecodePlan<float> plan(model_of(attention), {.batch = 8, .heads = 16, .d_v = 64});
///     plan.append(prompt_k, prompt_v, stream);      // [batch, heads_k, tokens, channels] on the device
///     plan.step(q, k, v, y, stream);                // one token, or a few, of each sequence
///     plan.rollback(rejected, stream);              // sequence b takes back its last rejected[b] tokens
///     plan.reorder(best, stream);                   // beam search: sequence b becomes a copy of sequence best[b]
///
/// A step is one launch, a rollback too, and a reordering two; they allocate nothing and do not synchronise. The
/// numbers of tokens are on the device and the kernels change them, so that a CUDA graph of these calls can be launched
/// for each token. Let K be the width of the near field, or the reach of the position if that is more
/// (decoder/step_bias.hpp): 0 without one and for ALiBi, the clipping distance of a table, or the distance from which
/// T5 has one bucket; and R = DecodeShape::rollback. A head has a ring of the last K + R tokens, and sums over all
/// others. With p = d_v + 1 and r features, a step takes O(r (d + p)) operations and O((K + R + 1) (r + p)) for the
/// ring. A state takes 2 r p floats, and (K + R + 1) (r + p) for the ring, or max_tokens (r + p) if that is less: then
/// it is a cache of all tokens. The plan allocates all of it.
///
/// The last AttentionModel::near tokens and the attention sinks, the first AttentionModel::sinks tokens of a sequence,
/// have the weights exp(q.k + b) of softmax. They add O(near d + sinks (d + d_v)) operations to a step, and d floats
/// for each token of the ring, if there is a near field, and sinks (d + d_v) to a state. Tokens of the near field are
/// in the ring with their features, too, for when they leave it.
///
/// With grouped queries (DecodeShape::heads_k) each head of queries has a state of its own. So its block of threads
/// waits for no other one, and the maps and positions of a group may differ; but the states take the memory of `heads`
/// heads of keys, and each block computes the features of its keys.
///
/// Features may be of any kind without a tilt, centred or not, with one map or position for all heads or for each; a
/// near field and sinks need others than elu. There is no grid. A row whose denominator underflows or overflows is NaN,
/// since there is no exact softmax as on the CPU; a row whose terms cancel, of a series or with a near field or sinks,
/// is returned as it is. Both count (DecodeCounts). A non-finite query makes its own row NaN, a non-finite key the rows
/// that attend to it, and a non-finite value its channel of these rows. If the position has a tail, these are all later
/// rows until the sequence is reset, or until a rollback takes the token back.
///
/// Bits: the same tokens give the same bits, however they were divided between append and steps, and for any other
/// sequences beside them. After a rollback sums may contain tokens that would otherwise still be in the ring: then rows
/// agree within their error bounds. Sums are in float and compensated, as on the CPU. S is the storage type of q, k, v
/// and y; a state is in float. A plan belongs to the device that was current at construction. Calls must run one after
/// another.
template <Storage S>
class DecodePlan {
 public:
  using View = DeviceMatrixView<const S>;

  /// Waits until the model is on the device. All sequences are empty. Throws InvalidArgument if the sizes do not fit
  /// together or are not supported, BackendError if there is no device of compute capability 7.0 or newer, not
  /// enough memory, or if the kernels were compiled with -use_fast_math.
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

  /// The same, and sets y [batch, heads, n, d_v] to the rows of q [batch, heads, n, d]. Rows from a sequence's length
  /// on are zero.
  void step(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const DecodeCall& call,
            cudaStream_t stream);
  void step(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, cudaStream_t stream = nullptr) {
    step(q, k, v, y, {}, stream);
  }

  /// Takes back the last tokens[b] tokens of each sequence b, [batch] on the device. Once a sequence has had more than
  /// K + R tokens, it cannot become more than R shorter than it has been at most; before, all tokens can be taken back.
  /// Otherwise, and if tokens[b] is negative or larger than its number of tokens, it stays as it is and counts
  /// (DecodeCounts). O(batch heads). Throws InvalidArgument for a null pointer, BackendError if CUDA reports an error.
  void rollback(const int* tokens, cudaStream_t stream);
  /// The same for one sequence. Throws InvalidArgument, too, if there is no such sequence or `tokens` is negative.
  void rollback(std::ptrdiff_t sequence, std::ptrdiff_t tokens, cudaStream_t stream);

  /// Sequence b becomes a copy of what sequence from[b] was, for all b, [batch] on the device, as beam search selects
  /// beams. Copies only the states that are selected more than once: O(batch heads + bytes of these copies). If a
  /// sequence does not exist, nothing changes and the call counts (DecodeCounts). Throws as rollback().
  void reorder(const int* from, cudaStream_t stream);
  /// Sequence `to` becomes a copy of sequence `from`. Throws InvalidArgument, too, if one of them does not exist.
  void fork(std::ptrdiff_t from, std::ptrdiff_t to, cudaStream_t stream);

  /// Removes all tokens of a sequence. Throws InvalidArgument if there is no such sequence, BackendError if CUDA
  /// reports an error.
  void reset(std::ptrdiff_t sequence, cudaStream_t stream);
  /// Removes all tokens of all sequences, and clears the counts. Throws BackendError if CUDA reports an error.
  void reset(cudaStream_t stream = nullptr);

  /// The numbers of tokens [batch, heads], in device memory; those of a sequence's heads are equal.
  const int* tokens() const;
  /// In device memory.
  const DecodeCounts* counts() const;
  /// The same on the host, after all work of the stream. Waits for the stream. Throws BackendError if CUDA reports an
  /// error, for example one of that work.
  DecodeCounts host_counts(cudaStream_t stream = nullptr) const;
  /// The reach K of the position, at least the width of the near field.
  std::ptrdiff_t reach() const;
  /// The memory of the states of all sequences, in bytes.
  std::size_t bytes() const;

 private:
  class Implementation;  // decode_plan_definition.cuh

  std::shared_ptr<Implementation> m_implementation;  // not shared: a unique_ptr would need the complete class
};

}  // namespace nprf::cuda

#if NPRF_CUDA_EXTERN_INSTANCES  // instances.cuh
extern template class nprf::cuda::DecodePlan<float>;
extern template class nprf::cuda::DecodePlan<__half>;
extern template class nprf::cuda::DecodePlan<__nv_bfloat16>;
#else
#include "nprf/cuda/plan/decode_plan_definition.cuh"
#endif
