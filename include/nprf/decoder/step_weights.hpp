// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/chunk_state.hpp"
#include "nprf/decoder/exponentials.hpp"
#include "nprf/decoder/model.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/decoder/token_ring.hpp"

namespace nprf {

/// The weights of a step, which the queries of a group share:
/// - of each far key j of the ring, by its slot: exp(log_scale_j + b - reference), where b is relative to the largest
///   bias of the queries (StepBias::largest());
/// - of each of the running sums over older keys: one weight;
/// - of the sums of chunks, if there are any: one weight.
/// The reference, for all weights, is near the largest exponent.
template <Real T>
class StepWeights {
 public:
  /// For the queries of the last of `tokens` tokens. The tokens from `first` on are in the ring. Tables are in the
  /// scratch memory.
  StepWeights(const StepModel<T>& model, const TokenRing<T>& ring, std::span<const RunningSums<T>> sums,
              const ChunkState<T>& chunks, Index tokens, Index first, Workspace& scratch)
      : m_largest_bias(model.bias.largest(tokens)), m_of_sums(scratch.take<double>(static_cast<Index>(sums.size()))) {
    for (std::size_t p = 0; p < sums.size(); ++p) {
      m_of_sums[p] = minus_infinity;
      if (model.has_tail() && first > 0)
        m_of_sums[p] = sums[p].log_scale() + (model.bias.of_decay(p, tokens - first) - m_largest_bias);
      m_reference = std::max(m_reference, m_of_sums[p]);
    }
    m_largest_value = m_reference > minus_infinity ? sums.front().largest_value() : T(0);
    if (chunks.any()) {
      m_of_chunks = chunks.log_unit() - m_largest_bias;
      m_largest_value = std::max(m_largest_value, chunks.largest_value());
    }
    m_reference = std::max(m_reference, m_of_chunks);
    const Index far_end = std::max(first, tokens - model.near);
    set_runs(model, ring, tokens, first, far_end);
    m_weights = scratch.take<T>(m_slots);
    if (far_end > first) {
      if (!set_by_tables(model.bias, ring, tokens)) set_by_exponents(model.bias, ring, tokens, scratch);
      m_any_pending = m_reference > minus_infinity;
    }
    if (!m_any_pending) std::fill_n(m_weights, m_slots, T(0));
    for (std::size_t p = 0; p < sums.size(); ++p)
      m_of_sums[p] = m_of_sums[p] > minus_infinity ? std::exp(m_of_sums[p] - m_reference) : 0;
    m_of_chunks = m_of_chunks > minus_infinity ? std::exp(m_of_chunks - m_reference) : 0;
  }

  /// (slots)  The weights of keys; 0 for near keys and in slots without a token.
  const T* weights() const { return m_weights; }
  Index slots() const { return m_slots; }
  /// Whether a far key of the ring may have a weight.
  bool any_pending() const { return m_any_pending; }
  /// The logarithm of the unit of all weights; -infinity if there is no far key.
  double reference() const { return m_reference; }
  /// Of the sums of decay p of the tail.
  T of_sums(std::size_t p) const { return static_cast<T>(m_of_sums[p]); }
  T of_chunks() const { return static_cast<T>(m_of_chunks); }
  /// The largest finite |v| of the far keys.
  T largest_value() const { return m_largest_value; }

  /// Calls use(at, s, count) for the ranges of slots of the ring that have weights: weights()[at + i] is the weight of
  /// slot s + i, for i < count. All three numbers are multiples of TokenRing::tile.
  template <class Use>
  void for_each_range(Use&& use) const {
    for (Index i = 0; i < m_num_ranges; ++i) use(m_ranges[i].at, m_ranges[i].slot, m_ranges[i].count);
  }

 private:
  using P = Pack<T>;
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
  static constexpr Index most_runs = 2;  // of successive slots

  struct Range {
    Index slot, count, at;
  };
  // the tokens token..token+count-1, in the slots slot..slot+count-1; their weights are stored from `at` on
  struct Run {
    Index token, slot, count, at;
  };

  // the runs of the far tokens whose weights are computed here
  void set_runs(const StepModel<T>& model, const TokenRing<T>& ring, Index tokens, Index first, Index far_end) {
    constexpr Index tile = TokenRing<T>::tile;
    if (!model.chunks.any()) {
      m_slots = ring.used_slots(tokens);
      m_ranges[m_num_ranges++] = {0, m_slots, 0};
      ring.for_each_run(first, far_end, [&](Index j, Index s, Index count) {
        m_runs[m_num_runs++] = {j, s, count, s};
      });
      return;
    }
    // older tokens of the ring are in the sums of chunks
    const auto add = [&](Index j, Index s, Index count) {
      const Index slot = s / tile * tile, slots = (s + count + tile - 1) / tile * tile - slot;
      m_ranges[m_num_ranges++] = {slot, slots, m_slots};
      m_runs[m_num_runs++] = {j, s, count, m_slots + s - slot};
      m_slots += slots;
    };
    ring.for_each_run(model.chunks.first_near(tokens), far_end, add);
  }
  template <class Use>
  void for_each_run(Use&& use) const {
    for (Index i = 0; i < m_num_runs; ++i) use(m_runs[i]);
  }

  // weight = exp(b) exp(log_scale - R), R = ring.scale_reference(), as a product of two numbers that are stored: one
  // for each age, and one for each token of the ring. Returns false if the weights must be computed otherwise: if a
  // product may underflow, if the common factor of other sums is more than exp(16) times as
  // large as that of these weights, or if all products are so small that the sums would lose precision.
  bool set_by_tables(const StepBias<T>& bias, const TokenRing<T>& ring, Index tokens) {
    constexpr double most_spread = 80, most_above = 16;
    const double reference = ring.scale_reference() - m_largest_bias;
    if (!(bias.spread() + ring.log_scale_spread() <= most_spread) || m_reference > reference + most_above) return false;
    std::fill_n(m_weights, m_slots, T(0));
    for_each_run([&](const Run& run) {
      const T *c = bias.weights_from(tokens - 1 - run.token), *scales = ring.scales() + run.slot;
      T* weights = m_weights + run.at;
      for (Index i = 0; i < run.count; ++i) weights[i] = scales[i] * c[i];
    });
    const Largest largest = largest_of(ring);
    if (largest.weight < T(0x1p-24)) return false;
    m_largest_value = std::max(m_largest_value, largest.value);
    m_reference = reference;
    return true;
  }

  // weight = exp(log_scale + b - reference), where the reference is the largest exponent
  void set_by_exponents(const StepBias<T>& bias, const TokenRing<T>& ring, Index tokens, Workspace& scratch) {
    const Workspace::Scope scope(scratch);
    double* exponents = scratch.take<double>(m_slots);
    std::fill_n(exponents, m_slots, minus_infinity);
    for_each_run([&](const Run& run) {
      const double *b = bias.from(tokens - 1 - run.token), *log_scales = ring.log_scales() + run.slot;
      for (Index i = 0; i < run.count; ++i) exponents[run.at + i] = log_scales[i] + (b[i] - m_largest_bias);
    });
    auto largest = Pack<double>::all(m_reference);
    for (Index s = 0; s < m_slots; s += Pack<double>::size)
      largest = larger(Pack<double>::load(exponents + s), largest);
    m_reference = largest.largest();
    exponentials(exponents, m_reference > minus_infinity ? m_reference : 0, m_slots, m_weights);
    m_largest_value = std::max(m_largest_value, largest_of(ring).value);
  }

  // the largest weight, and the largest finite |v| of the keys whose weight is not 0
  struct Largest {
    T weight, value;
  };
  Largest largest_of(const TokenRing<T>& ring) const {
    P weight = P::all(0), value = P::all(0);
    for_each_range([&](Index at, Index slot, Index count) {
      for (Index s = 0; s < count; s += P::size) {
        const P w = P::load(m_weights + at + s);
        weight = larger(w, weight);
        value = larger(where_not_zero(P::load(ring.largest_values() + slot + s), w), value);
      }
    });
    return {weight.largest(), value.largest()};
  }

  double m_largest_bias;
  Index m_slots = 0, m_num_ranges = 0, m_num_runs = 0;
  Range m_ranges[most_runs];
  Run m_runs[most_runs];
  T* m_weights = nullptr;
  double* m_of_sums;  // (decays)
  double m_of_chunks = minus_infinity, m_reference = minus_infinity;
  T m_largest_value = 0;
  bool m_any_pending = false;
};

}  // namespace nprf
