// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>

#include "nprf/core/compensated_sum.hpp"
#include "nprf/cuda/decoder/states.cuh"
#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/feature_map/token_tile.cuh"
#include "nprf/decoder/running_log_scale.hpp"

namespace nprf::cuda {

/// exp(x) with the relative precision of float; exp(float(x)) alone would have the rounding error of float(x).
__device__ __forceinline__ float exp_of(double x) {
  const float rounded = static_cast<float>(x), whole = expf(rounded);
  return whole == 0 ? 0.0f : fmaf(whole, static_cast<float>(x - static_cast<double>(rounded)), whole);
}

/// The sums S and Z of a head z = (state, head) over the tokens that have left its ring (DecodeStates). Every thread
/// has a copy of their log-scale and norms. Only one thread reads and writes an entry of S or Z: in S features are
/// divided over warps, and channels over lanes.
class HeadSums {
 public:
  /// Refers to the states.
  __device__ __forceinline__ HeadSums(const DecodeStates& states, int z)
      : m_x(states), m_z(z), m_log_scale(states.log_scale[z]), m_norms(states.norms[z]) {}

  /// Stores the log-scale and the norms in the states. One thread must call it.
  __device__ __forceinline__ void store_numbers() const {
    m_x.log_scale[m_z] = m_log_scale;
    m_x.norms[m_z] = m_norms;
  }

  /// The logarithm of the unit of S and Z, relative to the weight of the last token that was added.
  __device__ double log_scale() const { return m_log_scale.sum(); }
  /// sum_j w_j |phi(k_j)|, if features can be negative.
  __device__ float norms() const { return m_norms; }
  __device__ float Z(int k) const { return m_x.Z[row(k)]; }
  /// Row k (d_v) of S.
  __device__ const float* S(int k) const { return m_x.S + row(k) * m_x.d_v; }

  /// Makes the sums empty.
  __device__ __forceinline__ void clear() {
    m_log_scale = {};
    m_norms = 0;
    if (!m_x.has_sums) return;
    for (int k = thread(); k < m_x.r; k += Shape::threads) m_x.Z[row(k)] = m_x.Z_errors[row(k)] = 0;
    for (int k = warp(); k < m_x.r; k += Shape::warps)
      for (int c = lane(); c < m_x.d_v; c += 32) m_x.S[row(k) * m_x.d_v + c] = m_x.S_errors[row(k) * m_x.d_v + c] = 0;
  }

  /// Adds the token at a place of the ring, which is one younger than the token added before, as RunningSums::add does.
  /// Its features (r) are `slots` numbers apart. A non-finite token makes the sums NaN.
  __device__ __forceinline__ void add(std::ptrdiff_t place, const float* features, double slope) {
    const float norm = m_x.feature_norms[place], *value = m_x.values + place * m_x.d_v;
    const auto log_scale = static_cast<double>(m_x.log_scales[place]);
    Addition first;  // its loads do not wait for the weight
    first.load(*this, features, value, warp(), lane());
    m_log_scale.shift(slope, 0);
    float factor = 1;
    if (!(log_scale <= m_log_scale.sum())) {
      const double exponent = m_log_scale.raise(log_scale);
      factor = exponent < 4000 ? ldexpf(1.0f, -static_cast<int>(exponent)) : 0.0f;
    }
    const float weight = exp_of(m_log_scale.relative(log_scale));
    m_norms = fmaf(weight, norm, factor * m_norms);
    first.store(*this, weight, factor, warp(), lane());
    for (int k = warp(); k < m_x.r; k += Addition::rows * Shape::warps)
      for (int c = lane(); c < m_x.d_v; c += Addition::columns * 32) {
        if (k == warp() && c == lane()) continue;
        Addition other;
        other.load(*this, features, value, k, c);
        other.store(*this, weight, factor, k, c);
      }
    for (int k = thread(); k < m_x.r; k += Shape::threads)
      add(m_x.Z[row(k)], m_x.Z_errors[row(k)], factor, weight * features[static_cast<std::ptrdiff_t>(k) * m_x.slots],
          1);
  }

 private:
  using Shape = OneTokenShape;

  // sum = factor * (sum + error) + b v, where `error` is that of the previous addition; then sets `error` to that of
  // this addition
  __device__ static void add(float& sum, float& error, float factor, float b, float v) {
    float new_error;
    sum = fast_two_sum(factor * sum, fmaf(b, v, factor * error), new_error);
    error = new_error;
  }

  // the addition of a token to the entries (k + i * warps, c + 32 j) of S with i < rows and j < columns, all of which
  // are loaded before the first is used
  struct Addition {
    static constexpr int rows = 4, columns = 2;
    float b[rows], v[columns], sums[rows][columns], errors[rows][columns];

    __device__ __forceinline__ void load(const HeadSums& x, const float* features, const float* value, int k, int c) {
#pragma unroll
      for (int j = 0; j < columns; ++j) v[j] = c + j * 32 < x.m_x.d_v ? value[c + j * 32] : 0.0f;
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const int row = k + i * Shape::warps;
        b[i] = row < x.m_x.r ? features[static_cast<std::ptrdiff_t>(row) * x.m_x.slots] : 0.0f;
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          const bool exists = row < x.m_x.r && c + j * 32 < x.m_x.d_v;
          const std::ptrdiff_t at = x.row(row) * x.m_x.d_v + c + j * 32;
          sums[i][j] = exists ? x.m_x.S[at] : 0.0f, errors[i][j] = exists ? x.m_x.S_errors[at] : 0.0f;
        }
      }
    }
    __device__ __forceinline__ void store(const HeadSums& x, float weight, float factor, int k, int c) {
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          const int row = k + i * Shape::warps, column = c + j * 32;
          if (row >= x.m_x.r || column >= x.m_x.d_v) continue;
          add(sums[i][j], errors[i][j], factor, weight * b[i], v[j]);
          x.m_x.S[x.row(row) * x.m_x.d_v + column] = sums[i][j];
          x.m_x.S_errors[x.row(row) * x.m_x.d_v + column] = errors[i][j];
        }
    }
  };

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int warp() { return thread() / 32; }
  __device__ static int lane() { return thread() % 32; }
  __device__ std::ptrdiff_t row(int k) const { return static_cast<std::ptrdiff_t>(m_z) * m_x.r + k; }

  const DecodeStates& m_x;
  int m_z;
  RunningLogScale m_log_scale;
  float m_norms;
};

}  // namespace nprf::cuda
