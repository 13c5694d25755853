// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/call_counters.cuh"
#include "nprf/cuda/feature_map/projection.cuh"
#include "nprf/cuda/feature_map/task.cuh"

namespace nprf::cuda {

/// The tokens of one matrix of features of a task: which of them have no features, and what the features of the others
/// are multiplied by.
template <FeatureKind kind, Storage S, class Feature>
class MatrixTokens {
 public:
  __device__ __forceinline__ MatrixTokens(const FeatureTask<S, Feature>& task, int matrix)
      : m_task(task), m_matrix(matrix), m_z(matrix * task.group) {}

  /// The first z of those that share this matrix of features, which are z() to z() + group - 1.
  __device__ __forceinline__ int z() const { return m_z; }
  __device__ __forceinline__ int n() const { return m_task.x.tokens; }

  /// Whether a token has no features: beyond the end, padding, or an attention sink.
  __device__ __forceinline__ bool is_left_out(int token) const {
    const int sequence = m_z / m_task.x.heads;
    return token >= n() || (m_task.sinks && token < m_task.sinks[sequence].y) ||
           (m_task.mask && !m_task.mask[static_cast<std::ptrdiff_t>(sequence) * n() + token]);
  }
  /// Whether the features of a token are zero.
  __device__ __forceinline__ bool is_zero(int token, bool is_finite) const {
    if (is_left_out(token)) return true;
    if (is_finite) return false;
    const AttentionMask& mask = m_task.attention_mask;
    for (int z = m_z; z < m_z + m_task.group; ++z)
      if (m_task.queries ? mask.attends_any(z, token) : mask.is_attended(z, token)) return false;
    return true;
  }
  /// The argument `base` of feature_of() for a token, unless the features of a row are divided by the row's largest
  /// one.
  __device__ __forceinline__ float base(float log_factor, bool is_finite) const {
    const float shift = m_task.max_log_scale ? from_ordered(m_task.max_log_scale[m_matrix]) : m_task.shift;
    if constexpr (is_exponential<kind>) return exponent_unit<kind> * (log_factor - shift);
    if (is_quadratic<kind> && !is_finite) return not_a_number;
    return m_task.queries ? 1.0f : expf(log_factor - shift);
  }
  /// Stores log_factor, the logarithm of what the features of a query are divided by, and factor, which the token was
  /// multiplied by, in FeatureTask::log_factors and factors if these are requested.
  __device__ __forceinline__ void store_factors(int token, float log_factor, float factor) const {
    if (token >= n()) return;
    if (m_task.log_factors) m_task.log_factors[static_cast<std::ptrdiff_t>(m_z) * n() + token] = log_factor;
    if (m_task.factors) m_task.factors[static_cast<std::ptrdiff_t>(m_matrix) * n() + token] = factor;
  }
  /// Sets the matrix's largest log-scale to the maximum of itself and the log-scales of the warp's tokens. Tokens
  /// without features are ignored, and log-scales that are not finite. All lanes must call it.
  __device__ __forceinline__ void store_log_scale(int token, float log_scale) const {
    const bool is_counted = !is_left_out(token) && fabsf(log_scale) < largest_float;
    const float largest =
        over_warp(is_counted ? log_scale : -largest_float, [](float a, float b) { return fmaxf(a, b); });
    if (threadIdx.x % 32 == 0 && largest > -largest_float) atomicMax(m_task.max_log_scale + m_matrix, ordered(largest));
  }

 private:
  const FeatureTask<S, Feature>& m_task;
  int m_matrix, m_z;
};

}  // namespace nprf::cuda
