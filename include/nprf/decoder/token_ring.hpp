// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "nprf/core/long_sums.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/running_sums.hpp"

namespace nprf {

/// The sizes of the tokens of a state.
struct TokenShape {
  Index r, d_v;
  Index d;  // channels of the stored keys; 0: keys are not stored
};

/// The last tokens of a head: features, log-scales and values, and for exact pairs the normalised keys. The
/// token at a position is in slot (position mod capacity) of the ring: these slots are places in memory, not on the
/// axis of lags. The memory grows with the number of tokens, up to the capacity.
///
/// Features are stored by tiles of 16 slots. In a tile, the numbers that its slots have for one feature are next to
/// each other, so that the scores of a tile are r multiply-adds of registers. No sum depends on how much memory there
/// is, or on slots without a token.
template <Real T>
class TokenRing {
 public:
  static constexpr Index tile = state_lanes;

  TokenRing() = default;
  /// A ring for at least `tokens` tokens.
  TokenRing(TokenShape shape, Index tokens)
      : m_shape(shape), m_stride(padded_to_lanes(shape.d_v)), m_capacity(padded_to_lanes(tokens)) {}

  Index capacity() const { return m_capacity; }
  Index slot(Index position) const { return position % m_capacity; }
  /// After `tokens` tokens only the first used_slots(tokens) slots may have a token. It is a multiple of `tile`.
  Index used_slots(Index tokens) const { return std::min(m_capacity, padded_to_lanes(tokens)); }

  /// Allocates memory for sequences of `tokens` tokens, or twice as much as before if that is more. Throws
  /// std::bad_alloc, and then changes nothing.
  void reserve(Index tokens) {
    if (used_slots(tokens) <= m_slots) return;
    const Index slots = std::min(m_capacity, std::max(2 * m_slots, used_slots(tokens)));
    TokenRing larger = *this;
    for_each_array(larger, [&](auto& x, Index each) { enlarge(x, slots * each); });
    larger.m_slots = slots;
    *this = std::move(larger);
  }

  /// Stores a token, over the one that was in its slot. Requires reserve(position + 1).
  void put(Index position, const StateToken<T>& token, const T* key) {
    const Index s = slot(position);
    T* features = m_features.data() + s / tile * tile * m_shape.r + s % tile;
    for (Index k = 0; k < m_shape.r; ++k) features[k * tile] = token.features[k * token.feature_step];
    std::copy_n(token.value, m_shape.d_v, m_values.data() + s * m_stride);
    if (m_shape.d > 0) std::copy_n(key, m_shape.d, m_keys.data() + s * m_shape.d);
    m_log_scales[s] = token.log_scale;
    set_scale(s);
    m_norms[s] = token.norm, m_largest_values[s] = token.largest_value;
    m_finite_keys[s] = token.has_finite_key, m_finite_values[s] = token.has_finite_value;
  }

  StateToken<T> token(Index position) const {
    const Index s = slot(position);
    return {m_features.data() + s / tile * tile * m_shape.r + s % tile,
            tile,
            m_values.data() + s * m_stride,
            m_log_scales[s],
            m_norms[s],
            m_largest_values[s],
            m_finite_keys[s] != 0,
            m_finite_values[s] != 0};
  }
  /// q.k of a query (d) and the key in a slot.
  T score(const T* query, Index s) const { return dot_by_packs(query, key(s), m_shape.d); }
  const T* key(Index s) const { return m_keys.data() + s * m_shape.d; }
  const T* value(Index s) const { return m_values.data() + s * m_stride; }
  /// Feature k of slot s, and of the next slots up to the end of its tile.
  const T* feature(Index s, Index k) const {
    return m_features.data() + s / tile * tile * m_shape.r + k * tile + s % tile;
  }
  bool has_finite_key(Index s) const { return m_finite_keys[s] != 0; }
  bool has_finite_value(Index s) const { return m_finite_values[s] != 0; }
  const double* log_scales() const { return m_log_scales.data(); }     // (slots)
  const T* scales() const { return m_scales.data(); }                  // (slots)  exp(log_scale - scale_reference())
  const T* norms() const { return m_norms.data(); }                    // (slots)  |phi|, if features can be negative
  const T* largest_values() const { return m_largest_values.data(); }  // (slots)  the largest finite |v|

  /// Calls use(j, s, count) for the runs of slots of the tokens first..last-1: token j in slot s, j + 1 in s + 1, ...
  template <class Use>
  void for_each_run(Index first, Index last, Use&& use) const {
    for (Index j = first; j < last;) {
      const Index s = slot(j), count = std::min(last - j, m_capacity - s);
      use(j, s, count);
      j += count;
    }
  }

  /// The reference of scales(). It is near the largest log-scale since clear(), at most 2 below it, and changes rarely.
  double scale_reference() const { return m_scale_reference; }
  /// A bound of the differences of finite log-scales since clear().
  double log_scale_spread() const { return m_scale_reference + headroom - m_least_log_scale; }

  /// Prepares the ring for a new sequence, whose bits must not depend on the sequence before.
  void clear() {
    m_scale_reference = minus_infinity;
    m_least_log_scale = -minus_infinity;
  }

  /// scores[s] = A.phi for s < slots, where A (r) are the features of a query and phi those in slot first + s of the
  /// ring. `first` and `slots` must be multiples of `tile`. O(slots r).
  void scores(const T* A, Index slots, T* scores, Index first = 0) const {
    scores_from<std::max<Index>(8 * Pack<T>::size / tile, 1)>(A, m_features.data() + first * m_shape.r, slots, scores);
  }

  /// N (padded d_v) += the sum of weights[s] * value(first + s) over s < slots, in runs of run_keys. Values whose
  /// weight is 0 are not read.
  void add_values(const T* weights, Index slots, T* N, Index first = 0) const {
    constexpr Index W = Pack<T>::size;
    for_each_columns(m_stride / W, [&]<Index packs>(Index at) {
      add_columns<packs>(weights, slots, m_values.data() + first * m_stride + at * W, N + at * W);
    });
  }

  /// Adds to N the finite entries of those values of the slots first..first+slots-1 that have a non-finite entry, times
  /// the weights. Sets the weights of these values to 0, so that add_values() leaves them out.
  void add_finite_entries(T* weights, Index slots, T* N, Index first) const {
    for (Index s = 0; s < slots; ++s) {
      if (weights[s] == T(0) || has_finite_value(first + s)) continue;
      const T* v = value(first + s);
      for (Index p = 0; p < m_shape.d_v; ++p)
        if (std::isfinite(v[p])) N[p] += weights[s] * v[p];
      weights[s] = 0;
    }
  }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for_each_array(*this, [&](const auto& x, Index) { sum += static_cast<std::size_t>(x.size()) * sizeof(x[0]); });
    return sum;
  }

  /// To write or read the ring: transfer_references() calls archive(x) for the numbers that all tokens share, then
  /// transfer() does for each number of one token.
  template <class Archive>
  void transfer_references(Archive&& archive) {
    archive(m_scale_reference), archive(m_least_log_scale);
  }
  template <class Archive>
  void transfer(Index position, Archive&& archive) {
    const Index s = slot(position);
    T* features = m_features.data() + s / tile * tile * m_shape.r + s % tile;
    for (Index k = 0; k < m_shape.r; ++k) archive(features[k * tile]);
    for (Index p = 0; p < m_shape.d_v; ++p) archive(m_values[s * m_stride + p]);
    for (Index l = 0; l < m_shape.d; ++l) archive(m_keys[s * m_shape.d + l]);
    archive(m_log_scales[s]), archive(m_norms[s]), archive(m_largest_values[s]);
    archive(m_finite_keys[s]), archive(m_finite_values[s]);
    m_scales[s] = scale_of(s);
  }

 private:
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity(), headroom = 2;

  T scale_of(Index s) const {
    return m_log_scales[s] > minus_infinity ? static_cast<T>(std::exp(m_log_scales[s] - m_scale_reference)) : T(0);
  }
  void set_scale(Index s) {
    const double log_scale = m_log_scales[s];
    if (log_scale > minus_infinity) m_least_log_scale = std::min(m_least_log_scale, log_scale);
    if (log_scale > m_scale_reference + headroom) {
      m_scale_reference = log_scale;
      for (Index other = 0; other < m_slots; ++other) m_scales[other] = scale_of(other);
    }
    m_scales[s] = scale_of(s);
  }

  // calls use(array, each) for each array, which has `each` scalars for a slot
  template <class Ring, class Use>
  static void for_each_array(Ring& x, Use&& use) {
    use(x.m_features, x.m_shape.r);
    use(x.m_values, x.m_stride);
    use(x.m_keys, x.m_shape.d);
    use(x.m_log_scales, Index{1});
    use(x.m_scales, Index{1});
    use(x.m_norms, Index{1});
    use(x.m_largest_values, Index{1});
    use(x.m_finite_keys, Index{1});
    use(x.m_finite_values, Index{1});
  }

  // sets the scores of `slots` slots: of `wide` tiles at a time; for the rest, of half as many tiles at a time, ...
  template <Index wide>
  void scores_from(const T* A, const T* features, Index slots, T* scores) const {
    Index s = 0;
    for (; s + wide * tile <= slots; s += wide * tile) scores_of<wide>(A, features + s * m_shape.r, scores + s);
    if constexpr (wide > 1) scores_from<wide / 2>(A, features + s * m_shape.r, slots - s, scores + s);
  }

  // the widest calls have 8 independent sums, which hide the latency of an addition
  template <Index tiles>
  void scores_of(const T* A, const T* features, T* scores) const {
    using P = Pack<T>;
    constexpr Index packs = tile / P::size;
    const Index tile_size = tile * m_shape.r;
    P sum[tiles * packs];
    NPRF_UNROLL
    for (Index i = 0; i < tiles * packs; ++i) sum[i] = P::all(0);
    for (Index k = 0; k < m_shape.r; ++k, features += tile) {
      const P a = P::all(A[k]);
      NPRF_UNROLL
      for (Index i = 0; i < tiles * packs; ++i)
        sum[i] = multiply_add(a, P::load(features + i / packs * tile_size + i % packs * P::size), sum[i]);
    }
    NPRF_UNROLL
    for (Index i = 0; i < tiles * packs; ++i) sum[i].store(scores + i * P::size);
  }

  template <Index packs>
  void add_columns(const T* weights, Index slots, const T* v, T* N) const {
    for (Index s = 0; s < slots; s += run_keys, weights += run_keys, v += run_keys * m_stride)
      add_run<packs>(weights, std::min(run_keys, slots - s), v, N);
  }
  template <Index packs>
  void add_run(const T* weights, Index slots, const T* v, T* N) const {
    using P = Pack<T>;
    // two sums, of even and of odd slots, hide the latency of an addition
    P even[packs], odd[packs];
    NPRF_UNROLL
    for (Index at = 0; at < packs; ++at) even[at] = odd[at] = P::all(0);
    for (Index s = 0; s < slots; s += 2, v += 2 * m_stride) {
      add_value<packs>(weights[s], v, even);
      add_value<packs>(weights[s + 1], v + m_stride, odd);
    }
    NPRF_UNROLL
    for (Index at = 0; at < packs; ++at) (P::load(N + at * P::size) + (even[at] + odd[at])).store(N + at * P::size);
  }
  template <Index packs>
  NPRF_ALWAYS_INLINE static void add_value(T weight, const T* v, Pack<T> (&sum)[packs]) {
    if (weight == T(0)) return;
    NPRF_UNROLL
    for (Index at = 0; at < packs; ++at)
      sum[at] = multiply_add(Pack<T>::all(weight), Pack<T>::load(v + at * Pack<T>::size), sum[at]);
  }

  TokenShape m_shape{};
  Index m_stride = 0, m_capacity = 0, m_slots = 0;
  double m_scale_reference = minus_infinity, m_least_log_scale = -minus_infinity;
  Vector<T> m_features;                                 // (slots / tile,r,tile)
  Vector<T> m_values;                                   // (slots,padded d_v)
  Vector<T> m_keys;                                     // (slots,d)
  Vector<double> m_log_scales;                          // (slots)
  Vector<T> m_scales, m_norms, m_largest_values;        // (slots)
  Vector<std::uint8_t> m_finite_keys, m_finite_values;  // (slots)
};

}  // namespace nprf
