// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/error_bound/signal_norms.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"

namespace nprf::cuda {

/// Weights of lags one behind the other: their norms, and the longest run of them that are not zero.
struct WeightNorms {
  double one, square, max;
  int size, head, tail;  // how many, and how many before the first zero and behind the last one
  int best, best_first;  // of the run

  static __device__ __forceinline__ WeightNorms of(float c) {
    const double x = fabs(static_cast<double>(c));
    const int seen = c == 0 ? 0 : 1;
    return {x, x * x, x, 1, seen, seen, seen, 0};
  }

  /// Those of b behind those of a.
  static __device__ WeightNorms join(const WeightNorms& a, const WeightNorms& b) {
    WeightNorms c{a.one + b.one, a.square + b.square, fmax(a.max, b.max), a.size + b.size, a.head, b.tail,
                  a.best,        a.best_first};
    if (a.head == a.size) c.head += b.head;
    if (b.tail == b.size) c.tail += a.tail;
    if (a.tail + b.head > c.best) c.best = a.tail + b.head, c.best_first = a.size - a.tail;
    if (b.best > c.best) c.best = b.best, c.best_first = a.size + b.best_first;
    return c;
  }
};

struct WeightNormsTask {
  DeviceWeights c;
  WeightNorms* norms;  // [head], of the lags that are seen
};

/// One block a head.
template <int threads>
__global__ void __launch_bounds__(threads) weight_norms_kernel(WeightNormsTask task) {
  auto* norms = shared_memory<WeightNorms>();
  const int t = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x), first = task.c.first_attended;
  const int size = max(0, task.c.last_attended - first + 1), share = (size + threads - 1) / threads;
  WeightNorms own{};
  for (int k = t * share; k < min(size, (t + 1) * share); ++k)
    own = WeightNorms::join(own, WeightNorms::of(task.c(head, first + k)));
  norms[t] = own;
  for (int step = 1; step < threads; step *= 2) {
    __syncthreads();
    if (t % (2 * step) == 0) norms[t] = WeightNorms::join(norms[t], norms[t + step]);
  }
  if (t == 0) task.norms[head] = norms[0];
}

inline void queue_weight_norms(const WeightNormsTask& task, int heads, cudaStream_t stream) {
  constexpr int threads = 256;
  launch("norms of weights", weight_norms_kernel<threads>, dim3{static_cast<unsigned>(heads), 1, 1},
         dim3{threads, 1, 1}, threads * sizeof(WeightNorms), stream, task);
}

}  // namespace nprf::cuda
