// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/strided_operand.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/fft/complex.cuh"
#include "nprf/cuda/position/toeplitz_weights.cuh"

namespace nprf::cuda {

/// Computes the first column of the circulant matrix that contains C.
struct CirculantTask {
  DeviceWeights c;
  int length;
  float2* w;  // [head, length]
};

template <int threads>
__global__ void __launch_bounds__(threads) circulant_kernel(CirculantTask task) {
  start_kernel();
  const int k = static_cast<int>(blockIdx.x * threads + threadIdx.x), head = static_cast<int>(blockIdx.y);
  if (k >= task.length) return;
  task.w[static_cast<std::ptrdiff_t>(head) * task.length + k] =
      make_float2(task.c.in_circulant(head, k, task.length), 0);
}

/// How many signals are transformed together: all combinations of so many pairs of columns and so many features.
struct SlabShape {
  int pairs, features;

  int signals() const { return pairs * features; }

  /// As many of the r features and of all pairs as fit in `most_bytes`; at least one of each.
  static SlabShape of(int length, int r, std::ptrdiff_t all_pairs, std::size_t most_bytes) {
    constexpr std::ptrdiff_t most_blocks = 65535;
    const std::size_t fit = most_bytes / (sizeof(float2) * static_cast<std::size_t>(length));
    const auto most = std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(fit), 1, most_blocks);
    const std::ptrdiff_t features = std::min<std::ptrdiff_t>(r, most);
    const std::ptrdiff_t pairs = std::clamp<std::ptrdiff_t>(most / std::max<std::ptrdiff_t>(features, 1), 1,
                                                            std::max<std::ptrdiff_t>(all_pairs, 1));
    return {static_cast<int>(pairs), static_cast<int>(features)};
  }
};

/// Computes a slab: a buffer of signals B_f U_c that are transformed together. Two columns c of U form one complex
/// column, a pair. Pairs are numbered through all matrices z. Signal (pair, feature), counted from the first pair and
/// the first feature of the slab, starts at slab + (pair * features + feature) * length.
template <Storage S>
struct SpreadTask {
  Operand<float> B;  // (n_k,r)
  Columns<S> U;      // (n_k,p + 1)
  int length, pairs_of_z, all_pairs;
  int first_pair, first_feature, features;
  float2* slab;
  TokenPlaces places = {};
};

/// Filters the slab by the spectrum of the weights, and adds its contributions to N and D.
template <Storage S>
struct SlabTask : SpreadTask<S> {
  Operand<float> A;        // (n_q,r)
  const float2* spectrum;  // [head, length]
  std::ptrdiff_t stride;   // of the spectrum, from head to head; 0: all share one
  float *N, *D;            // [z, n_q, p] [z, n_q]
};

/// Each thread computes one value in each of up to `features` signals of a pair of columns.
struct SpreadShape {
  static constexpr int threads = 256, features = 16;

  /// How many blocks the features of one pair of columns need, in a slab of features_of_slab features.
  static __host__ __device__ constexpr int groups(int features_of_slab) {
    return (features_of_slab + features - 1) / features;
  }
};

/// slab = B_f U_c, padded with zeros; the tokens of a grid are in their slots. blockIdx.x and threadIdx.x: index in a
/// signal, blockIdx.y: pair of columns and group of features.
template <Storage S>
__global__ void __launch_bounds__(SpreadShape::threads) spread_kernel(SpreadTask<S> task) {
  start_kernel();
  const int groups = SpreadShape::groups(task.features);
  const int t = static_cast<int>(blockIdx.x) * SpreadShape::threads + static_cast<int>(threadIdx.x),
            pair_of_slab = static_cast<int>(blockIdx.y) / groups, pair = task.first_pair + pair_of_slab;
  const int first = static_cast<int>(blockIdx.y) % groups * SpreadShape::features,
            end = min(first + SpreadShape::features, task.features);
  if (t >= task.length) return;
  float2* to = task.slab + (static_cast<std::ptrdiff_t>(pair_of_slab) * task.features + first) * task.length + t;
  const int j = task.places.token_in(t);
  const bool has_token = j >= 0 && j < task.B.tokens && pair < task.all_pairs;
  const int z = has_token ? pair / task.pairs_of_z : 0;
  const float2 columns = has_token ? task.U.of(z).pair(j, pair % task.pairs_of_z) : make_float2(0, 0);
  const float* B = task.B.of(z) + (task.first_feature + first) * task.B.channel_stride + j;
  int f = first;
#pragma unroll 4
  for (; f < (has_token ? min(end, task.B.channels - task.first_feature) : 0);
       ++f, to += task.length, B += task.B.channel_stride)
    *to = *B * columns;
#pragma unroll 4
  for (; f < end; ++f, to += task.length) *to = make_float2(0, 0);
}

/// Queues spread_kernel for a slab of `pairs` pairs of columns.
template <Storage S>
void queue_spread(const char* name, const SpreadTask<S>& task, int pairs, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(pairs * SpreadShape::groups(task.features));
  launch(name, spread_kernel<S>, dim3{blocks_of<SpreadShape::threads>(task.length), rows, 1},
         dim3{SpreadShape::threads, 1, 1}, 0, stream, task);
}

/// slab = spectrum * slab / length. blockIdx.x and threadIdx.x: frequency, blockIdx.y: signal.
template <Storage S>
__global__ void __launch_bounds__(256) filter_kernel(SlabTask<S> task) {
  start_kernel();
  const int k = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int signal = static_cast<int>(blockIdx.y), pair = task.first_pair + signal / task.features;
  if (k >= task.length || pair >= task.all_pairs) return;
  float2& value = task.slab[static_cast<std::ptrdiff_t>(signal) * task.length + k];
  const float2 c = task.spectrum[pair / task.pairs_of_z % task.A.heads * task.stride + k];
  value = multiply(value, (1.0f / static_cast<float>(task.length)) * c);
}

/// Adds sum_f A_f slab_f to N and D, in the order of the features f. blockIdx.x and threadIdx.x: query, blockIdx.y:
/// pair of columns.
template <Storage S>
__global__ void __launch_bounds__(256) gather_kernel(SlabTask<S> task) {
  start_kernel();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int pair_of_slab = static_cast<int>(blockIdx.y), pair = task.first_pair + pair_of_slab, n_q = task.A.tokens,
            p = task.U.V.channels;
  if (i >= n_q || pair >= task.all_pairs) return;
  const int t = task.places.slot_of(i);
  if (t < 0) return;
  const int z = pair / task.pairs_of_z, features = min(task.features, task.A.channels - task.first_feature);
  const float* A = task.A.of(z) + task.first_feature * task.A.channel_stride + i;
  const float2* slab = task.slab + static_cast<std::ptrdiff_t>(pair_of_slab) * task.features * task.length + t;
  float2 sum = make_float2(0, 0);
  for (int f = 0; f < features; ++f)
    sum = sum + A[f * task.A.channel_stride] * slab[static_cast<std::ptrdiff_t>(f) * task.length];
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * n_q + i;
  const auto add = [&](int column, float value) {
    if (column < p) task.N[row * p + column] += value;
    if (column == p) task.D[row] += value;
  };
  add(2 * (pair % task.pairs_of_z), sum.x);
  add(2 * (pair % task.pairs_of_z) + 1, sum.y);
}

}  // namespace nprf::cuda
