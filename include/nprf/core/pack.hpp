// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <numbers>

#include "nprf/core/types.hpp"

namespace nprf {

/// A vector register of scalars, by Eigen's wrappers of the instruction sets; one scalar where Eigen does not
/// vectorise. Loads and stores accept unaligned addresses. bench/README.md compares Pack with libraries for vectors.
template <Real T>
struct Pack {
  using Register = typename Eigen::internal::packet_traits<T>::type;
  static constexpr Index size = Eigen::internal::unpacket_traits<Register>::size;
  static constexpr Index registers = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS;

  Register x;

  static Pack all(T value) { return {Eigen::internal::pset1<Register>(value)}; }
  static Pack load(const T* from) { return {Eigen::internal::ploadu<Register>(from)}; }
  void store(T* to) const { Eigen::internal::pstoreu(to, x); }

  /// Loads `count` scalars into the first places and zeros into the others; store() stores the first `count` scalars.
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
  /// a where c is not 0, and 0 where c is 0.
  friend Pack where_not_zero(const Pack& a, const Pack& c) {
    using namespace Eigen::internal;
    return {pandnot(a.x, pcmp_eq(c.x, pset1<Register>(T(0))))};
  }
  /// a * c for a weight c, but 0 where c is 0, even if a is infinite or NaN.
  friend Pack weighted(const Pack& a, const Pack& c) { return where_not_zero(a * c, c); }

  /// The larger of a and b; if one of them is NaN, the other.
  friend Pack larger(const Pack& a, const Pack& b) {
    return {Eigen::internal::pmax<Eigen::PropagateNumbers>(a.x, b.x)};
  }
  /// The larger of a and b; NaN if one of them is NaN.
  friend Pack larger_or_nan(const Pack& a, const Pack& b) {
    return {Eigen::internal::pmax<Eigen::PropagateNaN>(a.x, b.x)};
  }
  /// exp(a), but 0 where exp(a) is below the smallest normal number: Eigen's exp may be positive there, even for
  /// -infinity.
  friend Pack exp(const Pack& a) {
    using namespace Eigen::internal;
    constexpr T lowest = (std::numeric_limits<T>::min_exponent - 1) * std::numbers::ln2_v<T>;
    return {pandnot(pexp(a.x), pcmp_lt(a.x, pset1<Register>(lowest)))};
  }

  /// The largest scalar that is not NaN; NaN if all are NaN.
  T largest() const {
    using namespace Eigen::internal;
    // Eigen's own reductions with a rule for NaN go through memory
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    const T most = predux_max(pmax<Eigen::PropagateNumbers>(x, pset1<Register>(lowest)));
    return most > lowest ? most : predux_max<Eigen::PropagateNumbers>(x);
  }
  /// The largest scalar; NaN if any scalar is NaN.
  T largest_or_nan() const {
    using namespace Eigen::internal;
    const Register is_nan = pcmp_lt_or_nan(x, pset1<Register>(-std::numeric_limits<T>::infinity()));
    return predux_any(is_nan) ? std::numeric_limits<T>::quiet_NaN() : predux_max(x);
  }
  T sum() const { return Eigen::internal::predux(x); }
};

/// The number of packs needed for that many scalars.
template <Real T>
constexpr Index packs_for(Index scalars) {
  return (scalars + Pack<T>::size - 1) / Pack<T>::size;
}

/// a.b of the vectors a (n) and b (n). Unlike those of Eigen's dot product, its bits do not depend on their addresses.
template <Real T>
T dot_by_packs(const T* a, const T* b, Index n) {
  using P = Pack<T>;
  P sum = P::all(0);
  for (Index i = 0; i < n; i += P::size) sum = multiply_add(P::load(a + i, n - i), P::load(b + i, n - i), sum);
  return sum.sum();
}

/// Whether all entries of x (d) are finite. O(d).
template <Real T>
bool all_finite(const T* x, Index d) {
  auto zeros = Pack<T>::all(0);  // NaN where an entry is not finite
  for (Index p = 0; p < d; p += Pack<T>::size) {
    const auto some = Pack<T>::load(x + p, d - p);
    zeros = zeros + (some - some);
  }
  return zeros.sum() == 0;
}

// g++ warns that template arguments drop an attribute of Eigen's register types, which is harmless here
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"

/// to = from^T, both (size,size) and row-major with strides, where size = Pack<T>::size.
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
