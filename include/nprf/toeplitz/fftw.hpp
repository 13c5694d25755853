// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"

#if NPRF_USE_FFTW

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

#include "nprf/core/buffer.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/residue_classes.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U by FFTW, two columns at a time as real and imaginary part of one signal.
///
/// Time O(r p n log n), workspace about (r + 24) (n_q + n_k) scalars, twice that for the gradients, whatever p is. Each
/// column of U is first scaled to maximum 1 by a power of two, which is exact, because two columns share their
/// rounding. Rounding is relative to the largest row of Y: a row far below it loses digits, and may lose all.
template <Real T>
class FftwEngine {
 public:
  FftwEngine(const LagWeights<T>& lags, const ProductShape& shape)
      : m_n_q(shape.n_q),
        m_n_k(shape.n_k),
        m_transform(shape.n_q + shape.n_k - 1),
        m_spectrum(classes().period()),
        m_X(classes().length),
        m_W(classes().length) {
    // y[i] = sum_j c[j-i] x[j] is the cyclic convolution of x with g[-lag mod N] = c[lag]
    const Index N = classes().period();
    Vector<T> g = Vector<T>::Zero(N);
    const Vector<T> c = lags.window({-(m_n_q - 1), m_n_k - 1});
    for (Index k = 0; k < c.size(); ++k) g[(N + m_n_q - 1 - k) % N] = c[k] / static_cast<T>(N);
    const Vector<T> ones = Vector<T>::Ones(N), zeros = Vector<T>::Zero(N);
    for (Index q = 0; q < classes().count; ++q)
      m_transform.forward(q, N, ones.data(), g.data(), zeros.data(), spectrum(q));
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
      const Vector<T> unit = units(U, p0, columns);
      gather(U, p0, unit.cwiseInverse(), Ut);
      Yt.setZero();
      for (Index p = 0; p < columns; p += 2)
        for (Index r = 0; r < A.cols(); ++r)
          add(&At(r, 0), &Bt(r, 0), &Ut(p, 0), &Ut(p + 1, 0), &Yt(p, 0), &Yt(p + 1, 0));
      for (Index p = 0; p < columns; ++p) Y.col(p0 + p) = Yt.row(p).transpose() * finite(unit[p]);
    }
  }

  /// Four transforms a column, where contract has two. Each column of G is scaled to maximum 1 and the same column of U
  /// by the inverse, so that only dU has to be scaled back.
  Gradients<T> gradients(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U,
                         const MatrixView<T>& G) {
    const Index r_end = A.cols();
    const Matrix<T> At = A.transpose(), Bt = B.transpose();                              // (r,n_q) (r,n_k)
    Matrix<T> dAt = Matrix<T>::Zero(r_end, m_n_q), dBt = Matrix<T>::Zero(r_end, m_n_k);  // (r,n_q) (r,n_k)
    Matrix<T> Ut(panel, m_n_k), dUt(panel, m_n_k), Gt(panel, m_n_q);
    Buffer<Complex> correlation(classes().period());
    std::fill_n(correlation.data(), classes().period(), Complex(0));
    Gradients<T> gradients({m_n_q, m_n_k, r_end, U.cols()});
    for (Index p0 = 0; p0 < U.cols(); p0 += panel) {
      const Index columns = std::min(panel, U.cols() - p0);
      const Vector<T> unit = units(G, p0, columns);
      gather(G, p0, unit.cwiseInverse(), Gt);
      gather(U, p0, unit, Ut);
      dUt.setZero();
      for (Index p = 0; p < columns; p += 2)
        for (Index r = 0; r < r_end; ++r)
          add_gradients(&At(r, 0), &Bt(r, 0), &Ut(p, 0), &Ut(p + 1, 0), &Gt(p, 0), &Gt(p + 1, 0), &dAt(r, 0),
                        &dBt(r, 0), &dUt(p, 0), &dUt(p + 1, 0), correlation.data());
      for (Index p = 0; p < columns; ++p) gradients.dU.col(p0 + p) = dUt.row(p).transpose() * finite(unit[p]);
    }
    gradients.dA = dAt.transpose();
    gradients.dB = dBt.transpose();
    lag_gradient(correlation.data(), gradients.dc);
    return gradients;
  }

 private:
  using Complex = std::complex<T>;
  static constexpr Index panel = 16;  // columns of U and Y that are gathered at a time: a cache line of floats

  const ResidueClasses& classes() const { return m_transform.classes(); }
  Complex* spectrum(Index q) { return m_spectrum.data() + q * classes().length; }

  // y1 + i y2 += a o T(c) (b o (u1 + i u2))
  void add(const T* a, const T* b, const T* u1, const T* u2, T* y1, T* y2) {
    for (Index q = 0; q < classes().count; ++q) {
      m_transform.forward(q, m_n_k, b, u1, u2, m_X.data());
      m_transform.multiply(m_X.data(), spectrum(q), classes().length);
      m_transform.backward(q, m_n_q, m_X.data(), [=](Index i, T re, T im) {
        y1[i] += a[i] * re;
        y2[i] += a[i] * im;
      });
    }
  }

  // with x = b o (u1 + i u2), w = a o (g1 + i g2), t = T(c) x, z = T(c)^T w:
  //     da += g1 t1 + g2 t2    db += u1 z1 + u2 z2    du += b o z    correlation[k] += conj(W[k]) X[k]
  void add_gradients(const T* a, const T* b, const T* u1, const T* u2, const T* g1, const T* g2, T* da, T* db, T* du1,
                     T* du2, Complex* correlation) {
    const Index L = classes().length;
    for (Index q = 0; q < classes().count; ++q) {
      m_transform.forward(q, m_n_k, b, u1, u2, m_X.data());
      m_transform.forward(q, m_n_q, a, g1, g2, m_W.data());
      add_product_with_conjugate(m_X.data(), m_W.data(), correlation + q * L, L);
      m_transform.multiply(m_X.data(), spectrum(q), L);
      m_transform.multiply_conjugate(m_W.data(), spectrum(q), L);
      m_transform.backward(q, m_n_q, m_X.data(), [=](Index i, T t1, T t2) { da[i] += g1[i] * t1 + g2[i] * t2; });
      m_transform.backward(q, m_n_k, m_W.data(), [=](Index j, T z1, T z2) {
        db[j] += u1[j] * z1 + u2[j] * z2;
        du1[j] += b[j] * z1;
        du2[j] += b[j] * z2;
      });
    }
  }

  // dc[l] at l + n_q - 1: the real part of the inverse transform, lag l at l mod N; its imaginary part mixes the pairs
  void lag_gradient(Complex* correlation, Vector<T>& dc) {
    const Index N = classes().period(), L = classes().length;
    Vector<T> cyclic = Vector<T>::Zero(N);
    T* sum = cyclic.data();
    for (Index q = 0; q < classes().count; ++q)
      m_transform.backward(q, N, correlation + q * L, [=](Index l, T re, T) { sum[l] += re; });
    for (Index k = 0; k < dc.size(); ++k) dc[k] = cyclic[(N + k - (m_n_q - 1)) % N] / static_cast<T>(N);
  }

  // s_l += x_l conj(w_l)
  static void add_product_with_conjugate(const Complex* x_, const Complex* w_, Complex* s_, Index n) {
    const T *x = reinterpret_cast<const T*>(x_), *w = reinterpret_cast<const T*>(w_);
    T* s = reinterpret_cast<T*>(s_);
    for (Index l = 0; l < n; ++l) {
      s[2 * l] += x[2 * l] * w[2 * l] + x[2 * l + 1] * w[2 * l + 1];
      s[2 * l + 1] += x[2 * l + 1] * w[2 * l] - x[2 * l] * w[2 * l + 1];
    }
  }

  // each column's power of two: its maximum divided by it is at most 1; infinity for a column of zeros, which thereby
  // stays one beside a partner's rounding
  static Vector<T> units(const MatrixView<T>& U, Index p0, Index columns) {
    using Limits = std::numeric_limits<T>;  // a unit's inverse must be finite too: subnormal columns stay below 1
    Vector<T> unit(columns);
    for (Index p = 0; p < columns; ++p) {
      const T largest = U.col(p0 + p).cwiseAbs().maxCoeff();
      int exponent = 0;
      if (std::isfinite(largest)) std::frexp(largest, &exponent);
      unit[p] = largest == 0 ? Limits::infinity()
                             : std::ldexp(T(1), std::clamp(exponent, Limits::min_exponent, Limits::max_exponent - 1));
    }
    return unit;
  }

  static T finite(T unit) { return std::isfinite(unit) ? unit : T(0); }

  // columns p0... of U as rows, scaled; an odd one rides with zeros
  static void gather(const MatrixView<T>& U, Index p0, const Vector<T>& scale, Matrix<T>& Ut) {
    Ut.setZero();
    for (Index p = 0; p < scale.size(); ++p) Ut.row(p) = U.col(p0 + p).transpose() * finite(scale[p]);
  }

  Index m_n_q, m_n_k;
  ResidueTransform<T> m_transform;
  Buffer<Complex> m_spectrum;  // (Q,L)  of g / N
  Buffer<Complex> m_X, m_W;    // (L)
};

}  // namespace nprf::toeplitz

#endif  // NPRF_USE_FFTW
