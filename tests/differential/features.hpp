// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "differential/bias.hpp"
#include "nprf/core/types.hpp"

namespace nprf::test::differential {

enum class Kernel { positive, hyperbolic, trigonometric, elu, taylor };

/// The features of one side, of queries or of keys: a kernel of coordinates z = axes (x' - mean), with the factor
/// exp(linear.x' + offset). Without axes z = x'.
struct Side {
  Matrix<Exact> w;             // (m,d)
  Index directions = 0;        // with second-order features, of taylor
  Matrix<Exact> axes;          // (d,d), or empty
  Vector<Exact> mean, linear;  // (d)
  Exact offset = 0;
};

/// Normalised rows x' = scale x and their features by the published formulas: phi(x') is e^exponent times the row of
/// `phi`, up to a factor that is common to all rows.
///
///     positive        exp(w.x' - |x'|^2/2)             hyperbolic   exp(+-w.x' - |x'|^2/2)
///     trigonometric   e^(|x'|^2/2) [sin w.x', cos w.x']     elu     x' + 1 for x' > 0, exp(x') else
///     taylor          e^(linear.x' + offset) [1, z, z_l z_l / sqrt(2), z_l z_l' for l < l' < directions]
///
/// The factor is that of exp(q.k): phi(q').phi(k') / num_random estimates it.
class Features {
 public:
  Matrix<Exact> x, phi;     // (n,d) (n,r)
  Vector<Exact> exponent;   // (n)
  Vector<Exact> scale;      // (n)
  Vector<Exact> size;       // (n)  |phi|
  Vector<Exact> steepness;  // (n)  a bound of the derivative of log phi with respect to the input row
  Exact radius = 0;         // 0: rows are scaled by d^(-1/4), or by 1 for elu

  Features(Kernel kernel, const Side& side, Exact radius_of_rows, const Exact* rows, Index n, Index d)
      : x(n, d), exponent(n), scale(n), size(n), steepness(n), radius(radius_of_rows), m_kernel(kernel), m_side(side) {
    phi.resize(n, num_features(d));
    const Exact longest = side.w.size() == 0 ? 0 : side.w.rowwise().norm().maxCoeff();
    for (Index i = 0; i < n; ++i) {
      set_row(i, rows + i * d);
      const Exact norm = x.row(i).norm();
      steepness[i] = scale[i] * (kernel == Kernel::elu      ? 1
                                 : kernel == Kernel::taylor ? steepness_of_taylor()
                                                            : longest + norm);
      size[i] = phi.row(i).norm();
    }
  }

  /// What phi.phi is divided by in the estimate of exp(q.k): the number of random features, of which sin and cos are
  /// one.
  Exact num_random() const {
    return m_kernel == Kernel::taylor
               ? 1
               : static_cast<Exact>(m_kernel == Kernel::trigonometric ? m_side.w.rows() : phi.cols());
  }

  /// dL/d(input row i) from dL/dphi, where phi is the member, with its exponents as constants, and from other terms of
  /// dL/dx', in dx.
  void backward(Index i, const Exact* dphi, Exact* dx) const {
    const Index d = x.cols();
    if (scale[i] == 0) {
      std::fill_n(dx, d, Exact(0));
      return;
    }
    m_kernel == Kernel::taylor ? add_taylor_gradient(i, dphi, dx) : add_gradient(i, dphi, dx);
    // x' = radius x / |x|
    Exact outwards = 0;
    if (radius > 0)
      for (Index c = 0; c < d; ++c) outwards += x(i, c) * dx[c] / (radius * radius);
    for (Index c = 0; c < d; ++c) dx[c] = scale[i] * (dx[c] - outwards * x(i, c));
  }

 private:
  Index num_features(Index d) const {
    const Index m = m_side.w.rows(), s = m_side.directions;
    switch (m_kernel) {
      case Kernel::positive: return m;
      case Kernel::hyperbolic:
      case Kernel::trigonometric: return 2 * m;
      case Kernel::elu: return d;
      case Kernel::taylor: return 1 + d + s * (s + 1) / 2;
    }
    return 0;
  }

  // |d phi / dz| <= 3/2 |phi| for phi = [1, z, z z^T / sqrt(2)]
  Exact steepness_of_taylor() const {
    return m_side.axes.size() == 0 ? Exact(1.5) : Exact(1.5) * m_side.axes.norm() + m_side.linear.norm();
  }

  // adds to dL/dx'
  void add_gradient(Index i, const Exact* dphi, Exact* dx) const {
    const Index d = x.cols(), m = m_kernel == Kernel::elu ? d : m_side.w.rows();
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
        case Kernel::elu: dx[r] += xs[r] > 0 ? dphi[r] : dphi[r] * f[r]; continue;
        case Kernel::taylor: break;
      }
      for (Index c = 0; c < d; ++c) dx[c] += along_w * m_side.w(r, c);
    }
    if (m_kernel != Kernel::elu)
      for (Index c = 0; c < d; ++c) dx[c] += along_x * xs[c];
  }

  void add_taylor_gradient(Index i, const Exact* dphi, Exact* dx) const {
    const Index d = x.cols(), s = m_side.directions;
    const Vector<Exact> z = coordinates(i);
    Vector<Exact> dz(d);
    for (Index c = 0; c < d; ++c) dz[c] = dphi[1 + c];
    for (Index l = 0, r = 1 + d; l < s; ++l)
      for (Index k = l; k < s; ++k, ++r) {
        const Exact g = dphi[r] / (k == l ? std::sqrt(Exact(2)) : 1);
        dz[l] += g * z[k], dz[k] += g * z[l];
      }
    const bool has_axes = m_side.axes.size() > 0;
    if (has_axes) dz = (m_side.axes.transpose() * dz).eval();
    Exact along = 0;  // dL/d(log of the row's factor)
    for (Index r = 0; has_axes && r < phi.cols(); ++r) along += dphi[r] * phi(i, r);
    for (Index c = 0; c < d; ++c) dx[c] += dz[c] + (has_axes ? along * m_side.linear[c] : 0);
  }

  Vector<Exact> coordinates(Index i) const {
    const Vector<Exact> row = x.row(i).transpose();
    return m_side.axes.size() == 0 ? row : Vector<Exact>(m_side.axes * (row - m_side.mean));
  }

  void set_taylor(Index i) {
    const Index d = x.cols(), s = m_side.directions;
    const Vector<Exact> z = coordinates(i);
    exponent[i] = m_side.axes.size() == 0 ? 0 : m_side.linear.dot(x.row(i).transpose()) + m_side.offset;
    phi(i, 0) = 1;
    for (Index c = 0; c < d; ++c) phi(i, 1 + c) = z[c];
    for (Index l = 0, r = 1 + d; l < s; ++l)
      for (Index k = l; k < s; ++k, ++r) phi(i, r) = z[l] * z[k] / (k == l ? std::sqrt(Exact(2)) : 1);
  }

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
    if (m_kernel == Kernel::taylor) return set_taylor(i);
    const Matrix<Exact>& w = m_side.w;
    const Index m = w.rows();
    const Exact half = x.row(i).squaredNorm() / 2;
    Exact most = minus_infinity;
    for (Index r = 0; r < m; ++r) {
      Exact z = 0;
      for (Index c = 0; c < d; ++c) z += w(r, c) * x(i, c);
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
  const Side& m_side;
};

}  // namespace nprf::test::differential
