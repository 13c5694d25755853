// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/running_sums.hpp"

namespace nprf {

/// The attention sinks and the salient keys of a sequence (AttentionOptions), which a state keeps for as long as the
/// sequence lasts. The memory grows with the number of tokens, up to that of the most that are kept.
template <Real T>
class ExactTokens {
 public:
  ExactTokens() = default;
  ExactTokens(Index most, Index d, Index d_v) : m_most(most), m_d(d), m_d_v(d_v), m_stride(padded_to_lanes(d_v)) {}

  Index count() const { return m_count; }
  /// How many of them are among the first `tokens` tokens of the sequence.
  Index count(Index tokens) const { return std::lower_bound(m_at.data(), m_at.data() + m_count, tokens) - m_at.data(); }
  /// Which token of the sequence the j-th one is.
  Index position(Index j) const { return m_at[j]; }

  /// Allocates memory for a sequence of `tokens` tokens. Throws std::bad_alloc, and then changes nothing.
  void reserve(Index tokens) {
    const Index needed = std::min(m_most, tokens), old = m_largest_values.size();
    if (needed <= old) return;
    ExactTokens larger = *this;
    const Index size = std::min(m_most, std::max(2 * old, needed));
    enlarge(larger.m_at, size);
    enlarge(larger.m_keys, size * m_d);
    enlarge(larger.m_values, size * m_stride);
    enlarge(larger.m_largest_values, size);
    enlarge(larger.m_finite_values, size);
    *this = std::move(larger);
  }

  /// Keeps a token of a later position than the others, with its normalised key (d). Requires reserve(position + 1).
  void put(Index position, const StateToken<T>& token, const T* key) {
    const Index j = m_count++;
    m_at[j] = position;
    std::copy_n(key, m_d, m_keys.data() + j * m_d);
    std::copy_n(token.value, m_d_v, m_values.data() + j * m_stride);
    m_largest_values[j] = token.largest_value;
    m_finite_values[j] = token.has_finite_value;
  }
  /// Keeps none of the tokens after the first `tokens` tokens of the sequence.
  void roll_back(Index tokens) { m_count = count(tokens); }

  /// q.k of a query (d) and the j-th key.
  T score(const T* query, Index j) const { return dot_by_packs(query, m_keys.data() + j * m_d, m_d); }
  /// The largest finite |v| of the j-th value.
  T largest_value(Index j) const { return m_largest_values[j]; }
  /// N (padded d_v) += the weights (n) times the finite entries of the first n values, in runs of run_keys. A value of
  /// weight 0 is not read.
  void add_values(const T* weights, Index n, T* N) const {
    using P = Pack<T>;
    for (Index begin = 0; begin < n; begin += run_keys)
      for (Index p = 0; p < m_stride; p += P::size) {
        P sum = P::all(0);
        for (Index j = begin; j < std::min(begin + run_keys, n); ++j)
          if (weights[j] != T(0)) sum = multiply_add(P::all(weights[j]), finite_value(j, p), sum);
        (P::load(N + p) + sum).store(N + p);
      }
  }

  std::size_t bytes() const {
    return static_cast<std::size_t>(m_keys.size() + m_values.size() + m_largest_values.size()) * sizeof(T) +
           static_cast<std::size_t>(m_at.size()) * sizeof(Index) + static_cast<std::size_t>(m_finite_values.size());
  }

  /// Calls archive(x) for each number of n tokens of a sequence of `tokens` tokens, to be written or read. The first
  /// `sinks` of them are the first of the sequence.
  template <class Archive>
  void transfer(Index n, Index sinks, Index tokens, Archive&& archive) {
    m_count = n;
    for (Index j = 0; j < n; ++j) {
      if (j < sinks)
        m_at[j] = j;
      else
        archive(m_at[j]);
      require((j == 0 || m_at[j] > m_at[j - 1]) && 0 <= m_at[j] && m_at[j] < tokens,
              "state: expected increasing tokens below ", tokens, ", got ", m_at[j]);
      for (Index l = 0; l < m_d; ++l) archive(m_keys[j * m_d + l]);
      for (Index p = 0; p < m_d_v; ++p) archive(m_values[j * m_stride + p]);
      archive(m_largest_values[j]), archive(m_finite_values[j]);
    }
  }

 private:
  // a register of the j-th value, from column p on, with zeros in place of non-finite entries
  Pack<T> finite_value(Index j, Index p) const {
    const T* value = m_values.data() + j * m_stride + p;
    if (m_finite_values[j]) return Pack<T>::load(value);
    T finite[Pack<T>::size];
    std::transform(value, value + Pack<T>::size, finite, [](T x) { return std::isfinite(x) ? x : T(0); });
    return Pack<T>::load(finite);
  }

  Index m_most = 0, m_count = 0, m_d = 0, m_d_v = 0, m_stride = 0;
  Vector<Index> m_at;                            // (size), increasing
  Vector<T> m_keys, m_values, m_largest_values;  // (size,d) (size,padded d_v) (size)
  Vector<std::uint8_t> m_finite_values;          // (size)
};

}  // namespace nprf
