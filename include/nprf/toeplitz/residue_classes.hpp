// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"

#if NPRF_USE_FFTW

#include <algorithm>
#include <cmath>
#include <complex>
#include <memory>
#include <numbers>

#include "nprf/core/buffer.hpp"
#include "nprf/core/types.hpp"
#include "nprf/fft/fftw.hpp"
#include "nprf/fft/length.hpp"

namespace nprf::toeplitz {

/// A transform of length N = Q L as Q transforms of length L.
///
/// Residue class q owns the bins k = Q s + q of the length-N transform. With j = L f + l,
///     X[Q s + q] = sum_l e^(-2 pi i l s / L) e^(-2 pi i l q / N) sum_f e^(-2 pi i f q / Q) x[L f + l]
/// so that a class folds the segments f of x, twists, and transforms L points; the way back reverses each step. Classes
/// exchange nothing, segments of zeros are never stored, and L stays in the first-level cache.
struct ResidueClasses {
  Index count;   // Q
  Index length;  // L

  /// Q and L for N >= n. 4096 points are the longest that FFTW_ESTIMATE plans well; beyond 8 classes folding costs
  /// more.
  static ResidueClasses of(Index n) {
    Index count = 1;
    while (count < 8 && n > 4096 * count) count *= 2;
    return {count, fft::smooth_length((n + count - 1) / count)};
  }

  Index period() const { return count * length; }                      // N
  Index segments(Index n) const { return (n + length - 1) / length; }  // how many f hold n points
};

/// The transforms of one N, class by class, of pairs of real columns as real and imaginary part of one signal.
template <Real T>
class ResidueTransform {
 public:
  using Complex = std::complex<T>;

  /// Of a length N >= n.
  explicit ResidueTransform(Index n)
      : m_classes(ResidueClasses::of(n)),
        m_plan(fft::ComplexPlan<T>::shared(m_classes.length)),
        m_twist(m_classes.period()),
        m_z(m_classes.length) {
    const Index L = m_classes.length;
    for (Index q = 0; q < m_classes.count; ++q)
      for (Index l = 0; l < L; ++l) m_twist.data()[q * L + l] = root(-l * q, m_classes.period());
  }

  const ResidueClasses& classes() const { return m_classes; }

  /// The bins of class q, as X[s] (L), of x_j = b_j (u1_j + i u2_j) for j < n.
  void forward(Index q, Index n, const T* b, const T* u1, const T* u2, Complex* X) {
    fold(q, n, b, u1, u2);
    if (q > 0) multiply(m_z.data(), m_twist.data() + q * m_classes.length, m_classes.length);
    m_plan->forward(m_z.data(), X);
  }

  /// emit(j, re, im) for j < n: what class q adds to N times the inverse transform. Overwrites X.
  template <class Emit>
  void backward(Index q, Index n, Complex* X, Emit emit) {
    m_plan->backward(X, m_z.data());
    const Index L = m_classes.length;
    if (q > 0) multiply_conjugate(m_z.data(), m_twist.data() + q * L, L);
    const T* z = reinterpret_cast<const T*>(m_z.data());
    for (Index f = 0; f < m_classes.segments(n); ++f) {
      const Index begin = f * L, points = std::min(L, n - begin);
      const Complex phase = root(f * q, m_classes.count);
      const T re = phase.real(), im = phase.imag();
      NPRF_INDEPENDENT_ITERATIONS
      for (Index l = 0; l < points; ++l)
        emit(begin + l, re * z[2 * l] - im * z[2 * l + 1], re * z[2 * l + 1] + im * z[2 * l]);
    }
  }

  // std::complex's own product looks for NaN, which stops the compiler from vectorising
  /// z_l *= w_l
  static void multiply(Complex* z, const Complex* w, Index n) { multiply<1>(z, w, n); }
  /// z_l *= conj(w_l)
  static void multiply_conjugate(Complex* z, const Complex* w, Index n) { multiply<-1>(z, w, n); }

 private:
  // z[l] = sum_f e^(-2 pi i f q / Q) x[L f + l],  x = b o (u1 + i u2)
  void fold(Index q, Index n, const T* b, const T* u1, const T* u2) {
    const Index L = m_classes.length;
    T* z = reinterpret_cast<T*>(m_z.data());
    for (Index f = 0; f < m_classes.segments(n); ++f) {
      const Index begin = f * L, points = std::min(L, n - begin);
      if (f == 0) {
        for (Index l = 0; l < points; ++l) {
          z[2 * l] = b[l] * u1[l];
          z[2 * l + 1] = b[l] * u2[l];
        }
        std::fill(z + 2 * points, z + 2 * L, T(0));
        continue;
      }
      const Complex phase = root(-f * q, m_classes.count);
      const T re = phase.real(), im = phase.imag();
      for (Index l = 0; l < points; ++l) {
        const T x1 = b[begin + l] * u1[begin + l], x2 = b[begin + l] * u2[begin + l];
        z[2 * l] += re * x1 - im * x2;
        z[2 * l + 1] += re * x2 + im * x1;
      }
    }
  }

  template <int sign>
  static void multiply(Complex* z_, const Complex* w_, Index n) {
    T* z = reinterpret_cast<T*>(z_);
    const T* w = reinterpret_cast<const T*>(w_);
    for (Index l = 0; l < n; ++l) {
      const T re = z[2 * l], im = z[2 * l + 1], wr = w[2 * l], wi = sign * w[2 * l + 1];
      z[2 * l] = re * wr - im * wi;
      z[2 * l + 1] = re * wi + im * wr;
    }
  }

  // e^(2 pi i k / n), computed in double
  static Complex root(Index k, Index n) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
    return Complex(static_cast<T>(std::cos(angle)), static_cast<T>(std::sin(angle)));
  }

  ResidueClasses m_classes;
  std::shared_ptr<const fft::ComplexPlan<T>> m_plan;
  Buffer<Complex> m_twist;  // (Q,L)  e^(-2 pi i l q / N)
  Buffer<Complex> m_z;      // (L)
};

}  // namespace nprf::toeplitz

#endif  // NPRF_USE_FFTW
