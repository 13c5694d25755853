// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <numbers>

#include "nprf/core/types.hpp"

namespace nprf {

/// As many scalars as a vector register holds, by Eigen's own wrappers of the instruction sets (one scalar where Eigen
/// does not vectorise). Loads and stores take any address.
template <Real T>
struct Pack {
  using Register = typename Eigen::internal::packet_traits<T>::type;
  static constexpr Index size = Eigen::internal::unpacket_traits<Register>::size;
  static constexpr Index registers = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS;

  Register x;

  static Pack all(T value) { return {Eigen::internal::pset1<Register>(value)}; }
  static Pack load(const T* from) { return {Eigen::internal::ploadu<Register>(from)}; }
  void store(T* to) const { Eigen::internal::pstoreu(to, x); }

  /// The first `count` scalars from an address, zeros beside them; and the same to one.
  static Pack load(const T* from, Index count) {
    if (count >= size) return load(from);
    T some[size] = {};
    std::copy_n(from, count, some);
    return load(some);
  }
  void store(T* to, Index count) const {
    if (count >= size) return store(to);
    T some[size];
    store(some);
    std::copy_n(some, count, to);
  }

  friend Pack operator+(const Pack& a, const Pack& b) { return {Eigen::internal::padd(a.x, b.x)}; }
  friend Pack operator-(const Pack& a, const Pack& b) { return {Eigen::internal::psub(a.x, b.x)}; }
  friend Pack operator-(const Pack& a) { return {Eigen::internal::pnegate(a.x)}; }
  friend Pack operator*(const Pack& a, const Pack& b) { return {Eigen::internal::pmul(a.x, b.x)}; }
  friend Pack operator/(const Pack& a, const Pack& b) { return {Eigen::internal::pdiv(a.x, b.x)}; }
  friend Pack abs(const Pack& a) { return {Eigen::internal::pabs(a.x)}; }
  /// a b + c
  friend Pack multiply_add(const Pack& a, const Pack& b, const Pack& c) {
    return {Eigen::internal::pmadd(a.x, b.x, c.x)};
  }
  /// a c, and 0 where the weight c is 0: it hides even what is infinite.
  friend Pack weighted(const Pack& a, const Pack& c) {
    using namespace Eigen::internal;
    return {pandnot(pmul(a.x, c.x), pcmp_eq(c.x, pset1<Register>(T(0))))};
  }

  /// The larger of two; of a number and a NaN the number.
  friend Pack larger(const Pack& a, const Pack& b) {
    return {Eigen::internal::pmax<Eigen::PropagateNumbers>(a.x, b.x)};
  }
  /// The same, but NaN if one of them is.
  friend Pack larger_or_nan(const Pack& a, const Pack& b) {
    return {Eigen::internal::pmax<Eigen::PropagateNaN>(a.x, b.x)};
  }
  /// exp, and 0 below the exponent of the smallest normal number, where Eigen's alone may stop short of 0.
  friend Pack exp(const Pack& a) {
    using namespace Eigen::internal;
    constexpr T lowest = (std::numeric_limits<T>::min_exponent - 1) * std::numbers::ln2_v<T>;
    return {pandnot(pexp(a.x), pcmp_lt(a.x, pset1<Register>(lowest)))};
  }

  T largest() const { return Eigen::internal::predux_max<Eigen::PropagateNumbers>(x); }
  T largest_or_nan() const { return Eigen::internal::predux_max<Eigen::PropagateNaN>(x); }
  T sum() const { return Eigen::internal::predux(x); }
};

/// The number of packs that hold so many scalars.
template <Real T>
constexpr Index packs_for(Index scalars) {
  return (scalars + Pack<T>::size - 1) / Pack<T>::size;
}

// an attribute of Eigen's register types does not count for template arguments, and need not
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"

/// to (size,size) = from^T, both row-major with strides, for size = Pack<T>::size.
template <Real T>
void transpose_square(const T* from, Index from_stride, T* to, Index to_stride) {
  using P = Pack<T>;
  Eigen::internal::PacketBlock<typename P::Register, P::size> square;
  for (Index k = 0; k < P::size; ++k) square.packet[k] = P::load(from + k * from_stride).x;
  Eigen::internal::ptranspose(square);
  for (Index k = 0; k < P::size; ++k) P{square.packet[k]}.store(to + k * to_stride);
}

#pragma GCC diagnostic pop

}  // namespace nprf
