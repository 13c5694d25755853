// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "nprf/cuda/decoder/decode_kernel.cuh"
#include "nprf/cuda/decoder/state_kernels.cuh"
#include "nprf/cuda/decoder/states.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/kernel_loading.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/plan/position_tables.hpp"
#include "nprf/decoder/step_bias.hpp"

/// Defines the members of DecodePlan, and includes all kernels that they launch.
namespace nprf::cuda {

template <Storage S>
class DecodePlan<S>::Implementation {
 public:
  Implementation(AttentionModel model, const DecodeShape& shape, cudaStream_t stream)
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

  void append(const View& k, const View& v, const DecodeCall& call, cudaStream_t stream) {
    m_device.check_current();
    check_inputs(k, v);
    queue(k, k, v, {}, call, stream);
  }

  void step(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const DecodeCall& call,
            cudaStream_t stream) {
    m_device.check_current();
    check_inputs(k, v);
    check_matrix(q, "q", m_shape.batch, m_shape.heads, k.tokens, m_model.d());
    check_output(y, "y", m_shape.batch, m_shape.heads, k.tokens, m_shape.d_v);
    queue(q, k, v, y, call, stream);
  }

  void rollback(const int* tokens, cudaStream_t stream) {
    m_device.check_current();
    require(tokens != nullptr, "tokens: expected an array on the device, got null");
    queue_rollback(rollback_task(tokens, 0, 0), stream);
  }
  void rollback(std::ptrdiff_t sequence, std::ptrdiff_t tokens, cudaStream_t stream) {
    m_device.check_current();
    check_sequence(sequence, "sequence");
    require(0 <= tokens && tokens <= std::numeric_limits<int>::max(), "tokens: expected 0 or more, got ", tokens);
    queue_rollback(rollback_task(nullptr, static_cast<int>(sequence), static_cast<int>(tokens)), stream);
  }

  void reorder(const int* from, cudaStream_t stream) {
    m_device.check_current();
    require(from != nullptr, "from: expected an array on the device, got null");
    queue_reorder({from, 0, 0, m_states, m_counts}, stream);
  }
  void fork(std::ptrdiff_t from, std::ptrdiff_t to, cudaStream_t stream) {
    m_device.check_current();
    check_sequence(from, "from");
    check_sequence(to, "to");
    queue_reorder({nullptr, static_cast<int>(from), static_cast<int>(to), m_states, m_counts}, stream);
  }

  void reset(std::ptrdiff_t sequence, cudaStream_t stream) {
    m_device.check_current();
    check_sequence(sequence, "sequence");
    queue_clear(m_states.tokens + sequence * m_shape.heads, static_cast<std::size_t>(m_shape.heads), stream);
  }
  void reset(cudaStream_t stream) {
    m_device.check_current();
    queue_clear(m_states.tokens, static_cast<std::size_t>(m_model.z()), stream);
    queue_clear(m_counts, 1, stream);
  }

  const int* tokens() const { return m_states.tokens; }
  const DecodeCounts* counts() const { return m_counts; }
  DecodeCounts host_counts(cudaStream_t stream) const {
    m_device.check_current();
    return copied_to_host(m_counts, stream);
  }
  std::ptrdiff_t reach() const { return m_bias.reach - m_shape.rollback; }
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

  // The biases of each position, all with the same reach: K + R (DecodePlan).
  std::vector<StepBias<float>> step_biases() const {
    PositionTables tables;
    std::vector<LagBiasView<float>> positions;
    for (const PositionModel& one : model().positions) positions.push_back(tables.bias_of(one));
    Index reach = near();
    for (const LagBiasView<float>& one : positions)
      reach = std::max(reach, StepBias<float>(one, 0, 0, m_model.positive(), max_tokens()).reach());
    reach += m_shape.rollback;
    std::vector<StepBias<float>> all;
    for (const LagBiasView<float>& one : positions) all.emplace_back(one, reach, 1, m_model.positive(), max_tokens());
    return all;
  }

  // near tokens and sinks, at most as many as a sequence can have
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
    const bool attends_to_all =
        std::all_of(biases.begin(), biases.end(), [](const auto& one) { return one.attends_to_all(); });
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

  // copies the biases, and which state each sequence has, to the device; waits until they are there
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

  // loads the kernels of all calls, so that the first one can be captured in a graph
  void load_kernels(cudaStream_t stream) const {
    const KernelLoading loading;
    const View k(nullptr, m_shape.batch, heads_k(), 1, m_model.d()),
        v(nullptr, m_shape.batch, heads_k(), 1, m_shape.d_v);
    queue(k, k, v, {}, {}, stream);
    queue_rollback(rollback_task(nullptr, 0, 0), stream);
    queue_reorder({nullptr, 0, 0, m_states, m_counts}, stream);
  }

  void queue(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const DecodeCall& call,
             cudaStream_t stream) const {
    const auto features = [&](const View& x, bool queries) {
      return m_model.features<S, float>(x, queries, nullptr, nullptr, nullptr, 1);
    };
    queue_decode(
        DecodeTask<S>{features(q, true), features(k, false), v, y, call.lengths, m_states, m_bias, max_tokens(),
                      m_model.log_normalisation(), m_model.positive(), m_model.has_exact_rows(), m_counts},
        m_model.z(), stream);
  }

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
DecodePlan<S>::DecodePlan(AttentionModel model, const DecodeShape& shape, cudaStream_t stream)
    : m_implementation(std::make_shared<Implementation>(std::move(model), shape, stream)) {}
template <Storage S>
const AttentionModel& DecodePlan<S>::model() const {
  return m_implementation->model();
}
template <Storage S>
const DecodeShape& DecodePlan<S>::shape() const {
  return m_implementation->shape();
}
template <Storage S>
void DecodePlan<S>::append(const View& k, const View& v, const DecodeCall& call, cudaStream_t stream) {
  m_implementation->append(k, v, call, stream);
}
template <Storage S>
void DecodePlan<S>::step(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
                         const DecodeCall& call, cudaStream_t stream) {
  m_implementation->step(q, k, v, y, call, stream);
}
template <Storage S>
void DecodePlan<S>::rollback(const int* tokens, cudaStream_t stream) {
  m_implementation->rollback(tokens, stream);
}
template <Storage S>
void DecodePlan<S>::rollback(std::ptrdiff_t sequence, std::ptrdiff_t tokens, cudaStream_t stream) {
  m_implementation->rollback(sequence, tokens, stream);
}
template <Storage S>
void DecodePlan<S>::reorder(const int* from, cudaStream_t stream) {
  m_implementation->reorder(from, stream);
}
template <Storage S>
void DecodePlan<S>::fork(std::ptrdiff_t from, std::ptrdiff_t to, cudaStream_t stream) {
  m_implementation->fork(from, to, stream);
}
template <Storage S>
void DecodePlan<S>::reset(std::ptrdiff_t sequence, cudaStream_t stream) {
  m_implementation->reset(sequence, stream);
}
template <Storage S>
void DecodePlan<S>::reset(cudaStream_t stream) {
  m_implementation->reset(stream);
}
template <Storage S>
const int* DecodePlan<S>::tokens() const {
  return m_implementation->tokens();
}
template <Storage S>
const DecodeCounts* DecodePlan<S>::counts() const {
  return m_implementation->counts();
}
template <Storage S>
DecodeCounts DecodePlan<S>::host_counts(cudaStream_t stream) const {
  return m_implementation->host_counts(stream);
}
template <Storage S>
std::ptrdiff_t DecodePlan<S>::reach() const {
  return m_implementation->reach();
}
template <Storage S>
std::size_t DecodePlan<S>::bytes() const {
  return m_implementation->bytes();
}

}  // namespace nprf::cuda
