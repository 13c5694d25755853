// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "nprf/calibration/calibrate.hpp"
#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/calibration/head_sample.hpp"
#include "nprf/calibration/softmax_error.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/balance.hpp"

namespace nprf {

/// The features of exp(q.k) with the least mean squared error for Gaussian queries and keys. Let a and b be balanced
/// coordinates of a query and a key, of variance lambda. Mehler's formula is
///
///     exp(a b) = sqrt(1 - rho^2) exp(lambda rho (x^2 + y^2) / 2) sum_n rho^n / n! He_n(x) He_n(y)
///
///     x = a / sqrt(lambda)    y = b / sqrt(lambda)    rho = 2 lambda / (1 + sqrt(1 + 4 lambda^2))
///
/// (lambda is rho / (1 - rho^2)) with Hermite polynomials He_n: 1, x, x^2 - 1. In z = sqrt(rho / lambda) a the features
/// are 1, z, (z^2 - rho) / sqrt(2) and z z' of two coordinates, and the row's factor has the curvature lambda
/// (QuadraticTerms). `first` and `second` are as in CalibrationCandidate.
///
/// As lambda tends to 0 the features tend to those of the Taylor series. Source: F. G. Mehler, J. reine angew. Math. 66
/// (1866). O(d^2). Throws InvalidArgument unless 0 <= second <= first <= d.
template <Real T>
CalibratedFeatures<T> hermite_features(const Balance<T>& balance, Index first, Index second) {
  const Index d = balance.variances.size();
  QuadraticTerms<T> terms{first, second, Vector<T>(std::clamp<Index>(second, 0, d)), Vector<T>(d)};
  Centring<T> constants = balance.constants;
  double log_scale = 0;
  for (Index l = 0; l < d; ++l) {
    const double lambda = std::max(balance.variances[l], 0.0), root = 1 + std::sqrt(1 + 4 * lambda * lambda),
                 rho = 2 * lambda / root;
    if (l < terms.mean_square.size()) terms.mean_square[l] = static_cast<T>(rho);
    terms.curvature[l] = static_cast<T>(lambda);
    // queries and keys each have the root of the constant sqrt(1 - rho^2) as a factor
    log_scale += std::log(1 - rho * rho) / 4;
    for (Matrix<T>* axes : {&constants.query_axes, &constants.key_axes})
      scale(writable_row(*axes, l), static_cast<T>(std::sqrt(2 / root)));  // sqrt(rho / lambda)
  }
  terms.log_scale = static_cast<T>(log_scale);
  return {QuadraticFeatures<T>(d, std::move(terms)), std::move(constants)};
}

namespace detail {

inline void check_calibration(const CalibrationOptions& options) {
  check_direction(options.direction);
  const bool has_target = options.target_error > 0;
  require(options.num_features >= (has_target ? 0 : 1), "num_features: expected at least ",
          has_target ? "0" : "1, or a target_error", ", got ", options.num_features);
  require(options.near >= 0, "near: expected at least 0, got ", options.near);
  require(options.sinks >= 0, "sinks: expected at least 0, got ", options.sinks);
  require(options.max_queries >= 1, "max_queries: expected at least 1, got ", options.max_queries);
  require(options.target_error >= 0, "target_error: expected at least 0, got ", options.target_error);
}

// maps with first-order features of 0, 1, 2, 4, 8, ... and all coordinates, then also with second-order features of 1,
// 2, 3, ... coordinates
inline std::vector<CalibrationCandidate> calibration_candidates(Index d, Index num_features) {
  std::vector<CalibrationCandidate> all;
  const auto add = [&](Index first, Index second) {
    const CalibrationCandidate one{first, second, 0};
    if (one.num_features() <= num_features) all.push_back(one);
  };
  const Index most = std::min(d, num_features - 1);
  for (Index first = 0; first < most; first = std::max<Index>(1, 2 * first)) add(first, 0);
  add(most, 0);
  for (Index second = 1; most == d && second <= d; ++second) add(d, second);
  return all;
}

// Half `tested` (0 or 1) of `used`, with the keys that its queries attend to in the comparison: its own keys, or, if
// `used` is one sequence and all pairs of either half are near, the keys of both halves
template <Real T>
HeadSample<T> fold(const HeadSample<T>& used, Index tested, const ComparisonOptions& comparison) {
  HeadSample<T> half = used.half(tested);
  const bool is_large_enough =
      used.sequences.size() > 1 || (has_far_pair(half, comparison) && has_far_pair(used.half(1 - tested), comparison));
  if (!is_large_enough) half.sequences[0] = half.sequences[0].with_keys_of(used.sequences[0]);
  return half;
}

// Sets the candidates' errors: each half of the first half of a sample is compared, by maps with constants from the
// other half
template <Real T>
void estimate_errors(std::span<const HeadSample<double>> heads, const CalibrationOptions& options,
                     const ComparisonOptions& comparison, std::span<CalibrationCandidate> candidates) {
  std::vector<Index> counts;  // each candidate also has the features of the candidates before it
  for (const CalibrationCandidate& each : candidates) counts.push_back(each.num_features());
  const auto& [first, second, error] = candidates.back();
  std::vector<SoftmaxDifference> sum(candidates.size());
  for (const HeadSample<double>& head : heads) {
    const HeadSample<double> used = head.half(0);
    for (const Index tested : {0, 1}) {
      const HeadSample<double> compared = fold(used, tested, comparison);
      if (tested == 0 && !has_far_pair(compared, comparison)) continue;  // early causal queries have near keys alone
      const Balance<double> balance = used.half(1 - tested).balance(options.shrinkage);
      const CalibratedFeatures<T> map = hermite_features(balance, first, second).template cast<T>();
      const auto each = softmax_differences(compared.template cast<T>(), map, counts, comparison);
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += each[c];
    }
  }
  for (std::size_t c = 0; c < sum.size(); ++c) candidates[c].error = sum[c].relative_error();
}

// The first candidate within the target, if there is one; otherwise that of least error, where more features must
// lower the error by a hundredth
inline const CalibrationCandidate& chosen(const std::vector<CalibrationCandidate>& candidates, double target_error) {
  const CalibrationCandidate* best = &candidates[0];
  for (const CalibrationCandidate& each : candidates) {
    if (each.error <= target_error) return each;
    if (each.error < 0.99 * best->error) best = &each;
  }
  return *best;
}

template <Real T>
HeadsCalibration<T> calibrate_samples(std::span<const HeadSample<double>> heads, const CalibrationOptions& options) {
  const ComparisonOptions comparison{
      .direction = options.direction, .max_queries = options.max_queries, .seed = options.seed, .poll = options.poll};
  HeadsCalibration<T> result;
  ComparisonOptions limited = comparison;
  limited.max_row_error = 1;  // that of y = 0: a few rows with a denominator near 0 must not decide
  const Index d = heads[0].input_dim(), complete = CalibrationCandidate{d, d, 0}.num_features();
  // `most` is a limit of the features: the given one, or larger and larger ones until the target is reached
  for (Index most = options.num_features > 0 ? options.num_features : d + 1;; most *= 2) {
    std::vector<CalibrationCandidate> candidates = calibration_candidates(d, most);
    std::ranges::copy(result.candidates, candidates.begin());  // whose errors are known from a smaller limit
    estimate_errors<T>(heads, options, limited, std::span(candidates).subspan(result.candidates.size()));
    result.candidates = std::move(candidates);
    const bool found = std::ranges::any_of(
        result.candidates, [&](const CalibrationCandidate& each) { return each.error <= options.target_error; });
    if (options.num_features > 0 || found || most >= complete) break;
  }
  const CalibrationCandidate& choice = chosen(result.candidates, options.target_error);
  SoftmaxDifference sum;
  for (const HeadSample<double>& head : heads) {
    const Balance<double> balance = head.half(0).balance(options.shrinkage);
    result.features.push_back(hermite_features(balance, choice.first, choice.second).template cast<T>());
    const SoftmaxDifference error =
        softmax_difference(head.half(1).template cast<T>(), result.features.back(), comparison);
    result.head_errors.push_back(error.relative_error());
    sum += error;
  }
  result.softmax_error = sum.relative_error();
  return result;
}

// the position must outlive the function that is returned
template <Real T>
SamplePairs sample_pairs(const PositionView<T>& view, Index near) {
  const Index extra = view.extra().rows();
  require(near == 0 || !view.is_placed() || view.pitch() > 0,
          "near: expected 0 for a position with slots but without pitch(), got ", near);
  return {[view, extra, lags = NearLags{near, view.pitch(), 0}](Index i, Index j, std::span<double> biases,
                                                                std::span<bool> is_near) {
    for (std::size_t l = 0; l < biases.size(); ++l, ++j) {
      biases[l] = view.bias_between(i, j, 0);
      // pairs with an extra token are never near
      is_near[l] = i >= extra && j >= extra && lags.contains(view.slot(j - extra) - view.slot(i - extra));
    }
  }};
}

inline void check_samples(const auto& q, const auto& k, const auto& v) {
  require(q.batch >= 1 && q.heads >= 1, "queries: expected at least one sequence and head, got ", q.batch, " and ",
          q.heads);
  require(k.batch == q.batch && v.batch == q.batch, "keys and values: expected ", q.batch,
          " sequences (those of the queries), got ", k.batch, " and ", v.batch);
  require(k.heads >= 1 && q.heads % k.heads == 0, "keys: expected a number of heads that divides ", q.heads,
          " (the heads of queries), got ", k.heads);
  require(v.heads == k.heads, "values: expected ", k.heads, " heads (those of the keys), got ", v.heads);
}

template <Real T>
HeadsCalibration<T> calibrate_heads(const HeadsView<const T>& q, const HeadsView<const T>& k,
                                    const HeadsView<const T>& v, std::span<const PositionView<T>> positions,
                                    const CalibrationOptions& options, CompiledFlags<T>) {
  check_calibration(options);
  check_samples(q, k, v);
  const auto num_positions = static_cast<Index>(positions.size());
  require(num_positions == 1 || num_positions == q.heads, "positions: expected 1 or ", q.heads,
          " (the number of heads of queries), got ", num_positions);
  // keys after the last query are left out: with them, it could be that no query of the second half attends to a key
  // of that half
  const Index n_k = options.direction == Direction::causal ? std::min(q.tokens, k.tokens) : k.tokens;
  require(n_k < 8 || options.sinks <= n_k - 8, "sinks: expected at most ", n_k - 8, " of ", n_k,
          " keys that queries attend to, so that 8 are left, got ", options.sinks);
  std::vector<HeadSample<double>> heads;
  for (Index h = 0; h < q.heads; ++h) {
    const PositionView<T>& position = positions[num_positions == 1 ? 0 : static_cast<std::size_t>(h)];
    require(position.rank() == 0, "position: expected one without lag_vectors, got one with them");
    if (position.is_placed())
      require(q.tokens == position.tokens() && k.tokens == q.tokens, "queries and keys: expected ", position.tokens(),
              " rows each (the position's tokens), got ", q.tokens, " and ", k.tokens);
    HeadSample<double> head{{}, sample_pairs(position, options.near)};
    const Index kv = h / (q.heads / k.heads);
    for (Index b = 0; b < q.batch; ++b)
      head.sequences.push_back(
          sample_tokens<T>(q(b, h), k(b, kv), v(b, kv), options.normalization, options.sinks).with_first_keys(n_k));
    heads.push_back(std::move(head));
  }
  return calibrate_samples<T>(heads, options);
}

}  // namespace detail

}  // namespace nprf
