// SPDX-License-Identifier: MIT
#pragma once

#include <limits>
#include <type_traits>

#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/error_bound/fft_row_bound.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/toeplitz/engines.cuh"

namespace nprf::cuda {

/// The type of features that the product of a plan multiplies.
template <Storage S>
FeatureType feature_type_of(const Device& device, const DeviceModel& model, Engine engine) {
  const auto [is_tiled, supports_grid, has_states] = properties_of(engine);
  if (!is_tiled || model.places().is_grid()) return FeatureType::in_float;
  return feature_type_of_tiles<S>(device, model.features_fit_half(has_states ? FarKeys::in_states : FarKeys::in_tiles));
}

/// The cost of a product by the engine E. The recomputation of rows that fail the error bound is not included. For a
/// plan with gradients, too, it is the cost of the forward pass alone: at the rate of float or, where
/// PlanOptions::gradients_on_tensor_cores has an effect, at half of the rate of tensor cores, since some of the work
/// stays in float.
template <Storage S, class E>
CallCost cost_of(const Device& device, const DeviceModel& model, bool gradients, bool gradients_on_tensor_cores) {
  const FeatureType type = feature_type_of<S>(device, model, E::name);
  const bool uses_tensor_cores =
      on_tensor_cores(type) && (!gradients || (gradients_on_tensor_cores && has_storage_type<S>(type)));
  const bool is_causal = model.model().direction == Direction::causal;
  CallCost cost = E::cost({device, model.product_shape(), model.toeplitz(), is_causal, uses_tensor_cores});
  if (gradients && uses_tensor_cores) cost.rate /= 2;
  return cost;
}

/// The fraction of rows that fail the error bound of an FFT (error_bound/fft_row_bound.cuh), averaged over the
/// positions. In a grid it is estimated as if each slot had a token.
inline double failing_share(const DeviceModel& model, int length, double tolerance) {
  const int n_q = model.places().slot_count(model.n_q()), n_k = model.places().slot_count(model.n_k());
  double failing = 0;
  for (const PositionModel& position : model.model().positions)
    failing += failing_share(model.weights_of(position), n_q, n_k, length, tolerance) / model.positions();
  return failing;
}

/// The engine with the least estimated time. The time of an FFT includes that of recomputing, by tiles, the rows that
/// fail the error bound.
template <Storage S>
Engine cheapest(const Device& device, const DeviceModel& model, bool gradients, double tolerance,
                bool gradients_on_tensor_cores = false) {
  struct Candidate {
    Engine engine;
    double time = std::numeric_limits<double>::infinity();
    int fft_length = 0;
  };
  Candidate tiled{Engine::automatic}, by_fft{Engine::automatic};
  EngineList<S>::for_each([&]<class E>(std::type_identity<E>) {
    if (model.places().is_grid() && !E::supports_grid) return;
    const CallCost cost = cost_of<S, E>(device, model, gradients, gradients_on_tensor_cores);
    Candidate& best = E::is_tiled ? tiled : by_fft;
    if (cost.time() < best.time) best = {E::name, cost.time(), cost.fft_length};
  });
  if (by_fft.time < tiled.time) {
    const double direct = cost_of<S, DirectEngine<S>>(device, model, gradients, gradients_on_tensor_cores).time();
    by_fft.time += failing_share(model, by_fft.fft_length, tolerance) * direct;
  }
  return tiled.time <= by_fft.time ? tiled.engine : by_fft.engine;
}

}  // namespace nprf::cuda
