// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include "nprf/core/types.hpp"
#include "nprf/fft/lanes.hpp"

/// What FFT engines do with the values at a leaf of the tree, eight at a time, and with the second half's twist.
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

/// The same for eight z: their real parts' sums, then those of the imaginary parts.
template <Real T>
NPRF_ALWAYS_INLINE void add_lane_sums(const fft::ComplexLanes<T> (&z)[8], T* sums) {
  fft::Lanes<T> parts[16];
  for (int l = 0; l < 8; ++l) parts[l] = z[l].re, parts[8 + l] = z[l].im;
  add_lane_sums<T>(parts, sums);
}

/// Where such sums lie for a run of tokens: that of a token's real part (c = 0) or imaginary part (c = 1).
constexpr Index in_eights(Index token, Index c) { return 16 * (token / 8) + 8 * c + token % 8; }

/// e^(-pi i j / L) z, twist = (cos, sin)(pi j / L): what the tree leaves to do in its second half.
template <Real T>
NPRF_ALWAYS_INLINE fft::ComplexLanes<T> untwisted(const fft::ComplexLanes<T>& z, const T* twist) {
  return {z.re * twist[0] + z.im * twist[1], z.im * twist[0] - z.re * twist[1]};
}

/// e^(pi i j / L) a of one pair of numbers: Re(conj(twisted a) z) is Re(conj(a) untwisted z).
template <Real T>
NPRF_ALWAYS_INLINE void twist(const T* a, const T* twist, T* twisted) {
  twisted[0] = a[0] * twist[0] - a[1] * twist[1];
  twisted[1] = a[0] * twist[1] + a[1] * twist[0];
}

}  // namespace nprf::toeplitz
