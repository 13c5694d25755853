// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

#include "device_view.cuh"
#include "nprf/core/error.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "plan.hpp"

namespace nprf::python {

inline cuda::Engine device_engine(const std::string& engine) {
  for (const cuda::Engine each : {cuda::Engine::automatic, cuda::Engine::direct, cuda::Engine::banded,
                                  cuda::Engine::fused, cuda::Engine::cufft, cuda::Engine::smooth})
    if (engine == name(each)) return each;
  throw InvalidArgument(nprf::detail::sentence(
      "engine: expected automatic, direct, banded, fused, cufft or smooth on a GPU, got ", engine));
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
               {.engine = device_engine(problem.engine),
                .gradients = problem.gradients,
                .owns_workspace = false,
                .sets_parameters = true},
               static_cast<cudaStream_t>(problem.stream)) {}

  std::size_t workspace_bytes() const override { return m_plan.workspace_bytes(); }
  std::string engine() const override { return std::string(name(m_plan.engine())); }

  void forward(const DeviceInputs& x, const DeviceArray& y, const DeviceCall& call) override {
    set_parameters(call);
    m_plan.forward(device_view<const S>(x.q), device_view<const S>(x.k), device_view<const S>(x.v), device_view<S>(y),
                   options(call), stream(call));
  }

  void backward(const DeviceInputs& x, const DeviceArray& dy, const DeviceGradients& g,
                const DeviceCall& call) override {
    set_parameters(call);
    m_plan.backward(
        device_view<const S>(x.q), device_view<const S>(x.k), device_view<const S>(x.v), device_view<const S>(dy),
        {device_view<S>(g.dq), device_view<S>(g.dk), device_view<S>(g.dv), g.parameters}, options(call), stream(call));
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

  cuda::AttentionPlan<S> m_plan;
};

}  // namespace nprf::python
