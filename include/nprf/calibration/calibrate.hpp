// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/attention/heads_view.hpp"
#include "nprf/calibration/calibration.hpp"
#include "nprf/core/compiled_flags.hpp"
#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"
#include "nprf/position/position.hpp"
#include "nprf/position/position_view.hpp"

namespace nprf {

/// Options of calibrate(). `near`, `sinks`, `direction` and `normalization` are those of the attention that will use
/// the map.
struct CalibrationOptions {
  Index num_features = 0;  // the most features of the map. 0 needs a target_error: this limit then doubles until a map
                           // reaches the target; all maps within a limit are compared before it doubles
  // near pairs and pairs with one of the first `sinks` keys of a sequence (AttentionOptions) have exact softmax weights
  // on both sides of the comparison
  Index near = 0, sinks = 0;
  Direction direction = Direction::bidirectional;
  Normalization normalization = Normalization::unit(1);
  std::uint64_t seed = 0;    // of the choice of queries that are compared, if there are more than max_queries
  double target_error = 0;   // if positive, the map has the fewest features with which its estimated error is at most
                             // this; if no map reaches it, those of least error
  double shrinkage = 0.05;   // the part of the mean variance that is added to covariances (balance.hpp)
  Index max_queries = 1024;  // the most queries of a sequence that are compared with exact softmax in one comparison
  void (*poll)() = nullptr;  // the calling thread calls it between parts of the work; its exception ends the call
};

namespace detail {

/// nprf::calibrate_heads, compiled once for all positions.
template <Real T>
HeadsCalibration<T> calibrate_heads(const HeadsView<const T>& q, const HeadsView<const T>& k,
                                    const HeadsView<const T>& v, std::span<const PositionView<T>> positions,
                                    const CalibrationOptions& options, CompiledFlags<T>);

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
  std::vector<PositionView<T>> views;
  for (const P& position : positions) {
    check_position(position, options.direction);
    views.emplace_back(position);
  }
  return detail::calibrate_heads<T>(q, k, v, views, options, {});
}

/// A feature map for one head, from a sample of its queries q (n_q,d), keys k (n_k,d) and values v (n_k,d_v) of one
/// sequence in the order of the text, as the model gives them: they are normalised as the attention normalises them.
///
///     const auto calibration = calibrate<float>(q, k, v, position, {.num_features = 72, .near = 32});
///     Attention attention(calibration.features, position, {.near = 32});
///     calibration.softmax_error;   // the relative error of y that can be expected
///
/// The maps that are compared are Hermite features, in growing numbers: of first order, then of second order too. The
/// sample is divided into halves, and the first half into quarters:
///
///   - Errors are estimated on these two quarters: each is compared with exact softmax, by maps with constants from the
///     other quarter. The relative error of a row counts as at most 1.
///   - Unless a map reaches the target_error, the map of least error is chosen, or one with fewer features if its error
///     is larger by less than a hundredth.
///   - The constants of the chosen map are computed from the whole first half.
///   - softmax_error is the error of this map on the second half, which is used for nothing else.
///
/// In these comparisons tokens attend to tokens of the same half or quarter, at the positions that they have in the
/// sample. But if all pairs of a quarter are near, the queries of both quarters attend to the keys of the whole first
/// half. With causal attention, keys after the last query are left out. Sinks are keys of each half and quarter;
/// constants are computed from the other keys.
///
/// The sample should have the positions and the lengths of the sequences on which the map is used. In a model with
/// absolute positions the means change along a text, so that constants of a text's first half do not fit its second
/// half: for such a model call calibrate_heads() with several whole sequences.
///
/// O(n' n_k (d + d_v + r) + (n_q + n_k) d (d + r) + d^3) for each map that is compared, with n' = n_q, or max_queries
/// if that is less. Throws InvalidArgument if shapes do not match, if a scalar is not finite, if there are fewer than 8
/// queries or keys beside the sinks, if no query of a half or quarter attends to a key of the same part, if the queries
/// of a half attend only to near keys and sinks, if the position is for another number of tokens or another direction,
/// if with a near field it assigns slots but has no pitch(), or if an option is out of its range.
template <OnlyReal T, Position P>
  requires std::same_as<typename P::Scalar, T>
Calibration<T> calibrate(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k,
                         const std::type_identity_t<MatrixView<T>>& v, const P& position,
                         const CalibrationOptions& options) {
  return detail::first_head<T>(
      calibrate_heads<T>(one_head<T>(q), one_head<T>(k), one_head<T>(v), std::span(&position, 1), options));
}

/// The same without values. The error is that of the attention weights, which as a rule is larger than that of y.
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

#if !NPRF_SEPARATE
#include "nprf/calibration/calibrate_definition.hpp"
#endif
