// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

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

/// The time of a call is modelled as start + work / rate.
struct CallTime {
  double start;  // s: the least time of the kernels, one after the other
  double rate;   // per second: floating-point operations, or bytes of FFTs in global memory

  constexpr double operator()(double work) const { return start + work / rate; }
};

/// Those of the engines, fitted to measurements on an H200 (bench/README.md), forward, for 1024 to 131072 tokens.
struct CallTimes {
  static constexpr CallTime direct{22e-6, 12.5e12}, direct_on_tensor_cores{26e-6, 290e12}, banded{50e-6, 12.5e12},
      banded_on_tensor_cores{26e-6, 85e12}, fused{55e-6, 13.5e12}, two_pass{60e-6, 2.4e12}, cufft{60e-6, 2e12};
};

/// The engine with the least estimated time (CallTimes). FFTs in two passes move 40 bytes per point of 2 N, and cuFFT's
/// slabs pass through memory ten times. Rows that fail the FFT error bound (error_bound/fft_row_bound.cuh) add the time
/// of tiles; their share in a grid is estimated as if each slot had a token. With gradients only the
/// forward pass is estimated: at the rates of float or, where PlanOptions::gradients_on_tensor_cores has an effect, at
/// half of those of tensor cores, since some of the work stays in float.
template <Storage S>
Engine cheapest(const Device& device, const DeviceModel& model, bool gradients, double tolerance,
                bool gradients_on_tensor_cores = false) {
  const int n_q = model.n_q(), n_k = model.n_k(), n = std::max(n_q, n_k);
  const double z = model.z(), r = model.r(), columns = model.d_v() + 1, products = z * r * (columns / 2);
  const double tokens = static_cast<double>(n_q) + n_k, pairs = static_cast<double>(n_q) * n_k;
  const bool is_grid = model.places().is_grid();
  const bool causal = model.model().direction == Direction::causal;
  using Times = CallTimes;

  const auto time_of = [&](Engine engine, const CallTime& in_float, CallTime on_tensor_cores) {
    const FeatureType type = is_grid ? FeatureType::in_float : feature_type_of<S>(device, model, engine);
    if (type == FeatureType::in_float) return in_float;
    if (!gradients) return on_tensor_cores;
    const bool is_of_storage = (type == FeatureType::in_half) == std::is_same_v<S, __half>;
    if (!gradients_on_tensor_cores || !is_of_storage) return in_float;
    on_tensor_cores.rate /= 2;
    return on_tensor_cores;
  };
  const double band = std::min<double>(n_k, model.band().last - model.band().first + 1 + 3 * TileShape::tile);
  const CallTime of_direct = time_of(Engine::direct, Times::direct, Times::direct_on_tensor_cores);
  const double direct = of_direct((causal ? 1 : 2) * z * pairs * (r + columns));
  const double states = model.tail_slope().is_zero() ? 1 : 2;  // the sides have sums of their own
  const CallTime of_banded = time_of(Engine::banded, Times::banded, Times::banded_on_tensor_cores);
  const double banded = is_grid ? std::numeric_limits<double>::infinity()
                                : of_banded(z * (2 * n_q * band * (r + columns) + states * 4 * tokens * r * columns));

  const SharedMemoryVariant* in_shared = is_grid ? nullptr : SharedMemoryEngine::variant_for(device, n);
  const TwoPassVariant* two_pass = is_grid ? nullptr : TwoPassEngine::variant_for(n);
  const double N = in_shared ? in_shared->N() : two_pass ? two_pass->N() : 0;
  const double fused = in_shared  ? Times::fused(20 * N * std::log2(N) * products)
                       : two_pass ? Times::two_pass(40 * 2 * N * products)
                                  : std::numeric_limits<double>::infinity();
  const int slots_q = is_grid ? model.places().end : n_q, slots_k = is_grid ? model.places().end : n_k;
  const double cufft = Times::cufft(10 * 8 * (static_cast<double>(slots_q) + slots_k) * products);
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
