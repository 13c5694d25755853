// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/batch/head.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

/// Rows (d) of some heads of successive tokens, in an array with strides: row i is that of head i % heads of token
/// i / heads.
template <Real T>
struct TokenRows {
  const T* data = nullptr;
  Index tokens = 0, token_step = 0, heads = 1, head_step = 0;

  Index count() const { return tokens * heads; }
  const T* operator()(Index i) const { return data + i / heads * token_step + i % heads * head_step; }
};

/// A query or a key and its features phi, without a factor whose logarithm is log_factor. `vector` has the channels of
/// a query after its first d: r of QueryBiases.
template <Real T>
struct FeatureRow {
  const T* normalized;  // (d)
  T* phi;               // (r), padded with zeros
  double log_factor;
  const T* vector;  // (rank)  null of a key
};

/// Several rows as FeatureRow, of keys and after them of queries, in scratch memory.
template <Real T>
struct FeatureRows {
  T *normalized, *phi, *log_factors;  // (n,d) (n,padded r) (n)
  Index d, r;
  Index keys;
  TokenRows<T> queries;

  FeatureRow<T> operator()(Index i) const {
    return {normalized + i * d, phi + i * padded_to_lanes(r), static_cast<double>(log_factors[i]),
            i < keys ? nullptr : queries(i - keys) + d};
  }
};

/// The features of the queries and keys of a decoder. The bits of a row do not depend on the rows that are computed
/// with it: a map that does not promise this (feature_map.hpp) gets one row at a time.
template <Real T>
class StepFeatures {
 public:
  StepFeatures(const FeatureMapView<T>& map, const Normalization& normalization)
      : m_head{map, normalization, nullptr}, m_error_of_radius(map.relative_error(normalization.radius())) {}

  const FeatureMapView<T>& map() const { return m_head.features; }
  const Normalization& normalization() const { return m_head.normalization; }

  /// Returns the rows of the keys, and after them the rows of the queries. Features of keys of different calls are
  /// summed, so a map without log-factors must not omit a factor from its keys (feature_map.hpp).
  FeatureRows<T> operator()(const TokenRows<T>& keys, const TokenRows<T>& queries, Workspace& scratch) const {
    const Index n_k = keys.count(), n = n_k + queries.count(), d = map().input_dim(), r = map().output_dim();
    const FeatureRows<T> rows{scratch.template take<T>(n * d),
                              scratch.template take<T>(n * padded_to_lanes(r)),
                              scratch.template take<T>(n),
                              d,
                              r,
                              n_k,
                              queries};
    const Workspace::Scope scope(scratch);
    for (Index i = 0; i < n; ++i) std::copy_n(i < n_k ? keys(i) : queries(i - n_k), d, rows.normalized + i * d);
    normalize(rows, n, scratch);
    const bool sides_differ = !map().has_equal_sides();
    const Index most = map().has_independent_rows() ? n : 1;
    for (Index i = 0; i < n;) {
      const bool is_key = i < n_k;
      const Index count = std::min(most, (is_key && sides_differ ? n_k : n) - i);
      compute(rows, i, count, is_key, scratch);
      i += count;
    }
    return rows;
  }

  /// The map's bound of the relative error of the features of a row of that norm.
  double relative_error(double norm) const {
    return norm == normalization().radius() ? m_error_of_radius : map().relative_error(norm);
  }
  /// The norm of a normalised row, or a bound of it.
  double norm(const T* normalized) const {
    if (normalization().is_unit()) return normalization().radius();
    const std::span<const T> x(normalized, static_cast<std::size_t>(map().input_dim()));
    return std::sqrt(dot_in_double(x, x));
  }

 private:
  void normalize(const FeatureRows<T>& rows, Index n, Workspace& scratch) const {
    Eigen::Map<Matrix<T>> x(rows.normalized, n, rows.d);
    auto scale = scratch.vector<T>(n);
    const MatrixView<T> lifted = m_head.normalize(x, scale, Team(scratch)).rows();
    for (Index i = 0; i < n; ++i) set_scaled(writable_row(x, i), scale[i], row_of(lifted, i));
  }

  // sets phi and the log-factors of the rows first..first+count-1
  void compute(const FeatureRows<T>& rows, Index first, Index count, bool are_keys, Workspace& scratch) const {
    const Index r = rows.r, stride = padded_to_lanes(r);
    const Eigen::Map<const Matrix<T>> x(rows.normalized + first * rows.d, count, rows.d);
    T *phi = rows.phi + first * stride, *log_factors = rows.log_factors + first;
    for (Index i = 0; i < count; ++i) std::fill(phi + i * stride + r, phi + (i + 1) * stride, T(0));
    Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>> features(phi, count, r, Eigen::OuterStride<>(stride));
    const Team team(scratch);
    if (map().has_log_factors()) {
      are_keys ? map().keys_with_log_factors(x, {}, features, log_factors, team)
               : map().with_log_factors(x, {}, features, log_factors, team);
    } else {
      are_keys ? map().keys(x, {}, features, team) : map().queries(x, {}, features, team);
      std::fill_n(log_factors, count, T(0));
    }
  }

  Head<T> m_head;
  double m_error_of_radius;  // relative_error() of the norm of all rows, if they are normalised
};

}  // namespace nprf
