// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/fft/block.cuh"

namespace nprf::cuda {

/// exp(-pi i q j / N), for q j < 2^31.
__device__ __forceinline__ float2 residue_root(int q, int j, int N) {
  return fft::root(q * j % (2 * N), 2 * N);  // reduces the angle modulo 2 pi exactly, in integers
}

/// Computes u_q[j] = u[j] exp(-pi i q j / N) for all residue classes q and some pairs u of columns of U = [V 1]. Pairs
/// are numbered through all matrices z.
template <Storage S>
struct TwiddleTask {
  Columns<S> U;  // (n_k,p + 1)
  int N, residues;
  int pairs_of_z, all_pairs, first_pair, pairs;  // `pairs` pairs from first_pair on, of all_pairs
  float2* to;                                    // [pair / group, residue, pair % group, N]
  int group;                                     // how many pairs are contiguous for one residue class
};

/// A block has a tile of tokens and pairs, which it transposes in shared memory: in V the columns of a token are
/// contiguous, in the results the tokens of a pair.
struct TwiddleShape {
  static constexpr int tokens = 32, pairs = 16, threads = 256, stride = 2 * pairs + 1;
  static constexpr std::size_t shared = sizeof(float) * tokens * stride;
};

/// blockIdx.x: tile of pairs, blockIdx.y: tile of tokens.
template <Storage S>
__global__ void __launch_bounds__(TwiddleShape::threads) twiddle_kernel(TwiddleTask<S> task) {
  start_kernel();
  using Shape = TwiddleShape;
  float* tile = shared_memory<float>();  // (tokens, 2 pairs)
  const int thread = static_cast<int>(threadIdx.x), j0 = static_cast<int>(blockIdx.y) * Shape::tokens;
  const int slot0 = static_cast<int>(blockIdx.x) * Shape::pairs;
  const int pairs = min(Shape::pairs, min(task.pairs, task.all_pairs - task.first_pair) - slot0);
  const bool along_tokens = task.U.V.token_stride == 1;
  for (int e = thread; e < Shape::tokens * 2 * Shape::pairs; e += Shape::threads) {
    const int a = e % 32, b = e / 32, t = along_tokens ? a : b, column = along_tokens ? b : a;
    const int pair = task.first_pair + slot0 + column / 2;
    tile[t * Shape::stride + column] =
        column < 2 * pairs ? task.U.of(pair / task.pairs_of_z)(j0 + t, 2 * (pair % task.pairs_of_z) + column % 2)
                           : 0.0f;
  }
  __syncthreads();
  static_assert(Shape::tokens == 32 && 2 * Shape::pairs == 32);
  const int t = thread % 32, j = j0 + t;
  if (j >= task.N) return;
  for (int q = 0; q < task.residues; ++q) {
    const float2 root = residue_root(q, j, task.N);
    for (int k = thread / 32; k < pairs; k += Shape::threads / 32) {
      const int slot = slot0 + k;
      const float2 u = make_float2(tile[t * Shape::stride + 2 * k], tile[t * Shape::stride + 2 * k + 1]);
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(slot / task.group) * task.residues + q;
      task.to[(row * task.group + slot % task.group) * task.N + j] = multiply(u, root);
    }
  }
}

template <Storage S>
void queue_twiddles(const TwiddleTask<S>& task, cudaStream_t stream) {
  launch("FFT: twiddles", twiddle_kernel<S>,
         dim3{blocks_of<TwiddleShape::pairs>(task.pairs), blocks_of<TwiddleShape::tokens>(task.N), 1},
         dim3{TwiddleShape::threads, 1, 1}, TwiddleShape::shared, stream, task);
}

}  // namespace nprf::cuda
