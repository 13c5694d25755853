// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/complex.cuh"
#include "nprf/cuda/device/cufft.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/fft/spectra.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/fft/length.hpp"

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

/// How many signals (pair, feature) are transformed together.
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
/// column, a pair. Pairs are numbered over all z. Signal (pair, feature) starts at slab + (pair features + feature)
/// length.
template <Storage S>
struct SpreadTask {
  Operand<float> B;  // (n_k,r)
  Columns<S> U;      // (n_k,p + 1)
  int length, pairs_of_z, all_pairs;
  int first_pair, first_feature, features;
  float2* slab;
  TokenPlaces places = {};
};

/// Computes N and D from the slab.
template <Storage S>
struct SlabTask : SpreadTask<S> {
  Operand<float> A;        // (n_q,r)
  const float2* spectrum;  // [head, length]
  std::ptrdiff_t stride;   // of the spectrum, between heads
  float *N, *D;            // [z, n_q, p] [z, n_q]
};

/// slab = B_f U_c, padded with zeros, with the tokens of a grid in their slots.
/// Blocks (values of a signal, signals).
template <Storage S>
__global__ void __launch_bounds__(256) spread_kernel(SpreadTask<S> task) {
  start_kernel();
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), signal = static_cast<int>(blockIdx.y);
  const int pair = task.first_pair + signal / task.features, f = task.first_feature + signal % task.features;
  if (t >= task.length) return;
  float2 value = make_float2(0, 0);
  const int j = task.places.token_in(t);
  if (j >= 0 && j < task.B.tokens && pair < task.all_pairs && f < task.B.channels) {
    const int z = pair / task.pairs_of_z;
    value = task.B.of(z)[f * task.B.channel_stride + j] * task.U.of(z).pair(j, pair % task.pairs_of_z);
  }
  task.slab[static_cast<std::ptrdiff_t>(signal) * task.length + t] = value;
}

/// slab = spectrum slab / length. Blocks (frequencies, signals).
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

/// N and D += sum_f A_f slab, in the order of the features. Blocks (queries, pairs).
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

/// Y = ((A B^T) o C) [V 1] by cuFFT. A circulant matrix of length at least n_q + n_k - 1 contains C. The transforms are
/// done in slabs of bounded size. O(r (p + 1) n log n) time. Memory: a slab and cuFFT's workspace.
class CufftEngine {
 public:
  CufftEngine() = default;
  /// For z matrices of p columns and r features; of a grid, n_q and n_k are the numbers of slots. `most_bytes` limits
  /// the slab, which holds at least one transform. Throws BackendError if cuFFT reports an error.
  CufftEngine(int n_q, int n_k, int r, int p, int z, int positions, std::size_t most_bytes)
      : m_length(nprf::fft::smooth_length(n_q + n_k - 1)), m_pairs(column_pairs(p)) {
    m_slab = SlabShape::of(m_length, r, static_cast<std::ptrdiff_t>(z) * m_pairs, most_bytes);
    m_columns = CufftPlan(m_length, m_slab.signals());
    m_weights = CufftPlan(m_length, positions);
  }

  int length() const { return m_length; }

  /// Scratch memory of a call.
  struct Arrays {
    float2* slab;
    std::byte* cufft;
  };
  Arrays take(Scratch& scratch) const {
    return {scratch.take<float2>(static_cast<std::size_t>(m_slab.signals()) * static_cast<std::size_t>(m_length)),
            scratch.take<std::byte>(m_columns.workspace_bytes())};
  }
  std::byte* take_for_spectrum(Scratch& scratch) const { return scratch.take<std::byte>(m_weights.workspace_bytes()); }

  /// Queues the spectrum [position, length] of the weights.
  void queue_spectrum(const DeviceWeights& c, int positions, float2* spectrum, std::byte* workspace,
                      cudaStream_t stream) const {
    launch("circulant", circulant_kernel<threads>,
           dim3{blocks_of<threads>(m_length), static_cast<unsigned>(positions), 1},
           dim3{static_cast<unsigned>(threads), 1, 1}, 0, stream, CirculantTask{c, m_length, spectrum});
    m_weights.run(spectrum, CUFFT_FORWARD, workspace, stream);
  }

  /// Queues N [z, n_q, p] and D [z, n_q] of z matrices.
  template <Storage S>
  void queue(const TileTask<S>& x, int z, const Spectra& spectra, float* N, float* D, const Arrays& arrays,
             cudaStream_t stream) const {
    const auto& [A, B, U, c, scales] = x;
    const int p = U.V.channels, r = A.channels;
    const std::size_t rows = static_cast<std::size_t>(z) * static_cast<std::size_t>(A.tokens);
    queue_fill("clearing sums", N, 0, rows * static_cast<std::size_t>(p) * sizeof(float), stream);
    queue_fill("clearing sums", D, 0, rows * sizeof(float), stream);
    if (rows == 0 || B.tokens == 0) return;
    const unsigned signals = static_cast<unsigned>(m_slab.signals()), pairs = static_cast<unsigned>(m_slab.pairs);
    const dim3 block{threads, 1, 1};
    for (int pair = 0; pair < z * m_pairs; pair += m_slab.pairs)
      for (int f = 0; f < r; f += m_slab.features) {
        const SlabTask<S> task{{B, U, m_length, m_pairs, z * m_pairs, pair, f, m_slab.features, arrays.slab, c.places},
                               A,
                               spectra.values,
                               spectra.stride,
                               N,
                               D};
        launch("spread", spread_kernel<S>, dim3{blocks_of<threads>(m_length), signals, 1}, block, 0, stream,
               static_cast<const SpreadTask<S>&>(task));
        m_columns.run(arrays.slab, CUFFT_FORWARD, arrays.cufft, stream);
        launch("filter", filter_kernel<S>, dim3{blocks_of<threads>(m_length), signals, 1}, block, 0, stream, task);
        m_columns.run(arrays.slab, CUFFT_INVERSE, arrays.cufft, stream);
        launch("gather", gather_kernel<S>, dim3{blocks_of<threads>(A.tokens), pairs, 1}, block, 0, stream, task);
      }
  }

 private:
  static constexpr int threads = 256;

  int m_length = 1, m_pairs = 1;
  SlabShape m_slab{};
  CufftPlan m_columns, m_weights;
};

}  // namespace nprf::cuda
