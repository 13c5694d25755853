// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include "nprf/cuda/model.hpp"

namespace nprf::python {

/// A view of an array [batch, heads, tokens, channels] in the memory of a GPU, with strides in scalars.
struct DeviceArray {
  void* data = nullptr;
  std::ptrdiff_t batch = 0, heads = 0, tokens = 0, channels = 0;
  std::ptrdiff_t batch_stride = 0, head_stride = 0, token_stride = 0;
};

/// What a plan is made for.
struct PlanProblem {
  cuda::AttentionModel model;
  std::ptrdiff_t batch, heads, heads_k, n_q, n_k, d_v, offset;
  std::string engine;
  bool gradients;
  void* stream;
};

/// Pointers to the memory of a GPU, and a cudaStream_t.
struct DeviceCall {
  const float* parameters;  // of the position, [position, parameter]; null: it has none
  const bool* key_mask;     // [batch, n_k]; null: no padding
  const int* lengths;       // [batch]; null: none
  void* workspace;
  void* stream;
};

struct DeviceInputs {
  DeviceArray q, k, v;
};
struct DeviceGradients {
  DeviceArray dq, dk, dv;
  float* parameters;  // [position, parameter]; null: not computed
};

/// cuda::AttentionPlan of any storage type, without CUDA in its interface: the host's compiler compiles the module.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::string engine() const = 0;
  virtual void forward(const DeviceInputs& inputs, const DeviceArray& y, const DeviceCall& call) = 0;
  virtual void backward(const DeviceInputs& inputs, const DeviceArray& dy, const DeviceGradients& gradients,
                        const DeviceCall& call) = 0;
};

}  // namespace nprf::python
