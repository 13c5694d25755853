// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <span>

#include "nprf/core/error.hpp"
#include "nprf/position/curve.hpp"

/// The biases of KERPLE (Chi et al. 2022), by the distance |lag|.
namespace nprf {

/// b = -r1 log(1 + r2 |lag|).
class KerpleLog {
 public:
  /// Throws InvalidArgument unless both are finite and r2 >= 0. KERPLE has r1, r2 > 0; training may pass through
  /// others.
  KerpleLog(double r1, double r2) : m_r1(r1), m_r2(r2) {
    require(std::isfinite(r1), "r1: expected a finite number, got ", r1);
    require(r2 >= 0 && std::isfinite(r2), "r2: expected a finite number, at least 0, got ", r2);
  }

  double r1() const { return m_r1; }
  double r2() const { return m_r2; }

  Index num_parameters() const { return 2; }
  double bias(Index lag) const { return -m_r1 * std::log1p(m_r2 * distance(lag)); }
  void add_gradient(Index lag, double db, double* d) const {
    const double s = distance(lag);
    d[0] -= db * std::log1p(m_r2 * s);
    d[1] -= db * m_r1 * s / (1 + m_r2 * s);
  }
  KerpleLog with_parameters(std::span<const double> r) const {
    require(r.size() == 2, "r: expected 2 numbers, got ", r.size());
    return {r[0], r[1]};
  }

 private:
  static double distance(Index lag) { return static_cast<double>(std::abs(lag)); }

  double m_r1, m_r2;
};

/// b = -r1 |lag|^r2.
class KerplePower {
 public:
  /// Throws InvalidArgument unless r1 is finite and 0 <= r2 <= 2.
  KerplePower(double r1, double r2) : m_r1(r1), m_r2(r2) {
    require(std::isfinite(r1), "r1: expected a finite number, got ", r1);
    require(r2 >= 0 && r2 <= 2, "r2: expected a number from 0 to 2, got ", r2);
  }

  double r1() const { return m_r1; }
  double r2() const { return m_r2; }

  Index num_parameters() const { return 2; }
  double bias(Index lag) const { return -m_r1 * power(lag); }
  void add_gradient(Index lag, double db, double* d) const {
    d[0] -= db * power(lag);
    if (lag != 0) d[1] -= db * m_r1 * power(lag) * std::log(static_cast<double>(std::abs(lag)));
  }
  KerplePower with_parameters(std::span<const double> r) const {
    require(r.size() == 2, "r: expected 2 numbers, got ", r.size());
    return {r[0], r[1]};
  }

 private:
  // 0 at lag 0 also for r2 = 0
  double power(Index lag) const { return lag == 0 ? 0 : std::pow(static_cast<double>(std::abs(lag)), m_r2); }

  double m_r1, m_r2;
};

template <OnlyReal T>
using KerpleLogPosition = CurvePosition<T, KerpleLog>;
template <OnlyReal T>
using KerplePowerPosition = CurvePosition<T, KerplePower>;

}  // namespace nprf
