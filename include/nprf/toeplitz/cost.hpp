// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/fft/lanes.hpp"

/// The unit of cost is the time of one multiply-add in the direct engine's tiles. Each engine has a formula, cost(),
/// whose factors were measured with AVX2 and AVX-512: `bench/planner` prints the measured time over the modelled cost.
/// CostFactors has the factors that depend on the registers.
namespace nprf::toeplitz {

/// What the cost of a product depends on: the weights, how many tokens there are, and how many slots they stand in.
template <Real T>
struct CostInputs {
  LagWeightsView<T> weights;
  ProductShape tokens, span;
};

/// What the weight of a pair costs, in multiply-adds: in a tile; and in a tile that the edge of a band or block cuts.
inline constexpr double weight_cost = 16, cut_weight_cost = 112;

/// What an operation of an engine costs in multiply-adds of a tile.
struct CostFactors {
  double fft_level, fft_point;  // FftEngine: each value of a transform, in each of log2(length) levels; and once
  double causal_operation;      // BlockCausalEngine: a product of two spectral values (CausalLevels::operations)
  double tail_state;            // BandedEngine: an addition to an entry of the sum of a tail
};

/// The factors for registers of `register_bytes`, with or without fused multiply-adds. With registers of 16 bytes a
/// multiply-add of a tile takes twice the time that it takes with 32 bytes. The time of FFTs and tail sums, which also
/// load, store and shuffle, grows less, so that they cost fewer multiply-adds.
///
/// NEON's factors (16, fused) were not measured on an ARM processor, but with x86 code of NEON's shape
/// (bench/README.md). SSE2, which has no fused multiply-adds, has the factors of AVX2 and AVX-512.
constexpr CostFactors cost_factors_of(int register_bytes, bool has_fused_multiply_add) {
  if (register_bytes == 16 && has_fused_multiply_add) return {2.6, 21.5, 4.1, 1.6};
  return {3, 25, 5, 2};
}

/// The factors for the instruction set that the compiler flags select.
inline constexpr CostFactors cost_factors = cost_factors_of(fft::register_bytes, fft::has_fused_multiply_add);

/// The cost of each value of a transform by FftEngine.
inline double fft_value_cost(double length) {
  return cost_factors.fft_level * std::log2(length) + cost_factors.fft_point;
}

/// The cost of bounding the rounding errors of an FFT, which takes O(n r).
inline double error_bound_cost(const ProductShape& x) {
  constexpr double feature = 60, token = 4000;
  if (x.empty()) return 0;
  return static_cast<double>(x.n_q + x.n_k) * (static_cast<double>(x.r) * feature + token);
}

/// The cost of recomputing all rows of a product that costs `direct_cost` by the direct engine. The weights of a
/// recomputed row are relative to the largest one of this row, so that each pair needs an exponential of its own.
inline double recomputation_cost(const ProductShape& x, double direct_cost) {
  constexpr double weight = 200;
  return direct_cost + weight * static_cast<double>(x.n_q) * static_cast<double>(x.n_k);
}

/// The number of threads worth using for a product of this cost: starting one costs some microseconds, and more on a
/// busy machine.
inline Index worthwhile_threads(double cost) {
  constexpr double for_each_thread = 4e6;
  return static_cast<Index>(std::clamp(cost / for_each_thread, 1.0, static_cast<double>(num_threads())));
}

}  // namespace nprf::toeplitz
