// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/device/strided_operand.cuh"

namespace nprf::cuda {

/// The scores of pairs, products of the rows of two operands, and what follows from a score s and the bias b of a pair:
///
///     SoftmaxScores    s = q'.k'      weight exp(s + b)
///     FeatureScores    s = A_i.B_j    weight s exp(b)
///
/// With e = exp(exponent(s, b)) the weight is weight(s, e). If h is e * dL/dweight, then dL/ds = h and
/// dL/db = weight(s, h).
///
/// SoftmaxScores are those of rows that are normalised when they are loaded, x' = factor x.
template <Storage S>
struct SoftmaxScores {
  static constexpr bool of_features = false;

  Operand<S> q, k;         // (n_q,d) (n_k,d)
  const float* q_factors;  // [z, n_q]
  const float* k_factors;  // [z / group, n_k]
  int group;

  __device__ __forceinline__ TokenFactors factors_of_q(int z) const {
    return {q_factors + static_cast<std::ptrdiff_t>(z) * q.tokens};
  }
  __device__ __forceinline__ TokenFactors factors_of_k(int z) const {
    return {k_factors + static_cast<std::ptrdiff_t>(z / group) * k.tokens};
  }
  /// A score that is NaN becomes +infinity, which makes the sums of the row NaN.
  __device__ __forceinline__ static double exponent(float s, double bias) {
    if (bias == minus_infinity) return bias;
    return s == s ? static_cast<double>(s) + bias : -minus_infinity;
  }
  __device__ __forceinline__ static float weight(float, float e) { return e; }
};

/// The scores of features.
template <class Feature>
struct FeatureScores {
  static constexpr bool of_features = true;

  Operand<Feature> q, k;  // A (n_q,r) and B (n_k,r)

  __device__ __forceinline__ static NoFactors factors_of_q(int) { return {}; }
  __device__ __forceinline__ static NoFactors factors_of_k(int) { return {}; }
  __device__ __forceinline__ static double exponent(float, double bias) { return bias; }
  // 0 and not -0 where e is 0 and s is negative: SoftmaxTile marks pairs that do not exist by -0
  __device__ __forceinline__ static float weight(float s, float e) { return fmaf(s, e, 0.0f); }
};

}  // namespace nprf::cuda
