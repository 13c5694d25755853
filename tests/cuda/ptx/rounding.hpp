// SPDX-License-Identifier: MIT
#pragma once

#include <cfenv>
#include <cmath>

#include "cuda/ptx/module.hpp"

namespace nprf::ptx {

/// The host rounds so while it exists. Files that use it are compiled with -frounding-math.
class HostRounding {
 public:
  explicit HostRounding(Rounding rounding) : m_before(rounding == Rounding::nearest ? -1 : std::fegetround()) {
    if (rounding == Rounding::zero) std::fesetround(FE_TOWARDZERO);
    if (rounding == Rounding::down) std::fesetround(FE_DOWNWARD);
    if (rounding == Rounding::up) std::fesetround(FE_UPWARD);
  }
  HostRounding(const HostRounding&) = delete;
  HostRounding& operator=(const HostRounding&) = delete;
  ~HostRounding() {
    if (m_before >= 0) std::fesetround(m_before);
  }

 private:
  int m_before;
};

/// Subnormal numbers become zeros of their sign.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline double flushed(double x) { return std::fabs(x) < 0x1p-1022 ? std::copysign(0.0, x) : x; }

}  // namespace nprf::ptx
