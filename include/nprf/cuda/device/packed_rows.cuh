// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/storage.cuh"

namespace nprf::cuda {

/// Sequences that are packed into one array of `tokens` rows: sequence b has the rows first[b] .. first[b + 1] - 1.
struct PackedSequences {
  const int* first;  // on the device, [count + 1]
  int count, tokens;

  struct Rows {
    int first, count;
  };
  /// The rows of a sequence, limited to those that the array has.
  __device__ __forceinline__ Rows of(int b) const {
    const int begin = min(max(first[b], 0), tokens), end = min(max(first[b + 1], begin), tokens);
    return {begin, end - begin};
  }
};

/// The rows of all heads in two arrays: packed, and padded to n rows for each sequence.
template <class T>
struct PackedTask {
  PackedSequences sequences;
  DeviceMatrixView<T> packed;                       // [1, heads, tokens, channels]
  DeviceMatrixView<std::remove_const_t<T>> padded;  // [sequence, heads, n, channels]
};

struct PackedShape {
  static constexpr int lanes = 32, rows = 8, threads = lanes * rows;

  // blockIdx.x: `rows` rows, blockIdx.y: a head, blockIdx.z: a sequence
  static dim3 grid(std::ptrdiff_t n, std::ptrdiff_t heads, int sequences) {
    return {blocks_of<rows>(n), static_cast<unsigned>(heads), static_cast<unsigned>(sequences)};
  }
};

/// Copies packed rows to padded rows, which become zero beyond the end of their sequence. The grid is
/// PackedShape::grid().
template <Storage S>
__global__ void __launch_bounds__(PackedShape::threads) unpack_kernel(PackedTask<const S> task) {
  start_kernel();
  const int lane = static_cast<int>(threadIdx.x) % PackedShape::lanes, head = static_cast<int>(blockIdx.y),
            b = static_cast<int>(blockIdx.z);
  const int t = static_cast<int>(blockIdx.x) * PackedShape::rows + static_cast<int>(threadIdx.x) / PackedShape::lanes;
  if (t >= task.padded.tokens) return;
  const PackedSequences::Rows rows = task.sequences.of(b);
  const S* from = task.packed.data + head * task.packed.head_stride + (rows.first + t) * task.packed.token_stride;
  S* to =
      task.padded.data + b * task.padded.batch_stride + head * task.padded.head_stride + t * task.padded.token_stride;
  for (int k = lane; k < task.padded.channels; k += PackedShape::lanes) {
    if (t < rows.count)
      to[k] = from[k];
    else
      store(to + k, 0.0f);
  }
}

/// Copies padded rows to packed rows. If a sequence has more than n rows, its packed rows from row n on become NaN. The
/// grid is PackedShape::grid().
template <Storage S>
__global__ void __launch_bounds__(PackedShape::threads) pack_kernel(PackedTask<S> task) {
  start_kernel();
  const int lane = static_cast<int>(threadIdx.x) % PackedShape::lanes, head = static_cast<int>(blockIdx.y),
            b = static_cast<int>(blockIdx.z), n = static_cast<int>(task.padded.tokens);
  const int first = static_cast<int>(blockIdx.x) * PackedShape::rows,
            step = static_cast<int>(gridDim.x) * PackedShape::rows;
  const PackedSequences::Rows rows = task.sequences.of(b);
  for (int t = first + static_cast<int>(threadIdx.x) / PackedShape::lanes; t < rows.count; t += step) {
    const S* from = task.padded.data + b * task.padded.batch_stride + head * task.padded.head_stride +
                    min(t, n - 1) * task.padded.token_stride;
    S* to = task.packed.data + head * task.packed.head_stride + (rows.first + t) * task.packed.token_stride;
    for (int k = lane; k < task.packed.channels; k += PackedShape::lanes) {
      if (t < n)
        to[k] = from[k];
      else
        store(to + k, not_a_number);
    }
  }
}

template <Storage S>
void queue_unpack(const PackedTask<const S>& task, cudaStream_t stream) {
  if (task.padded.size() == 0) return;
  launch("unpacking sequences", unpack_kernel<S>,
         PackedShape::grid(task.padded.tokens, task.padded.heads, task.sequences.count),
         dim3{PackedShape::threads, 1, 1}, 0, stream, task);
}
template <Storage S>
void queue_pack(const PackedTask<S>& task, cudaStream_t stream) {
  if (task.padded.size() == 0 || task.sequences.tokens == 0) return;
  launch("packing sequences", pack_kernel<S>,
         PackedShape::grid(task.padded.tokens, task.padded.heads, task.sequences.count),
         dim3{PackedShape::threads, 1, 1}, 0, stream, task);
}

/// lengths[b] = the number of rows of sequence b. blockIdx.x: `threads` sequences, one for each thread.
template <int threads>
__global__ void __launch_bounds__(threads) packed_lengths_kernel(PackedSequences sequences, int* lengths) {
  start_kernel();
  const int b = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (b < sequences.count) lengths[b] = sequences.of(b).count;
}
inline void queue_packed_lengths(const PackedSequences& sequences, int* lengths, cudaStream_t stream) {
  constexpr int threads = 128;
  if (sequences.count == 0) return;
  launch("lengths of packed sequences", packed_lengths_kernel<threads>, dim3{blocks_of<threads>(sequences.count), 1, 1},
         dim3{threads, 1, 1}, 0, stream, sequences, lengths);
}

}  // namespace nprf::cuda
