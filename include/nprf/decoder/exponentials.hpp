// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"

// Weights are exponentials of large numbers, whose rounding errors in float are relative errors of the weights. So an
// exponent that is computed in double is stored as two numbers.

namespace nprf {

/// x rounded to T, and what that leaves.
template <Real T>
T rounded_with_rest(double x, T& rest) {
  const T rounded = static_cast<T>(x);
  rest = static_cast<T>(x - static_cast<double>(rounded));
  return rounded;
}

/// x (n) = exp(x + rests), without the rounding error of x; n is a multiple of 16. exp(x + rest) = exp(x) (1 + rest).
template <Real T>
void exponentials(T* x, const T* rests, Index n) {
  using P = Pack<T>;
  for (Index s = 0; s < n; s += P::size) {
    const P whole = exp(P::load(x + s));
    // infinity minus itself is NaN where there is no weight
    multiply_add(weighted(P::load(rests + s), whole), P::all(1), whole).store(x + s);
  }
}

}  // namespace nprf
