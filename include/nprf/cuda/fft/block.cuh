// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/fft/registers.cuh"

namespace nprf::cuda::fft {

/// How an FFT of L = R1 R2 R3 points is distributed over a block of threads, with P = L / threads values per thread:
///
///     pass 1   values t + s L2, t < L2 = L / R1       L2 transforms of R1 points over s
///     pass 2   values k1 L2 + t + s R3, t < R3        R1 R3 transforms of R2 points
///     pass 3   values k1 L2 + k2 R3 + s               R1 R2 transforms of R3 points
///
/// Output k of a transform with index t is multiplied by the twiddle factor exp(-2 pi i t k / L) after pass 1, and by
/// exp(-2 pi i t k / L2) after pass 2. Frequency k1 + R1 (k2 + R2 k3) ends at index k1 L2 + k2 R3 + k3. The values of
/// each k1 belong to `group` threads of one warp, so that passes 2 and 3 exchange data within warps.
template <int L_, int threads_, int R1_, int R2_>
struct Shape {
  static constexpr int L = L_, threads = threads_, R1 = R1_, R2 = R2_, L2 = L / R1, R3 = L2 / R2;
  static constexpr int P = L / threads, group = threads / R1;
  static_assert(group >= 1 && 32 % group == 0 && P % R1 == 0 && P % R2 == 0 && P % R3 == 0 && R1 * R2 * R3 == L);

  /// The index in the transform of a thread's value v, in passes 1, 2 and 3.
  template <int pass>
  static __host__ __device__ constexpr int index(int thread, int v) {
    const int k1 = thread / group, lane = thread % group;
    if (pass == 1) return thread + v / R1 * threads + v % R1 * L2;
    if (pass == 2) return k1 * L2 + lane + v / R2 * group + v % R2 * R3;
    return k1 * L2 + (lane + v / R3 * group) * R3 + v % R3;
  }

  /// The address of an index in shared memory, padded so that the threads of a half warp use different banks.
  static __host__ __device__ constexpr int place(int index) { return index + index / 16 + index / L2 * gap; }
  // each k1 starts `group` banks further
  static constexpr int gap = group >= 16 ? 0 : (16 + group - L2 / 16 % 16) % 16;
  static constexpr int places = place(L - 1) + 1;

  /// place(index<pass>(thread, v)) = thread_place<pass>(thread) + offset<pass, v>. The offset is a compile-time
  /// constant.
  template <int pass>
  static __host__ __device__ constexpr int thread_place(int thread) {
    return place(index<pass>(thread, 0));
  }
  template <int pass, int v>
  static constexpr int offset = place(index<pass>(0, v));
};

/// Forward and inverse FFT by one block, of values in registers.
template <class S>
class BlockTransform {
 public:
  static constexpr int butterflies = S::P / S::R1, levels = S::R1 > 16 ? 3 : S::R1 > 4 ? 2 : 1;

  /// Shared memory in float2: the values, then tables of roots of unity.
  static constexpr int shared = S::places + S::L2 + levels * butterflies * S::threads;

  /// forward() and inverse() need no barrier before: each thread reads only the powers that it has written, and the
  /// roots are read after an exchange.
  __device__ __forceinline__ explicit BlockTransform(float2* memory)
      : m_values(memory), m_roots(memory + S::places), m_powers(m_roots + S::L2) {
    const int thread = static_cast<int>(threadIdx.x);
    m_places[0] = S::template thread_place<1>(thread);
    m_places[1] = S::template thread_place<2>(thread);
    m_places[2] = S::template thread_place<3>(thread);
    for (int k = thread; k < S::L2; k += S::threads) m_roots[k] = root(k / S::R3 * (k % S::R3), S::L2);
    for (int k = thread; k < butterflies * S::threads; k += S::threads) {
      constexpr int power[] = {1, 4, 16};
      for (int level = 0; level < levels; ++level)
        m_powers[level * butterflies * S::threads + k] = root(power[level] * k, S::L);
    }
  }

  /// On entry v[i] is value index<1>(thread, i), on return frequency index<3>(thread, i).
  __device__ __forceinline__ void forward(float2 (&v)[S::P]) const {
    unrolled<S::P / S::R1>([&](auto b) {
      transform<S::R1, false>(v + b * S::R1);
      twiddle_by_powers<false>(v + b * S::R1, b);
    });
    exchange<1, 2, true>(v);
    unrolled<S::P / S::R2>([&](auto b) {
      transform<S::R2, false>(v + b * S::R2);
      twiddle_by_table<false>(v + b * S::R2, b);
    });
    exchange<2, 3, false>(v);
    unrolled<S::P / S::R3>([&](auto b) { transform<S::R3, false>(v + b * S::R3); });
  }

  /// The inverse of forward(), times L.
  __device__ __forceinline__ void inverse(float2 (&v)[S::P]) const {
    unrolled<S::P / S::R3>([&](auto b) { transform<S::R3, true>(v + b * S::R3); });
    exchange<3, 2, false>(v);
    unrolled<S::P / S::R2>([&](auto b) {
      twiddle_by_table<true>(v + b * S::R2, b);
      transform<S::R2, true>(v + b * S::R2);
    });
    exchange<2, 1, true>(v);
    unrolled<S::P / S::R1>([&](auto b) {
      twiddle_by_powers<true>(v + b * S::R1, b);
      transform<S::R1, true>(v + b * S::R1);
    });
  }

 private:
  template <bool inverse>
  static __device__ __forceinline__ float2 times_twiddle(float2 a, float2 w) {
    return inverse ? multiply_conjugate(a, w) : multiply(a, w);
  }

  // v[k] *= w^k, where w is the twiddle factor of butterfly b of pass 1, with few powers live at a time. w, w^4 and
  // w^16 are each rounded from their exact values, since the error of w^k is k times that of w
  template <bool inverse>
  __device__ __forceinline__ void twiddle_by_powers(float2* v, int b) const {
    const auto power_of = [this, b](int level) {
      return m_powers[(level * butterflies + b) * S::threads + static_cast<int>(threadIdx.x)];
    };
    const float2 w = power_of(0), w2 = multiply(w, w), w3 = multiply(w2, w);
    v[1] = times_twiddle<inverse>(v[1], w);
    v[2] = times_twiddle<inverse>(v[2], w2);
    v[3] = times_twiddle<inverse>(v[3], w3);
    if constexpr (levels > 1) {
      const float2 w4 = power_of(1);
      float2 power = w4;
      unrolled<S::R1 / 4 - 1>([&](auto q) {
        constexpr int k = 4 * (decltype(q)::value + 1);
        if constexpr (k == 16)
          power = power_of(2);
        else if constexpr (k > 4)
          power = multiply(power, w4);
        v[k] = times_twiddle<inverse>(v[k], power);
        v[k + 1] = times_twiddle<inverse>(v[k + 1], multiply(power, w));
        v[k + 2] = times_twiddle<inverse>(v[k + 2], multiply(power, w2));
        v[k + 3] = times_twiddle<inverse>(v[k + 3], multiply(power, w3));
      });
    }
  }

  template <bool inverse>
  __device__ __forceinline__ void twiddle_by_table(float2* v, int b) const {
    const float2* roots = m_roots + static_cast<int>(threadIdx.x) % S::group + b * S::group;
    unrolled<S::R2>([&](auto k) {
      if constexpr (decltype(k)::value > 0) v[k] = times_twiddle<inverse>(v[k], roots[k * S::R3]);
    });
  }

  // Redistributes the values from pass `from` to pass `to`, among all threads of the block, or if not `all` within
  // warps. Each thread writes to the places that it read last, so that one barrier is enough
  template <int from, int to, bool all>
  __device__ __forceinline__ void exchange(float2 (&v)[S::P]) const {
    float2 *out = m_values + m_places[from - 1], *in = m_values + m_places[to - 1];
    unrolled<S::P>([&](auto i) { out[S::template offset<from, decltype(i)::value>] = v[i]; });
    if constexpr (all)
      __syncthreads();
    else
      __syncwarp();
    unrolled<S::P>([&](auto i) { v[i] = in[S::template offset<to, decltype(i)::value>]; });
  }

  float2 *m_values, *m_roots, *m_powers;  // (places) (R2,R3) (levels,butterflies,threads)
  int m_places[3];
};

}  // namespace nprf::cuda::fft
