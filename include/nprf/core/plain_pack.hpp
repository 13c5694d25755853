// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/index.hpp"

namespace nprf {

/// Those functions of a Pack (pack.hpp) that plans of the engine `smooth` need, by loops without a matrix library.
/// Compilers keep the scalars in vector registers.
template <Real T>
struct PlainPack {
  static constexpr Index size = 8;

  T x[size];

  static PlainPack all(T value) {
    return of([=](Index) { return value; });
  }
  static PlainPack load(const T* from) {
    return of([=](Index k) { return from[k]; });
  }
  friend PlainPack operator-(const PlainPack& a) {
    return of([&](Index k) { return -a.x[k]; });
  }
  friend PlainPack abs(const PlainPack& a) {
    return of([&](Index k) { return std::abs(a.x[k]); });
  }
  friend PlainPack multiply_add(const PlainPack& a, const PlainPack& b, const PlainPack& c) {
    return of([&](Index k) { return a.x[k] * b.x[k] + c.x[k]; });
  }
  /// The larger of a and b; if one of them is NaN, any of the two.
  friend PlainPack larger(const PlainPack& a, const PlainPack& b) {
    return of([&](Index k) { return a.x[k] > b.x[k] ? a.x[k] : b.x[k]; });
  }
  /// The larger of a and b; NaN if one of them is NaN.
  friend PlainPack larger_or_nan(const PlainPack& a, const PlainPack& b) {
    return of([&](Index k) { return a.x[k] != a.x[k] || a.x[k] > b.x[k] ? a.x[k] : b.x[k]; });
  }

  T largest() const { return *std::max_element(x, x + size); }
  /// The largest scalar; NaN if any scalar is NaN.
  T largest_or_nan() const {
    T most = x[0];
    for (const T each : x) most = most != most || most > each ? most : each;
    return most;
  }

 private:
  template <class Function>
  static PlainPack of(Function&& f) {
    PlainPack y;
    for (Index k = 0; k < size; ++k) y.x[k] = f(k);
    return y;
  }
};

}  // namespace nprf
