// SPDX-License-Identifier: MIT
//
// Uses plans that plans.cu instantiates. tests/cuda/compile checks that this file compiles no kernel. Without a device
// it returns 77; it is not for a machine with one.
#include <cstddef>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/cuda.hpp"
#include "nprf/cuda/device/runtime.hpp"

using namespace nprf::cuda;

namespace {

void attend(const AttentionModel& model, const float* x, float* y, std::ptrdiff_t n) {
  AttentionPlan<float> plan(model, {.batch = 1, .heads = 8, .n_q = n, .n_k = n, .d_v = 64}, {.gradients = true});
  const AttentionPlan<float> moved = std::move(plan);
  const DeviceMatrixView<const float> of_x(x, 1, 8, n, 64);
  const DeviceMatrixView<float> of_y(y, 1, 8, n, 64);
  moved.forward(of_x, of_x, of_x, of_y);
  moved.backward(of_x, of_x, of_x, of_x, {of_y, of_y, of_y}, {}, nullptr);
}

void decode(const AttentionModel& model, const float* x, float* y) {
  DecodePlan<float> plan(model, {.heads = 8, .d_v = 64});
  const DeviceMatrixView<const float> of_x(x, 1, 8, 1, 64);
  plan.step(of_x, of_x, of_x, {y, 1, 8, 1, 64});
  plan.rollback(0, 1, nullptr);
  plan.reorder(nullptr, nullptr);
}

void attend_packed(const AttentionModel& model, const float* x, float* y, const int* lengths, std::ptrdiff_t n) {
  PackedPlan<float> plan(model, {.batch = 4, .heads = 8, .n_q = n, .n_k = n, .d_v = 64});
  const DeviceMatrixView<const float> of_x(x, 1, 8, 4 * n, 64);
  plan.forward(of_x, of_x, of_x, {y, 1, 8, 4 * n, 64}, {lengths});
}

}  // namespace

int main() {
  try {
    Device::current();
    const AttentionModel model;
    attend(model, nullptr, nullptr, 1);
    decode(model, nullptr, nullptr);
    attend_packed(model, nullptr, nullptr, nullptr, 1);
  } catch (const nprf::BackendError&) {
    return 77;
  }
}
