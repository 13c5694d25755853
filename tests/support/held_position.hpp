// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/types.hpp"

namespace nprf::test {

/// A user's own position with any bias.
template <Real T>
struct HeldPosition {
  using Scalar = T;
  const LagBias<T>& bias() const { return held; }
  LagBias<T> held;
};

}  // namespace nprf::test
