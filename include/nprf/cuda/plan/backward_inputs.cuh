// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/attention/checked_product.cuh"
#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/plan/exact_pairs.cuh"
#include "nprf/cuda/toeplitz/product.cuh"

namespace nprf::cuda {

/// The inputs of AttentionPlan::backward.
template <Storage S>
struct BackwardInputs {
  DeviceMatrixView<const S> q, k, v, dy;
  const bool* key_mask;  // [batch, n_k]: false is padding; null: no padding
};

/// The parts of a plan that its backward pass uses.
template <Storage S>
struct ForwardParts {
  const DeviceModel& model;
  const Product<S>& product;
  const CheckedProduct<S>& checked_product;
  const ExactPlan<S>& exact;
};

}  // namespace nprf::cuda
