// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "nprf/cuda/decoder/decode_kernel.cuh"
#include "nprf/cuda/decoder/reorder_kernel.cuh"
#include "nprf/cuda/decoder/rollback_kernel.cuh"
#include "nprf/cuda/decoder/states.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/kernel_loading.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/plan/position_tables.hpp"
#include "nprf/decoder/step_bias.hpp"

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
  /// together or are not supported, BackendError if there is no device of compute capability 7.0 or newer, or not
  /// enough memory.
  DecodePlan(AttentionModel model, const DecodeShape& shape, cudaStream_t stream = nullptr)
      : m_device(Device::current()),
        m_shape(checked(shape)),
        m_model(checked(std::move(model)),
                {.batch = shape.batch,
                 .heads = shape.heads,
                 .n_q = 1,
                 .n_k = 1,
                 .d_v = shape.d_v,
                 .heads_k = shape.heads_k},
                false, stream) {
    const std::vector<StepBias<float>> biases = step_biases();
    const auto take = [&](Scratch scratch) {
      take_arrays(scratch, biases);
      return scratch.bytes();
    };
    m_bytes = take(Scratch());
    m_memory = DeviceMemory(m_bytes);
    take(Scratch(m_memory.data()));
    reset(stream);
    copy_constants(biases, stream);
    load_kernels(stream);
  }

  const AttentionModel& model() const { return m_model.model(); }
  const DecodeShape& shape() const { return m_shape; }

  /// Appends the tokens of k [batch, heads_k, n, d] v [batch, heads_k, n, d_v], one after another: O(n) steps of a
  /// block of threads for each head of queries. Throws InvalidArgument if the views do not have these shapes,
  /// BackendError if CUDA reports an error.
  void append(const View& k, const View& v, const DecodeCall& call, cudaStream_t stream) {
    m_device.check_current();
    check_inputs(k, v);
    queue(k, k, v, {}, call, stream);
  }
  void append(const View& k, const View& v, cudaStream_t stream = nullptr) { append(k, v, {}, stream); }

  /// The same, and sets y [batch, heads, n, d_v] to the rows of q [batch, heads, n, d]. Rows from a sequence's length
  /// on are zero.
  void step(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const DecodeCall& call,
            cudaStream_t stream) {
    m_device.check_current();
    check_inputs(k, v);
    check_matrix(q, "q", m_shape.batch, m_shape.heads, k.tokens, m_model.d());
    check_output(y, "y", m_shape.batch, m_shape.heads, k.tokens, m_shape.d_v);
    queue(q, k, v, y, call, stream);
  }
  void step(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, cudaStream_t stream = nullptr) {
    step(q, k, v, y, {}, stream);
  }

  /// Takes back the last tokens[b] tokens of each sequence b, [batch] on the device. Once a sequence has had more than
  /// K + R tokens, it cannot become more than R shorter than it has been at most; before, all tokens can be taken back.
  /// Otherwise, and if tokens[b] is negative or larger than its number of tokens, it stays as it is and counts
  /// (DecodeCounts). O(batch heads). Throws InvalidArgument for a null pointer, BackendError if CUDA reports an error.
  void rollback(const int* tokens, cudaStream_t stream) {
    m_device.check_current();
    require(tokens != nullptr, "tokens: expected an array on the device, got null");
    queue_rollback(rollback_task(tokens, 0, 0), stream);
  }
  /// The same for one sequence. Throws InvalidArgument, too, if there is no such sequence or `tokens` is negative.
  void rollback(std::ptrdiff_t sequence, std::ptrdiff_t tokens, cudaStream_t stream) {
    m_device.check_current();
    check_sequence(sequence, "sequence");
    require(0 <= tokens && tokens <= std::numeric_limits<int>::max(), "tokens: expected 0 or more, got ", tokens);
    queue_rollback(rollback_task(nullptr, static_cast<int>(sequence), static_cast<int>(tokens)), stream);
  }

  /// Sequence b becomes a copy of what sequence from[b] was, for all b, [batch] on the device, as beam search selects
  /// beams. Copies only the states that are selected more than once: O(batch heads + bytes of these copies). If a
  /// sequence does not exist, nothing changes and the call counts (DecodeCounts). Throws as rollback().
  void reorder(const int* from, cudaStream_t stream) {
    m_device.check_current();
    require(from != nullptr, "from: expected an array on the device, got null");
    queue_reorder({from, 0, 0, m_states, m_counts}, stream);
  }
  /// Sequence `to` becomes a copy of sequence `from`. Throws InvalidArgument, too, if one of them does not exist.
  void fork(std::ptrdiff_t from, std::ptrdiff_t to, cudaStream_t stream) {
    m_device.check_current();
    check_sequence(from, "from");
    check_sequence(to, "to");
    queue_reorder({nullptr, static_cast<int>(from), static_cast<int>(to), m_states, m_counts}, stream);
  }

  /// Removes all tokens of a sequence. Throws InvalidArgument if there is no such sequence.
  void reset(std::ptrdiff_t sequence, cudaStream_t stream) {
    m_device.check_current();
    check_sequence(sequence, "sequence");
    queue_clear(m_states.tokens + sequence * m_shape.heads, static_cast<std::size_t>(m_shape.heads), stream);
  }
  /// Removes all tokens of all sequences, and clears the counts.
  void reset(cudaStream_t stream = nullptr) {
    m_device.check_current();
    queue_clear(m_states.tokens, static_cast<std::size_t>(m_model.z()), stream);
    queue_clear(m_counts, 1, stream);
  }

  /// The numbers of tokens [batch, heads], in device memory; those of a sequence's heads are equal.
  const int* tokens() const { return m_states.tokens; }
  /// In device memory.
  const DecodeCounts* counts() const { return m_counts; }
  /// The same on the host, after all work of the stream. Waits for the stream. Throws BackendError if CUDA reports an
  /// error, for example one of that work.
  DecodeCounts host_counts(cudaStream_t stream = nullptr) const {
    m_device.check_current();
    return copied_to_host(m_counts, stream);
  }
  /// The reach K of the position, at least the width of the near field.
  std::ptrdiff_t reach() const { return m_bias.reach - m_shape.rollback; }
  /// The memory of the states of all sequences, in bytes.
  std::size_t bytes() const { return m_bytes; }

 private:
  static constexpr std::ptrdiff_t most = std::ptrdiff_t{1} << 28, most_rollback = std::ptrdiff_t{1} << 24;  // tokens

  static const DecodeShape& checked(const DecodeShape& shape) {
    require(shape.batch >= 1, "batch: expected at least 1, got ", shape.batch);
    require(0 <= shape.max_tokens && shape.max_tokens <= most, "max_tokens: expected 0 (no limit) to 2^28, got ",
            shape.max_tokens);
    require(0 <= shape.rollback && shape.rollback <= most_rollback, "rollback: expected 0 to 2^24, got ",
            shape.rollback);
    return shape;
  }
  static AttentionModel checked(AttentionModel model) {
    require(model.direction == Direction::causal, "direction: expected causal for a DecodePlan, got bidirectional");
    require(model.near <= most, "near: expected 0 to 2^28 for a DecodePlan, got ", model.near);
    require(model.sinks <= most, "sinks: expected 0 to 2^28 for a DecodePlan, got ", model.sinks);
    require(!model.features.empty() && !model.positions.empty(),
            "model: expected feature maps and positions, got none");
    require(!model.positions.front().is_grid(),
            "position: expected one by the distance of tokens, got one that assigns slots to tokens (a grid), whose "
            "number is fixed");
    return model;
  }

  // of each position, with one reach for all: as many tokens as the ring has, but the newest
  std::vector<StepBias<float>> step_biases() const {
    PositionTables tables;
    std::vector<LagBiasView<float>> positions;
    for (const PositionModel& one : model().positions) positions.push_back(tables.bias_of(one));
    Index reach = near();
    for (const LagBiasView<float>& one : positions)
      reach = std::max(reach, StepBias<float>(one, 0, 0, m_model.positive()).reach());
    reach += m_shape.rollback;
    std::vector<StepBias<float>> all;
    for (const LagBiasView<float>& one : positions) all.emplace_back(one, reach, 1, m_model.positive());
    return all;
  }

  // no more than a sequence has
  int near() const { return static_cast<int>(std::min<std::ptrdiff_t>(model().near, max_tokens())); }
  int sinks() const { return static_cast<int>(std::min<std::ptrdiff_t>(model().sinks, max_tokens())); }
  int max_tokens() const {
    return m_shape.max_tokens > 0 ? static_cast<int>(m_shape.max_tokens) : std::numeric_limits<int>::max();
  }

  void take_arrays(Scratch& scratch, const std::vector<StepBias<float>>& biases) {
    const int reach = static_cast<int>(biases.front().reach());
    const bool has_tail = std::any_of(biases.begin(), biases.end(), [](const auto& one) { return one.has_tail(); });
    m_table = scratch.take<double>(biases.size(), reach + 1);
    m_slopes = scratch.take<double>(biases.size());
    const bool attends_to_all = std::all_of(biases.begin(), biases.end(), [&](const auto& one) {
      return one.has_tail() && std::all_of(one.from(reach), one.from(0) + 1, [](double b) { return std::isfinite(b); });
    });
    m_bias = {m_table, m_slopes, static_cast<int>(biases.size()), reach, attends_to_all};
    m_counts = scratch.take<DecodeCounts>(1);
    m_states = DecodeStates::take(scratch, {.batch = static_cast<int>(m_shape.batch),
                                            .heads = static_cast<int>(m_shape.heads),
                                            .slots = std::min(reach + 1, max_tokens()),
                                            .r = m_model.r(),
                                            .d = m_model.d(),
                                            .d_v = m_model.d_v(),
                                            .near = near(),
                                            .sinks = sinks(),
                                            .has_sums = has_tail && max_tokens() > reach + sinks()});
  }

  // biases, and the states of sequences; waits until they are on the device
  void copy_constants(const std::vector<StepBias<float>>& biases, cudaStream_t stream) const {
    std::vector<double> table, slopes;
    std::vector<int> states(static_cast<std::size_t>(m_shape.batch));
    std::iota(states.begin(), states.end(), 0);
    for (const StepBias<float>& one : biases) {
      for (Index age = 0; age <= one.reach(); ++age) table.push_back(one(age));
      slopes.push_back(one.slope());
    }
    const auto copy = [&](auto* to, const auto& from) {
      check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(*to), cudaMemcpyHostToDevice, stream),
            "copying to the device");
    };
    copy(m_table, table);
    copy(m_slopes, slopes);
    copy(m_states.state, states);
    check(cudaStreamSynchronize(stream), "copying to the device");
  }

  void check_sequence(std::ptrdiff_t sequence, const char* name) const {
    require(0 <= sequence && sequence < m_shape.batch, name, ": expected 0 to ", m_shape.batch - 1,
            " (a sequence of the batch), got ", sequence);
  }

  RollbackTask rollback_task(const int* tokens, int sequence, int count) const {
    return {tokens, sequence, count, m_states, static_cast<int>(reach()), m_counts};
  }

  std::ptrdiff_t heads_k() const { return m_shape.heads / m_model.group(); }

  void check_inputs(const View& k, const View& v) const {
    const std::ptrdiff_t n = k.tokens;
    require(0 <= n && n <= std::numeric_limits<int>::max(), "k: expected 0 tokens or more, got ", n);
    check_matrix(k, "k", m_shape.batch, heads_k(), n, m_model.d());
    check_matrix(v, "v", m_shape.batch, heads_k(), n, m_shape.d_v);
  }

  template <class T>
  static void queue_clear(T* array, std::size_t size, cudaStream_t stream) {
    check(cudaMemsetAsync(array, 0, size * sizeof(T), stream), "clearing a state");
  }

  // so that the first step can be captured in a graph
  void load_kernels(cudaStream_t stream) const {
    const KernelLoading loading;
    const View k(nullptr, m_shape.batch, heads_k(), 1, m_model.d()),
        v(nullptr, m_shape.batch, heads_k(), 1, m_shape.d_v);
    queue(k, k, v, {}, {}, stream);
    queue_rollback(rollback_task(nullptr, 0, 0), stream);
    queue_reorder({nullptr, 0, 0, m_states, m_counts}, stream);
  }

  // not inline, so that an extern instance compiles no kernel
  void queue(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const DecodeCall& call,
             cudaStream_t stream) const;

  Device m_device;
  DecodeShape m_shape;
  DeviceModel m_model;  // for one query and one key, since the weights of lags are not used
  DeviceMemory m_memory;
  std::size_t m_bytes = 0;
  double *m_table = nullptr, *m_slopes = nullptr;
  DecodeBias m_bias{};
  DecodeStates m_states{};
  DecodeCounts* m_counts = nullptr;
};

template <Storage S>
void DecodePlan<S>::queue(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
                          const DecodeCall& call, cudaStream_t stream) const {
  const auto features = [&](const View& x, bool queries) {
    return m_model.features<S, float>(x, queries, nullptr, nullptr, nullptr, 1);
  };
  queue_decode(DecodeTask<S>{features(q, true), features(k, false), v, y, call.lengths, m_states, m_bias, max_tokens(),
                             m_model.log_normalisation(), m_model.positive(), m_model.has_exact_rows(), m_counts},
               m_model.z(), stream);
}

}  // namespace nprf::cuda
