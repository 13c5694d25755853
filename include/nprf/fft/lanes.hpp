// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <numbers>
#include <type_traits>
#include <utility>

#include "nprf/config.hpp"
#include "nprf/core/types.hpp"

namespace nprf::fft {

namespace detail {

#if defined(__AVX512F__)
inline constexpr int register_bytes = 64;
#elif defined(__AVX__)
inline constexpr int register_bytes = 32;
#else
inline constexpr int register_bytes = 16;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int vector_registers = 32;
#else
inline constexpr int vector_registers = 16;
#endif

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
inline constexpr bool has_fused_multiply_add = true;
#else
inline constexpr bool has_fused_multiply_add = false;
#endif

template <Real T>
struct LanesOf {
  typedef T Type __attribute__((vector_size(register_bytes)));
};

}  // namespace detail

/// The number of signals that are transformed together: the number of scalars in a vector register, for the instruction
/// set that the compiler flags select.
template <Real T>
inline constexpr Index lane_count = detail::register_bytes / static_cast<Index>(sizeof(T));

using detail::vector_registers, detail::register_bytes, detail::has_fused_multiply_add;

/// One real number of each of lane_count signals, as a built-in vector type of the compiler, which keeps it in a
/// register. Compilers keep Eigen's fixed-size arrays in memory.
template <Real T>
using Lanes = typename detail::LanesOf<T>::Type;

/// One complex number of each of lane_count signals. The copies are user-defined, because g++ 12 copies a trivial
/// struct through the stack, in pieces of 16 bytes.
template <Real T>
struct ComplexLanes {
  ComplexLanes() = default;
  ComplexLanes(const Lanes<T>& real, const Lanes<T>& imaginary) : re(real), im(imaginary) {}
  ComplexLanes(const ComplexLanes& z) : re(z.re), im(z.im) {}
  ComplexLanes& operator=(const ComplexLanes& z) {
    re = z.re;
    im = z.im;
    return *this;
  }

  Lanes<T> re, im;
};

namespace detail {

// The number of lanes in a block of 16 bytes. A register consists of such blocks; shuffles within a block are cheap.
template <Real T>
inline constexpr int block_lanes = 16 / static_cast<int>(sizeof(T));

// the lanes from(0), from(1), ... of the concatenation of a and b
template <Real T, class From, std::size_t... k>
NPRF_ALWAYS_INLINE Lanes<T> shuffle_lanes(const Lanes<T>& a, const Lanes<T>& b, From, std::index_sequence<k...>) {
#ifdef __CUDACC__  // nvcc drops the expansion of a parameter pack in the arguments of a builtin
  constexpr int W = lane_count<T>;
  Lanes<T> y;
  ((y[k] = From()(static_cast<int>(k)) < W ? a[From()(static_cast<int>(k)) % W] : b[From()(static_cast<int>(k)) % W]),
   ...);
  return y;
#else
  return __builtin_shufflevector(a, b, From()(static_cast<int>(k))...);
#endif
}

// for each block: the even (odd = 0) or odd (odd = 1) lanes of that block of a, then the same lanes of that block of b
template <Real T, int odd, std::size_t... k>
NPRF_ALWAYS_INLINE Lanes<T> every_other_lane(const Lanes<T>& a, const Lanes<T>& b, std::index_sequence<k...> lanes) {
  constexpr int W = lane_count<T>, E = block_lanes<T>;
  constexpr auto from = [](int l) { return l / E * E + l % E * 2 % E + odd + (l % E * 2 < E ? 0 : W); };
  return shuffle_lanes<T>(a, b, from, lanes);
}

// the even (odd = 0) or odd (odd = 1) blocks of a, then the same blocks of b
template <Real T, int odd, std::size_t... k>
NPRF_ALWAYS_INLINE Lanes<T> every_other_block(const Lanes<T>& a, const Lanes<T>& b, std::index_sequence<k...> lanes) {
  constexpr int E = block_lanes<T>;
  constexpr auto from = [](int l) { return (l / E * 2 + odd) * E + l % E; };
  return shuffle_lanes<T>(a, b, from, lanes);
}

}  // namespace detail

/// Loads the first `count` lanes from an address without alignment; the other lanes are zero.
template <Real T>
NPRF_ALWAYS_INLINE Lanes<T> load_lanes(const T* x, Index count = lane_count<T>) {
  Lanes<T> lanes{};
  if (count >= lane_count<T>)
    std::memcpy(&lanes, x, sizeof(lanes));
  else
    for (Index l = 0; l < count; ++l) lanes[l] = x[l];
  return lanes;
}
/// Stores the first `count` lanes to an address without alignment.
template <Real T>
NPRF_ALWAYS_INLINE void store_lanes(const std::type_identity_t<Lanes<T>>& lanes, T* x, Index count = lane_count<T>) {
  if (count >= lane_count<T>)
    std::memcpy(x, &lanes, sizeof(lanes));
  else
    for (Index l = 0; l < count; ++l) x[l] = lanes[l];
}

/// Lane k of the result is the sum of all lanes of x[k], k < lane_count.
template <Real T>
NPRF_ALWAYS_INLINE Lanes<T> sum_lanes(const Lanes<T>* x) {
  constexpr int W = lane_count<T>;
  constexpr auto all = std::make_index_sequence<W>();
  Lanes<T> sums[W];
  for (int k = 0; k < W; ++k) sums[k] = x[k];
  // each step adds adjacent lanes of two registers into one register: first lanes within a block, then blocks
  int left = W / 2;
  for (; left >= W / detail::block_lanes<T>; left /= 2)
    for (int k = 0; k < left; ++k)
      sums[k] = detail::every_other_lane<T, 0>(sums[2 * k], sums[2 * k + 1], all) +
                detail::every_other_lane<T, 1>(sums[2 * k], sums[2 * k + 1], all);
  for (; left > 0; left /= 2)
    for (int k = 0; k < left; ++k)
      sums[k] = detail::every_other_block<T, 0>(sums[2 * k], sums[2 * k + 1], all) +
                detail::every_other_block<T, 1>(sums[2 * k], sums[2 * k + 1], all);
  return sums[0];
}

/// Lane k of the result is the sum of all lanes of x[k], k < lane_count / 2; only for registers of four blocks.
template <Real T>
NPRF_ALWAYS_INLINE Lanes<T> sum_lanes_of_half(const Lanes<T>* x) {
  constexpr int W = lane_count<T>, E = detail::block_lanes<T>;
  static_assert(W == 4 * E);
  constexpr auto all = std::make_index_sequence<W>();
  Lanes<T> sums[W / 2];
  for (int k = 0; k < W / 2; ++k) sums[k] = x[k];
  int left = W / 4;
  for (; left >= W / 2 / E; left /= 2)
    for (int k = 0; k < left; ++k)
      sums[k] = detail::every_other_lane<T, 0>(sums[2 * k], sums[2 * k + 1], all) +
                detail::every_other_lane<T, 1>(sums[2 * k], sums[2 * k + 1], all);
  const Lanes<T> both =
      detail::every_other_block<T, 0>(sums[0], sums[1], all) + detail::every_other_block<T, 1>(sums[0], sums[1], all);
  return detail::every_other_block<T, 0>(both, both, all) + detail::every_other_block<T, 1>(both, both, all);
}

/// The sum of all lanes.
template <Real T>
T sum_lanes(const std::type_identity_t<Lanes<T>>& x) {
  T sum[lane_count<T>];
  store_lanes<T>(x, sum);
  for (Index left = lane_count<T> / 2; left > 0; left /= 2)
    for (Index k = 0; k < left; ++k) sum[k] += sum[k + left];
  return sum[0];
}

template <Real T>
NPRF_ALWAYS_INLINE ComplexLanes<T> operator+(const ComplexLanes<T>& a, const ComplexLanes<T>& b) {
  return {a.re + b.re, a.im + b.im};
}
template <Real T>
NPRF_ALWAYS_INLINE ComplexLanes<T> operator-(const ComplexLanes<T>& a, const ComplexLanes<T>& b) {
  return {a.re - b.re, a.im - b.im};
}
template <Real T>
NPRF_ALWAYS_INLINE ComplexLanes<T> times(const ComplexLanes<T>& a, T re, T im) {
  return {a.re * re - a.im * im, a.im * re + a.re * im};
}

/// An angle of part / whole full turns, whole > 0. It is exact; an angle in radians would carry a rounding error.
struct Turn {
  Index part, whole;
};
constexpr Turn operator*(Index k, const Turn& turn) { return {k * turn.part, turn.whole}; }

/// e^(2 pi i part / whole). It is rounded once if long double is wider than double; otherwise its error is about one
/// rounding. The angle is reduced in integers to at most an eighth of a turn from a multiple of a quarter turn, so that
/// the rounding of pi does not affect the reduction. The error of a row of a product is proportional to the error of
/// the roots.
struct UnitRoot {
  double re, im;

  static UnitRoot of(const Turn& turn) {
    using Wide = long double;
    const Index whole = turn.whole, part = (turn.part % whole + whole) % whole;
    const Index quarters = (8 * part + whole) / (2 * whole);
    const Wide rest = static_cast<Wide>(4 * part - quarters * whole) / static_cast<Wide>(whole);  // in quarter turns
    const Wide angle = std::numbers::pi_v<Wide> / 2 * rest;
    const double c = static_cast<double>(std::cos(angle)), s = static_cast<double>(std::sin(angle));
    switch (quarters % 4) {
      case 0: return {c, s};
      case 1: return {-s, c};
      case 2: return {-c, -s};
      default: return {s, -c};
    }
  }
};

/// The twiddle factor w = e^(2 pi i part / whole), rounded to T.
template <Real T>
struct Rotation {
  T re, im;

  static Rotation of(const Turn& turn) {
    const UnitRoot w = UnitRoot::of(turn);
    return {static_cast<T>(w.re), static_cast<T>(w.im)};
  }
};

/// (a, b) <- (a + w b, a - w b)
template <Real T>
NPRF_ALWAYS_INLINE void butterfly(ComplexLanes<T>& a, ComplexLanes<T>& b, const Rotation<T>& w) {
  const ComplexLanes<T> x = times(b, w.re, w.im);
  b = a - x;
  a = a + x;
}

/// (a, b) <- (a + b, a - b)
template <Real T>
NPRF_ALWAYS_INLINE void butterfly(ComplexLanes<T>& a, ComplexLanes<T>& b) {
  const ComplexLanes<T> difference = a - b;
  a = a + b;
  b = difference;
}

/// (a, b) <- (a - i b, a + i b)
template <Real T>
NPRF_ALWAYS_INLINE void negative_quarter_butterfly(ComplexLanes<T>& a, ComplexLanes<T>& b) {
  const ComplexLanes<T> x = a, y = b;
  a = {x.re + y.im, x.im - y.re};
  b = {x.re - y.im, x.im + y.re};
}

/// (a, b) <- (a + i w b, a - i w b)
template <Real T>
NPRF_ALWAYS_INLINE void quarter_butterfly(ComplexLanes<T>& a, ComplexLanes<T>& b, const Rotation<T>& w) {
  const ComplexLanes<T> x = a, y = times(b, w.re, w.im);
  a = {x.re - y.im, x.im + y.re};
  b = {x.re + y.im, x.im - y.re};
}

/// (a, b) <- (a - i w b, a + i w b)
template <Real T>
NPRF_ALWAYS_INLINE void negative_quarter_butterfly(ComplexLanes<T>& a, ComplexLanes<T>& b, const Rotation<T>& w) {
  b = times(b, w.re, w.im);
  negative_quarter_butterfly(a, b);
}

}  // namespace nprf::fft
