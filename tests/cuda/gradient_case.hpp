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

/// The largest relative difference of all gradients. Those of a grid's biases are followed by those of its border.
inline double difference(const Gradients<float>& got, const Gradients<float>& expected,
                         const GradientMagnitudes& sizes) {
  const auto row_by_row = [](const Matrix<float>& a) { return Vector<float>(a.reshaped<Eigen::RowMajor>()); };
  LargestDifference worst;
  worst.compare("dq", got.queries, expected.queries, sizes.queries);
  worst.compare("dk", got.keys, expected.keys, sizes.keys);
  worst.compare("dv", got.values, expected.values, sizes.values);
  worst.compare("bias", got.bias.topRows(expected.bias.size()), row_by_row(expected.bias), sizes.bias);
  worst.compare("border", got.bias.bottomRows(got.bias.rows() - expected.bias.size()), row_by_row(expected.extra),
                sizes.extra);
  return worst.value();
}

/// The gradients of a plan and of the CPU for inputs rounded to S, of which some keys may be padding, and what the
/// latter are sums of.
struct BothGradients {
  Gradients<float> got, expected;
  GradientMagnitudes terms;

  template <class S, class F, class P>
  static BothGradients of(const PlanCase& x, const Attention<F, P>& attention, const KeyMask& mask) {
    const auto as_stored = [](const Matrix<float>& a) { return as_floats(stored<S>(a), a.rows(), a.cols()); };
    const Matrix<float> dy = as_stored(normal<float>(x.shape.n_q, x.shape.d_v, 9)), q = as_stored(x.q),
                        k = as_stored(x.k), v = as_stored(x.v);
    Saved<float> saved;
    attention.forward(q, k, v, saved, {.key_mask = mask.on_cpu(), .offset = x.shape.offset, .tolerance = 1e-6});
    return {gradients_of<S>(x, *x.plan<S>(attention), dy, mask.call()), attention.backward(saved, dy),
            gradient_magnitudes(attention, q, k, v, dy, x.shape.offset)};
  }
};

/// The largest error of any gradient, relative to the largest entry of that gradient; that of a bias relative to a
/// share of the terms that it is a sum of, if that is larger.
template <class S = float, class F, class P>
double relative_gradient_error(const PlanCase& x, const Attention<F, P>& attention, double share_of_terms = 0) {
  const auto [got, expected, terms] = BothGradients::of<S>(x, attention, KeyMask({}));
  const auto size = [](const Matrix<float>& a) {
    return a.size() == 0 ? 0 : static_cast<double>(a.cwiseAbs().maxCoeff());
  };
  const double of_bias =
      std::max({size(expected.bias), size(expected.extra), share_of_terms * std::max(terms.bias, terms.extra)});
  return difference(got, expected,
                    {size(expected.queries), size(expected.keys), size(expected.values), of_bias, of_bias});
}

/// The largest error of any gradient, relative to the magnitude of the terms that it is a sum of. `keys` are those of a
/// KeyMask.
template <class S = float, class F, class P>
double gradient_error(const PlanCase& x, const Attention<F, P>& attention,
                      const std::vector<unsigned char>& keys = {}) {
  const auto [got, expected, terms] = BothGradients::of<S>(x, attention, KeyMask(keys));
  return difference(got, expected, terms);
}

}  // namespace nprf::test
