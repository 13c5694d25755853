// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nprf/core/lags.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/reductions.cuh"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/position/token_places.cuh"

namespace nprf::cuda {

/// The biases of the lags first .. first + size - 1 of every head, from the parameters on the device:
///
///     b[lag] = parameters[index[lag]]   or   -parameters[0] |lag|   or   0
///
/// and -infinity for lags beyond last_attended. In double, so that the linear bias of distant lags keeps full
/// precision. In a grid the last parameters are the biases of the border.
struct DeviceBias {
  const float* parameters;    // [head, count]
  const std::int32_t* index;  // [size]; null: the bias is linear, or 0 if there are no parameters
  int heads, count, size, first, last_attended;
  int n_q;  // lag first + k is that of tokens j - i = k - (n_q - 1), except in a grid
  TokenPlaces places = {};
  bool is_causal = false;  // whether a query without a slot attends only to tokens up to itself
  NearLags near = {};      // the lags whose pairs are computed exactly: their weights are 0

  /// The bias of lag first + k. `head` is ignored if one position is shared by all heads.
  __device__ __forceinline__ double operator()(int head, int k) const {
    if (k < 0 || k >= size || first + k > last_attended) return minus_infinity;
    if (count == 0) return 0;
    const float* of_head = parameters + static_cast<std::ptrdiff_t>(heads > 1 ? head : 0) * count;
    if (index) return static_cast<double>(of_head[index[k]]);
    const int lag = first + k;
    return -static_cast<double>(of_head[0]) * (lag < 0 ? -lag : lag);
  }

  /// Whether lag first + k is near; and whether query i and key j are near each other.
  __device__ __forceinline__ bool is_near(int k) const { return near.width > 0 && near.contains(first + k); }
  __device__ __forceinline__ bool is_near(int i, int j) const {
    if (!places.is_grid()) return is_near(j - i + n_q - 1);
    return !places.is_border(i, j) && is_near(places.lag(i, j) - first);
  }

  /// The bias of row e and column f of the border.
  __device__ __forceinline__ double border(int head, int e, int f) const {
    if (is_causal && is_later_in_border(e, f)) return minus_infinity;
    const float* of_head = parameters + static_cast<std::ptrdiff_t>(heads > 1 ? head : 0) * count;
    return static_cast<double>(of_head[count - places.border_size() + e * (places.outside + 2) + f]);
  }

  /// The bias at which a weight of query e, which has no slot, is 1: the largest bias in row e of the border without
  /// column 1, which is for other queries and key e.
  __device__ __forceinline__ double largest_of_border(int head, int e) const {
    double largest = minus_infinity;
    for (int f = 0; f < places.outside + 2; ++f)
      if (is_own_in_border(f)) largest = fmax(largest, border(head, e, f));
    return largest;
  }

  /// The bias of query i and key j.
  __device__ __forceinline__ double between(int head, int i, int j) const {
    if (!places.is_grid()) return (*this)(head, j - i + n_q - 1);
    if (!places.is_border(i, j)) return (*this)(head, places.lag(i, j) - first);
    const int entry = places.border_entry(i, j);
    return border(head, entry / (places.outside + 2), entry % (places.outside + 2));
  }
};

/// The weights c[lag] = exp(b[lag] - max b) of every head, 0 for lags that are near or not attended. The weights of the
/// border follow; those of a query without a slot are relative to the query's own largest bias instead. O(size) for
/// each head.
struct WeightsTask {
  static constexpr int threads = 256, most_parts = 32;

  DeviceBias b;
  float* values;    // [head, size + border]
  double* largest;  // [head]: max b
  double* maxima;   // [head, most_parts]: the largest biases of parts of the lags

  /// The number of blocks of a head, and of parts of its lags: each thread has at least four lags if there is more than
  /// one block.
  int parts() const { return std::clamp(b.size / (4 * threads), 1, most_parts); }
};

/// Computes the largest bias of each part of the lags. blockIdx.x: the part, blockIdx.y: the head.
template <int threads>
__global__ void __launch_bounds__(threads) largest_biases_kernel(WeightsTask task) {
  start_kernel();
  const int t = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y), part = static_cast<int>(blockIdx.x);
  const int first = part * threads + t, step = static_cast<int>(gridDim.x) * threads;
  double max_bias = minus_infinity;
#pragma unroll 4
  for (int k = first; k < task.b.size; k += step) max_bias = fmax(max_bias, task.b(head, k));
  for (int e = first; e < task.b.places.outside; e += step) max_bias = fmax(max_bias, task.b.border(head, e, 1));
  max_bias = over_block<threads>(shared_memory<double>(), max_bias, Largest());
  if (t == 0) task.maxima[head * WeightsTask::most_parts + part] = max_bias;
}

/// Computes the weights of each part of the lags. blockIdx.x: the part, blockIdx.y: the head.
template <int threads>
__global__ void __launch_bounds__(threads) weights_kernel(WeightsTask task) {
  start_kernel();
  const int head = static_cast<int>(blockIdx.y), size = task.b.size, outside = task.b.places.outside;
  const int first = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x),
            step = static_cast<int>(gridDim.x) * threads;
  float* values = task.values + static_cast<std::ptrdiff_t>(head) * (size + task.b.places.border_size());
  double max_bias = minus_infinity;
#pragma unroll 4
  for (int part = 0; part < static_cast<int>(gridDim.x); ++part)
    max_bias = fmax(max_bias, task.maxima[head * WeightsTask::most_parts + part]);
  if (first == 0) task.largest[head] = max_bias;
#pragma unroll 2
  for (int k = first; k < size; k += step)
    values[k] =
        max_bias > minus_infinity && !task.b.is_near(k) ? static_cast<float>(exp(task.b(head, k) - max_bias)) : 0.0f;
  for (int e = first; e < outside; e += step) {
    const double max_of_row = task.b.largest_of_border(head, e);
    for (int f = 0; f < outside + 2; ++f)
      values[size + e * (outside + 2) + f] = border_weight<float>(task.b.border(head, e, f), f, max_bias, max_of_row);
  }
}

inline void queue_weights(const WeightsTask& task, cudaStream_t stream) {
  constexpr int threads = WeightsTask::threads;
  if (task.b.size <= 0) return;
  const dim3 grid{static_cast<unsigned>(task.parts()), static_cast<unsigned>(task.b.heads), 1}, block{threads, 1, 1};
  launch("largest biases", largest_biases_kernel<threads>, grid, block, threads * sizeof(double), stream, task);
  launch("weights", weights_kernel<threads>, grid, block, 0, stream, task);
}

}  // namespace nprf::cuda
