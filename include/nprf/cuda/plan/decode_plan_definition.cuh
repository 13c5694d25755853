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
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/plan/position_tables.hpp"
#include "nprf/decoder/step_bias.hpp"

/// Defines the members of DecodePlan, and includes all kernels that they launch.
namespace nprf::cuda {

template <Storage S>
struct DecodePlan<S>::Implementation {
  Implementation(AttentionModel of_plan, const DecodeShape& sizes, cudaStream_t stream)
      : device(Device::current()),
        shape(checked(sizes)),
        model(checked(std::move(of_plan), sizes),
              {.batch = sizes.batch,
               .heads = sizes.heads,
               .n_q = 1,
               .n_k = 1,
               .d_v = sizes.d_v,
               .heads_k = sizes.heads_k},
              {}, stream) {
    const std::vector<StepBias<float>> biases = step_biases();
    const auto take = [&](Scratch scratch) {
      take_arrays(scratch, biases);
      return scratch.bytes();
    };
    bytes = take(Scratch());
    memory = DeviceMemory(bytes);
    take(Scratch(memory.data()));
    queue_reset(stream);
    copy_constants(biases, stream);
    load_kernels(stream);
  }

  static constexpr std::ptrdiff_t most = std::ptrdiff_t{1} << 28, most_rollback = std::ptrdiff_t{1} << 24;  // tokens

  static const DecodeShape& checked(const DecodeShape& sizes) {
    require(sizes.batch >= 1, "batch: expected at least 1, got ", sizes.batch);
    require(0 <= sizes.max_tokens && sizes.max_tokens <= most, "max_tokens: expected 0 (no limit) to 2^28, got ",
            sizes.max_tokens);
    require(0 <= sizes.rollback && sizes.rollback <= most_rollback, "rollback: expected 0 to 2^24, got ",
            sizes.rollback);
    return sizes;
  }
  static AttentionModel checked(AttentionModel one, const DecodeShape& sizes) {
    require(one.direction == Direction::causal, "direction: expected causal for a DecodePlan, got bidirectional");
    require(one.near <= most, "near: expected 0 to 2^28 for a DecodePlan, got ", one.near);
    require(one.sinks <= most, "sinks: expected 0 to 2^28 for a DecodePlan, got ", one.sinks);
    require(!one.features.empty() && !one.positions.empty(), "model: expected feature maps and positions, got none");
    require(!one.positions.front().is_grid(),
            "position: expected one by the distance of tokens, got one that assigns slots to tokens (a grid), whose "
            "number is fixed");
    for (const PositionModel& each : one.positions)
      require(!each.is_bounded || (sizes.max_tokens > 0 && sizes.max_tokens <= 1 - each.first),
              "max_tokens: expected 1 to ", 1 - each.first, ", for which the position has biases, got ",
              sizes.max_tokens);
    return one;
  }

  // The biases of each position, all with the same reach: K + R (DecodePlan).
  std::vector<StepBias<float>> step_biases() const {
    PositionTables tables;
    std::vector<LagBiasView<float>> positions;
    for (const PositionModel& one : model.model().positions) positions.push_back(tables.bias_of(one));
    Index longest = near();
    for (const LagBiasView<float>& one : positions)
      longest = std::max(longest, StepBias<float>(one, 0, 0, most_decays(), max_tokens()).reach());
    longest += shape.rollback;
    std::vector<StepBias<float>> all;
    for (const LagBiasView<float>& one : positions) all.emplace_back(one, longest, 1, most_decays(), max_tokens());
    return all;
  }

  // the device sums one decay, a line
  std::ptrdiff_t most_decays() const { return model.positive() ? 1 : 0; }

  // near tokens and sinks, at most as many as a sequence can have
  int near() const { return static_cast<int>(std::min<std::ptrdiff_t>(model.model().near, max_tokens())); }
  int sinks() const { return static_cast<int>(std::min<std::ptrdiff_t>(model.model().sinks, max_tokens())); }
  int max_tokens() const {
    return shape.max_tokens > 0 ? static_cast<int>(shape.max_tokens) : std::numeric_limits<int>::max();
  }

  std::ptrdiff_t reach() const { return bias.reach - shape.rollback; }

  void take_arrays(Scratch& scratch, const std::vector<StepBias<float>>& biases) {
    const int longest = static_cast<int>(biases.front().reach());
    const bool has_tail = std::any_of(biases.begin(), biases.end(), [](const auto& one) { return one.has_tail(); });
    table = scratch.take<double>(biases.size(), longest + 1);
    slopes = scratch.take<double>(biases.size());
    const bool attends_to_all =
        std::all_of(biases.begin(), biases.end(), [](const auto& one) { return one.attends_to_all(); });
    bias = {table, slopes, static_cast<int>(biases.size()), longest, attends_to_all};
    counts = scratch.take<DecodeCounts>(1);
    states = DecodeStates::take(scratch, {.batch = static_cast<int>(shape.batch),
                                          .heads = static_cast<int>(shape.heads),
                                          .slots = std::min(longest + 1, max_tokens()),
                                          .r = model.r(),
                                          .d = model.d(),
                                          .d_v = model.d_v(),
                                          .near = near(),
                                          .sinks = sinks(),
                                          .has_sums = has_tail && max_tokens() > longest + sinks()});
  }

  // copies the biases, and which state each sequence has, to the device; waits until they are there
  void copy_constants(const std::vector<StepBias<float>>& biases, cudaStream_t stream) const {
    std::vector<double> by_age, of_tails;
    std::vector<int> own_states(static_cast<std::size_t>(shape.batch));
    std::iota(own_states.begin(), own_states.end(), 0);
    for (const StepBias<float>& one : biases) {
      for (Index age = 0; age <= one.reach(); ++age) by_age.push_back(one(age));
      of_tails.push_back(one.slope());
    }
    const auto copy = [&](auto* to, const auto& from) {
      check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(*to), cudaMemcpyHostToDevice, stream),
            "copying to the device");
    };
    copy(table, by_age);
    copy(slopes, of_tails);
    copy(states.state, own_states);
    check(cudaStreamSynchronize(stream), "copying to the device");
  }

  void check_sequence(std::ptrdiff_t sequence, const char* name) const {
    require(0 <= sequence && sequence < shape.batch, name, ": expected 0 to ", shape.batch - 1,
            " (a sequence of the batch), got ", sequence);
  }

  RollbackTask rollback_task(const int* tokens, int sequence, int count) const {
    return {tokens, sequence, count, states, static_cast<int>(reach()), counts};
  }

  std::ptrdiff_t heads_k() const { return shape.heads / model.group(); }

  void check_inputs(const View& k, const View& v) const {
    const std::ptrdiff_t n = k.tokens;
    require(0 <= n && n <= std::numeric_limits<int>::max(), "k: expected 0 tokens or more, got ", n);
    check_matrix(k, "k", shape.batch, heads_k(), n, model.d());
    check_matrix(v, "v", shape.batch, heads_k(), n, shape.d_v);
  }

  template <class T>
  static void queue_clear(T* array, std::size_t size, cudaStream_t stream) {
    check(cudaMemsetAsync(array, 0, size * sizeof(T), stream), "clearing a state");
  }

  void queue_reset(cudaStream_t stream) const {
    queue_clear(states.tokens, static_cast<std::size_t>(model.z()), stream);
    queue_clear(counts, 1, stream);
  }

  // loads the kernels of all calls, so that the first one can be captured in a graph
  void load_kernels(cudaStream_t stream) const {
    const KernelLoading loading;
    const View k(nullptr, shape.batch, heads_k(), 1, model.d()), v(nullptr, shape.batch, heads_k(), 1, shape.d_v);
    queue(k, k, v, {}, {}, stream);
    queue_rollback(rollback_task(nullptr, 0, 0), stream);
    queue_reorder({nullptr, 0, 0, states, counts}, stream);
  }

  void queue(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const DecodeCall& call,
             cudaStream_t stream) const {
    const auto features = [&](const View& x, bool queries) {
      return model.features<S, float>(x, queries, nullptr, nullptr, nullptr, 1);
    };
    queue_decode(DecodeTask<S>{features(q, true), features(k, false), v, y, call.lengths, states, bias, max_tokens(),
                               model.log_normalisation(), model.positive(), model.has_exact_rows(), counts},
                 model.z(), stream);
  }

  Device device;
  DecodeShape shape;
  DeviceModel model;  // for one query and one key, since the weights of lags are not used
  DeviceMemory memory;
  std::size_t bytes = 0;
  double *table = nullptr, *slopes = nullptr;
  DecodeBias bias{};
  DecodeStates states{};
  DecodeCounts* counts = nullptr;
};

template <Storage S>
DecodePlan<S>::DecodePlan(AttentionModel model, const DecodeShape& shape, cudaStream_t stream)
    : m_implementation(std::make_shared<Implementation>(std::move(model), shape, stream)) {}
template <Storage S>
const AttentionModel& DecodePlan<S>::model() const {
  return m_implementation->model.model();
}
template <Storage S>
const DecodeShape& DecodePlan<S>::shape() const {
  return m_implementation->shape;
}
template <Storage S>
void DecodePlan<S>::append(const View& k, const View& v, const DecodeCall& call, cudaStream_t stream) {
  m_implementation->device.check_current();
  m_implementation->check_inputs(k, v);
  m_implementation->queue(k, k, v, {}, call, stream);
}
template <Storage S>
void DecodePlan<S>::step(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
                         const DecodeCall& call, cudaStream_t stream) {
  const Implementation& plan = *m_implementation;
  plan.device.check_current();
  plan.check_inputs(k, v);
  check_matrix(q, "q", plan.shape.batch, plan.shape.heads, k.tokens, plan.model.d());
  check_output(y, "y", plan.shape.batch, plan.shape.heads, k.tokens, plan.shape.d_v);
  plan.queue(q, k, v, y, call, stream);
}
template <Storage S>
void DecodePlan<S>::rollback(const int* tokens, cudaStream_t stream) {
  m_implementation->device.check_current();
  require(tokens != nullptr, "tokens: expected an array on the device, got null");
  queue_rollback(m_implementation->rollback_task(tokens, 0, 0), stream);
}
template <Storage S>
void DecodePlan<S>::rollback(std::ptrdiff_t sequence, std::ptrdiff_t tokens, cudaStream_t stream) {
  const Implementation& plan = *m_implementation;
  plan.device.check_current();
  plan.check_sequence(sequence, "sequence");
  require(0 <= tokens && tokens <= std::numeric_limits<int>::max(), "tokens: expected 0 or more, got ", tokens);
  queue_rollback(plan.rollback_task(nullptr, static_cast<int>(sequence), static_cast<int>(tokens)), stream);
}
template <Storage S>
void DecodePlan<S>::reorder(const int* from, cudaStream_t stream) {
  const Implementation& plan = *m_implementation;
  plan.device.check_current();
  require(from != nullptr, "from: expected an array on the device, got null");
  queue_reorder({from, 0, 0, plan.states, plan.counts}, stream);
}
template <Storage S>
void DecodePlan<S>::fork(std::ptrdiff_t from, std::ptrdiff_t to, cudaStream_t stream) {
  const Implementation& plan = *m_implementation;
  plan.device.check_current();
  plan.check_sequence(from, "from");
  plan.check_sequence(to, "to");
  queue_reorder({nullptr, static_cast<int>(from), static_cast<int>(to), plan.states, plan.counts}, stream);
}
template <Storage S>
void DecodePlan<S>::reset(std::ptrdiff_t sequence, cudaStream_t stream) {
  const Implementation& plan = *m_implementation;
  plan.device.check_current();
  plan.check_sequence(sequence, "sequence");
  const std::ptrdiff_t heads = plan.shape.heads;
  plan.queue_clear(plan.states.tokens + sequence * heads, static_cast<std::size_t>(heads), stream);
}
template <Storage S>
void DecodePlan<S>::reset(cudaStream_t stream) {
  m_implementation->device.check_current();
  m_implementation->queue_reset(stream);
}
template <Storage S>
const int* DecodePlan<S>::tokens() const {
  return m_implementation->states.tokens;
}
template <Storage S>
const DecodeCounts* DecodePlan<S>::counts() const {
  return m_implementation->counts;
}
template <Storage S>
DecodeCounts DecodePlan<S>::host_counts(cudaStream_t stream) const {
  m_implementation->device.check_current();
  return copied_to_host(counts(), stream);
}
template <Storage S>
std::ptrdiff_t DecodePlan<S>::reach() const {
  return m_implementation->reach();
}
template <Storage S>
std::size_t DecodePlan<S>::bytes() const {
  return m_implementation->bytes;
}

}  // namespace nprf::cuda
