// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include "nprf/attention/options.hpp"
#include "nprf/attention/weights/salient_keys.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

/// The rule for the salient keys of a head in causal attention (AttentionOptions::salient_rules), from a sample of its
/// queries q (n_q,d) and keys k (n_k,d), which `normalization` normalises: the mean and the covariance of the queries,
/// and the threshold that the part `share` of the keys exceeds, such as 32 / 512 for 32 keys of 512 tokens. Throws
/// InvalidArgument for a sample without queries or keys or with numbers that are not finite, for numbers of columns
/// that differ, and unless share is between 0 and 1. O((n_q + n_k) d^2).
template <Real T>
SalientRule salient_rule(const MatrixView<T>& q, const MatrixView<T>& k, const Normalization& normalization,
                         double share) {
  require(q.rows() > 0 && k.rows() > 0, "sample: expected queries and keys, got ", q.rows(), " and ", k.rows());
  require(q.cols() == k.cols(), "keys: expected ", q.cols(), " columns, as queries, got ", k.cols());
  require(share >= 0 && share <= 1, "share: expected 0 to 1, got ", share);
  require(has_finite_entries(q) && has_finite_entries(k), "sample: expected finite numbers, got others");
  const auto normalized = [&](const MatrixView<T>& x) {
    return rows_scaled_by<T>(entries_of(normalization.row_scale<T>(x)), x).template cast<double>().eval();
  };
  Matrix<double> X = normalized(q);  // (n_q,d)
  const Matrix<double> keys = normalized(k);
  const Vector<double> nu = mean_row(X);
  for (Index i = 0; i < X.rows(); ++i) add_scaled(writable_row(X, i), -1.0, entries_of(nu));
  const Matrix<double> S = transposed_product(X, X) / static_cast<double>(X.rows());
  Vector<double> kS(k.cols());
  std::vector<double> scores;
  for (Index j = 0; j < keys.rows(); ++j)
    scores.push_back(salient_score<double>(nu.data(), S.data(), row_of(keys, j), {kS.data(), row_of(keys, j).size()}));
  std::ranges::sort(scores, std::greater<>());
  const auto above = static_cast<std::size_t>(std::floor(share * static_cast<double>(scores.size())));
  // halfway between two scores, so that no rounding changes which exceed it
  const double from = above > 0 ? scores[above - 1] : scores.front(),
               to = above < scores.size() ? scores[above] : -INFINITY;
  return {{nu.begin(), nu.end()}, {S.data(), S.data() + S.size()}, (from + to) / 2};
}

}  // namespace nprf
