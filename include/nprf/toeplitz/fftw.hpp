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
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/fft/fftw.hpp"
#include "nprf/fft/length.hpp"

namespace nprf::toeplitz {

/// One cyclic convolution of length N = Q L as Q transforms of length L.
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

/// Y = ((A B^T) o C) U by FFTW, two columns at a time as real and imaginary part of one signal.
///
/// Time O(r p n log n), workspace about (r + 24) (n_q + n_k) scalars, whatever p is. Each column of U is
/// first scaled to maximum 1 by a power of two, which is exact, because two columns share their rounding. Rounding is
/// relative to the largest row of Y: a row far below it loses digits, and may lose all.
template <Real T>
class FftwEngine {
 public:
  FftwEngine(const LagWeights<T>& lags, const ProductShape& shape)
      : m_n_q(shape.n_q),
        m_n_k(shape.n_k),
        m_classes(ResidueClasses::of(shape.n_q + shape.n_k - 1)),
        m_plan(fft::ComplexPlan<T>::shared(m_classes.length)),
        m_twist(m_classes.period()),
        m_spectrum(m_classes.period()),
        m_z(m_classes.length),
        m_w(m_classes.length) {
    const Index N = m_classes.period(), L = m_classes.length;
    for (Index q = 0; q < m_classes.count; ++q)
      for (Index l = 0; l < L; ++l) m_twist.data()[q * L + l] = root(-l * q, N);

    // y[i] = sum_j c[j-i] x[j] is the cyclic convolution of x with g[-lag mod N] = c[lag]
    Vector<T> g = Vector<T>::Zero(N);
    const Vector<T> c = lags.window({-(m_n_q - 1), m_n_k - 1});
    for (Index k = 0; k < c.size(); ++k) g[(N + m_n_q - 1 - k) % N] = c[k] / static_cast<T>(N);
    const Vector<T> ones = Vector<T>::Ones(N), zeros = Vector<T>::Zero(N);
    for (Index q = 0; q < m_classes.count; ++q) {
      fold(q, N, ones.data(), g.data(), zeros.data());
      m_plan->forward(m_z.data(), m_spectrum.data() + q * L);
    }
  }

  static std::size_t workspace_bytes(const ProductShape& shape) {
    const Index period = ResidueClasses::of(shape.n_q + shape.n_k - 1).period();
    const Index scalars = (shape.r + panel) * (shape.n_q + shape.n_k) + 8 * period;
    return static_cast<std::size_t>(scalars) * sizeof(T);
  }

  void contract(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, MatrixRef<T> Y) {
    const Matrix<T> At = A.transpose(), Bt = B.transpose();  // (r,n_q) (r,n_k)
    Matrix<T> Ut(panel, m_n_k), Yt(panel, m_n_q);
    for (Index p0 = 0; p0 < U.cols(); p0 += panel) {
      const Index columns = std::min(panel, U.cols() - p0);
      Ut.setZero();  // an odd column rides with zeros
      Yt.setZero();
      Vector<T> unit(columns);
      for (Index p = 0; p < columns; ++p) {
        unit[p] = power_of_two_above(U.col(p0 + p));
        if (unit[p] > 0) Ut.row(p) = U.col(p0 + p).transpose() / unit[p];
      }
      for (Index p = 0; p < columns; p += 2)
        for (Index r = 0; r < A.cols(); ++r)
          add(&At(r, 0), &Bt(r, 0), &Ut(p, 0), &Ut(p + 1, 0), &Yt(p, 0), &Yt(p + 1, 0));
      for (Index p = 0; p < columns; ++p) Y.col(p0 + p) = Yt.row(p).transpose() * unit[p];
    }
  }

 private:
  using Complex = std::complex<T>;
  static constexpr Index panel = 16;  // columns of U and Y that are gathered at a time: a cache line of floats

  // y1 + i y2 += a o T(c) (b o (u1 + i u2))
  void add(const T* a, const T* b, const T* u1, const T* u2, T* y1, T* y2) {
    const Index L = m_classes.length;
    for (Index q = 0; q < m_classes.count; ++q) {
      fold(q, m_n_k, b, u1, u2);
      m_plan->forward(m_z.data(), m_w.data());
      multiply(m_w.data(), m_spectrum.data() + q * L, L);
      m_plan->backward(m_w.data(), m_z.data());
      unfold(q, m_n_q, a, y1, y2);
    }
  }

  // z[l] = e^(-2 pi i l q / N) sum_f e^(-2 pi i f q / Q) x[L f + l],  x = b o (u1 + i u2)
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
    if (q > 0) multiply(m_z.data(), m_twist.data() + q * L, L);
  }

  // y[L f + l] += a[L f + l] e^(2 pi i f q / Q) e^(2 pi i l q / N) z[l]
  void unfold(Index q, Index n, const T* a, T* y1, T* y2) {
    const Index L = m_classes.length;
    if (q > 0) multiply_conjugate(m_z.data(), m_twist.data() + q * L, L);
    const T* z = reinterpret_cast<const T*>(m_z.data());
    for (Index f = 0; f < m_classes.segments(n); ++f) {
      const Index begin = f * L, points = std::min(L, n - begin);
      const Complex phase = root(f * q, m_classes.count);
      const T re = phase.real(), im = phase.imag();
      for (Index l = 0; l < points; ++l) {
        y1[begin + l] += a[begin + l] * (re * z[2 * l] - im * z[2 * l + 1]);
        y2[begin + l] += a[begin + l] * (re * z[2 * l + 1] + im * z[2 * l]);
      }
    }
  }

  // std::complex's own product looks for NaN, which stops the compiler from vectorising
  static void multiply(Complex* z, const Complex* w, Index n) { multiply<1>(z, w, n); }
  static void multiply_conjugate(Complex* z, const Complex* w, Index n) { multiply<-1>(z, w, n); }

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

  // 0 for a column of zeros, so that it stays one beside a partner's rounding
  template <class Column>
  static T power_of_two_above(const Column& column) {
    const T largest = column.cwiseAbs().maxCoeff();
    if (largest == 0) return 0;
    if (!std::isfinite(largest)) return 1;
    int exponent;
    std::frexp(largest, &exponent);
    return std::ldexp(T(1), std::min(exponent, std::numeric_limits<T>::max_exponent - 1));
  }

  Index m_n_q, m_n_k;
  ResidueClasses m_classes;
  std::shared_ptr<const fft::ComplexPlan<T>> m_plan;
  Buffer<Complex> m_twist;     // (Q,L)  e^(-2 pi i l q / N)
  Buffer<Complex> m_spectrum;  // (Q,L)  of g / N
  Buffer<Complex> m_z, m_w;    // (L)
};

}  // namespace nprf::toeplitz

#endif  // NPRF_USE_FFTW
