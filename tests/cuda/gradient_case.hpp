// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_magnitudes.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "support/catch.hpp"

namespace nprf::test {

/// Gradients of a plan, which were NaN before.
template <class S>
Gradients<float> gradients_of(const PlanCase& x, const cuda::AttentionPlan<S>& plan, const Matrix<float>& dy,
                              const cuda::PlanCall& call = {}) {
  constexpr float poison = std::numeric_limits<float>::quiet_NaN();
  const auto poisoned = [&](const Matrix<float>& like) {
    return stored<S>(Matrix<float>::Constant(like.rows(), like.cols(), poison));
  };
  const DeviceArray<S> q(stored<S>(x.q)), k(stored<S>(x.k)), v(stored<S>(x.v)), ddy(stored<S>(dy)), dq(poisoned(x.q)),
      dk(poisoned(x.k)), dv(poisoned(x.v));
  const auto& position = plan.model().positions.front().parameters;
  const DeviceArray<float> parameters(std::vector<float>(position.size(), poison));
  const auto view = [](const DeviceArray<S>& a, const Matrix<float>& like) {
    return cuda::DeviceMatrixView<S>(a.data(), like.rows(), like.cols());
  };
  plan.backward(view(q, x.q), view(k, x.k), view(v, x.v), view(ddy, dy),
                {view(dq, x.q), view(dk, x.k), view(dv, x.v), position.empty() ? nullptr : parameters.data()}, call,
                nullptr);
  const auto matrix = [](const DeviceArray<S>& a, const Matrix<float>& like) {
    return as_floats(a.fetch(), like.rows(), like.cols());
  };
  return {matrix(dq, x.q),
          matrix(dk, x.k),
          matrix(dv, x.v),
          as_floats(parameters.fetch(), static_cast<Index>(position.size()), 1),
          {}};
}

/// The largest difference of any gradients, relative to what they are sums of.
inline double difference(const Gradients<float>& got, const Gradients<float>& expected,
                         const GradientMagnitudes& sizes) {
  double worst = 0;
  const auto compare = [&](const char* what, const Matrix<float>& a, const Matrix<float>& b, double size) {
    REQUIRE(a.size() == b.size());
    for (Index e = 0; e < a.size(); ++e) {
      const double off = std::abs(static_cast<double>(a.data()[e]) - static_cast<double>(b.data()[e])) / size;
      if (off <= worst) continue;
      UNSCOPED_INFO(what << ": " << off);
      worst = std::isnan(off) ? std::numeric_limits<double>::infinity() : off;
    }
  };
  compare("dq", got.queries, expected.queries, sizes.queries);
  compare("dk", got.keys, expected.keys, sizes.keys);
  compare("dv", got.values, expected.values, sizes.values);
  compare("bias", got.bias, Eigen::Map<const Matrix<float>>(expected.bias.data(), expected.bias.size(), 1), sizes.bias);
  return worst;
}

}  // namespace nprf::test
