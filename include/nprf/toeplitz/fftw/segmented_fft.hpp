// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"

#if NPRF_USE_FFTW

#include <algorithm>
#include <cmath>
#include <complex>
#include <memory>
#include <numbers>

#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/fft/fftw.hpp"
#include "nprf/fft/length.hpp"

namespace nprf::toeplitz {

/// A transform of length N = Q L as Q transforms of length L.
///
/// Residue class q has the bins k = Q s + q of the transform of length N. With j = L f + l,
///     X[Q s + q] = sum_l e^(-2 pi i l s / L) e^(-2 pi i l q / N) sum_f e^(-2 pi i f q / Q) x[L f + l]
/// so that a class sums the segments f of x, multiplies by twiddle factors, and transforms L points. The inverse
/// reverses each step. Classes are independent, segments of zeros are never stored, and L points stay in the
/// first-level cache.
struct SegmentedFft {
  Index count;   // Q
  Index length;  // L

  /// Q and L for N >= n. FFTW_ESTIMATE finds good plans up to 4096 points. With more than 8 classes the sums of
  /// segments cost more than shorter transforms save.
  static SegmentedFft of(Index n) {
    Index count = 1;
    while (count < 8 && n > 4096 * count) count *= 2;
    return {count, fft::smooth_length((n + count - 1) / count)};
  }

  Index period() const { return count * length; }                      // N
  Index segments(Index n) const { return (n + length - 1) / length; }  // the number of segments f of n points
};

/// Transforms of length N, class by class, of two real columns as real and imaginary part of one signal. Its tables are
/// in the team's workspace. Threads may share it, each with its own scratch memory z (L).
template <Real T>
class SegmentedTransform {
 public:
  using Complex = std::complex<T>;

  /// Of a length N >= least.
  SegmentedTransform(Index least, const Team& team)
      : m_classes(SegmentedFft::of(least)), m_plan(fft::ComplexPlan<T>::shared(m_classes.length)) {
    const Index L = m_classes.length;
    Complex* twist = team.workspace().take<Complex>(m_classes.period());
    team.run(m_classes.count, [&](Index q, Workspace&) {
      for (Index l = 0; l < L; ++l) twist[q * L + l] = root(-l * q, m_classes.period());
    });
    m_twist = twist;
  }

  const SegmentedFft& classes() const { return m_classes; }

  /// X[s] (L): the bins of class q of x_j = b_j (u1_j + i u2_j), j < n.
  void forward(Index q, Index n, const T* b, const T* u1, const T* u2, Complex* z, Complex* X) const {
    fold(q, n, b, u1, u2, reinterpret_cast<T*>(z));
    if (q > 0) multiply(z, m_twist + q * m_classes.length, m_classes.length);
    m_plan->forward(z, X);
  }

  /// Calls emit(j, re, im) for j < n with the share of class q in N times the inverse transform. Overwrites X.
  template <class Emit>
  void backward(Index q, Index n, Complex* X, Complex* z_, Emit emit) const {
    m_plan->backward(X, z_);
    const Index L = m_classes.length;
    if (q > 0) multiply_conjugate(z_, m_twist + q * L, L);
    const T* z = reinterpret_cast<const T*>(z_);
    for (Index f = 0; f < m_classes.segments(n); ++f) {
      const Index begin = f * L, points = std::min(L, n - begin);
      const Complex phase = root(f * q, m_classes.count);
      const T re = phase.real(), im = phase.imag();
      NPRF_INDEPENDENT_ITERATIONS
      for (Index l = 0; l < points; ++l)
        emit(begin + l, re * z[2 * l] - im * z[2 * l + 1], re * z[2 * l + 1] + im * z[2 * l]);
    }
  }

  // the product of std::complex checks for NaN, so that compilers do not vectorise it
  /// z_l *= w_l
  static void multiply(Complex* z, const Complex* w, Index n) { multiply<1>(z, w, n); }
  /// z_l *= conj(w_l)
  static void multiply_conjugate(Complex* z, const Complex* w, Index n) { multiply<-1>(z, w, n); }

 private:
  // z[l] = sum_f e^(-2 pi i f q / Q) x[L f + l],  x = b o (u1 + i u2)
  void fold(Index q, Index n, const T* b, const T* u1, const T* u2, T* z) const {
    const Index L = m_classes.length;
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

  // e^(2 pi i k / n), computed in double. Whole quarter turns are exact, so that the angle is small and precise
  static Complex root(Index k, Index n) {
    const Index quarters = 4 * ((k % n + n) % n), turns = (quarters + n / 2) / n;
    const double angle = std::numbers::pi / 2 * static_cast<double>(quarters - turns * n) / static_cast<double>(n);
    const T re = static_cast<T>(std::cos(angle)), im = static_cast<T>(std::sin(angle));
    switch (turns % 4) {
      case 0: return {re, im};
      case 1: return {-im, re};
      case 2: return {-re, -im};
      default: return {im, -re};
    }
  }

  SegmentedFft m_classes;
  std::shared_ptr<const fft::ComplexPlan<T>> m_plan;
  const Complex* m_twist = nullptr;  // (Q,L)  e^(-2 pi i l q / N)
};

}  // namespace nprf::toeplitz

#endif  // NPRF_USE_FFTW
