// SPDX-License-Identifier: MIT
#pragma once

#include <numbers>
#include <type_traits>

#include "nprf/core/types.hpp"
#include "nprf/fft/lanes.hpp"

/// The steps of PolynomialTree for one element of each part, in registers. A split turns a polynomial modulo
/// z^n - e^(2 pi i a) into R residues of n/R coefficients. A join turns R transforms of n/R points into one of n
/// points.
namespace nprf::fft {

/// Calls use(std::integral_constant<int, radix>) for the supported radices 2, 3, 4, 5, 8.
template <class Use>
NPRF_ALWAYS_INLINE void with_radix(int radix, Use&& use) {
  switch (radix) {
    case 2: return use(std::integral_constant<int, 2>());
    case 3: return use(std::integral_constant<int, 3>());
    case 4: return use(std::integral_constant<int, 4>());
    case 5: return use(std::integral_constant<int, 5>());
    case 8: return use(std::integral_constant<int, 8>());
  }
}

/// Part k of a split has the residue modulo z^(n/R) - e^(2 pi i (a + part_order(R, k)) / R).
constexpr int part_order(int radix, int k) {
  constexpr int four[] = {0, 2, 1, 3}, eight[] = {0, 4, 2, 6, 1, 5, 3, 7};
  return radix == 4 ? four[k] : radix == 8 ? eight[k] : k;
}

/// The number of scalars that a step of a radix reads from its table.
constexpr Index constants(int radix) { return radix == 2 ? 2 : radix == 3 || radix == 4 ? 4 : 8; }

/// The two kinds of steps. The angle of their twiddle factors in turns is a / R for the split of a polynomial modulo
/// z^n - e^(2 pi i a), and -j / n for a join of element j.
enum class Step { split = 1, join = -1 };

/// Writes the scalars of a step whose twiddle factors have the angle `turn` and its multiples.
template <Real T>
void write_constants(Step step, int radix, const Turn& turn, T* table) {
  const auto rotation = [&](int at, const Turn& by) {
    const Rotation<T> w = Rotation<T>::of(by);
    table[at] = w.re;
    table[at + 1] = w.im;
  };
  switch (radix) {
    case 2: return rotation(0, turn);
    case 4: return rotation(0, 2 * turn), rotation(2, turn);
    case 8: {
      const Turn plus_eighth{8 * turn.part + static_cast<int>(step) * turn.whole, 8 * turn.whole};
      return rotation(0, 4 * turn), rotation(2, 2 * turn), rotation(4, turn), rotation(6, plus_eighth);
    }
    default:
      for (int k = 1; k < radix; ++k) rotation(2 * k - 2, k * turn);  // w^k
  }
}

namespace detail {

template <Real T>
NPRF_ALWAYS_INLINE Rotation<T> rotation(const T* table, int at) {
  return {table[at], table[at + 1]};
}

// z_k <- sum_l e^(sign 2 pi i k l / R) z_l
template <int sign, Real T>
NPRF_ALWAYS_INLINE void dft3(ComplexLanes<T> (&z)[3]) {
  constexpr T sine = static_cast<T>(sign * 0.86602540378443864676);
  const ComplexLanes<T> sum = z[1] + z[2], difference = z[1] - z[2];
  const ComplexLanes<T> middle{z[0].re - T(0.5) * sum.re, z[0].im - T(0.5) * sum.im};
  z[0] = z[0] + sum;
  z[1] = {middle.re - sine * difference.im, middle.im + sine * difference.re};
  z[2] = {middle.re + sine * difference.im, middle.im - sine * difference.re};
}

template <int sign, Real T>
NPRF_ALWAYS_INLINE void dft5(ComplexLanes<T> (&z)[5]) {
  constexpr T c1 = static_cast<T>(0.30901699437494742410), c2 = static_cast<T>(-0.80901699437494742410);
  constexpr T s1 = static_cast<T>(sign * 0.95105651629515357212), s2 = static_cast<T>(sign * 0.58778525229247312917);
  const ComplexLanes<T> p = z[1] + z[4], q = z[2] + z[3], f = z[1] - z[4], g = z[2] - z[3];
  const ComplexLanes<T> a{z[0].re + c1 * p.re + c2 * q.re, z[0].im + c1 * p.im + c2 * q.im};
  const ComplexLanes<T> b{z[0].re + c2 * p.re + c1 * q.re, z[0].im + c2 * p.im + c1 * q.im};
  const ComplexLanes<T> u{s1 * f.re + s2 * g.re, s1 * f.im + s2 * g.im};
  const ComplexLanes<T> v{s2 * f.re - s1 * g.re, s2 * f.im - s1 * g.im};
  z[0] = {z[0].re + p.re + q.re, z[0].im + p.im + q.im};
  z[1] = {a.re - u.im, a.im + u.re};
  z[4] = {a.re + u.im, a.im - u.re};
  z[2] = {b.re - v.im, b.im + v.re};
  z[3] = {b.re + v.im, b.im - v.re};
}

template <int radix, Real T>
NPRF_ALWAYS_INLINE void twiddle(ComplexLanes<T> (&z)[radix], const T* table) {
  for (int k = 1; k < radix; ++k) z[k] = times(z[k], table[2 * k - 2], table[2 * k - 1]);
}

}  // namespace detail

namespace detail {

// the stages that follow the first one of a split into 2, 4 or 8 parts
template <int radix, Real T>
NPRF_ALWAYS_INLINE void split_halves(ComplexLanes<T> (&z)[radix], const T* table) {
  if constexpr (radix == 4) {
    butterfly(z[0], z[1], rotation(table, 2));
    quarter_butterfly(z[2], z[3], rotation(table, 2));
  } else if constexpr (radix == 8) {
    for (int k : {0, 1}) butterfly(z[k], z[k + 2], rotation(table, 2));
    for (int k : {4, 5}) quarter_butterfly(z[k], z[k + 2], rotation(table, 2));
    butterfly(z[0], z[1], rotation(table, 4));
    quarter_butterfly(z[2], z[3], rotation(table, 4));
    butterfly(z[4], z[5], rotation(table, 6));
    quarter_butterfly(z[6], z[7], rotation(table, 6));
  }
}

}  // namespace detail

/// A split of complex numbers. On entry z_l is coefficient j + l n/R of the polynomial. On return z_k is coefficient j
/// of part k.
template <int radix, Real T>
NPRF_ALWAYS_INLINE void split_parts(ComplexLanes<T> (&z)[radix], const T* table) {
  using detail::rotation;
  if constexpr (radix == 3 || radix == 5) {
    detail::twiddle(z, table);
    if constexpr (radix == 3) detail::dft3<1>(z);
    if constexpr (radix == 5) detail::dft5<1>(z);
  } else {
    for (int k = 0; k < radix / 2; ++k) butterfly(z[k], z[k + radix / 2], rotation(table, 0));
    detail::split_halves(z, table);
  }
}

/// The same for real numbers x_l: its first stage needs half of the operations.
template <int radix, Real T>
NPRF_ALWAYS_INLINE void split_parts(const std::type_identity_t<Lanes<T>> (&x)[radix], ComplexLanes<T> (&z)[radix],
                                    const T* table) {
  if constexpr (radix == 3 || radix == 5) {
    z[0] = {x[0], Lanes<T>{}};
    for (int k = 1; k < radix; ++k) z[k] = {x[k] * table[2 * k - 2], x[k] * table[2 * k - 1]};
    if constexpr (radix == 3) detail::dft3<1>(z);
    if constexpr (radix == 5) detail::dft5<1>(z);
  } else {
    for (int k = 0; k < radix / 2; ++k) {
      const Lanes<T> re = x[k + radix / 2] * table[0], im = x[k + radix / 2] * table[1];
      z[k] = {x[k] + re, im};
      z[k + radix / 2] = {x[k] - re, -im};
    }
    detail::split_halves(z, table);
  }
}

/// A join. On entry z_k is element j of the unscaled inverse transform of part k. On return z_l is element j + l n/R of
/// the unscaled inverse transform of the whole block.
template <int radix, Real T>
NPRF_ALWAYS_INLINE void join_parts(ComplexLanes<T> (&z)[radix], const T* table) {
  using detail::rotation;
  if constexpr (radix == 2) {
    butterfly(z[0], z[1], rotation(table, 0));
  } else if constexpr (radix == 4) {
    for (int k : {0, 2}) butterfly(z[k], z[k + 1], rotation(table, 0));
    butterfly(z[0], z[2], rotation(table, 2));
    negative_quarter_butterfly(z[1], z[3], rotation(table, 2));
  } else if constexpr (radix == 8) {
    for (int k : {0, 2, 4, 6}) butterfly(z[k], z[k + 1], rotation(table, 0));
    for (int k : {0, 4}) {
      butterfly(z[k], z[k + 2], rotation(table, 2));
      negative_quarter_butterfly(z[k + 1], z[k + 3], rotation(table, 2));
    }
    butterfly(z[0], z[4], rotation(table, 4));
    butterfly(z[1], z[5], rotation(table, 6));
    negative_quarter_butterfly(z[2], z[6], rotation(table, 4));
    negative_quarter_butterfly(z[3], z[7], rotation(table, 6));
  } else {
    detail::twiddle(z, table);
    if constexpr (radix == 3) detail::dft3<-1>(z);
    if constexpr (radix == 5) detail::dft5<-1>(z);
  }
}

/// The join of 8 parts of one point each: all twiddle factors are 1.
template <Real T>
NPRF_ALWAYS_INLINE void join_leaf(ComplexLanes<T> (&z)[8]) {
  constexpr Rotation<T> eighth{static_cast<T>(std::numbers::sqrt2 / 2),
                               static_cast<T>(-std::numbers::sqrt2 / 2)};  // e^(-pi i / 4)
  for (int k : {0, 2, 4, 6}) butterfly(z[k], z[k + 1]);
  for (int k : {0, 4}) {
    butterfly(z[k], z[k + 2]);
    negative_quarter_butterfly(z[k + 1], z[k + 3]);
  }
  butterfly(z[0], z[4]);
  butterfly(z[1], z[5], eighth);
  negative_quarter_butterfly(z[2], z[6]);
  negative_quarter_butterfly(z[3], z[7], eighth);
}

}  // namespace nprf::fft
