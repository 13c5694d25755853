// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "nprf/attention/exact/softmax_difference.hpp"
#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/calibration/head_sample.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/gemm.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Which attention is compared: its direction, and which queries.
struct ComparisonOptions {
  Direction direction = Direction::bidirectional;
  Index max_queries = 1024;  // of each sequence; if there are more, so many are chosen at random
  std::uint64_t seed = 0;
  double max_row_error =
      std::numeric_limits<double>::infinity();  // |y - exact| / |exact| of a row counts as at most this
  void (*poll)() = nullptr;                     // is called between parts of the work (team.hpp)
};

/// Exact softmax attention of consecutive tokens, and the difference of attention with feature maps from it, by dense
/// matrices:
///
///     y_i = sum_j W_ij v_j / sum_j W_ij,   W_ij = exp(q_i.k_j + b_ij)         if the key is a sink, or the pair near
///                                                 phi(q_i).phi(k_j) exp(b_ij)  otherwise
///
/// Without values it compares the weights W_ij / sum_j W_ij. A row whose terms cancel (terms_cancel) has no difference,
/// because attention computes it by exact softmax. A row that attends to no key is left out.
template <Real T>
class SoftmaxComparison {
 public:
  /// Refers to all of them.
  SoftmaxComparison(const SampleTokens<T>& tokens, const SamplePairs& pairs, const ComparisonOptions& options)
      : m_tokens(tokens),
        m_pairs(pairs),
        m_options(options),
        m_rows(static_cast<std::size_t>(std::min(tokens.q.rows(), options.max_queries))),
        m_keys(tokens.k.transpose()) {
    draw_rows(tokens.q.rows(), options.seed, 0, m_rows);
  }

  /// One for each map. O(n_k (d + d_v + sum r)) for each query that is compared, and memory O(n_k) for each thread, by
  /// all threads; bitwise reproducible for any number of them.
  std::vector<SoftmaxDifference> differences(std::span<const CalibratedFeatures<T>> maps) const {
    std::vector<Features> features;
    for (const auto& map : maps) features.push_back(features_of(map));
    const Index n = static_cast<Index>(m_rows.size()), count = static_cast<Index>(maps.size());
    Matrix<T> difference = Matrix<T>::Zero(n, count);
    Vector<T> exact = Vector<T>::Zero(n), attends = exact;
    std::vector<Workspace> workspaces(static_cast<std::size_t>(num_threads()));
    Team(workspaces, m_options.poll).run_tiles(n, tile_rows, [&](Index i0, Index rows, Workspace&) {
      const Tile tile = exact_tile(i0, rows);
      for (Index i = 0; i < rows; ++i) {
        exact[i0 + i] = tile.y.row(i).squaredNorm();
        attends[i0 + i] = tile.largest[i] > -infinity ? 1 : 0;
      }
      for (Index m = 0; m < count; ++m)
        difference.block(i0, m, rows, 1) = tile_differences(tile, i0, features[static_cast<std::size_t>(m)]);
    });
    std::vector<SoftmaxDifference> all;
    const auto rows = static_cast<Index>(attends.sum());
    for (Index m = 0; m < count; ++m) all.push_back({rows, difference.col(m).sum(), exact.sum()});
    return all;
  }

  /// Whether the direction allows a compared query to attend to a key whose weight is not exact, so that there is an
  /// error to be measured. O(n_q n_k) at most, and few steps if the last query may attend to the first keys.
  bool has_far_pair() const {
    for (Index i = static_cast<Index>(m_rows.size()) - 1; i >= 0; --i)
      for (Index j = 0; j < m_tokens.k.rows(); ++j)
        if (!is_later(i, j) && !is_exact(i, j)) return true;
    return false;
  }

 private:
  static constexpr Index tile_rows = 32;
  static constexpr double infinity = std::numeric_limits<double>::infinity();

  // phi without the factors exp(log_factor) of rows; keys are transposed
  struct Features {
    Matrix<T> queries, keys;          // (rows,r) (r,n_k)
    Vector<T> log_queries, log_keys;  // (rows) (n_k)
    Vector<T> key_norms;              // (n_k)
  };

  struct Tile {
    Matrix<T> far_bias, exact_weights, y;  // (rows,n_k) (rows,n_k) (rows,d_v); bias -inf, and weight 0, of other pairs
    Vector<T> largest;                     // of the logits of a row; the weights are exp(logit - largest)
  };

  Features features_of(const CalibratedFeatures<T>& map) const {
    const Matrix<T> q = m_tokens.q(m_rows, Eigen::indexing::all);
    const Index n_k = m_tokens.k.rows(), r = map.output_dim();
    Features f{Matrix<T>(q.rows(), r), {}, Vector<T>(q.rows()), Vector<T>(n_k), {}};
    Workspace workspace;
    map.queries(q, {}, f.queries, Team(workspace), f.log_queries.data());
    Matrix<T> keys(n_k, r);
    map.keys_by_row(m_tokens.k, {}, keys, Team(workspace), f.log_keys.data());
    f.keys = keys.transpose();
    f.key_norms = keys.rowwise().norm();
    return f;
  }

  Index query(Index i) const { return m_tokens.first_query + m_rows[static_cast<std::size_t>(i)]; }
  Index key(Index j) const { return m_tokens.position(j); }
  bool is_exact(Index i, Index j) const { return j < m_tokens.sinks || m_pairs.is_near(query(i), key(j)); }
  bool is_later(Index i, Index j) const { return m_options.direction == Direction::causal && key(j) > query(i); }

  // x = exp(x - shift) (n)
  static void exponentiate(T* x, T shift, Index n) {
    using P = Pack<T>;
    for (Index j = 0; j < n; j += P::size) exp(P::load(x + j, n - j) - P::all(shift)).store(x + j, n - j);
  }

  Tile exact_tile(Index i0, Index rows) const {
    const Index n_k = m_tokens.k.rows();
    Tile tile{Matrix<T>(rows, n_k), Matrix<T>::Zero(rows, n_k), {}, Vector<T>(rows)};
    const std::vector<Index> indices(m_rows.begin() + i0, m_rows.begin() + i0 + rows);
    const Matrix<T> q = m_tokens.q(indices, Eigen::indexing::all);
    Matrix<T> W(rows, n_k);
    set_product(W, q, m_keys);  // (rows,n_k)
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < n_k; ++j)
        tile.far_bias(i, j) = is_later(i0 + i, j) ? -infinity : m_pairs.bias(query(i0 + i), key(j));
      W.row(i) += tile.far_bias.row(i);
      tile.largest[i] = W.row(i).maxCoeff();
      if (tile.largest[i] > -infinity)
        exponentiate(&W(i, 0), tile.largest[i], n_k);
      else
        W.row(i).setZero();
      for (Index j = 0; j < n_k; ++j)
        if (is_exact(i0 + i, j)) tile.exact_weights(i, j) = W(i, j), tile.far_bias(i, j) = -infinity;
    }
    tile.y = quotients(W);
    return tile;
  }

  Vector<T> tile_differences(const Tile& tile, Index i0, const Features& features) const {
    const Index rows = tile.y.rows(), n_k = m_tokens.k.rows();
    Matrix<T> W(rows, n_k);
    Vector<T> magnitudes = Vector<T>::Zero(rows), factors(n_k);  // sum_j |phi(q_i)| |phi(k_j)| exp(b_ij), or W_ij
    set_product(W, features.queries.middleRows(i0, rows), features.keys);  // (rows,n_k)
    for (Index i = 0; i < rows; ++i) {
      if (tile.largest[i] == -infinity) {
        W.row(i).setZero();
        continue;
      }
      factors = features.log_keys + tile.far_bias.row(i).transpose();
      factors.array() += features.log_queries[i0 + i];
      const T largest = std::max(tile.largest[i], factors.maxCoeff());  // one scale for exact pairs and others
      exponentiate(factors.data(), largest, n_k);
      const auto exact = tile.exact_weights.row(i) * std::exp(tile.largest[i] - largest);
      W.row(i) = W.row(i).cwiseProduct(factors.transpose()) + exact;
      magnitudes[i] = features.queries.row(i0 + i).norm() * factors.dot(features.key_norms) + exact.sum();
    }
    const Matrix<T> y = quotients(W);
    Vector<T> difference = Vector<T>::Zero(rows);
    for (Index i = 0; i < rows; ++i) {
      if (tile.largest[i] == -infinity || terms_cancel(W.row(i).sum(), magnitudes[i])) continue;
      const double error = (y.row(i) - tile.y.row(i)).norm(), exact = tile.y.row(i).norm();
      const bool is_limited = m_options.max_row_error < infinity && !(error <= m_options.max_row_error * exact);
      const double counts = is_limited ? m_options.max_row_error * exact : error;
      difference[i] = std::isfinite(counts) ? counts * counts : infinity;
    }
    return difference;
  }

  // W v / (W 1), or without values W / (W 1); a row of zeros stays so
  Matrix<T> quotients(const Matrix<T>& W) const {
    Matrix<T> y = W;
    if (m_tokens.v.cols() > 0) {
      y.resize(W.rows(), m_tokens.v.cols());
      set_product(y, W, m_tokens.v);  // (rows,d_v)
    }
    for (Index i = 0; i < W.rows(); ++i)
      if (!W.row(i).isZero(0)) y.row(i) /= W.row(i).sum();
    return y;
  }

  const SampleTokens<T>& m_tokens;
  const SamplePairs& m_pairs;
  ComparisonOptions m_options;
  std::vector<Index> m_rows;  // the queries that are compared
  Matrix<T> m_keys;           // k^T (d,n_k)
};

/// Whether there is an error to be measured (SoftmaxComparison::has_far_pair) in a sequence of the sample.
template <Real T>
bool has_far_pair(const HeadSample<T>& sample, const ComparisonOptions& options) {
  return std::ranges::any_of(sample.sequences, [&](const SampleTokens<T>& tokens) {
    return SoftmaxComparison(tokens, sample.pairs, options).has_far_pair();
  });
}

/// The differences of all sequences of a sample, one for each map. Throws InvalidArgument if there is nothing to
/// compare: if no compared query attends to a key, or if all keys that it may attend to are sinks or near.
template <Real T>
std::vector<SoftmaxDifference> softmax_differences(const HeadSample<T>& sample,
                                                   std::span<const std::type_identity_t<CalibratedFeatures<T>>> maps,
                                                   const ComparisonOptions& options) {
  const SampleTokens<T>& first = sample.sequences.at(0);
  const auto check = [&](bool found, const char* expected) {
    require(found, "sample: expected in each part a query that ", expected, ", got none among queries ",
            first.first_query, " to ", first.first_query + first.q.rows() - 1, " with keys ", first.position(0), " to ",
            first.position(first.k.rows() - 1));
  };
  check(has_far_pair(sample, options), "may attend to a key that is neither near nor a sink");
  std::vector<SoftmaxDifference> sum(maps.size());
  for (const SampleTokens<T>& tokens : sample.sequences) {
    const auto each = SoftmaxComparison(tokens, sample.pairs, options).differences(maps);
    for (std::size_t m = 0; m < sum.size(); ++m) sum[m] += each[m];
  }
  for (const SoftmaxDifference& each : sum) check(each.rows > 0, "attends to a key");
  return sum;
}

}  // namespace nprf
