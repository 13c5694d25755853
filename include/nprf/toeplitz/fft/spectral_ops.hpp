// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include "nprf/core/types.hpp"
#include "nprf/fft/lanes.hpp"

/// What FFT engines do with the values at a leaf of the tree, eight at a time, and with the twist that it leaves.
namespace nprf::toeplitz {

/// x <- x g, the spectrum g (8) as real and imaginary parts.
template <Real T>
NPRF_ALWAYS_INLINE void multiply(fft::ComplexLanes<T> (&x)[8], const T* g) {
  for (int s = 0; s < 8; ++s) x[s] = times(x[s], g[2 * s], g[2 * s + 1]);
}

/// x <- x conj(g)
template <Real T>
NPRF_ALWAYS_INLINE void multiply_conjugate(fft::ComplexLanes<T> (&x)[8], const T* g) {
  for (int s = 0; s < 8; ++s) x[s] = times(x[s], g[2 * s], -g[2 * s + 1]);
}

/// The correlation conj(w) x of eight values: real parts, then imaginary ones, into products (16), or added to them.
template <bool add, Real T>
NPRF_ALWAYS_INLINE void correlate(const fft::ComplexLanes<T> (&w)[8], const fft::ComplexLanes<T> (&x)[8],
                                  fft::Lanes<T>* products) {
  for (int s = 0; s < 8; ++s) {
    const fft::Lanes<T> re = w[s].re * x[s].re + w[s].im * x[s].im, im = w[s].re * x[s].im - w[s].im * x[s].re;
    products[s] = add ? products[s] + re : re;
    products[8 + s] = add ? products[8 + s] + im : im;
  }
}

/// sums (16) += the products' sums over lanes.
template <Real T>
NPRF_ALWAYS_INLINE void add_lane_sums(const fft::Lanes<T>* products, T* sums) {
  for (Index s = 0; s < 16; s += fft::lane_count<T>)
    fft::store_lanes<T>(fft::load_lanes(sums + s) + fft::sum_lanes<T>(products + s), sums + s);
}

/// sums (8) += eight products' sums over lanes.
template <Real T>
NPRF_ALWAYS_INLINE void add_lane_sums_of_eight(const fft::Lanes<T>* products, T* sums) {
  constexpr Index W = fft::lane_count<T>;
  if constexpr (W <= 8) {
    for (Index s = 0; s < 8; s += W)
      fft::store_lanes<T>(fft::load_lanes(sums + s) + fft::sum_lanes<T>(products + s), sums + s);
  } else {
    typedef T Eight __attribute__((vector_size(8 * sizeof(T))));
    const fft::Lanes<T> all = fft::sum_lanes_of_half<T>(products);
    Eight some, more;
    std::memcpy(&some, sums, sizeof(Eight));
    std::memcpy(&more, &all, sizeof(Eight));
    some += more;
    std::memcpy(sums, &some, sizeof(Eight));
  }
}

/// Coefficients j and j + L of a product, as real and imaginary part, from what the tree hands over: e^(-pi i j / 2L)
/// z, twist = (cos, sin)(pi j / 2L).
template <Real T>
NPRF_ALWAYS_INLINE fft::ComplexLanes<T> untwisted(const fft::ComplexLanes<T>& z, const T* twist) {
  return {z.re * twist[0] + z.im * twist[1], z.im * twist[0] - z.re * twist[1]};
}

/// The first of them.
template <Real T>
NPRF_ALWAYS_INLINE fft::Lanes<T> real_part(const fft::ComplexLanes<T>& z, const T* twist) {
  return z.re * twist[0] + z.im * twist[1];
}

}  // namespace nprf::toeplitz
