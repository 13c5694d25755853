// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "nprf/cuda/device/kernel_loading.hpp"
#include "nprf/cuda/device/packed_rows.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/plan/attention_plan_definition.cuh"
#include "nprf/cuda/plan/packed_plan.cuh"

/// Defines the members of PackedPlan, and includes all kernels that they launch.
namespace nprf::cuda {

template <Storage S>
class PackedPlan<S>::Implementation {
 public:
  Implementation(AttentionModel model, const PlanShape& shape, const PlanOptions& options, cudaStream_t stream)
      : m_plan(std::move(model), shape, options, stream), m_has_gradients(options.gradients) {
    require(options.owns_workspace || options.stream_ordered,
            "owns_workspace: expected true for a PackedPlan, whose calls pass no workspace, got false");
    m_bytes = take(Scratch());
    m_memory = DeviceMemory(m_bytes);
    take(Scratch(m_memory.data()));
    const KernelLoading loading;
    const PackedSequences none{nullptr, static_cast<int>(shape.batch), 1};
    queue_packed_lengths(none, m_lengths, stream);
    queue_unpack<S>(PackedTask<const S>{none, m_y, m_y}, stream);
    queue_pack(PackedTask<S>{none, m_y, m_y}, stream);
  }

  const AttentionPlan<S>& padded() const { return m_plan; }
  std::size_t bytes() const { return m_bytes; }

  void set_parameters(const float* parameters, cudaStream_t stream) { m_plan.set_parameters(parameters, stream); }

  void forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y, const PackedCall& call,
               cudaStream_t stream) {
    const auto [of_q, of_k] = checked(q, k, v, call);
    check_output(y, "y", 1, q.heads, q.tokens, m_y.channels);
    queue_inputs(q, k, v, of_q, of_k, stream);
    m_plan.forward(m_q, m_k, m_v, m_y, {.lengths = m_lengths}, stream);
    queue_pack(PackedTask<S>{of_q, y, m_y}, stream);
  }

  void backward(const View& q, const View& k, const View& v, const View& dy, const PlanGradients<S>& gradients,
                const PackedCall& call, cudaStream_t stream) {
    require(m_has_gradients, "gradients: expected a plan with PlanOptions::gradients, got one without");
    const auto [of_q, of_k] = checked(q, k, v, call);
    check_matrix(dy, "dy", 1, q.heads, q.tokens, m_y.channels);
    check_output(gradients.dq, "dq", 1, q.heads, q.tokens, q.channels);
    check_output(gradients.dk, "dk", 1, k.heads, k.tokens, k.channels);
    check_output(gradients.dv, "dv", 1, k.heads, k.tokens, v.channels);
    queue_inputs(q, k, v, of_q, of_k, stream);
    queue_unpack<S>(PackedTask<const S>{of_q, dy, m_y}, stream);
    m_plan.backward(m_q, m_k, m_v, m_y, {m_dq, m_dk, m_dv, gradients.parameters}, {.lengths = m_lengths}, stream);
    queue_pack(PackedTask<S>{of_q, gradients.dq, m_dq}, stream);
    queue_pack(PackedTask<S>{of_k, gradients.dk, m_dk}, stream);
    queue_pack(PackedTask<S>{of_k, gradients.dv, m_dv}, stream);
  }

 private:
  using Padded = DeviceMatrixView<S>;

  std::size_t take(Scratch scratch) {
    const PlanShape& shape = m_plan.shape();
    const std::ptrdiff_t d = m_plan.model().features.front().d, heads_k = shape.heads / shape.group();
    const auto array = [&](std::ptrdiff_t heads, std::ptrdiff_t n, std::ptrdiff_t channels) {
      const auto size = static_cast<std::size_t>(shape.batch * heads * n * channels);
      return Padded(scratch.take<S>(size), shape.batch, heads, n, channels);
    };
    m_lengths = scratch.take<int>(static_cast<std::size_t>(shape.batch));
    m_q = array(shape.heads, shape.n_q, d), m_k = array(heads_k, shape.n_k, d);
    m_v = array(heads_k, shape.n_k, shape.d_v), m_y = array(shape.heads, shape.n_q, shape.d_v);
    if (m_has_gradients) {
      m_dq = array(shape.heads, shape.n_q, d), m_dk = array(heads_k, shape.n_k, d);
      m_dv = array(heads_k, shape.n_k, shape.d_v);
    }
    return scratch.bytes();
  }

  // checks the arrays of a call, and returns its sequences of queries and its sequences of keys
  std::pair<PackedSequences, PackedSequences> checked(const View& q, const View& k, const View& v,
                                                      const PackedCall& call) const {
    require(call.cumulative_lengths != nullptr, "cumulative_lengths: expected lengths, got a null pointer");
    check_matrix(q, "q", 1, m_q.heads, q.tokens, m_q.channels);
    check_matrix(k, "k", 1, m_k.heads, k.tokens, m_k.channels);
    check_matrix(v, "v", 1, m_v.heads, k.tokens, m_v.channels);
    constexpr std::ptrdiff_t most = std::ptrdiff_t{1} << 30;
    require(q.tokens <= most && k.tokens <= most, "q and k: expected at most ", most, " tokens, got ", q.tokens,
            " and ", k.tokens);
    const bool own_keys = call.key_cumulative_lengths != nullptr;
    require(own_keys || q.tokens == k.tokens, "k: expected ", q.tokens,
            " tokens (those of q, without key_cumulative_lengths), got ", k.tokens);
    const int batch = static_cast<int>(m_plan.shape().batch);
    return {{call.cumulative_lengths, batch, static_cast<int>(q.tokens)},
            {own_keys ? call.key_cumulative_lengths : call.cumulative_lengths, batch, static_cast<int>(k.tokens)}};
  }

  void queue_inputs(const View& q, const View& k, const View& v, const PackedSequences& of_q,
                    const PackedSequences& of_k, cudaStream_t stream) const {
    queue_packed_lengths(of_k, m_lengths, stream);
    queue_unpack<S>(PackedTask<const S>{of_q, q, m_q}, stream);
    queue_unpack<S>(PackedTask<const S>{of_k, k, m_k}, stream);
    queue_unpack<S>(PackedTask<const S>{of_k, v, m_v}, stream);
  }

  AttentionPlan<S> m_plan;
  bool m_has_gradients;
  std::size_t m_bytes = 0;
  DeviceMemory m_memory;
  int* m_lengths = nullptr;   // [batch]: the numbers of keys of the sequences of a call
  Padded m_q, m_k, m_v, m_y;  // m_y is dy in backward
  Padded m_dq, m_dk, m_dv;
};

template <Storage S>
PackedPlan<S>::PackedPlan(AttentionModel model, const PlanShape& shape, const PlanOptions& options, cudaStream_t stream)
    : m_implementation(std::make_shared<Implementation>(std::move(model), shape, options, stream)) {}
template <Storage S>
const AttentionPlan<S>& PackedPlan<S>::padded() const {
  return m_implementation->padded();
}
template <Storage S>
std::size_t PackedPlan<S>::bytes() const {
  return m_implementation->bytes();
}
template <Storage S>
void PackedPlan<S>::set_parameters(const float* parameters, cudaStream_t stream) {
  m_implementation->set_parameters(parameters, stream);
}
template <Storage S>
void PackedPlan<S>::forward(const View& q, const View& k, const View& v, const DeviceMatrixView<S>& y,
                            const PackedCall& call, cudaStream_t stream) {
  m_implementation->forward(q, k, v, y, call, stream);
}
template <Storage S>
void PackedPlan<S>::backward(const View& q, const View& k, const View& v, const View& dy,
                             const PlanGradients<S>& gradients, const PackedCall& call, cudaStream_t stream) {
  m_implementation->backward(q, k, v, dy, gradients, call, stream);
}

}  // namespace nprf::cuda
