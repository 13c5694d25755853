// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_magnitudes.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "support/catch.hpp"

namespace nprf::test {

/// The gradients of a plan. Their memory is NaN before the call.
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
          {},
          {}};
}

/// The largest difference of two arrays, relative to the magnitude of the terms that they are sums of.
class LargestDifference {
 public:
  template <class A, class B>
  void compare(const char* what, const A& got, const B& expected, double size) {
    REQUIRE(got.size() == expected.size());
    for (Index e = 0; e < got.size(); ++e) {
      const double error = static_cast<double>(got.reshaped()[e]) - static_cast<double>(expected.reshaped()[e]);
      const double difference = error == 0 ? 0 : std::abs(error) / size;  // the size is 0 if all terms are
      if (difference <= m_value) continue;
      UNSCOPED_INFO(what << ": " << difference);
      m_value = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    }
  }
  double value() const { return m_value; }

 private:
  double m_value = 0;
};

/// The largest relative difference of all gradients.
inline double difference(const Gradients<float>& got, const Gradients<float>& expected,
                         const GradientMagnitudes& sizes) {
  LargestDifference worst;
  worst.compare("dq", got.queries, expected.queries, sizes.queries);
  worst.compare("dk", got.keys, expected.keys, sizes.keys);
  worst.compare("dv", got.values, expected.values, sizes.values);
  worst.compare("bias", got.bias, expected.bias, sizes.bias);
  return worst.value();
}

/// The largest error of any gradient, relative to the largest entry of that gradient; that of a bias relative to a
/// share of the terms that it is a sum of, if that is larger.
template <class S = float, class F, class P>
double relative_gradient_error(const PlanCase& x, const Attention<F, P>& attention, double share_of_terms = 0) {
  const auto as_stored = [](const Matrix<float>& a) { return as_floats(stored<S>(a), a.rows(), a.cols()); };
  const Matrix<float> dy = as_stored(normal<float>(x.shape.n_q, x.shape.d_v, 9));
  Saved<float> saved;
  attention.forward(as_stored(x.q), as_stored(x.k), as_stored(x.v), saved,
                    {.offset = x.shape.offset, .tolerance = 1e-6});
  const Gradients<float> expected = attention.backward(saved, dy), got = gradients_of<S>(x, *x.plan<S>(attention), dy);
  Matrix<float> bias(got.bias.size(), 1);  // of a grid, followed by that of the extra tokens
  bias << expected.bias.template reshaped<Eigen::RowMajor>(), expected.extra.template reshaped<Eigen::RowMajor>();
  const auto size = [](const Matrix<float>& a) {
    return a.size() == 0 ? 1 : static_cast<double>(a.cwiseAbs().maxCoeff());
  };
  double of_bias = size(bias);
  if (share_of_terms > 0) {
    const GradientMagnitudes terms = gradient_magnitudes(attention, x.q, x.k, x.v, dy, x.shape.offset);
    of_bias = std::max(of_bias, share_of_terms * std::max(terms.bias, terms.extra));
  }
  LargestDifference worst;
  worst.compare("dq", got.queries, expected.queries, size(expected.queries));
  worst.compare("dk", got.keys, expected.keys, size(expected.keys));
  worst.compare("dv", got.values, expected.values, size(expected.values));
  worst.compare("bias", got.bias, bias, of_bias);
  return worst.value();
}

/// The largest error of any gradient, relative to the magnitude of the terms that it is a sum of.
template <class S = float, class F, class P>
double gradient_error(const PlanCase& x, const Attention<F, P>& attention) {
  const auto as_stored = [](const Matrix<float>& a) { return as_floats(stored<S>(a), a.rows(), a.cols()); };
  const Matrix<float> dy = as_stored(normal<float>(x.shape.n_q, x.shape.d_v, 9)), q = as_stored(x.q),
                      k = as_stored(x.k), v = as_stored(x.v);
  Saved<float> saved;
  attention.forward(q, k, v, saved, {.offset = x.shape.offset, .tolerance = 1e-6});
  const Gradients<float> expected = attention.backward(saved, dy);
  const Gradients<float> got = gradients_of<S>(x, *x.plan<S>(attention), dy);
  return difference(got, expected, gradient_magnitudes(attention, q, k, v, dy, x.shape.offset));
}

}  // namespace nprf::test
