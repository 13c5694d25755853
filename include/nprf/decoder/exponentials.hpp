// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// y (n) = exp(x - reference); n is a multiple of 16. If x - reference is large, its rounding error in float would be a
/// large relative error of y. So it is split into a rounded number and a small rest, and exp(rounded + rest) is
/// computed as exp(rounded) (1 + rest).
template <Real T>
void exponentials(const double* x, double reference, Index n, T* y) {
  using P = Pack<T>;
  constexpr Index lanes = 16;
  for (Index s = 0; s < n; s += lanes) {
    T rounded[lanes], rests[lanes];
    for (Index i = 0; i < lanes; ++i) {
      const double exact = x[s + i] - reference;
      rounded[i] = static_cast<T>(exact);
      rests[i] = static_cast<T>(exact - static_cast<double>(rounded[i]));
    }
    for (Index i = 0; i < lanes; i += P::size) {
      const P whole = exp(P::load(rounded + i));
      // where x is -infinity, the rest is NaN (infinity minus itself), and weighted() makes its product 0
      multiply_add(weighted(P::load(rests + i), whole), P::all(1), whole).store(y + s + i);
    }
  }
}

}  // namespace nprf
