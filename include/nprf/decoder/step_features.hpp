// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/attention/head.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

/// The features of one query or key: the same bits for a token of a prompt as for one of a step.
template <Real T>
class StepFeatures {
 public:
  /// Refers to both.
  StepFeatures(const FeatureMapView<T>& map, const Normalization& normalization)
      : m_head{map, normalization, nullptr} {}

  const FeatureMapView<T>& map() const { return m_head.features; }
  const Normalization& normalization() const { return m_head.normalization; }

  /// Sets `normalized` (d) to x (d), normalised, and phi (r, padded with zeros) to its features, without a factor whose
  /// logarithm it returns: of a query; of a key. A map without log-factors must not omit a factor from its keys.
  double query(const T* x, T* normalized, T* phi, Workspace& scratch) const {
    return features_of(
        x, normalized, phi, scratch, [&](auto&&... out) { map().with_log_factors(out...); },
        [&](auto&&... out) { map().queries(out...); });
  }
  double key(const T* x, T* normalized, T* phi, Workspace& scratch) const {
    return features_of(
        x, normalized, phi, scratch, [&](auto&&... out) { map().keys_with_log_factors(out...); },
        [&](auto&&... out) { map().keys(out...); });
  }

  /// The norm of a normalised row, or a bound of it.
  double norm(const T* normalized) const {
    if (normalization().is_unit()) return normalization().radius();
    return std::sqrt(Eigen::Map<const Vector<T>>(normalized, map().input_dim()).template cast<double>().squaredNorm());
  }

 private:
  template <class WithFactor, class Without>
  double features_of(const T* x, T* normalized, T* phi, Workspace& scratch, WithFactor&& with_factor,
                     Without&& without) const {
    const Workspace::Scope scope(scratch);
    const Team team(scratch);
    const Index d = map().input_dim(), r = map().output_dim();
    const Eigen::Map<const Matrix<T>> row(x, 1, d);
    auto scale = scratch.template vector<T>(1);
    const LiftedRows<T> lifted = m_head.normalize(row, scale, team);
    for (Index l = 0; l < d; ++l) normalized[l] = scale[0] * lifted.rows()(0, l);
    std::fill(phi + r, phi + padded_to_lanes(r), T(0));
    Eigen::Map<Matrix<T>> features(phi, 1, r);
    if (!map().has_log_factors()) {
      without(lifted.rows(), Head<T>::as_span(scale), features, team);
      return 0;
    }
    T log_factor = 0;
    with_factor(lifted.rows(), Head<T>::as_span(scale), features, &log_factor, team);
    return static_cast<double>(log_factor);
  }

  Head<T> m_head;
};

}  // namespace nprf
