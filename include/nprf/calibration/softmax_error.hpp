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
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Which attention is compared with exact softmax: its direction, and which of its queries.
struct ComparisonOptions {
  Direction direction = Direction::bidirectional;
  Index max_queries = 1024;  // of each sequence; if there are more, this many are chosen at random
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
/// Without values it compares the weights W_ij / sum_j W_ij. The difference of a row whose terms cancel (terms_cancel)
/// counts as 0, because attention computes the row by exact softmax. A row that attends to no key is left out.
template <Real T>
class SoftmaxComparison {
 public:
  SoftmaxComparison(const SampleTokens<T>& tokens, const SamplePairs& pairs, const ComparisonOptions& options)
      : m_tokens(tokens),
        m_pairs(pairs),
        m_options(options),
        m_rows(static_cast<std::size_t>(std::min(tokens.q.rows(), options.max_queries))),
        m_keys(tokens.k.transpose()),
        m_scale(scale_of(tokens.v)),
        m_values(tokens.v) {
    for (Index j = 0; j < m_values.rows(); ++j) scale(writable_row(m_values, j), 1 / m_scale);
    draw_rows(tokens.q.rows(), options.seed, 0, m_rows);
  }

  /// The differences of several maps from exact softmax. Map c has the first counts[c] features of `map`; counts
  /// increase. The order of features is: 1, those of first order, those of second order by the later one of their two
  /// coordinates. O(n_k (d + r + d_v counts.size())) for each query that is compared, and memory O(n_k) for each
  /// thread, by all threads; bitwise reproducible for any number of threads.
  std::vector<SoftmaxDifference> differences(const CalibratedFeatures<T>& map, std::span<const Index> counts) const {
    const Features features = features_of(map, counts);
    const Index n = static_cast<Index>(m_rows.size()), count = static_cast<Index>(counts.size());
    Matrix<double> difference = Matrix<double>::Zero(n, count);
    Vector<double> exact = Vector<double>::Zero(n), attends = exact;
    std::vector<Workspace> workspaces(static_cast<std::size_t>(num_threads()));
    Team(workspaces, m_options.poll).run_tiles(n, tile_rows, [&](Index i0, Index rows, Workspace&) {
      const Tile tile = exact_tile(i0, rows);
      for (Index i = 0; i < rows; ++i) {
        exact[i0 + i] = dot_in_double(row_of(tile.y, i), row_of(tile.y, i));
        attends[i0 + i] = tile.largest[i] > -infinity ? 1 : 0;
      }
      set_differences(tile, i0, features, counts, difference.middleRows(i0, rows));
    });
    std::vector<SoftmaxDifference> all;
    const auto rows = static_cast<Index>(attends.sum());
    for (Index c = 0; c < count; ++c) all.push_back({rows, difference.col(c).sum(), exact.sum(), std::ilogb(m_scale)});
    return all;
  }

  /// Whether the direction allows a compared query to attend to a key whose weight is not exact, so that there is an
  /// error to be measured. O(n_q n_k) at most, and few steps if the last query may attend to the first keys.
  bool has_far_pair() const {
    Pairs pairs(m_tokens.k.rows());
    for (Index i = static_cast<Index>(m_rows.size()) - 1; i >= 0; --i) {
      set_pairs(i, pairs);
      for (Index j = 0; j < m_tokens.k.rows(); ++j)
        if (!is_later(i, j) && !pairs.is_exact[j]) return true;
    }
    return false;
  }

 private:
  static constexpr Index tile_rows = 64;
  static constexpr double infinity = std::numeric_limits<double>::infinity();

  // phi without the factors exp(log_factor) of rows, in the order of differences(); keys are transposed
  struct Features {
    Matrix<T> queries, keys;           // (rows,r) (r,n_k)
    Vector<T> log_queries, log_keys;   // (rows) (n_k)
    Matrix<T> query_norms, key_norms;  // (rows,counts) (n_k,counts)  column c: of the first counts[c] features
  };

  // the pairs of a query with all keys: their biases, -infinity if the direction forbids a pair, and whether their
  // weights are exact
  struct Pairs {
    explicit Pairs(Index n_k) : bias(n_k), is_exact(n_k) {}

    Vector<double> bias;
    Eigen::Array<bool, Eigen::Dynamic, 1> is_exact;
  };

  // far_bias is -infinity for exact pairs, exact_weights is 0 for far pairs
  struct Tile {
    Matrix<T> far_bias, exact_weights, y;  // (rows,n_k) (rows,n_k) (rows,d_v)
    Vector<T> largest;                     // of the logits of a row; the weights are exp(logit - largest)
  };

  static T scale_of(const Matrix<T>& values) {
    const T scale = values.size() > 0 ? power_of_two_scale(largest_magnitude(entries_of(values))) : T(1);
    return std::isfinite(scale) ? scale : T(1);
  }

  static std::vector<Index> order_of(const QuadraticTerms<T>& terms) {
    std::vector<Index> order(static_cast<std::size_t>(1 + terms.first));
    std::iota(order.begin(), order.end(), Index{0});
    for (Index later = 0; later < terms.second; ++later)
      for (Index l = 0, pairs = 1 + terms.first; l <= later; pairs += terms.second - l, ++l)
        order.push_back(pairs + later - l);
    return order;
  }

  static Matrix<T> norms_of(const Matrix<T>& phi, std::span<const Index> counts) {
    Matrix<T> norms(phi.rows(), static_cast<Index>(counts.size()));
    for (Index i = 0; i < phi.rows(); ++i)
      for (std::size_t c = 0; c < counts.size(); ++c) {
        const std::span features = row_of(phi, i).first(static_cast<std::size_t>(counts[c]));
        norms(i, static_cast<Index>(c)) = norm(features);
      }
    return norms;
  }

  Features features_of(const CalibratedFeatures<T>& map, std::span<const Index> counts) const {
    const Matrix<T> q = selected_rows(m_tokens.q, m_rows);
    const Index n_k = m_tokens.k.rows(), r = map.output_dim();
    Matrix<T> queries(q.rows(), r), keys(n_k, r);
    Features f{{}, {}, Vector<T>(q.rows()), Vector<T>(n_k), {}, {}};
    Workspace workspace;
    map.queries(q, {}, queries, Team(workspace), f.log_queries.data());
    map.keys_by_row(m_tokens.k, {}, keys, Team(workspace), f.log_keys.data());
    const std::vector<Index> order = order_of(map.features().terms());
    f.queries = selected_rows(Matrix<T>(queries.transpose()), order).transpose();
    f.keys = selected_rows(Matrix<T>(keys.transpose()), order);
    f.query_norms = norms_of(f.queries, counts);
    f.key_norms = norms_of(f.keys.transpose(), counts);
    return f;
  }

  Index query(Index i) const { return m_tokens.first_query + m_rows[static_cast<std::size_t>(i)]; }
  Index key(Index j) const { return m_tokens.position(j); }
  bool is_later(Index i, Index j) const { return m_options.direction == Direction::causal && key(j) > query(i); }

  void set_pairs(Index i, Pairs& pairs) const {
    const auto n_k = static_cast<std::size_t>(pairs.bias.size()), sinks = static_cast<std::size_t>(m_tokens.sinks);
    const std::span bias(pairs.bias.data(), n_k);
    const std::span is_exact(pairs.is_exact.data(), n_k);
    m_pairs.fill(query(i), 0, bias.first(sinks), is_exact.first(sinks));
    m_pairs.fill(query(i), m_tokens.first_key, bias.subspan(sinks), is_exact.subspan(sinks));
    std::ranges::fill(is_exact.first(sinks), true);
    for (Index j = 0; j < pairs.bias.size(); ++j)
      if (is_later(i, j)) pairs.bias[j] = -infinity;
  }

  // x = exp(x - shift) (n)
  static void exponentiate(T* x, T shift, Index n) {
    using P = Pack<T>;
    for (Index j = 0; j < n; j += P::size) exp(P::load(x + j, n - j) - P::all(shift)).store(x + j, n - j);
  }

  Tile exact_tile(Index i0, Index rows) const {
    const Index n_k = m_tokens.k.rows();
    Tile tile{Matrix<T>(rows, n_k), Matrix<T>::Zero(rows, n_k), {}, Vector<T>(rows)};
    const Matrix<T> q = selected_rows(
        m_tokens.q, std::span(m_rows).subspan(static_cast<std::size_t>(i0), static_cast<std::size_t>(rows)));
    Matrix<T> W(rows, n_k);
    set_product(W, q, m_keys);  // (rows,n_k)
    Pairs pairs(n_k);
    for (Index i = 0; i < rows; ++i) {
      set_pairs(i0 + i, pairs);
      double largest_bias = pairs.bias.maxCoeff();  // relative to which the other biases keep their digits
      if (largest_bias == -infinity) largest_bias = 0;
      for (Index j = 0; j < n_k; ++j) tile.far_bias(i, j) = static_cast<T>(pairs.bias[j] - largest_bias);
      const std::span<T> weights = writable_row(W, i);
      add_scaled(weights, T(1), row_of(tile.far_bias, i));
      tile.largest[i] = *std::ranges::max_element(weights);
      if (tile.largest[i] > -infinity)
        exponentiate(weights.data(), tile.largest[i], n_k);
      else
        std::ranges::fill(weights, T(0));
      for (Index j = 0; j < n_k; ++j)
        if (pairs.is_exact[j]) tile.exact_weights(i, j) = W(i, j), tile.far_bias(i, j) = -infinity;
    }
    tile.y = quotients(W, row_sums(W));
    return tile;
  }

  // Sets the squared differences (rows,counts). All maps have the same factors of pairs. The products phi(q).phi(k) of
  // a map are those of the map before it plus those of its further features.
  void set_differences(const Tile& tile, Index i0, const Features& features, std::span<const Index> counts,
                       Eigen::Ref<Matrix<double>, 0, Eigen::OuterStride<>> differences) const {
    const Index rows = tile.y.rows(), n_k = m_tokens.k.rows();
    Matrix<T> exact = tile.exact_weights, factors = Matrix<T>::Zero(rows, n_k);  // in one unit for a row
    for (Index i = 0; i < rows; ++i) {
      if (tile.largest[i] == -infinity) continue;
      T largest = tile.largest[i];
      for (Index j = 0; j < n_k; ++j) {
        factors(i, j) = features.log_keys[j] + tile.far_bias(i, j) + features.log_queries[i0 + i];
        largest = std::max(largest, factors(i, j));
      }
      exponentiate(writable_row(factors, i).data(), largest, n_k);
      scale(writable_row(exact, i), std::exp(tile.largest[i] - largest));
    }
    Matrix<T> magnitudes(rows, differences.cols());        // sum_j |phi(q_i)| |phi(k_j)| exp(b_ij), or W_ij
    set_product(magnitudes, factors, features.key_norms);  // (rows,counts)
    for (Index i = 0; i < rows; ++i) {
      const T sum_of_exact = sum(row_of(exact, i));
      for (Index c = 0; c < magnitudes.cols(); ++c)
        magnitudes(i, c) = magnitudes(i, c) * features.query_norms(i0 + i, c) + sum_of_exact;
    }

    Matrix<T> products = Matrix<T>::Zero(rows, n_k);
    Index from = 0;
    for (Index c = 0; c < differences.cols(); ++c) {
      const Index to = counts[static_cast<std::size_t>(c)];
      add_product(products, features.queries.block(i0, from, rows, to - from),
                  features.keys.middleRows(from, to - from));
      from = to;
      const Matrix<T> W = products.cwiseProduct(factors) + exact;
      const Vector<T> sums = row_sums(W);
      const Matrix<T> y = quotients(W, sums);
      for (Index i = 0; i < rows; ++i)
        differences(i, c) = tile.largest[i] == -infinity || terms_cancel(sums[i], magnitudes(i, c))
                                ? 0
                                : squared_difference(y.row(i), tile.y.row(i));
    }
  }

  double squared_difference(const auto& y, const auto& exact) const {
    const double error = (y - exact).template cast<double>().norm(), size = exact.template cast<double>().norm();
    const bool is_limited = m_options.max_row_error < infinity && !(error <= m_options.max_row_error * size);
    const double counts = is_limited ? m_options.max_row_error * size : error;
    return std::isfinite(counts) ? counts * counts : infinity;
  }

  static Vector<T> row_sums(const Matrix<T>& W) {
    Vector<T> sums(W.rows());
    for (Index i = 0; i < W.rows(); ++i) sums[i] = sum(row_of(W, i));
    return sums;
  }

  // W v / (W 1), or without values W / (W 1), with W 1 = sums; a row of zeros stays so
  Matrix<T> quotients(const Matrix<T>& W, const Vector<T>& sums) const {
    Matrix<T> y = W;
    if (m_values.cols() > 0) {
      y.resize(W.rows(), m_values.cols());
      set_product(y, W, m_values);  // (rows,d_v)
    }
    for (Index i = 0; i < W.rows(); ++i)
      if (sums[i] != 0 || largest_magnitude(row_of(W, i)) != 0) y.row(i) /= sums[i];
    return y;
  }

  const SampleTokens<T>& m_tokens;
  const SamplePairs& m_pairs;
  ComparisonOptions m_options;
  std::vector<Index> m_rows;  // the queries that are compared
  Matrix<T> m_keys;           // k^T (d,n_k)
  T m_scale;                  // a power of two, the unit of the values
  Matrix<T> m_values;         // v / scale (n_k,d_v)
};

/// Whether there is an error to be measured (SoftmaxComparison::has_far_pair) in a sequence of the sample.
template <Real T>
bool has_far_pair(const HeadSample<T>& sample, const ComparisonOptions& options) {
  return std::ranges::any_of(sample.sequences, [&](const SampleTokens<T>& tokens) {
    return SoftmaxComparison(tokens, sample.pairs, options).has_far_pair();
  });
}

/// The sums of SoftmaxComparison::differences() over all sequences of a sample. Throws InvalidArgument if there is
/// nothing to compare: if no compared query attends to a key, or if all keys that it may attend to are sinks or near.
template <Real T>
std::vector<SoftmaxDifference> softmax_differences(const HeadSample<T>& sample, const CalibratedFeatures<T>& map,
                                                   std::span<const Index> counts, const ComparisonOptions& options) {
  const SampleTokens<T>& first = sample.sequences.at(0);
  const auto check = [&](bool found, const char* expected) {
    require(found, "sample: expected in each part a query that ", expected, ", got none among queries ",
            first.first_query, " to ", first.first_query + first.q.rows() - 1, " with keys ", first.position(0), " to ",
            first.position(first.k.rows() - 1));
  };
  check(has_far_pair(sample, options), "may attend to a key that is neither near nor a sink");
  std::vector<SoftmaxDifference> sum(counts.size());
  for (const SampleTokens<T>& tokens : sample.sequences) {
    const auto each = SoftmaxComparison(tokens, sample.pairs, options).differences(map, counts);
    for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += each[c];
  }
  for (const SoftmaxDifference& each : sum) check(each.rows > 0, "attends to a key");
  return sum;
}

/// The same for the whole map.
template <Real T>
SoftmaxDifference softmax_difference(const HeadSample<T>& sample, const CalibratedFeatures<T>& map,
                                     const ComparisonOptions& options) {
  const Index all = map.output_dim();
  return softmax_differences(sample, map, {&all, 1}, options)[0];
}

}  // namespace nprf
