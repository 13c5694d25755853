// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/attention/heads_view.hpp"
#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/calibration/calibration.hpp"
#include "nprf/calibration/head_sample.hpp"
#include "nprf/calibration/hermite_features.hpp"
#include "nprf/calibration/softmax_error.hpp"
#include "nprf/core/compiled_flags.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/near_lags.hpp"
#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"
#include "nprf/position/position.hpp"
#include "nprf/position/position_view.hpp"

namespace nprf {

/// Options of calibrate(). `near`, `sinks`, `direction` and `normalization` are those of the attention that will use
/// the map.
struct CalibrationOptions {
  Index num_features = 0;  // the most features of the map; 0, with target_error: as many as that needs, by
                           // limits that double, each of which compares all its candidates
  // near pairs and pairs with one of the first `sinks` keys of a sequence (AttentionOptions) have exact softmax weights
  // on both sides of the comparison
  Index near = 0, sinks = 0;
  Direction direction = Direction::bidirectional;
  Normalization normalization = Normalization::unit(1);
  std::uint64_t seed = 0;    // of the choice of queries that are compared, if there are more than max_queries
  double target_error = 0;   // if positive: the fewest features with which the estimated error is at most this, or
                             // those of least error if none reach it
  double shrinkage = 0.05;   // the part of the mean variance that is added to covariances (balance.hpp)
  Index max_queries = 1024;  // the most queries of a sequence that are compared with exact softmax at a time
  void (*poll)() = nullptr;  // is called now and then by the calling thread; an exception from it ends the call
};

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

// first-order features of 0, 1, 2, 4, 8, ... and all coordinates, then second-order features of 1, 2, 3, ... too
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

// What half `tested` of the first half is compared with: its keys, or, if pairs of a half of one sequence are all near,
// those of both
template <Real T>
HeadSample<T> fold(const HeadSample<T>& used, Index tested, const ComparisonOptions& comparison) {
  HeadSample<T> half = used.half(tested);
  const bool is_large_enough =
      used.sequences.size() > 1 || (has_far_pair(half, comparison) && has_far_pair(used.half(1 - tested), comparison));
  if (!is_large_enough) half.sequences[0] = half.sequences[0].with_keys_of(used.sequences[0]);
  return half;
}

// Sets the candidates' errors: each half of the first half is compared with maps of its other half
template <Real T>
void estimate_errors(std::span<const HeadSample<double>> heads, const CalibrationOptions& options,
                     const ComparisonOptions& comparison, std::span<CalibrationCandidate> candidates) {
  std::vector<Index> counts;  // each candidate has the features of those before it
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
  limited.max_row_error = 1;  // as if y were 0: a few denominators that are nearly 0 must not decide
  const Index d = heads[0].input_dim(), complete = CalibrationCandidate{d, d, 0}.num_features();
  // a limit, or larger and larger ones until the target is reached
  for (Index most = options.num_features > 0 ? options.num_features : d + 1;; most *= 2) {
    std::vector<CalibrationCandidate> candidates = calibration_candidates(d, most);
    std::ranges::copy(result.candidates, candidates.begin());  // of a smaller limit
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
template <Position P>
SamplePairs sample_pairs(const P& position, Index near) {
  const PositionView<typename P::Scalar> view(position);
  const Index extra = view.extra().rows();
  require(near == 0 || !view.is_placed() || view.pitch() > 0,
          "near: expected 0 for a position with slots but without pitch(), got ", near);
  return {[&position, view, extra, lags = NearLags{near, view.pitch(), 0}](Index i, Index j, std::span<double> biases,
                                                                           std::span<bool> is_near) {
    for (std::size_t l = 0; l < biases.size(); ++l, ++j) {
      biases[l] = bias_between(position, i, j, 0);
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

template <Position P>
void check_sample_position(const P& position, Direction direction, Index n_q, Index n_k) {
  check_position(position, direction);
  if constexpr (PlacedPosition<P>)
    require(n_q == position.tokens() && n_k == n_q, "queries and keys: expected ", position.tokens(),
            " rows each (the position's tokens), got ", n_q, " and ", n_k);
}

template <Real T>
Calibration<T> first_head(HeadsCalibration<T> all) {
  return {std::move(all.features[0]), all.softmax_error, std::move(all.candidates)};
}

}  // namespace detail

/// Feature maps for all heads of an attention, from samples q [b,h,n_q,d] k [b,h_k,n_k,d] v [b,h_k,n_k,d_v] of one or
/// several sequences, as calibrate() does for one head and sequence; v may have 0 channels. h is a multiple of h_k.
/// Each map has constants of its own, and the errors of all heads together choose their number of features. positions:
/// one for all heads, or one for each. O(b h) times calibrate(). Throws InvalidArgument in the same cases.
template <OnlyReal T, Position P>
  requires std::same_as<typename P::Scalar, T>
HeadsCalibration<T> calibrate_heads(std::type_identity_t<HeadsView<const T>> q,
                                    std::type_identity_t<HeadsView<const T>> k,
                                    std::type_identity_t<HeadsView<const T>> v, std::span<const P> positions,
                                    const CalibrationOptions& options) {
  CompiledFlags<T>::same_flags();
  detail::check_calibration(options);
  detail::check_samples(q, k, v);
  const auto num_positions = static_cast<Index>(positions.size());
  require(num_positions == 1 || num_positions == q.heads, "positions: expected 1 or ", q.heads,
          " (the number of heads of queries), got ", num_positions);
  // with keys that no query attends to, no query of the second half would attend to a key of that half
  const Index n_k = options.direction == Direction::causal ? std::min(q.tokens, k.tokens) : k.tokens;
  require(n_k < 8 || options.sinks <= n_k - 8, "sinks: expected at most ", n_k - 8, " of ", n_k,
          " keys that queries attend to, so that 8 are left, got ", options.sinks);
  std::vector<HeadSample<double>> heads;
  for (Index h = 0; h < q.heads; ++h) {
    const P& position = positions[num_positions == 1 ? 0 : static_cast<std::size_t>(h)];
    detail::check_sample_position(position, options.direction, q.tokens, k.tokens);
    HeadSample<double> head{{}, detail::sample_pairs(position, options.near)};
    const Index kv = h / (q.heads / k.heads);
    for (Index b = 0; b < q.batch; ++b)
      head.sequences.push_back(
          sample_tokens<T>(q(b, h), k(b, kv), v(b, kv), options.normalization, options.sinks).with_first_keys(n_k));
    heads.push_back(std::move(head));
  }
  return detail::calibrate_samples<T>(heads, options);
}

/// A feature map for one head, from a sample of its queries q (n_q,d), keys k (n_k,d) and values v (n_k,d_v) of one
/// sequence in the order of the text, as the model gives them: they are normalised as the attention normalises them.
///
///     const auto calibration = calibrate<float>(q, k, v, position, {.num_features = 72, .near = 32});
///     Attention attention(calibration.features, position, {.near = 32});
///     calibration.softmax_error;   // the relative error of y that can be expected
///
/// The maps that are compared are Hermite features (hermite_features.hpp) with more and more features: of first order,
/// then of second order too. Errors against exact softmax are estimated by cross-validation within the first half of
/// the sample: each of its halves is compared, with constants from the other, and the relative error of a row is capped
/// at 1. The map of least error is chosen, with fewer features if more lower the error by less than a hundredth. Its
/// constants are then those of the first half. The second half is only used to report softmax_error. Tokens of a half
/// attend to those of the same half, at the positions that they have in the sample; so do those of a quarter, unless
/// all their pairs are near: then they attend to the tokens of the first half. Causal attention leaves out the keys
/// after the last query. Sinks are keys of each half, and the constants are those of the other keys.
///
/// The sample should have the positions and the lengths of the sequences on which the map is used. In a model with
/// absolute positions the means change along a text, so that constants of a text's first half have a several times
/// larger error on the second: for such a model call calibrate_heads() with several whole sequences.
///
/// O(n' n_k (d + d_v + r) + (n_q + n_k) d (d + r) + d^3) for each map that is compared, with n' = n_q, or max_queries
/// if that is less. Throws InvalidArgument if shapes do not match, if a scalar is not finite, if there are fewer than 8
/// queries or keys beside the sinks, if no query of a half or quarter attends to a key of it, if those of a half attend
/// only to near ones and sinks, if the position is for other numbers of tokens or another direction or has slots of its
/// own and no pitch() for a near field, or if an option is out of its range.
template <OnlyReal T, Position P>
  requires std::same_as<typename P::Scalar, T>
Calibration<T> calibrate(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k,
                         const std::type_identity_t<MatrixView<T>>& v, const P& position,
                         const CalibrationOptions& options) {
  return detail::first_head(
      calibrate_heads<T>(one_head<T>(q), one_head<T>(k), one_head<T>(v), std::span(&position, 1), options));
}

/// The same without values: the error is that of the attention weights, which is the larger one as a rule.
template <OnlyReal T, Position P>
  requires std::same_as<typename P::Scalar, T>
Calibration<T> calibrate(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k,
                         const P& position, const CalibrationOptions& options) {
  return calibrate<T>(q, k, Matrix<T>(k.rows(), 0), position, options);
}
template <OnlyReal T>
Calibration<T> calibrate(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k,
                         const CalibrationOptions& options) {
  return calibrate<T>(q, k, NoPosition<T>(), options);
}

}  // namespace nprf
