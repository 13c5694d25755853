// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/options.hpp"
#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/chunk_state.hpp"
#include "nprf/decoder/exact_keys.hpp"
#include "nprf/decoder/exact_tokens.hpp"
#include "nprf/decoder/model.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/decoder/step_weights.hpp"
#include "nprf/decoder/token_ring.hpp"

namespace nprf {

/// Computes the rows y = N / D of a step, for the queries that share keys and values: N and D are sums over the far
/// keys in the ring, the running sums, the sums of chunks, the near field, the sinks and the salient keys. Bounds the
/// errors of the rows.
template <Real T>
class StepRow {
 public:
  /// The tokens of the state.
  struct Tokens {
    Index count, first;   // the number of all tokens; those from token `first` on are in the ring
    double largest_norm;  // of the keys
    bool all_finite;      // whether all keys and values are finite
  };

  StepRow(const StepModel<T>& model, const TokenRing<T>& ring, std::span<const RunningSums<T>> sums,
          const ChunkState<T>& chunks, const ExactTokens<T>& kept, const StepWeights<T>& weights, const Tokens& tokens,
          Workspace& scratch)
      : m_model(model),
        m_ring(ring),
        m_sums(sums),
        m_chunks(chunks),
        m_weights(weights),
        m_scratch(scratch),
        m_tokens(tokens),
        m_d_v(sums.front().non_finite_values().size()),
        m_far_kept(kept.count(tokens.count - model.near)),
        m_N(scratch.take<T>(padded_to_lanes(m_d_v))),
        m_exact(model.bias, model.lag_vectors, ring, kept, tokens.count, ring_keys(), m_far_kept, scratch) {}

  /// Sets y (d_v) for a query, and counts it in the report.
  void compute(const FeatureRow<T>& query, T* y, Report& report) {
    m_query = query;
    const bool finite_query = all_finite(m_query.phi, padded_to_lanes(m_model.features.map().output_dim())) &&
                              m_query.log_factor < std::numeric_limits<double>::infinity() && is_finite(query_vector());
    if (!finite_query) {
      std::fill_n(y, m_d_v, nan);
      return;
    }
    sum_far();
    if (m_model.has_exact_pairs()) sum_exact();
    divide(
        {m_model.features.norm(m_query.normalized), static_cast<double>(norm(query_vector())), m_tokens.largest_norm},
        y, report);
    if (!m_tokens.all_finite) propagate_non_finite_values(y);
  }

 private:
  using P = Pack<T>;

  // the sums of a row besides N
  struct Row {
    T D = 0, terms = 0;   // D, and the sum of the magnitudes of its terms; both and N in units of exp(reference)
    T largest_value = 0;  // the largest |v| of the keys that the query attends to
    double reference = 0;
  };

  static constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  Index near_first() const { return std::max(m_tokens.first, m_tokens.count - m_model.near); }
  // the most keys of the ring that have the weights of softmax
  Index ring_keys() const { return m_model.is_exact_fallback() ? m_tokens.count - m_tokens.first : 0; }
  double bias(Index j) const { return m_model.bias(m_tokens.count - 1 - j); }

  void sum_far() {
    std::fill_n(m_N, padded_to_lanes(m_d_v), T(0));
    m_row.D = m_row.terms = 0;
    m_row.reference = m_weights.reference();
    m_row.largest_value = m_weights.largest_value();
    T norms = 0;
    if (m_weights.any_pending()) norms = add_pending();
    for (std::size_t p = 0; p < m_sums.size(); ++p)
      if (const T weight = m_weights.of_sums(p); weight > 0) {
        m_row.D += m_sums[p].add_product(m_query.phi, weight, m_N);
        norms += weight * m_sums[p].norms();
      }
    if (const T weight = m_weights.of_chunks(); weight > 0)
      m_row.D += m_chunks.add_product(m_model.chunks, m_tokens.count - 1, m_query.phi, weight, m_N, m_scratch);
    m_row.terms = m_model.is_positive() ? m_row.D : norms * norm_of_features();
  }

  // adds the far keys of the ring; returns the sum of their weights times |phi|, if features can be negative
  T add_pending() {
    const Workspace::Scope scope(m_scratch);
    T* scores = m_scratch.take<T>(m_weights.slots());
    const bool has_norms = !m_model.is_positive();
    T D = 0;
    P sum_of_norms = P::all(0);
    m_weights.for_each_range([&](Index at, Index slot, Index count) {
      m_ring.scores(m_query.phi, count, scores + at, slot);
      const T *norms = m_ring.norms() + slot, *all = m_weights.weights() + at;
      for (Index s = 0; s < count; s += P::size) {
        const P c = P::load(all + s);
        weighted(P::load(scores + at + s), c).store(scores + at + s);
        if (has_norms) sum_of_norms = multiply_add(weighted(P::load(norms + s), c), P::all(1), sum_of_norms);
      }
      D += sum_in_runs(scores + at, count);
      if (!m_tokens.all_finite) m_ring.add_finite_entries(scores + at, count, m_N, slot);
      m_ring.add_values(scores + at, count, m_N, slot);
    });
    m_row.D = D;
    return sum_of_norms.sum();
  }

  // r of QueryBiases
  std::span<const T> query_vector() const {
    if (!m_model.lag_vectors) return {};
    return {m_query.vector, static_cast<std::size_t>(m_model.lag_vectors->rows())};
  }

  T norm_of_features() const {
    return norm(std::span<const T>(m_query.phi, static_cast<std::size_t>(m_model.features.map().output_dim())));
  }

  // adds the exact pairs, whose weights are exp(q.k + b - log_factor)
  void sum_exact() {
    const double largest = m_exact.set_exponents(m_query, m_far_kept, near_first(), m_query.log_factor);
    if (largest > m_row.reference) {
      const T factor = static_cast<T>(std::exp(m_row.reference - largest));
      m_row.D *= factor, m_row.terms *= factor;
      for (Index p = 0; p < padded_to_lanes(m_d_v); ++p) m_N[p] *= factor;
      m_row.reference = largest;
    }
    m_row.terms += add_exact();
  }

  // adds the exact pairs to N and D; returns the sum of their weights
  T add_exact() {
    const auto sums = m_exact.add(m_row.reference, m_tokens.all_finite, m_N);
    m_row.largest_value = std::max(m_row.largest_value, sums.largest_value);
    m_row.D += sums.weights;
    return sums.weights;
  }

  void divide(const typename StepModel<T>::Norms& norms, T* y, Report& report) {
    const bool keeps_precision =
        row_keeps_precision(m_row.D, m_row.largest_value, static_cast<T>(m_tokens.count), m_model.is_positive());
    const bool cancels = m_model.is_exact_fallback() &&
                         terms_cancel(static_cast<double>(m_row.D), std::abs(static_cast<double>(m_row.terms)));
    double bound = 0;
    if ((!keeps_precision || cancels) && has_all_keys()) {
      compute_by_softmax();
      ++report.repaired_rows;
      bound = m_model.error_of_softmax_row(norms, m_tokens.count);
    } else {
      report.failing_rows += !keeps_precision || cancels;
      report.indefinite_rows += m_row.D <= 0;
      bound = keeps_precision ? condition() * m_model.error_of_row(norms, m_tokens.count, m_weights.slots())
                              : std::numeric_limits<double>::infinity();
    }
    report.error_bound = std::max(report.error_bound, bound);
    if (m_row.D == 0) {
      std::fill_n(y, m_d_v, nan);
      return;
    }
    for (Index p = 0; p < m_d_v; ++p) y[p] = m_N[p] / m_row.D;
  }

  // the condition of the row, as RowErrorBound::condition
  double condition() const {
    if (m_model.is_positive()) return 1;
    const double D = std::abs(static_cast<double>(m_row.D)), v_max = static_cast<double>(m_row.largest_value),
                 N = static_cast<double>(row_max(m_N, padded_to_lanes(m_d_v)).largest);
    return std::abs(static_cast<double>(m_row.terms)) / D * (1 + relative_size(N, D, v_max));
  }

  // whether exact softmax can replace the row: keys are stored, and no key that has left the ring has a weight
  bool has_all_keys() const {
    return m_model.is_exact_fallback() && (m_tokens.first == 0 || !m_model.sums_older_tokens());
  }
  void compute_by_softmax() {
    std::fill_n(m_N, padded_to_lanes(m_d_v), T(0));
    m_row.D = 0;
    m_row.reference = m_exact.set_exponents(m_query, 0, m_tokens.first, 0);
    add_exact();
  }

  // If the query attends to a value with a non-finite entry, the entry of y becomes NaN; or, with positive features and
  // an infinite entry, that infinity.
  void propagate_non_finite_values(T* y) const {
    const auto add = [&](const T* value) {
      for (Index p = 0; p < m_d_v; ++p)
        if (!std::isfinite(value[p])) y[p] += m_model.is_positive() && std::isinf(value[p]) ? value[p] : nan;
    };
    if (m_model.sums_older_tokens() && !m_sums.front().has_finite_values()) {
      for (Index p = 0; p < m_d_v; ++p)
        if (const T x = m_sums.front().non_finite_values()[p]; x != 0) y[p] += m_model.is_positive() ? x : nan;
    }
    for (Index j = m_tokens.first; j < m_tokens.count; ++j)
      if (const Index s = m_ring.slot(j); !m_ring.has_finite_value(s) && bias(j) > minus_infinity) add(m_ring.value(s));
  }

  const StepModel<T>& m_model;
  const TokenRing<T>& m_ring;
  std::span<const RunningSums<T>> m_sums;  // one for each decay of the tail
  const ChunkState<T>& m_chunks;
  const StepWeights<T>& m_weights;
  Workspace& m_scratch;
  const Tokens m_tokens;
  const Index m_d_v;
  const Index m_far_kept;  // how many sinks and salient keys are not near
  FeatureRow<T> m_query{};
  T* m_N;
  ExactKeys<T> m_exact;
  Row m_row;
};

}  // namespace nprf
