// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "nprf/core/long_sums.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/running_sums.hpp"

namespace nprf {

/// The attention sinks of a sequence (AttentionOptions): its first tokens, which a state keeps for as long as the
/// sequence lasts. The memory grows with the number of tokens, up to that of the sinks.
template <Real T>
class SinkTokens {
 public:
  SinkTokens() = default;
  SinkTokens(Index sinks, Index d, Index d_v) : m_sinks(sinks), m_d(d), m_d_v(d_v), m_stride(padded_to_lanes(d_v)) {}

  /// Allocates memory for a sequence of `tokens` tokens. Throws std::bad_alloc, and then changes nothing.
  void reserve(Index tokens) {
    const Index needed = std::min(m_sinks, tokens), old = m_largest_values.size();
    if (needed <= old) return;
    SinkTokens larger = *this;
    const Index size = std::min(m_sinks, std::max(2 * old, needed));
    enlarge(larger.m_keys, size * m_d);
    enlarge(larger.m_values, size * m_stride);
    enlarge(larger.m_largest_values, size);
    enlarge(larger.m_finite_values, size);
    *this = std::move(larger);
  }

  /// Stores a token with its normalised key (d). Requires reserve(position + 1).
  void put(Index position, const StateToken<T>& token, const T* key) {
    std::copy_n(key, m_d, m_keys.data() + position * m_d);
    std::copy_n(token.value, m_d_v, m_values.data() + position * m_stride);
    m_largest_values[position] = token.largest_value;
    m_finite_values[position] = token.has_finite_value;
  }

  /// q.k of a query (d) and the key at a position.
  T score(const T* query, Index position) const { return dot_by_packs(query, m_keys.data() + position * m_d, m_d); }
  /// The largest finite |v| of the value at a position.
  T largest_value(Index position) const { return m_largest_values[position]; }
  /// N (padded d_v) += the weights (sinks) times the finite entries of the values at the first `sinks` positions, in
  /// runs of run_keys. A value of weight 0 is not read.
  void add_values(const T* weights, Index sinks, T* N) const {
    using P = Pack<T>;
    for (Index begin = 0; begin < sinks; begin += run_keys)
      for (Index p = 0; p < m_stride; p += P::size) {
        P sum = P::all(0);
        for (Index j = begin; j < std::min(begin + run_keys, sinks); ++j)
          if (weights[j] != T(0)) sum = multiply_add(P::all(weights[j]), finite_value(j, p), sum);
        (P::load(N + p) + sum).store(N + p);
      }
  }

  std::size_t bytes() const {
    return static_cast<std::size_t>(m_keys.size() + m_values.size() + m_largest_values.size()) * sizeof(T) +
           static_cast<std::size_t>(m_finite_values.size());
  }

  /// Calls archive(x) for each number of a sequence of `tokens` tokens, to be written or read.
  template <class Archive>
  void transfer(Index tokens, Archive&& archive) {
    for (Index j = 0; j < std::min(m_sinks, tokens); ++j) {
      for (Index l = 0; l < m_d; ++l) archive(m_keys[j * m_d + l]);
      for (Index p = 0; p < m_d_v; ++p) archive(m_values[j * m_stride + p]);
      archive(m_largest_values[j]), archive(m_finite_values[j]);
    }
  }

 private:
  // a register of the value at a position, from column p on, with zeros in place of non-finite entries
  Pack<T> finite_value(Index position, Index p) const {
    const T* value = m_values.data() + position * m_stride + p;
    if (m_finite_values[position]) return Pack<T>::load(value);
    T finite[Pack<T>::size];
    std::transform(value, value + Pack<T>::size, finite, [](T x) { return std::isfinite(x) ? x : T(0); });
    return Pack<T>::load(finite);
  }

  Index m_sinks = 0, m_d = 0, m_d_v = 0, m_stride = 0;
  Vector<T> m_keys, m_values, m_largest_values;  // (tokens,d) (tokens,padded d_v) (tokens)
  Vector<std::uint8_t> m_finite_values;          // (tokens)
};

}  // namespace nprf
