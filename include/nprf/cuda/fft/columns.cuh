// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/fft/registers.cuh"

namespace nprf::cuda::fft {

/// How a block of threads transforms adjacent columns of L = R^2 points, with R threads per column. With t the index of
/// a thread within its column,
///
///     pass 1   values t + R s, s < R      transform of R points over s, then twiddle factors exp(-2 pi i t k / L)
///     pass 2   outputs k = t of pass 1    transform of R points over the threads that computed them
///
/// Consecutive threads belong to adjacent columns.
template <int R_, int columns_>
struct ColumnShape {
  static constexpr int R = R_, columns = columns_, L = R * R, threads = R * columns;

  /// The address in shared memory of the value that a column's thread `from` passes to its thread `to`, padded so that
  /// the threads of a half warp use different banks.
  static __host__ __device__ constexpr int place(int from, int to) { return to * stride + from * columns; }
  static constexpr int stride = R * columns + columns % 16;
};

/// Forward and inverse FFTs of columns by one block, of values in registers.
template <class S>
class ColumnTransform {
 public:
  /// Shared memory in float2: the values, then a table of roots of unity.
  static constexpr int places = S::R * S::stride, shared = places + S::L;

  const int column, t;  // the column of this thread, and its index in the column

  /// The table needs no barrier here: each transform has one before it reads the table.
  __device__ __forceinline__ explicit ColumnTransform(float2* memory)
      : column(static_cast<int>(threadIdx.x) % S::columns),
        t(static_cast<int>(threadIdx.x) / S::columns),
        m_values(memory + column),
        m_roots(memory + places + t) {
    for (int k = static_cast<int>(threadIdx.x); k < S::L; k += S::threads)
      memory[places + k] = root(k / S::R * (k % S::R), S::L);
  }

  /// On entry v[s] is value t + R s of this thread's column, on return frequency t + R s.
  __device__ __forceinline__ void forward(float2 (&v)[S::R]) const { run<false>(v); }

  /// The inverse of forward(), times L.
  __device__ __forceinline__ void inverse(float2 (&v)[S::R]) const { run<true>(v); }

 private:
  template <bool inverse>
  __device__ __forceinline__ void run(float2 (&v)[S::R]) const {
    transform<S::R, inverse>(v);
    __syncthreads();  // all threads have read the previous values
    unrolled<S::R>([&](auto k) {
      const float2 w = m_roots[k * S::R];
      m_values[S::place(t, k)] = k == 0 ? v[k] : inverse ? multiply_conjugate(v[k], w) : multiply(v[k], w);
    });
    __syncthreads();
    unrolled<S::R>([&](auto s) { v[s] = m_values[S::place(s, t)]; });
    transform<S::R, inverse>(v);
  }

  float2* m_values;       // of this thread's column
  const float2* m_roots;  // (R,R), from this thread's t on
};

}  // namespace nprf::cuda::fft
