// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/error_bound/fft_row_bound.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/toeplitz/product.cuh"
#include "nprf/fft/length.hpp"

namespace nprf::cuda {

/// The type of features that the product of a plan multiplies.
template <Storage S>
FeatureType feature_type_of(const Device& device, const DeviceModel& model, Engine engine) {
  const FarKeys far_keys = engine == Engine::banded ? FarKeys::in_states : FarKeys::in_tiles;
  return Product<S>::feature_type(device, engine, model.features_fit_half(far_keys));
}

/// The engine with the least estimated time. The model: tiles and FFTs in shared memory run at 30 TFLOP/s, tiles on
/// tensor cores at 300 TFLOP/s. FFTs in two passes move 40 bytes per point of 2 N, and cuFFT's slabs pass through
/// memory ten times, both at 3 TB/s. Rows that fail the FFT error bound (error_bound/fft_row_bound.cuh) add the time of
/// tiles; their share in a grid is estimated as if each slot had a token. The constants are estimates for an H200. With
/// gradients all arithmetic is in float, also if PlanOptions::gradients_on_tensor_cores makes a part of it faster.
template <Storage S>
Engine cheapest(const Device& device, const DeviceModel& model, bool gradients, double tolerance) {
  const int n_q = model.n_q(), n_k = model.n_k(), n = std::max(n_q, n_k);
  const double r = model.r(), columns = model.d_v() + 1, products = r * (columns / 2);
  const double tokens = static_cast<double>(n_q) + n_k, pairs = static_cast<double>(n_q) * n_k;
  const bool is_grid = model.places().is_grid();
  const bool causal = model.model().direction == Direction::causal;
  constexpr double flops = 30e12, bytes = 3e12;

  const auto flops_of = [&](Engine engine) {
    const bool on_tensor_cores =
        !gradients && !is_grid && feature_type_of<S>(device, model, engine) != FeatureType::in_float;
    return on_tensor_cores ? 300e12 : flops;
  };
  const double band = std::min<double>(n_k, model.band().last - model.band().first + 1 + 3 * TileShape::tile);
  const double direct = (causal ? 1 : 2) * pairs * (r + columns) / flops_of(Engine::direct);
  const double states = model.tail_slope().is_zero() ? 1 : 2;  // the sides have sums of their own
  const double of_banded = 2 * n_q * band * (r + columns) + states * 4 * tokens * r * columns;
  const double banded = is_grid ? std::numeric_limits<double>::infinity() : of_banded / flops_of(Engine::banded);

  const SharedMemoryVariant* in_shared = is_grid ? nullptr : SharedMemoryEngine::variant_for(device, n);
  const TwoPassVariant* two_pass = is_grid ? nullptr : TwoPassEngine::variant_for(n);
  const double N = in_shared ? in_shared->N() : two_pass ? two_pass->N() : 0;
  const double fused = in_shared  ? 20 * N * std::log2(N) * products / flops
                       : two_pass ? 40 * 2 * N * products / bytes
                                  : std::numeric_limits<double>::infinity();
  const int slots_q = is_grid ? model.places().end : n_q, slots_k = is_grid ? model.places().end : n_k;
  const double cufft = 10 * 8 * (static_cast<double>(slots_q) + slots_k) * products / bytes;
  double transforms = std::min(fused, cufft);
  if (transforms < std::min(direct, banded)) {
    const int length = fused <= cufft ? static_cast<int>(2 * N) : nprf::fft::smooth_length(slots_q + slots_k - 1);
    double failing = 0;
    for (const PositionModel& position : model.model().positions)
      failing += failing_share(model.weights_of(position), slots_q, slots_k, length, tolerance) / model.positions();
    transforms += failing * direct;
  }
  if (banded <= std::min(direct, transforms)) return Engine::banded;
  return direct <= transforms ? Engine::direct : fused <= cufft ? Engine::fused : Engine::cufft;
}

}  // namespace nprf::cuda
