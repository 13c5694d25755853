// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/weights/salient_keys.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/chunk_model.hpp"
#include "nprf/decoder/decoder_model.hpp"
#include "nprf/decoder/options.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/decoder/step_bias.hpp"
#include "nprf/decoder/step_features.hpp"
#include "nprf/decoder/token_ring.hpp"

namespace nprf {

/// What the steps of a head need to know of the attention: its feature map, biases and options.
template <Real T>
struct StepModel {
  /// The most sums over older tokens that stand for a table (StepBias); each costs as much as 32 tokens of the ring.
  static constexpr Index most_decays = 16;

  StepFeatures<T> features;
  StepBias<T> bias;
  const Matrix<T>* lag_vectors;   // of near keys (QueryBiased), or null; the attention owns them
  double largest_lag_vector = 0;  // the largest norm of one
  Index near;                     // the width of the near field
  Index sinks;                    // the number of attention sinks
  Index most_exact;               // the most attention sinks and salient keys
  Index rollback;                 // how many tokens can be taken back
  Index most_tokens;              // the most tokens that a sequence can have
  ChunkModel<T> chunks;           // none before set_chunks()
  // which keys are salient (SalientRule); no numbers if none are
  Vector<T> salient_mean, salient_covariance;  // (d) (d d)
  double salient_threshold = 0;

  /// `rule` may be null if there are no salient keys.
  StepModel(const FeatureMapView<T>& map, const PositionView<T>& position, const AttentionOptions& options,
            Index of_rollback, Index of_most_tokens = StepBias<T>::unlimited, const SalientRule* rule = nullptr)
      : features(map, options.normalization),
        bias(position.bias().view(), std::min(options.near, of_most_tokens), of_rollback + RunningSums<T>::block,
             map.is_positive() ? most_decays : 0, of_most_tokens),
        lag_vectors(position.lag_vectors()),
        near(std::min(options.near, of_most_tokens)),
        sinks(std::min(options.sinks, of_most_tokens)),
        most_exact(sinks + std::min(options.salient, of_most_tokens - sinks)),
        rollback(of_rollback),
        most_tokens(of_most_tokens) {
    if (lag_vectors) largest_lag_vector = static_cast<double>(lag_vectors->colwise().norm().maxCoeff());
    if (options.salient == 0) return;
    const auto rounded = [](const std::vector<double>& x) {
      return Eigen::Map<const Vector<double>>(x.data(), static_cast<Index>(x.size())).template cast<T>();
    };
    salient_mean = rounded(rule->mean);
    salient_covariance = rounded(rule->covariance);
    salient_threshold = rule->threshold;
  }

  bool has_salient_keys() const { return most_exact > sinks; }
  /// Whether a normalised key (d) is salient, unless there are enough before it. O(d^2).
  bool is_salient(const T* key, Workspace& scratch) const {
    const Workspace::Scope scope(scratch);
    const Index d = salient_mean.size();
    const auto size = static_cast<std::size_t>(d);
    return exceeds(
        salient_score<T>(salient_mean.data(), salient_covariance.data(), {key, size}, {scratch.take<T>(d), size}),
        salient_threshold);
  }

  /// Computes the tables that sequences of `tokens` tokens need. Throws std::bad_alloc, and then keeps the tables that
  /// there were.
  void reserve(Index tokens) { bias.reserve(tokens); }

  bool is_positive() const { return features.map().is_positive(); }
  /// The rank of the vectors of lags; 0 without.
  Index rank() const { return lag_vectors ? lag_vectors->rows() : 0; }
  /// Whether rows whose terms cancel are recomputed by exact softmax, as in MultiHeadAttention.
  bool is_exact_fallback() const { return has_exact_pairs() || features.map().is_series(); }
  bool has_exact_pairs() const { return near > 0 || most_exact > 0; }
  /// The ring has the last pending() tokens, and fewer than RunningSums::block older ones, unless tokens were taken
  /// back.
  Index pending() const { return reach() + rollback; }
  /// The age from which on tokens are only in sums, or have no weight.
  Index reach() const { return chunks.any() ? chunks.reach() : bias.reach(); }
  /// How many tokens the ring can hold.
  Index kept_tokens() const { return pending() + RunningSums<T>::block; }
  /// Whether tokens that have left the ring have weights.
  bool sums_older_tokens() const { return bias.has_tail() || chunks.any(); }
  /// Whether they are in running sums, one for each decay of the bias.
  bool has_tail() const { return bias.has_tail() && !chunks.any(); }

  /// Sums older tokens by chunks if that is cheaper, for values of d_v columns. Features must be positive: only then a
  /// relative change of all weights by at most x changes a row by about x, relative to the largest value.
  void set_chunks(Index d_v) {
    chunks = {};
    if (!is_positive()) return;
    chunks = ChunkModel<T>(bias, shape(d_v), most_tokens, near, rollback);
  }

  TokenShape shape(Index d_v) const {
    return {features.map().output_dim(), d_v, is_exact_fallback() ? features.map().input_dim() : 0};
  }

  /// The norms of the vectors of a row: of its query, of the query's r (QueryBiases), and the largest norm of the keys
  /// that the query attends to.
  struct Norms {
    double q, r, k;
  };
  /// Bounds of the error of a row of exact softmax, and of a row of condition 1, whose query attends to `keys` keys.
  /// `slots` is the number of weights that are summed.
  double error_of_softmax_row(const Norms& norms, Index keys) const {
    return error_of_softmax<T>(features.map().input_dim() + rank(), norms.q * norms.k + norms.r * largest_lag_vector,
                               largest_exponent<T>, keys, run_keys);
  }
  double error_of_row(const Norms& norms, Index keys, Index slots) const {
    const double exact_pairs =
        has_exact_pairs() ? error_of_softmax_row(norms, std::min(keys, near + std::min(most_exact, keys))) : 0;
    return error_of_weights<T>(largest_exponent<T>) + bias.deviation() + chunks.deviation() +
           features.relative_error(norms.q) + features.relative_error(norms.k) +
           error_of_sums<T>(features.map().output_dim() * std::max<Index>(chunks.terms(), 1),
                            slots + RunningSums<T>::block) +
           exact_pairs;
  }
};

/// The model of each head of the attention, or one model for all heads. Throws InvalidArgument if a position assigns
/// slots to tokens.
template <Real T>
std::vector<StepModel<T>> step_models(const DecoderModel<T>& model, Index rollback,
                                      Index most_tokens = StepBias<T>::unlimited) {
  const HeadModels<T> heads = model.heads();
  std::vector<StepModel<T>> all;
  for (Index h = 0; h < heads.count(); ++h) {
    const PositionView<T> position = heads.position(heads.position_of(h));
    require(!position.is_placed(),
            "position: expected one by the distance of tokens, got one that assigns slots to tokens (a grid), whose "
            "number is fixed");
    all.emplace_back(heads.feature_map(h), position, heads.options(), rollback, most_tokens, heads.salient_rule(h));
  }
  return all;
}

}  // namespace nprf
