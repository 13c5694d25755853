// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/fft/registers.cuh"

namespace nprf::cuda::fft {

/// How a block of threads transforms adjacent columns of L = R^2 points, R threads a column. With t a thread's index
/// within its column,
///
///     pass 1   values t + R s, s < R      a transform of R points over s, turned by exp(-2 pi i t k / L)
///     pass 2   what is k = t of them      a transform of R points over the threads that it comes from
///
/// Threads that follow one another have adjacent columns.
template <int R_, int columns_>
struct ColumnShape {
  static constexpr int R = R_, columns = columns_, L = R * R, threads = R * columns;

  /// Where in shared memory a value passes from a column's thread `from` to its thread `to`, such that no two threads
  /// of half a warp meet in a bank.
  static __host__ __device__ constexpr int place(int from, int to) { return to * stride + from * columns; }
  static constexpr int stride = R * columns + columns % 16;
};

/// One block's transforms of columns, forward and back, of values that it holds in registers.
template <class S>
class ColumnTransform {
 public:
  /// Shared memory, as float2: places for values, and a table of roots.
  static constexpr int places = S::R * S::stride, shared = places + S::L;

  const int column, t;  // of the thread

  /// The table is ready when a transform reads it: it has a barrier before.
  __device__ __forceinline__ explicit ColumnTransform(float2* memory)
      : column(static_cast<int>(threadIdx.x) % S::columns),
        t(static_cast<int>(threadIdx.x) / S::columns),
        m_values(memory + column),
        m_roots(memory + places + t) {
    for (int k = static_cast<int>(threadIdx.x); k < S::L; k += S::threads)
      memory[places + k] = root(k / S::R * (k % S::R), S::L);
  }

  /// v[s] is value t + R s of the thread's column, and becomes frequency t + R s.
  __device__ __forceinline__ void forward(float2 (&v)[S::R]) const { run<false>(v); }

  /// Back again, times L.
  __device__ __forceinline__ void inverse(float2 (&v)[S::R]) const { run<true>(v); }

 private:
  template <bool inverse>
  __device__ __forceinline__ void run(float2 (&v)[S::R]) const {
    transform<S::R, inverse>(v);
    __syncthreads();  // what was here before has been read
    unrolled<S::R>([&](auto k) {
      const float2 w = m_roots[k * S::R];
      m_values[S::place(t, k)] = k == 0 ? v[k] : inverse ? multiply_conjugate(v[k], w) : multiply(v[k], w);
    });
    __syncthreads();
    unrolled<S::R>([&](auto s) { v[s] = m_values[S::place(s, t)]; });
    transform<S::R, inverse>(v);
  }

  float2* m_values;       // of the thread's column
  const float2* m_roots;  // (R,R), from the thread's t on
};

}  // namespace nprf::cuda::fft
