// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"

namespace nprf::cuda {

/// Computes y [batch, heads, n_q, d_v] from q [batch, heads, n_q, d], k [batch, heads_k, n_k, d] and v [batch, heads_k,
/// n_k, d_v] on the current device. All arrays are contiguous in host memory.
///
///     std::vector<float> y = attend(model_of(attention), {.n_q = n, .n_k = n, .d_v = 64}, q, k, v);
///
/// Each call makes a plan, copies its inputs to the device, waits, and copies y back. To avoid this in repeated calls,
/// use an AttentionPlan with device memory. Throws as AttentionPlan does, and InvalidArgument for vectors of other
/// sizes.
template <Storage S>
std::vector<S> attend(const AttentionModel& model, const PlanShape& shape, const std::vector<S>& q,
                      const std::vector<S>& k, const std::vector<S>& v, const PlanOptions& options = {}) {
  PlanOptions owning = options;
  owning.owns_workspace = true;
  const AttentionPlan<S> plan(model, shape, owning);
  const std::ptrdiff_t d = plan.model().features.front().d, heads_q = shape.heads, heads_k = heads_q / shape.group();
  const auto size = [&](std::ptrdiff_t heads, std::ptrdiff_t tokens, std::ptrdiff_t channels) {
    return static_cast<std::size_t>(shape.batch * heads * tokens * channels);
  };
  const auto copy_to_device = [](const std::vector<S>& x, const char* name, std::size_t expected) {
    require(x.size() == expected, name, ": expected ", expected, " scalars (batch heads tokens channels), got ",
            x.size());
    DeviceMemory memory(x.size() * sizeof(S));
    if (!x.empty())
      check(cudaMemcpyAsync(memory.data(), x.data(), x.size() * sizeof(S), cudaMemcpyHostToDevice, nullptr),
            "copying a vector to the device");
    return memory;
  };
  const DeviceMemory device_q = copy_to_device(q, "q", size(heads_q, shape.n_q, d)),
                     device_k = copy_to_device(k, "k", size(heads_k, shape.n_k, d)),
                     device_v = copy_to_device(v, "v", size(heads_k, shape.n_k, shape.d_v));
  std::vector<S> y(size(heads_q, shape.n_q, shape.d_v));
  const DeviceMemory device_y(y.size() * sizeof(S));
  const auto view = [&](const DeviceMemory& memory, std::ptrdiff_t heads, std::ptrdiff_t tokens,
                        std::ptrdiff_t channels) {
    return DeviceMatrixView<S>(static_cast<S*>(memory.data()), shape.batch, heads, tokens, channels);
  };
  plan.forward(view(device_q, heads_q, shape.n_q, d), view(device_k, heads_k, shape.n_k, d),
               view(device_v, heads_k, shape.n_k, shape.d_v), view(device_y, heads_q, shape.n_q, shape.d_v));
  if (!y.empty())
    check(cudaMemcpyAsync(y.data(), device_y.data(), y.size() * sizeof(S), cudaMemcpyDeviceToHost, nullptr),
          "copying a vector to the host");
  check(cudaStreamSynchronize(nullptr), "computing attention");
  return y;
}

}  // namespace nprf::cuda
