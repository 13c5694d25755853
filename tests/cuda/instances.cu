// SPDX-License-Identifier: MIT
//
// Uses plans that another file instantiates. tests/cuda/compile checks that this file compiles none of its kernels.
#define NPRF_CUDA_EXTERN_INSTANCES 1
#include <cstddef>

#include "nprf/cuda.hpp"

void attend(const nprf::cuda::AttentionModel& model, const float* x, float* y, std::ptrdiff_t n) {
  const nprf::cuda::AttentionPlan<float> plan(model, {.batch = 1, .heads = 8, .n_q = n, .n_k = n, .d_v = 64});
  const nprf::cuda::DeviceMatrixView<const float> of_x(x, 1, 8, n, 64);
  plan.forward(of_x, of_x, of_x, {y, 1, 8, n, 64});
}

void decode(const nprf::cuda::AttentionModel& model, const float* x, float* y) {
  nprf::cuda::DecodePlan<float> plan(model, {.heads = 8, .d_v = 64});
  const nprf::cuda::DeviceMatrixView<const float> of_x(x, 1, 8, 1, 64);
  plan.step(of_x, of_x, of_x, {y, 1, 8, 1, 64});
  plan.rollback(0, 1, nullptr);
  plan.reorder(nullptr, nullptr);
}
