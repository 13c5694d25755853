// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "nprf/attention/options.hpp"
#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/chunk_state.hpp"
#include "nprf/decoder/exact_tokens.hpp"
#include "nprf/decoder/model.hpp"
#include "nprf/decoder/row.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/decoder/step_weights.hpp"
#include "nprf/decoder/token_ring.hpp"

namespace nprf {

/// The queries of one token that share a head of keys and values, and where their results go.
template <Real T>
struct QueryGroup {
  const FeatureRows<T>& features;
  Index first, count;  // the queries are the rows first..first+count-1 of `features`
  T* y;
  Index y_step;  // the distance of two results in memory
};

/// The state of one head of one sequence: the ring of its last tokens, the sums over the older ones, and its attention
/// sinks and salient keys. See Decoder.
template <Real T>
class HeadState {
 public:
  HeadState() = default;
  HeadState(const StepModel<T>& model, Index d_v)
      : m_d_v(d_v),
        m_ring(model.shape(d_v), model.kept_tokens()),
        m_kept(model.most_exact, model.features.map().input_dim(), d_v),
        m_sums(model.has_tail() ? model.bias.tail().size() : 1,
               RunningSums<T>(model.has_tail() ? model.features.map().output_dim() : 0, d_v)),
        m_chunks(model.chunks, model.shape(d_v)) {}

  Index tokens() const { return m_tokens; }

  /// Allocates memory for a sequence of that many tokens. Throws std::bad_alloc, and then changes nothing.
  void reserve(const StepModel<T>& model, Index tokens) {
    m_ring.reserve(tokens);
    m_kept.reserve(tokens);
    m_chunks.reserve(model.chunks, tokens);
  }

  /// Whether the last `tokens` tokens can be taken back: the ring then has all tokens that the shorter sequence needs.
  /// If the state never had more than StepModel::pending() tokens since clear(), all of its tokens can be taken back.
  /// Otherwise at least as many tokens must be left as the most that it had, minus StepModel::rollback.
  bool can_roll_back(const StepModel<T>& model, Index tokens) const {
    const Index left = m_tokens - tokens;
    return left >= 0 && (m_most_tokens <= model.pending() || left >= m_most_tokens - model.rollback);
  }
  /// Takes back the last `tokens` tokens. O(1).
  void roll_back(Index tokens) {
    m_tokens -= tokens;
    m_kept.roll_back(m_tokens);
    m_chunks.roll_back(m_tokens);
  }

  void clear() {
    m_tokens = m_most_tokens = m_left_ring = 0;
    m_largest_norm = 0;
    m_all_finite = true;
    m_ring.clear();
    m_kept.roll_back(0);
    for (RunningSums<T>& sums : m_sums) sums.clear();
    m_chunks.clear();
  }

  /// Appends a token with a value (d_v). Tokens leave the ring in blocks, once all tokens of a block are
  /// StepModel::pending() or more tokens old.
  void append(const StepModel<T>& model, const FeatureRow<T>& key, const T* value, Workspace& scratch) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const Index r = model.features.map().output_dim();
    const RowMax<T> values = row_max(value, m_d_v);
    StateToken<T> token{key.phi, 1, value, key.log_factor, T(0), values.largest, false, values.is_finite};
    token.has_finite_key = all_finite(key.phi, padded_to_lanes(r)) && key.log_factor < infinity;
    if (!token.has_finite_key) {
      std::fill_n(key.phi, r, T(0));
      token.log_scale = -infinity;
    } else {
      m_largest_norm = std::max(m_largest_norm, model.features.norm(key.normalized));
    }
    // the weights of sinks and salient keys are not products of features
    if (m_tokens < model.sinks || (m_kept.count() < model.most_exact && model.is_salient(key.normalized, scratch))) {
      m_kept.put(m_tokens, token, key.normalized);
      std::fill_n(key.phi, r, T(0));
      token.log_scale = -infinity;
    }
    if (!model.is_positive()) token.norm = norm(std::span<const T>(key.phi, static_cast<std::size_t>(r)));
    m_all_finite = m_all_finite && token.has_finite_key && token.has_finite_value;
    m_ring.put(m_tokens++, token, key.normalized);
    m_most_tokens = std::max(m_most_tokens, m_tokens);
    for (; m_tokens - m_left_ring >= model.pending() + block; m_left_ring += block) {
      if (!model.sums_older_tokens()) continue;
      StateToken<T> tokens[block];
      for (Index j = 0; j < block; ++j) tokens[j] = m_ring.token(m_left_ring + j);
      for (std::size_t p = 0; p < m_sums.size(); ++p)
        m_sums[p].add(tokens, model.has_tail() ? model.bias.tail()[p].slope : 0, scratch);
    }
    m_chunks.append(model.chunks, m_ring, m_tokens, scratch);
  }

  /// Computes the sums of chunks that the queries of the last token need, and the part of the next ones that is due.
  /// Must be called before attend().
  void advance(const StepModel<T>& model, Workspace& scratch) {
    m_chunks.advance(model.chunks, m_ring, m_tokens, scratch);
  }

  /// Sets the rows of y (d_v) of the queries of the last token, and counts them in the report.
  void attend(const StepModel<T>& model, const QueryGroup<T>& group, Report& report, Workspace& scratch) const {
    const Workspace::Scope scope(scratch);
    if (!model.bias.attends(m_tokens)) {
      for (Index g = 0; g < group.count; ++g) std::fill_n(group.y + g * group.y_step, m_d_v, T(0));
      report.empty_rows += group.count;
      return;
    }
    if (attends_to_non_finite_key(model)) {
      for (Index g = 0; g < group.count; ++g)
        std::fill_n(group.y + g * group.y_step, m_d_v, std::numeric_limits<T>::quiet_NaN());
      return;
    }
    const StepWeights<T> weights(model, m_ring, m_sums, m_chunks, m_tokens, m_left_ring, scratch);
    StepRow<T> row(model, m_ring, m_sums, m_chunks, m_kept, weights,
                   {m_tokens, m_left_ring, m_largest_norm, m_all_finite}, scratch);
    for (Index g = 0; g < group.count; ++g)
      row.compute(group.features(group.first + g), group.y + g * group.y_step, report);
  }

  std::size_t bytes() const {
    std::size_t of_sums = m_sums.size() * sizeof(RunningSums<T>);
    for (const RunningSums<T>& sums : m_sums) of_sums += sums.bytes();
    return sizeof(*this) + m_ring.bytes() + of_sums + m_kept.bytes() + m_chunks.bytes();
  }

  /// Calls archive(x) for each part of the state, to write or to read it. Reserves the memory of the ring between
  /// parts.
  template <class Archive>
  void transfer(const StepModel<T>& model, Archive&& archive) {
    archive(m_tokens), archive(m_most_tokens), archive(m_left_ring), archive(m_largest_norm), archive(m_all_finite);
    require(m_most_tokens >= m_tokens, "state: expected at least ", m_tokens, " tokens at most, got ", m_most_tokens);
    require(m_tokens <= model.most_tokens, "state: expected at most ", model.most_tokens, " tokens, got ", m_tokens);
    require(0 <= m_left_ring && m_left_ring % block == 0 && m_left_ring <= m_tokens &&
                m_tokens - m_left_ring < model.pending() + block &&
                (m_left_ring == 0 ||
                 (m_tokens - m_left_ring >= model.reach() && m_most_tokens - m_left_ring >= model.pending())),
            "state: expected ", model.reach(), " to ", model.pending() + block - 1,
            " tokens in the ring, from a multiple of ", block, " on, got ", m_left_ring, " to ", m_tokens);
    const Index sinks = std::min(model.sinks, m_tokens), most_kept = std::min(model.most_exact, m_tokens);
    Index kept = model.has_salient_keys() ? m_kept.count() : sinks;
    if (model.has_salient_keys()) archive(kept);
    require(sinks <= kept && kept <= most_kept, "state: expected ", sinks, " to ", most_kept,
            " sinks and salient keys, got ", kept);
    // a wrong number must not allocate memory, nor overflow here
    archive.expect(m_tokens - m_left_ring + kept);
    archive.expect((m_tokens - m_left_ring) * (model.shape(m_d_v).r + m_d_v) + kept * m_d_v);
    archive.expect(ChunkState<T>::saved_scalars(model.chunks, model.shape(m_d_v), m_tokens));
    reserve(model, m_tokens);
    for (RunningSums<T>& sums : m_sums) sums.transfer(archive);
    m_kept.transfer(kept, sinks, m_tokens, archive);
    m_ring.transfer_references(archive);
    for (Index j = m_left_ring; j < m_tokens; ++j) m_ring.transfer(j, archive);
    m_chunks.transfer(model.chunks, m_tokens, archive);
  }

 private:
  static constexpr Index block = RunningSums<T>::block;

  bool attends_to_non_finite_key(const StepModel<T>& model) const {
    if (m_all_finite) return false;
    if (model.sums_older_tokens() && m_sums.front().non_finite_keys() > 0) return true;
    for (Index j = m_left_ring; j < m_tokens; ++j)
      if (!m_ring.has_finite_key(m_ring.slot(j)) && model.bias(m_tokens - 1 - j) > StepBias<T>::minus_infinity)
        return true;
    return false;
  }

  Index m_d_v = 0;
  Index m_tokens = 0;
  Index m_most_tokens = 0;    // the most tokens since clear()
  Index m_left_ring = 0;      // the tokens before this one are in m_sums, or have no weight any more
  double m_largest_norm = 0;  // the largest norm of a finite key
  bool m_all_finite = true;   // whether all keys and values are finite
  TokenRing<T> m_ring;
  ExactTokens<T> m_kept;
  std::vector<RunningSums<T>> m_sums;  // one for each decay of the tail; one of no features if there is none
  ChunkState<T> m_chunks;
};

}  // namespace nprf
