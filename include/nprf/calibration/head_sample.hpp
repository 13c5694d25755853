// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/normalize/lifted_rows.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

/// Consecutive tokens of one head of one sequence. Before their keys come the first keys of the sequence, its attention
/// sinks. Queries and keys are normalised. Maps are computed from samples in double, and compared on samples in the
/// scalar type of the attention. The functions of samples are templates, so that a program that calibrates nothing does
/// not compile them.
template <Real T>
struct SampleTokens {
  Matrix<T> q, k, v;  // (n_q,d) (n_k,d) (n_k,d_v); d_v = 0 if there are no values
  Index first_query = 0,
        first_key = 0;  // the positions in the sequence of query 0 and of the first key after the sinks
  Index sinks = 0;

  /// The position of a key in the sequence.
  Index position(Index key) const { return key < sinks ? key : first_key + key - sinks; }

  /// These tokens with only the first n_k keys, which include the sinks. Requires n_k > sinks.
  SampleTokens with_first_keys(Index n_k) const {
    return {q, k.topRows(n_k), v.topRows(n_k), first_query, first_key, sinks};
  }

  /// The first half (0) or the second (1) of the queries and of the keys after the sinks, with all sinks.
  SampleTokens half(Index which) const {
    const Index keys = k.rows() - sinks, i0 = q.rows() / 2 * which, j0 = keys / 2 * which,
                n_q = which == 0 ? q.rows() / 2 : q.rows() - i0, n_k = which == 0 ? keys / 2 : keys - j0;
    const auto with_sinks = [&](const Matrix<T>& x) {
      Matrix<T> rows(sinks + n_k, x.cols());
      std::copy_n(x.data(), sinks * x.cols(), rows.data());
      std::copy_n(x.data() + (sinks + j0) * x.cols(), n_k * x.cols(), rows.data() + sinks * x.cols());
      return rows;
    };
    return {q.middleRows(i0, n_q), with_sinks(k), with_sinks(v), first_query + i0, first_key + j0, sinks};
  }

  template <Real U>
  SampleTokens<U> cast() const {
    return {q.template cast<U>(), k.template cast<U>(), v.template cast<U>(), first_query, first_key, sinks};
  }

  /// These queries with the keys and values of `all`, the tokens that these ones are a part of.
  SampleTokens with_keys_of(const SampleTokens& all) const {
    return {q, all.k, all.v, first_query, all.first_key, sinks};
  }
};

/// fill(i, j, biases, near) sets, for the query at position i and the keys at positions j, j + 1, ..., the biases of
/// the pairs and whether they are in the near field, as the head's position and the width of the near field define
/// them.
struct SamplePairs {
  std::function<void(Index i, Index j, std::span<double> biases, std::span<bool> near)> fill;
};

/// A sample of one head: one or several sequences, in the order of the text.
template <Real T>
struct HeadSample {
  std::vector<SampleTokens<T>> sequences;
  SamplePairs pairs;

  Index input_dim() const { return sequences.at(0).q.cols(); }

  /// The first half (0) or the second (1) of the sequences; if their number is odd, the first half has one more. If
  /// there is one sequence, a half of its tokens.
  HeadSample half(Index which) const {
    if (sequences.size() == 1) return {{sequences[0].half(which)}, pairs};
    const auto middle = sequences.begin() + static_cast<std::ptrdiff_t>((sequences.size() + 1) / 2);
    return {which == 0 ? std::vector(sequences.begin(), middle) : std::vector(middle, sequences.end()), pairs};
  }

  template <Real U>
  HeadSample<U> cast() const {
    HeadSample<U> result{{}, pairs};
    for (const SampleTokens<T>& each : sequences) result.sequences.push_back(each.template cast<U>());
    return result;
  }

  /// Means, axes and variances of all its queries and of the keys after the sinks (feature_map/balance.hpp).
  Balance<T> balance(double shrinkage) const {
    Index n_q = 0, n_k = 0;
    for (const SampleTokens<T>& each : sequences) n_q += each.q.rows(), n_k += each.k.rows() - each.sinks;
    Matrix<T> q(n_q, input_dim()), k(n_k, input_dim());
    n_q = n_k = 0;
    for (const SampleTokens<T>& each : sequences) {
      std::ranges::copy(entries_of(each.q), &q(n_q, 0));
      std::ranges::copy(entries_of(each.k).subspan(static_cast<std::size_t>(each.sinks * input_dim())), &k(n_k, 0));
      n_q += each.q.rows(), n_k += each.k.rows() - each.sinks;
    }
    return nprf::balance<T>(q, k, shrinkage);
  }
};

namespace detail {

// the rows of x (n,d), normalised as attention normalises the rows for a map that estimates exp
template <Real T>
Matrix<double> normalised_rows(const Normalization& normalization, const MatrixView<T>& x) {
  const Matrix<double> rows = x.template cast<double>();
  Workspace workspace;
  Vector<double> scale(x.rows());
  const LiftedRows<double> lifted(normalization, true, rows, scale, Team(workspace));
  return rows_scaled_by<double>(entries_of(scale), lifted.rows());
}

}  // namespace detail

/// One sequence of a sample, in double, from q (n_q,d) k (n_k,d) v (n_k,d_v) as the model gives them. Throws
/// InvalidArgument if shapes do not match, if a scalar is not finite, or if there are fewer than 8 queries or,
/// beside the sinks, fewer than 8 keys: each quarter must have two.
template <Real T>
SampleTokens<double> sample_tokens(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v,
                                   const Normalization& normalization, Index sinks = 0) {
  require(q.cols() >= 1, "queries: expected at least 1 column, got 0");
  require(k.cols() == q.cols(), "keys: expected ", q.cols(), " columns (those of the queries), got ", k.cols());
  require(v.cols() == 0 || v.rows() == k.rows(), "values: expected ", k.rows(), " rows (the number of keys), got ",
          v.rows());
  require(q.rows() >= 8, "queries: expected at least 8 rows, got ", q.rows());
  require(k.rows() >= 8, "keys: expected at least 8 rows, got ", k.rows());
  require(sinks <= k.rows() - 8, "keys: expected at least 8 rows beside ", sinks, " sinks, got ", k.rows());
  require(has_finite_entries(q) && has_finite_entries(k) && has_finite_entries(v),
          "sample: expected finite scalars, got a NaN or an infinity");
  Matrix<double> values(k.rows(), v.cols());
  if (v.cols() > 0) values = v.template cast<double>();
  return {detail::normalised_rows<T>(normalization, q),
          detail::normalised_rows<T>(normalization, k),
          std::move(values),
          0,
          sinks,
          sinks};
}

}  // namespace nprf
