// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nprf/attention/options.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/normalize/lifted_rows.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

/// The feature map and the normalisation of one head, its position, prepared for the numbers of tokens, and its rule
/// for salient keys. `position` may be null if only features are computed, and `salient_rule` if there is none.
template <Real T>
struct Head {
  FeatureMapView<T> features;
  Normalization normalization;
  const PreparedPosition<T>* position;
  const SalientRule* salient_rule = nullptr;

  /// Sets phi (n,r) to the features of the normalised rows of x (n,d), and `scale` (n) to the normalisation factors.
  void query_features(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, MatrixRef<T> phi, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    features.queries(normalize(x, scale, team).rows(), as_span(scale), phi, team);
  }
  void key_features(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, MatrixRef<T> phi, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    features.keys(normalize(x, scale, team).rows(), as_span(scale), phi, team);
  }

  /// Returns the features (n,r) of the normalised rows of x (n,d), computed by the calling thread.
  Matrix<T> query_features(const MatrixView<T>& x) const {
    Vector<T> scale(x.rows());
    return filled<T>(x.rows(), features.output_dim(),
                     [&](auto& phi, const Team& team) { query_features(x, scale, phi, team); });
  }
  Matrix<T> key_features(const MatrixView<T>& x) const {
    Vector<T> scale(x.rows());
    return filled<T>(x.rows(), features.output_dim(),
                     [&](auto& phi, const Team& team) { key_features(x, scale, phi, team); });
  }

  /// Returns the rows of x (n,d), of which very short ones are multiplied by a power of two
  /// (normalize/lifted_rows.hpp). Sets `scale` (n) to the normalisation factors of the returned rows.
  LiftedRows<T> normalize(const MatrixView<T>& x, Eigen::Ref<Vector<T>> scale, const Team& team) const {
    return {normalization, features.estimates_exp(), x, scale, team};
  }

  /// The largest norm of the finite rows of x after normalisation.
  double largest_norm(const MatrixView<T>& x) const {
    if (normalization.is_unit()) return normalization.radius();
    const double scale = features.estimates_exp() ? std::pow(static_cast<double>(x.cols()), -0.25) : 1;
    return scale * nprf::largest_norm(x);
  }

  static RowScale<T> as_span(const Eigen::Ref<Vector<T>>& scale) {
    return {scale.data(), static_cast<std::size_t>(scale.size())};
  }
};

/// The queries, keys and values of one sequence of a head, with the vectors r of the queries. Keys from `length` on and
/// keys whose mask is false are padding, which is not read.
template <Real T>
struct SequenceInputs {
  MatrixView<T> q, k, v;       // (n_q,d) (n_k,d) (n_k,d_v)
  MatrixView<T> r;             // (n_q,rank) of QueryBiases
  std::span<const bool> mask;  // (n_k); empty: all true
  Index length;
  double tolerance = 0;
  Index compared_rows = 0;             // how many rows are compared with exact softmax
  std::uint64_t seed = 0, stream = 0;  // of the generator that draws these rows
};

/// Returns the rows of `keys` from x, which has a row for every key, also for padding: a view of x, or a copy in the
/// workspace if masked keys lie between them.
template <Real T>
MatrixView<T> rows_of(const Placement& keys, const MatrixView<T>& x, const Team& team) {
  if (!keys.token_indices) return x.topRows(keys.count());
  return RowSubset({keys.token_indices, static_cast<std::size_t>(keys.count())}, team).of<T>(x);
}

}  // namespace nprf
