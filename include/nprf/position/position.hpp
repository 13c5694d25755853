// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>

#include "nprf/core/lag_bias.hpp"

namespace nprf {

/// How distance enters attention: a bias b[lag] that is added to every logit, lag = key position - query position.
template <class P>
concept Position = Real<typename P::Scalar> && requires(const P& position) {
  { position.bias() } -> std::convertible_to<const LagBias<typename P::Scalar>&>;
};

/// b = 0: distance plays no part.
template <Real T>
class NoPosition {
 public:
  using Scalar = T;

  const LagBias<T>& bias() const { return m_bias; }

 private:
  LagBias<T> m_bias;
};

}  // namespace nprf
