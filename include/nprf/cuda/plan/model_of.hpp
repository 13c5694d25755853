// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/core/error.hpp"
#include "nprf/cuda/model.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/curve.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/position.hpp"
#include "nprf/position/query_biased.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"

/// The functions model_of() describe a CPU attention in plain numbers (model.hpp), so that a plan for a GPU has the
/// same features, of the same random numbers, and the same position.
namespace nprf::cuda {

/// Throws InvalidArgument for options of an attention that a plan for a GPU does not have.
inline void check_options(const AttentionOptions& options) {
  require(options.salient == 0, "salient: expected 0 on a GPU, got ", options.salient);
}

namespace detail {

template <Real T>
FeatureModel random_features(FeatureKind kind, const RandomFeatures<T>& features) {
  require(features.offsets().size() == 0, "features: expected a map without a tilt, which a GPU's plan does not have");
  const Matrix<T>& w = features.projection();  // (m,d)
  FeatureModel model{kind, static_cast<int>(w.cols()), static_cast<int>(w.rows()), {}};
  model.projection.resize(static_cast<std::size_t>(w.size()));
  std::transform(w.data(), w.data() + w.size(), model.projection.begin(), [](T x) { return static_cast<float>(x); });
  return model;
}

template <class Parameters>
std::vector<float> floats(const Parameters& x) {
  std::vector<float> all(static_cast<std::size_t>(x.size()));
  for (Index k = 0; k < x.size(); ++k) all[static_cast<std::size_t>(k)] = static_cast<float>(x[k]);
  return all;
}

template <Real T>
std::vector<float> row_major(const Matrix<T>& x) {
  return floats(x.template reshaped<Eigen::RowMajor>());
}

}  // namespace detail

template <Real T>
FeatureModel model_of(const PositiveFeatures<T>& features) {
  return detail::random_features<T>(FeatureKind::positive, features);
}
template <Real T>
FeatureModel model_of(const HyperbolicFeatures<T>& features) {
  return detail::random_features<T>(FeatureKind::hyperbolic, features);
}
template <Real T>
FeatureModel model_of(const TrigonometricFeatures<T>& features) {
  return detail::random_features<T>(FeatureKind::trigonometric, features);
}
template <Real T>
FeatureModel model_of(const EluFeatures<T>& features) {
  return {FeatureKind::elu, static_cast<int>(features.input_dim()), 0, {}};
}
template <Real T>
FeatureModel model_of(const QuadraticFeatures<T>& features) {
  const QuadraticTerms<T>& terms = features.terms();
  FeatureModel model{FeatureKind::quadratic, static_cast<int>(features.input_dim()), 0, {}};
  model.first = static_cast<int>(terms.first), model.second = static_cast<int>(terms.second);
  model.mean_square = detail::floats(terms.mean_square), model.curvature = detail::floats(terms.curvature);
  model.log_scale = static_cast<float>(terms.log_scale);
  return model;
}
/// The model of one of nprf's own maps with a centring.
template <class F>
FeatureModel model_of(const Centred<F>& centred) {
  const auto& [nu, mu, A, A_inverse] = centred.constants();
  FeatureModel model = model_of(centred.features());
  model.centring = {detail::floats(nu), detail::floats(mu), detail::row_major(A), detail::row_major(A_inverse)};
  return model;
}

/// A GPU's plan has no vectors of lags.
template <class P>
PositionModel model_of(const QueryBiased<P>& position) = delete;
template <Real T>
PositionModel model_of(const NoPosition<T>&) {
  return {};
}
template <Real T>
PositionModel model_of(const RelativePosition<T>& position) {
  PositionModel model{detail::floats(position.bias().table), -position.reach(), {}};
  for (std::size_t k = 0; k < model.parameters.size(); ++k) model.index.push_back(static_cast<std::int32_t>(k));
  return model;
}
template <Real T>
PositionModel model_of(const T5Position<T>& position) {
  PositionModel model{detail::floats(position.bucket_weights()), position.bias().first, {}};
  for (Index lag = position.bias().first; lag <= position.bias().last(); ++lag)
    model.index.push_back(static_cast<std::int32_t>(position.bucket(lag)));
  return model;
}
template <Real T>
PositionModel model_of(const AlibiPosition<T>& position) {
  PositionModel model;
  model.parameters = {static_cast<float>(position.slope())};
  model.linear = true;
  return model;
}
/// The parameters of the model are the biases of the lags -reach..reach, and so are those whose gradients a plan
/// computes: position.gradient() turns these into the gradients of the curve. A plan refuses longer lags.
template <Real T, Curve C>
PositionModel model_of(const CurvePosition<T, C>& position) {
  PositionModel model{detail::floats(position.bias().table), -position.reach(), {}};
  for (std::size_t k = 0; k < model.parameters.size(); ++k) model.index.push_back(static_cast<std::int32_t>(k));
  model.is_bounded = true;
  return model;
}

/// The parameters of the model are the biases of the table, row by row, and then the biases of the extra tokens.
template <Real T>
PositionModel model_of(const GridPosition<T>& position) {
  PositionModel model{detail::floats(position.bias().table), position.bias().first, {}};
  for (std::size_t k = 0; k < model.parameters.size(); ++k) model.index.push_back(static_cast<std::int32_t>(k));
  const std::vector<float> border = detail::row_major(position.extra());
  model.parameters.insert(model.parameters.end(), border.begin(), border.end());
  model.outside = static_cast<int>(position.extra().rows());
  for (Index cell = 0; cell < position.height() * position.width(); ++cell)
    model.slots.push_back(static_cast<std::int32_t>(position.slot(cell)));
  model.pitch = static_cast<std::int32_t>(position.pitch());
  return model;
}

/// The model of an attention of one head. The engine of the CPU attention is ignored; the plan chooses its own.
template <class F, class P>
AttentionModel model_of(const Attention<F, P>& attention) {
  static_assert(
      requires { model_of(attention.features()); },
      "nprf: on a GPU the feature map must be one of nprf's own: positive, hyperbolic, trigonometric, elu or "
      "quadratic, centred or not");
  static_assert(
      requires { model_of(attention.position()); },
      "nprf: on a GPU the position must be one of nprf's own: none, relative, T5, ALiBi, a curve or a grid");
  const AttentionOptions& options = attention.options();
  check_options(options);
  AttentionModel model{options.direction, options.normalization.is_unit() ? options.normalization.radius() : 0, {}, {}};
  model.features.push_back(model_of(attention.features()));
  model.positions.push_back(model_of(attention.position()));
  model.near = options.near, model.sinks = options.sinks;
  return model;
}

}  // namespace nprf::cuda
