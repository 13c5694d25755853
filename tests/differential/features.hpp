// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "differential/bias.hpp"
#include "nprf/core/types.hpp"

namespace nprf::test::differential {

enum class Kernel { positive, hyperbolic, trigonometric, elu };

/// Normalised rows x' = scale x and their features by the published formulas: phi(x') is e^exponent times the row of
/// `phi`, up to a factor that is common to all rows.
///
///     positive        exp(w.x' - |x'|^2/2)             hyperbolic   exp(+-w.x' - |x'|^2/2)
///     trigonometric   e^(|x'|^2/2) [sin w.x', cos w.x']     elu     x' + 1 for x' > 0, exp(x') else
class Features {
 public:
  Matrix<Exact> x, phi;     // (n,d) (n,r)
  Vector<Exact> exponent;   // (n)
  Vector<Exact> scale;      // (n)
  Vector<Exact> size;       // (n)  |phi|
  Vector<Exact> steepness;  // (n)  a bound of the derivative of log phi with respect to the input row
  Exact radius = 0;         // 0: rows are scaled by d^(-1/4), or by 1 for elu

  Features(Kernel kernel, const Matrix<Exact>& w, Exact radius_of_rows, const Exact* rows, Index n, Index d)
      : x(n, d), exponent(n), scale(n), size(n), steepness(n), radius(radius_of_rows), m_kernel(kernel), m_w(w) {
    const Index m = kernel == Kernel::elu ? d : w.rows();
    phi.resize(n, kernel == Kernel::hyperbolic || kernel == Kernel::trigonometric ? 2 * m : m);
    const Exact longest = kernel == Kernel::elu ? 0 : w.rowwise().norm().maxCoeff();
    for (Index i = 0; i < n; ++i) {
      set_row(i, rows + i * d);
      const Exact norm = x.row(i).norm();
      steepness[i] = scale[i] * (kernel == Kernel::elu ? 1 : longest + norm);
      size[i] = phi.row(i).norm();
    }
  }

  /// dL/d(input row i) from dL/dphi, where phi is the member, with its exponents as constants.
  void backward(Index i, const Exact* dphi, Exact* dx) const {
    const Index d = x.cols(), m = m_kernel == Kernel::elu ? d : m_w.rows();
    std::fill_n(dx, d, Exact(0));
    if (scale[i] == 0) return;
    const Exact *f = &phi(i, 0), *xs = &x(i, 0);
    Exact along_x = 0;  // the factor of x'
    for (Index r = 0; r < m; ++r) {
      Exact along_w = 0;
      switch (m_kernel) {
        case Kernel::positive:
          along_w = dphi[r] * f[r];
          along_x -= along_w;
          break;
        case Kernel::hyperbolic:
          along_w = dphi[r] * f[r] - dphi[m + r] * f[m + r];
          along_x -= dphi[r] * f[r] + dphi[m + r] * f[m + r];
          break;
        case Kernel::trigonometric:
          along_w = dphi[r] * f[m + r] - dphi[m + r] * f[r];
          along_x += dphi[r] * f[r] + dphi[m + r] * f[m + r];
          break;
        case Kernel::elu: dx[r] = xs[r] > 0 ? dphi[r] : dphi[r] * f[r]; continue;
      }
      for (Index c = 0; c < d; ++c) dx[c] += along_w * m_w(r, c);
    }
    if (m_kernel != Kernel::elu)
      for (Index c = 0; c < d; ++c) dx[c] += along_x * xs[c];
    // x' = radius x / |x|
    Exact outwards = 0;
    if (radius > 0)
      for (Index c = 0; c < d; ++c) outwards += xs[c] * dx[c] / (radius * radius);
    for (Index c = 0; c < d; ++c) dx[c] = scale[i] * (dx[c] - outwards * xs[c]);
  }

 private:
  void set_row(Index i, const Exact* row) {
    const Index d = x.cols();
    const Eigen::Map<const Vector<Exact>> given(row, d);
    if (radius > 0) {
      const Exact norm = given.norm();
      scale[i] = norm == 0 ? 0 : radius / norm;
    } else {
      scale[i] = m_kernel == Kernel::elu ? 1 : std::pow(static_cast<Exact>(d), Exact(-0.25));
    }
    x.row(i) = (scale[i] * given).transpose();
    if (m_kernel == Kernel::elu) {
      for (Index c = 0; c < d; ++c) phi(i, c) = x(i, c) > 0 ? x(i, c) + 1 : std::exp(x(i, c));
      exponent[i] = 0;
      return;
    }
    const Index m = m_w.rows();
    const Exact half = x.row(i).squaredNorm() / 2;
    Exact most = minus_infinity;
    for (Index r = 0; r < m; ++r) {
      Exact z = 0;
      for (Index c = 0; c < d; ++c) z += m_w(r, c) * x(i, c);
      if (m_kernel == Kernel::trigonometric) {
        phi(i, r) = std::sin(z), phi(i, m + r) = std::cos(z);
        continue;
      }
      phi(i, r) = z;
      if (m_kernel == Kernel::hyperbolic) phi(i, m + r) = -z;
      most = std::max(most, m_kernel == Kernel::hyperbolic ? std::abs(z) : z);
    }
    exponent[i] = m_kernel == Kernel::trigonometric ? half : most - half;
    if (m_kernel != Kernel::trigonometric)
      for (Index r = 0; r < phi.cols(); ++r) phi(i, r) = std::exp(phi(i, r) - most);
  }

  Kernel m_kernel;
  const Matrix<Exact>& m_w;
};

}  // namespace nprf::test::differential
