// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/decoder/states.cuh"
#include "nprf/cuda/device/device_code.hpp"
#include "nprf/cuda/device/launch.cuh"

namespace nprf::cuda {

/// Sequences become copies of others.
struct ReorderTask {
  const int* from;  // [batch]  which sequence each becomes a copy of, on the device; null: sequence `to` becomes a copy
                    // of `one`
  int one, to;
  DecodeStates states;
  DecodeCounts* counts;
};

/// Gives each sequence the state of the one that it becomes a copy of, or a copy of that state if another sequence has
/// it already. Copies are written to states whose sequence is not copied by any sequence, so that no state is both read
/// and written. One block, O(batch heads / threads + batch).
template <int threads>
__global__ void __launch_bounds__(threads) assign_states_kernel(ReorderTask task) {
  start_kernel();
  const DecodeStates& x = task.states;
  const int thread = static_cast<int>(threadIdx.x), batch = x.batch;
  int *const from = x.lists, *const old = from + batch, *const state = old + batch, *const is_taken = state + batch;
  bool is_invalid = false;
  for (int b = thread; b < batch; b += threads) {
    from[b] = task.from ? task.from[b] : b == task.to ? task.one : b;
    is_invalid = is_invalid || from[b] < 0 || from[b] >= batch;
    old[b] = x.state[b];
    is_taken[b] = 0;
    x.copies[b] = {-1, 0};
  }
  if (__syncthreads_or(is_invalid)) {
    if (thread == 0) atomicAdd(&task.counts->rejected_reorders, 1);
    return;
  }
  if (thread == 0) {
    for (int b = 0; b < batch; ++b) {
      state[b] = is_taken[from[b]] ? -1 : old[from[b]];
      is_taken[from[b]] = 1;
    }
    for (int b = 0, unused = 0; b < batch; ++b) {
      if (state[b] >= 0) continue;
      while (is_taken[unused]) ++unused;
      state[b] = old[unused++];
      x.copies[state[b]] = {old[from[b]], x.tokens[from[b] * x.heads]};
    }
  }
  for (int z = thread; z < x.z(); z += threads) {
    const int source = from[z / x.heads] * x.heads + z % x.heads;
    x.reordered[z] = {x.tokens[source], x.left[source]};
  }
  __syncthreads();
  for (int z = thread; z < x.z(); z += threads) x.tokens[z] = x.reordered[z].tokens, x.left[z] = x.reordered[z].left;
  for (int b = thread; b < batch; b += threads) x.state[b] = state[b];
}

/// Makes the copies that assign_states_kernel chose. blockIdx.y: z = (state, head); the blocks with the same z divide
/// its entries.
template <int threads>
__global__ void __launch_bounds__(threads) copy_states_kernel(DecodeStates x) {
  start_kernel();
  const int z = static_cast<int>(blockIdx.y), head = z % x.heads;
  const auto [from, tokens] = x.copies[z / x.heads];
  if (from < 0) return;
  const std::ptrdiff_t to_z = z, from_z = static_cast<std::ptrdiff_t>(from) * x.heads + head;
  // copies the first `entries` entries of each row of an array [z, rows, size]
  const auto copy = [&](auto* array, std::ptrdiff_t size, std::ptrdiff_t entries, int rows = 1) {
    const std::ptrdiff_t step = static_cast<std::ptrdiff_t>(gridDim.x) * threads;
    for (std::ptrdiff_t i = static_cast<std::ptrdiff_t>(blockIdx.x) * threads + threadIdx.x; i < rows * entries;
         i += step) {
      const std::ptrdiff_t row = rows == 1 ? 0 : i / entries, at = row * size + i - row * entries;
      array[to_z * rows * size + at] = array[from_z * rows * size + at];
    }
  };
  const std::ptrdiff_t r = x.r, d = x.d, d_v = x.d_v, slots = x.slots, used = min(x.slots, tokens), sinks = x.sinks,
                       used_sinks = min(x.sinks, tokens);
  copy(x.log_scale, 1, 1);
  copy(x.norms, 1, 1);
  if (x.has_sums && tokens > 0) {
    copy(x.S, r * d_v, r * d_v), copy(x.S_errors, r * d_v, r * d_v);
    copy(x.Z, r, r), copy(x.Z_errors, r, r);
  }
  copy(x.features, slots, used, x.r);
  copy(x.values, slots * d_v, used * d_v);
  copy(x.log_scales, slots, used);
  copy(x.feature_norms, slots, used);
  if (x.near > 0) copy(x.keys, slots * d, used * d);
  copy(x.sink_keys, sinks * d, used_sinks * d);
  copy(x.sink_values, sinks * d_v, used_sinks * d_v);
}

inline void queue_reorder(const ReorderTask& task, cudaStream_t stream) {
  constexpr int threads = 256, parts = 8;
  const DecodeStates& x = task.states;
  launch("assigning states", assign_states_kernel<threads>, dim3{1, 1, 1}, dim3{threads, 1, 1}, 0, stream, task);
  launch("copying states", copy_states_kernel<threads>, dim3{parts, static_cast<unsigned>(x.z()), 1},
         dim3{threads, 1, 1}, 0, stream, x);
}

/// Takes back the last tokens of sequences. While no token has left the ring, all of them can be taken back; later the
/// ring must keep as many as the position and the near field need, since tokens cannot be taken out of the sums.
struct RollbackTask {
  const int* tokens;  // [batch]  how many each sequence takes back, on the device; null: `sequence` takes back `count`
  int sequence, count;
  DecodeStates states;
  int least;  // how many tokens the ring must keep
  DecodeCounts* counts;

  __device__ int count_of(int b) const {
    if (tokens) return tokens[b];
    return b == sequence ? count : 0;
  }
};

/// One thread for each head.
template <int threads>
__global__ void __launch_bounds__(threads) rollback_kernel(RollbackTask task) {
  start_kernel();
  const DecodeStates& x = task.states;
  const int z = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (z >= x.z()) return;
  const int count = task.count_of(z / x.heads), tokens = x.tokens[z], left = tokens > 0 ? x.left[z] : 0,
            least = left > 0 ? left + task.least : 0;
  if (0 <= count && count <= tokens - least)
    x.tokens[z] = tokens - count;
  else if (z % x.heads == 0)
    atomicAdd(&task.counts->rejected_rollbacks, 1);
}

inline void queue_rollback(const RollbackTask& task, cudaStream_t stream) {
  constexpr int threads = 128;
  launch("taking back tokens", rollback_kernel<threads>, dim3{blocks_of<threads>(task.states.z()), 1, 1},
         dim3{threads, 1, 1}, 0, stream, task);
}

}  // namespace nprf::cuda
