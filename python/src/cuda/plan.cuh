// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "plan.hpp"

namespace nprf::python {

inline cuda::Engine device_engine(const std::string& engine) {
  for (const cuda::Engine each :
       {cuda::Engine::automatic, cuda::Engine::direct, cuda::Engine::banded, cuda::Engine::fused, cuda::Engine::cufft})
    if (engine == name(each)) return each;
  throw InvalidArgument(
      nprf::detail::sentence("engine: expected automatic, direct, banded, fused or cufft on a GPU, got ", engine));
}

template <cuda::Storage S>
class PlanOf : public Plan {
 public:
  explicit PlanOf(PlanProblem problem)
      : m_plan(std::move(problem.model),
               {.batch = problem.batch,
                .heads = problem.heads,
                .n_q = problem.n_q,
                .n_k = problem.n_k,
                .d_v = problem.d_v,
                .offset = problem.offset,
                .heads_k = problem.heads_k},
               {.engine = device_engine(problem.engine), .gradients = problem.gradients, .owns_workspace = false},
               static_cast<cudaStream_t>(problem.stream)) {}

  std::size_t workspace_bytes() const override { return m_plan.workspace_bytes(); }
  std::string engine() const override { return std::string(name(m_plan.engine())); }

  void forward(const DeviceInputs& x, const DeviceArray& y, const DeviceCall& call) override {
    set_parameters(call);
    m_plan.forward(view<const S>(x.q), view<const S>(x.k), view<const S>(x.v), view<S>(y), options(call), stream(call));
  }

  void backward(const DeviceInputs& x, const DeviceArray& dy, const DeviceGradients& g,
                const DeviceCall& call) override {
    set_parameters(call);
    m_plan.backward(view<const S>(x.q), view<const S>(x.k), view<const S>(x.v), view<const S>(dy),
                    {view<S>(g.dq), view<S>(g.dk), view<S>(g.dv), g.parameters}, options(call), stream(call));
  }

 private:
  static cudaStream_t stream(const DeviceCall& call) { return static_cast<cudaStream_t>(call.stream); }
  static cuda::PlanCall options(const DeviceCall& call) {
    return {.key_mask = call.key_mask, .lengths = call.lengths, .workspace = call.workspace};
  }

  // other calls of the plan may have had other parameters
  void set_parameters(const DeviceCall& call) {
    if (call.parameters) m_plan.set_parameters(call.parameters, stream(call));
  }

  template <class T>
  static cuda::DeviceMatrixView<T> view(const DeviceArray& x) {
    cuda::DeviceMatrixView<T> all(static_cast<T*>(x.data), x.batch, x.heads, x.tokens, x.channels);
    all.batch_stride = x.batch_stride, all.head_stride = x.head_stride, all.token_stride = x.token_stride;
    return all;
  }

  cuda::AttentionPlan<S> m_plan;
};

}  // namespace nprf::python
