// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/feature_map/forward.cuh"

namespace nprf::cuda {

/// The normalised rows x' (feature_map/forward.cuh) of queries and of keys, as float [z, n, d], or [z / group, n, d] of
/// keys that a group of heads shares. O(n d).
template <Storage S>
struct NormalisedRowsTask {
  FeatureTask<S> queries, keys;  // phi is not used
  float *q, *k;
};

/// Blocks (tiles of tokens, z, queries or keys).
template <Storage S>
__global__ void __launch_bounds__(FeatureShape::threads) normalised_rows_kernel(NormalisedRowsTask<S> both) {
  start_kernel();
  using Shape = FeatureShape;
  const FeatureTask<S>& task = blockIdx.z == 0 ? both.queries : both.keys;
  float *to = blockIdx.z == 0 ? both.q : both.k, *x = shared_memory<float>(), *scratch = x + task.tile_size();
  const int stored_matrix = static_cast<int>(blockIdx.y), z = stored_matrix * task.x.group;
  const int t0 = static_cast<int>(blockIdx.x) * Shape::tokens, n = task.x.tokens, d = task.x.channels;
  if (t0 >= n || z >= static_cast<int>(gridDim.y)) return;
  load_tokens({x, 1, Shape::stride}, task.x, task.x.of(z), t0, Shape::tokens, task.d_padded);
  __syncthreads();
  normalise(task, x, scratch);
  __syncthreads();
  const int count = min(Shape::tokens, n - t0);
  for (int e = static_cast<int>(threadIdx.x); e < count * d; e += Shape::threads)
    to[(static_cast<std::ptrdiff_t>(stored_matrix) * n + t0) * d + e] = x[e % d * Shape::stride + e / d];
}

template <Storage S>
void queue_normalised_rows(const NormalisedRowsTask<S>& task, int z, cudaStream_t stream) {
  const int most = std::max(task.queries.x.tokens, task.keys.x.tokens);
  if (most == 0 || z == 0) return;
  launch("normalised rows", normalised_rows_kernel<S>,
         dim3{blocks_of<FeatureShape::tokens>(most), static_cast<unsigned>(z), 2}, dim3{FeatureShape::threads, 1, 1},
         FeatureShape::shared(task.queries.d_padded), stream, task);
}

}  // namespace nprf::cuda
