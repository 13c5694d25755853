// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include "nprf/core/types.hpp"
#include "nprf/fft/lanes.hpp"

/// Operations of FFT engines on the spectra of signals, eight values at a time (a leaf of PolynomialTree), and the
/// twist factor that its inverse leaves to the caller.
namespace nprf::toeplitz {

/// x <- x g for a spectrum g (8), real and imaginary parts alternating.
template <Real T>
NPRF_ALWAYS_INLINE void multiply(fft::ComplexLanes<T> (&x)[8], const T* g) {
  for (int s = 0; s < 8; ++s) x[s] = times(x[s], g[2 * s], g[2 * s + 1]);
}

/// x <- x conj(g)
template <Real T>
NPRF_ALWAYS_INLINE void multiply_conjugate(fft::ComplexLanes<T> (&x)[8], const T* g) {
  for (int s = 0; s < 8; ++s) x[s] = times(x[s], g[2 * s], -g[2 * s + 1]);
}

/// products (16) = conj(w) x, eight real parts, then eight imaginary parts; with `add`, products += conj(w) x.
template <bool add, Real T>
NPRF_ALWAYS_INLINE void correlate(const fft::ComplexLanes<T> (&w)[8], const fft::ComplexLanes<T> (&x)[8],
                                  fft::Lanes<T>* products) {
  for (int s = 0; s < 8; ++s) {
    const fft::Lanes<T> re = w[s].re * x[s].re + w[s].im * x[s].im, im = w[s].re * x[s].im - w[s].im * x[s].re;
    products[s] = add ? products[s] + re : re;
    products[8 + s] = add ? products[8 + s] + im : im;
  }
}

/// sums (16) += the sums of the products (16) over lanes.
template <Real T>
NPRF_ALWAYS_INLINE void add_lane_sums(const fft::Lanes<T>* products, T* sums) {
  for (Index s = 0; s < 16; s += fft::lane_count<T>)
    fft::store_lanes<T>(fft::load_lanes(sums + s) + fft::sum_lanes<T>(products + s), sums + s);
}

/// sums (8) += the sums of the products (8) over lanes.
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

/// e^(-pi i j / 2L) z for twist = (cos, sin)(pi j / 2L): coefficients j and j + L of a product as real and imaginary
/// part, from the output z of PolynomialTree's inverse.
template <Real T>
NPRF_ALWAYS_INLINE fft::ComplexLanes<T> untwisted(const fft::ComplexLanes<T>& z, const T* twist) {
  return {z.re * twist[0] + z.im * twist[1], z.im * twist[0] - z.re * twist[1]};
}

/// The real part of untwisted(z, twist): coefficient j.
template <Real T>
NPRF_ALWAYS_INLINE fft::Lanes<T> real_part(const fft::ComplexLanes<T>& z, const T* twist) {
  return z.re * twist[0] + z.im * twist[1];
}

}  // namespace nprf::toeplitz
