// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "nprf/core/fitted_decays.hpp"
#include "nprf/core/fitted_tails.hpp"
#include "nprf/core/index.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/row_quotient.hpp"

namespace nprf {

/// The biases of causal attention by the age of a key, the query's position minus the key's: a table up to the reach K,
/// and from there the logarithm of a sum of decays, the tail; of one decay it is a line.
///
///     b(age) = table(age)                                             age < K
///     b(age) = log sum_p exp(log_weight_p + slope_p (age - K))        age >= K if there is a tail; otherwise -infinity
///
/// Sums over the keys of the tail can be updated token by token, one for each decay, because all weights of a decay
/// change by one factor from a step to the next. K is 0 without a position and for ALiBi. For a clipped table and for
/// T5 it is the distance from which on all biases are equal. All biases are relative to the largest one of the table,
/// so that a constant added to them costs no precision. The CPU and the plans of GPUs use the same class.
template <Real T>
class StepBias {
 public:
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
  /// More tokens than fit in memory, and so few that sums of such numbers do not overflow.
  static constexpr Index unlimited = Index{1} << 48;

  /// The reach is at least `least_reach`. The constructor stores the biases of the table. reserve() can store
  /// those of further ages, below reach() + beyond. Ages from `ages` on do not occur.
  ///
  /// A sum of at most `most_decays` decays may replace the biases of the outer part of the table: a line if one is
  /// enough (fitted_tails.hpp), else those that fitted_decays() finds. It changes each bias by at most a quarter of the
  /// default tolerance, even low ones: a low bias can be that of a key of high score. Such a sum falls for ever, but a
  /// table continues with the bias of its last lag. So it is used only if no age beyond the table occurs. If none
  /// occurs, a tail of fewer than shortest_tail ages for each decay is stored as a part of the table. O(table) and, for
  /// decays, up to a fifth of a second.
  StepBias(const LagBiasView<T>& bias, Index least_reach, Index beyond, Index most_decays, Index ages = unlimited) {
    const Index table = std::max<Index>(-bias.first, 0);  // b is linear from this age on
    const Index last = std::min(table, ages - 1);
    const Index largest = bias.largest({-last, 0});
    const bool attends = bias[largest] > minus_infinity;
    const auto b = [&](Index age) { return attends ? bias.difference(-age, largest) : minus_infinity; };
    const bool has_tail = b(last) > minus_infinity;
    const double slope = has_tail && last == table ? static_cast<double>(bias.slope_before) : 0;
    m_table = last;
    if (slope == 0)
      while (m_table > 0 && b(m_table - 1) == b(last)) --m_table;
    if (has_tail) m_tail = {{b(m_table), slope}};
    const bool all_in_table = ages - 1 <= table;
    if (most_decays > 0 && has_tail && slope <= 0 && all_in_table) {
      fit_line(b, last);
      if (most_decays > 1) fit_decays(b, last, static_cast<std::size_t>(most_decays));
    }
    if (has_tail && all_in_table && ages - m_table < static_cast<Index>(m_tail.size()) * shortest_tail) {
      m_tail.clear();
      m_table = ages;
      m_deviation = 0;
    }
    m_reach = std::max(m_table, least_reach);
    m_most = m_reach + std::max<Index>(beyond, 1);
    store(m_table, b);
    set_summary(ages);
    reserve(1);
  }

  /// Stores at least the biases of the ages below `ages`, as far as they may be stored. Throws std::bad_alloc, and then
  /// changes nothing.
  void reserve(Index ages) {
    const Index needed = std::min(ages, m_most);
    if (needed > m_stored)
      store(std::min(m_most, std::max(2 * m_stored, needed)), [this](Index age) { return line(age); });
  }

  Index reach() const { return m_reach; }
  /// The number of ages before the line, at most the reach.
  Index table() const { return m_table; }
  bool has_tail() const { return !m_tail.empty(); }
  /// The decays of the tail, with their log-weights at the age table().
  const std::vector<DecayTerm>& tail() const { return m_tail; }
  /// Of a tail of one decay.
  double slope() const { return has_tail() ? m_tail.front().slope : 0; }
  /// The part of a decay in the bias of an age of the tail.
  double of_decay(std::size_t p, Index age) const {
    return m_tail[p].log_weight + m_tail[p].slope * static_cast<double>(age - m_table);
  }
  /// The largest change of a bias by the fitted tail.
  double deviation() const { return m_deviation; }

  double operator()(Index age) const {
    return age < m_stored ? m_reversed[static_cast<std::size_t>(m_stored - 1 - age)] : line(age);
  }
  /// The stored biases of the ages age, age - 1, ..., 0.
  const double* from(Index age) const { return m_reversed.data() + (m_stored - 1 - age); }

  /// The largest bias of a query that has `tokens` keys, its own included. A bias is made relative to it before a
  /// log-scale is added, so that the sum keeps the digits of the log-scale.
  double largest(Index tokens) const {
    const double of_table =
        m_table > 0 ? m_largest[static_cast<std::size_t>(std::min(tokens, m_table) - 1)] : minus_infinity;
    return tokens > m_table ? std::max({of_table, line(m_table), line(tokens - 1)}) : of_table;
  }

  /// How far the lowest finite bias is below 0, of all ages that may be stored; infinity if a bias is above 0, as on a
  /// line that rises with the age.
  double spread() const { return m_spread; }
  /// exp(b) of the ages age, age - 1, ..., 0, as from(). If spread() is below 87, they are normal numbers or 0.
  const T* weights_from(Index age) const { return m_reversed_weights.data() + (m_stored - 1 - age); }

  /// Whether a query that has `tokens` keys, its own included, attends to any of them.
  bool attends(Index tokens) const { return tokens > m_first_attended && (has_tail() || m_first_attended < m_table); }
  /// Whether a query attends to all of its keys, for any number of tokens.
  bool attends_to_all() const { return m_attends_to_all; }

 private:
  // the fewest ages of a tail that is worth its sums: these cost a step as much as r p / (r + p) ages of the table, for
  // r features and p = d_v + 1, which is about this number
  static constexpr Index shortest_tail = 32;

  // replaces the biases of the largest ages, up to `oldest`, by a line, if this leaves at most three quarters of the
  // table; a shorter line would save little, and a smooth table is smoother without it (chunk_model.hpp)
  template <class B>
  void fit_line(const B& b, Index oldest) {
    const FittedLine line = fitted_line(oldest + 1, minus_infinity, default_tolerance<T> / 4,
                                        [&](Index inwards) { return b(oldest - inwards); });
    if (4 * (oldest - line.lags) > 3 * m_table) return;
    m_table = oldest - line.lags;
    m_tail = {{b(m_table), line.slope}};
    m_deviation = line.deviation;
  }

  // replaces them by decays, if they begin at a far smaller age than the line
  template <class B>
  void fit_decays(const B& b, Index oldest, std::size_t most) {
    for (const Index from : {64, 256, 1024}) {
      if (from + static_cast<Index>(most) * shortest_tail > m_table) return;
      FittedDecays found =
          fitted_decays(oldest - from, most, default_tolerance<T> / 4, [&](Index k) { return b(from + k); });
      if (found.terms.empty()) continue;
      m_table = from;
      m_tail = std::move(found.terms);
      m_deviation = found.deviation;
      return;
    }
  }

  // the bias of an age after the table
  double line(Index age) const {
    if (m_tail.empty()) return minus_infinity;
    if (m_tail.size() == 1) return of_decay(0, age);
    double largest = minus_infinity, sum = 0;
    for (std::size_t p = 0; p < m_tail.size(); ++p) largest = std::max(largest, of_decay(p, age));
    for (std::size_t p = 0; p < m_tail.size(); ++p) sum += std::exp(of_decay(p, age) - largest);
    return largest + std::log(sum);
  }

  // stores b(age) of further ages, so that `stored` ages are stored in all
  template <class B>
  void store(Index stored, const B& b) {
    const auto size = static_cast<std::size_t>(stored);
    std::vector<double> reversed(size);
    std::vector<T> weights(size);
    std::ranges::copy_backward(m_reversed, reversed.end());
    std::ranges::copy_backward(m_reversed_weights, weights.end());
    for (Index age = m_stored; age < stored; ++age) {
      const auto at = static_cast<std::size_t>(stored - 1 - age);
      reversed[at] = b(age);
      weights[at] = static_cast<T>(std::exp(reversed[at]));
    }
    m_reversed = std::move(reversed), m_reversed_weights = std::move(weights), m_stored = stored;
  }

  // summarises the biases: those of the table, and those at both ends of the line
  void set_summary(Index ages) {
    const auto add = [this](double b) {
      if (b > 0) m_spread = -minus_infinity;
      if (b > minus_infinity) m_spread = std::max(m_spread, -b);
    };
    std::ranges::for_each(m_reversed, add);
    add(line(m_table)), add(line(m_most - 1));
    for (Index age = 0; age < m_table; ++age)
      m_largest.push_back(std::max((*this)(age), age > 0 ? m_largest.back() : minus_infinity));
    while (m_first_attended < m_table && (*this)(m_first_attended) == minus_infinity) ++m_first_attended;
    m_attends_to_all =
        (has_tail() || m_table == ages) && std::ranges::find(m_reversed, minus_infinity) == m_reversed.end();
  }

  Index m_table = 0, m_reach = 0, m_most = 0, m_stored = 0, m_first_attended = 0;  // m_most: ages that may be stored
  bool m_attends_to_all = false;
  std::vector<DecayTerm> m_tail;
  double m_deviation = 0, m_spread = 0;
  std::vector<double> m_largest;      // (table)  the largest bias of the ages up to each age
  std::vector<double> m_reversed;     // (stored)  the biases of the ages stored - 1, ..., 0
  std::vector<T> m_reversed_weights;  // (stored)  their exponentials
};

}  // namespace nprf
