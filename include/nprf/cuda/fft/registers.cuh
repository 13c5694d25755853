// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/fft/complex.cuh"

/// FFTs of values in a thread's registers,
///
///     V_k = sum_s v_s exp(-2 pi i s k / R)        inverse: exp(+2 pi i s k / R), without 1/R
///
/// for R = 2, 4, 8, 16, 32. Every array index is a compile-time constant, so that the arrays stay in registers.
namespace nprf::cuda::fft {

/// A compile-time integer.
template <int k>
struct Constant {
  static constexpr int value = k;
  __host__ __device__ constexpr operator int() const { return k; }
};

namespace detail {

template <class F, int... k>
__device__ __forceinline__ void call_for_each(F& f, std::integer_sequence<int, k...>) {
  (inlined(f, Constant<k>()), ...);
}

}  // namespace detail

/// Calls f(0), f(1), .. f(n - 1), with compile-time integers.
template <int n, class F>
__device__ __forceinline__ void unrolled(F&& f) {
  detail::call_for_each(f, std::make_integer_sequence<int, n>());
}

namespace detail {

// cos(2 pi k / 32)
__host__ __device__ constexpr double cosine(int k) {
  constexpr double of_eighth[9] = {1.0,
                                   0.98078528040323044913,
                                   0.92387953251128675613,
                                   0.83146961230254523708,
                                   0.70710678118654752440,
                                   0.55557023301960222474,
                                   0.38268343236508977173,
                                   0.19509032201612826785,
                                   0.0};
  k %= 32;
  if (k > 16) k = 32 - k;
  return k <= 8 ? of_eighth[k] : -of_eighth[16 - k];
}

}  // namespace detail

/// exp(-2 pi i k / n). For n a power of two and |k|, n <= 2^23 the angle is exact, so that only the result is rounded.
__device__ __forceinline__ float2 root(int k, int n) {
  float2 w;
  sincospif(-2.0f * static_cast<float>(k) / static_cast<float>(n), &w.y, &w.x);
  return w;
}

/// a exp(-2 pi i k / R), or a exp(+2 pi i k / R) for the inverse.
template <int R, int k, bool inverse>
__device__ __forceinline__ float2 times_root(float2 a) {
  static_assert(32 % R == 0);
  constexpr int turn = k * (32 / R) % 32, angle = inverse ? (32 - turn) % 32 : turn;
  constexpr float c = static_cast<float>(detail::cosine(angle)), s = static_cast<float>(-detail::cosine(angle + 24));
  if constexpr (angle == 0)
    return a;
  else if constexpr (angle == 8)
    return make_float2(a.y, -a.x);
  else if constexpr (angle == 16)
    return make_float2(-a.x, -a.y);
  else if constexpr (angle == 24)
    return make_float2(-a.y, a.x);
  else if constexpr (angle == 4)
    return make_float2(c * (a.x + a.y), c * (a.y - a.x));
  else if constexpr (angle == 28)
    return make_float2(c * (a.x - a.y), c * (a.y + a.x));
  else
    return multiply(a, make_float2(c, s));
}

/// The FFT of v (R), or its inverse, in place. Input and output are in natural order.
template <int R, bool inverse>
__device__ __forceinline__ void transform(float2* v) {
  if constexpr (R == 2) {
    const float2 a = v[0];
    v[0] = a + v[1];
    v[1] = a - v[1];
  } else if constexpr (R == 4) {
    const float2 a = v[0] + v[2], b = v[0] - v[2], c = v[1] + v[3], d = times_root<4, 1, inverse>(v[1] - v[3]);
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
  } else {
    // R = 4 * quarter: transforms of 4 points, twiddle factors, then transforms of R / 4 points
    constexpr int quarter = R / 4;
    float2 rows[4][quarter];
    unrolled<quarter>([&](auto a) {
      float2 column[4] = {v[a], v[a + quarter], v[a + 2 * quarter], v[a + 3 * quarter]};
      transform<4, inverse>(column);
      unrolled<4>(
          [&](auto k) { rows[k][a] = times_root<R, decltype(k)::value* decltype(a)::value, inverse>(column[k]); });
    });
    unrolled<4>([&](auto k) {
      transform<quarter, inverse>(rows[k]);
      unrolled<quarter>([&](auto a) { v[k + 4 * a] = rows[k][a]; });
    });
  }
}

}  // namespace nprf::cuda::fft
