// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "nprf/core/fitted_tails.hpp"
#include "nprf/core/index.hpp"
#include "nprf/core/lag_bias_view.hpp"
#include "nprf/core/row_quotient.hpp"

namespace nprf {

/// The biases of causal attention by the age of a key, the query's position minus the key's: a table up to the reach K,
/// and from there a line, the tail.
///
///     b(age) = table(age)                  age < K
///     b(age) = b(K) + slope (age - K)      age >= K, or -infinity if there is no tail
///
/// Sums over the keys of the tail can be updated token by token, because all of their weights change by one factor from
/// a step to the next. K is 0 without a position and for ALiBi, and the distance from which biases are equal for a
/// clipped table and for T5. All biases are relative to one of the largest of the table, so that a constant added to
/// them costs no precision. The same for the CPU and for plans of GPUs.
template <Real T>
class StepBias {
 public:
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
  static constexpr Index unlimited = std::numeric_limits<Index>::max();

  /// The reach is at least `least_reach`, and biases of `beyond` further ages are stored. Ages from `ages` on do not
  /// occur.
  ///
  /// If `may_fit`, a line may replace the biases of the outer part of the table, which it changes by at most a quarter
  /// of the default tolerance (fitted_tails.hpp). Such a line falls for ever, but a table continues with the bias of
  /// its last lag. So a line is used only if no age beyond the table occurs, or if the weights where the table ends are
  /// below the normal numbers. O(table).
  StepBias(const LagBiasView<T>& bias, Index least_reach, Index beyond, bool may_fit, Index ages = unlimited) {
    const Index table = std::max<Index>(-bias.first, 0);  // b is linear from this age on
    const Index line = std::min(table, ages - 1);
    const Index largest = bias.largest({-line, 0});
    const bool attends = bias[largest] > minus_infinity;
    const auto b = [&](Index age) { return attends ? bias.difference(-age, largest) : minus_infinity; };
    m_has_tail = b(line) > minus_infinity;
    m_slope = m_has_tail && line == table ? static_cast<double>(bias.slope_before) : 0;
    m_reach = line;
    if (m_slope == 0)
      while (m_reach > 0 && b(m_reach - 1) == b(line)) --m_reach;
    m_at_reach = b(m_reach);
    const bool ends = ages - 1 <= table;
    if (may_fit && m_has_tail && m_slope <= 0 && (ends || m_at_reach < log_smallest_normal<T>))
      fit(b, ends ? line : m_reach);
    fill(std::max(m_reach, least_reach), beyond, b);
    m_first_attended = 0;
    while (m_first_attended < m_reach && (*this)(m_first_attended) == minus_infinity) ++m_first_attended;
  }

  Index reach() const { return m_reach; }
  bool has_tail() const { return m_has_tail; }
  /// The slope of the tail.
  double slope() const { return m_slope; }
  /// The largest change of a bias by the fitted tail.
  double deviation() const { return m_deviation; }

  double operator()(Index age) const {
    return age < m_stored ? m_reversed[static_cast<std::size_t>(m_stored - 1 - age)]
                          : m_at_reach + m_slope * static_cast<double>(age - m_reach);
  }
  /// The stored biases of the ages age, age - 1, ..., 0. Requires age < reach() + `beyond`, or age = 0.
  const double* from(Index age) const { return m_reversed.data() + (m_stored - 1 - age); }

  /// How far finite stored biases are below 0; infinity if one is above 0, as on a line that rises with the age.
  double spread() const { return m_spread; }
  /// exp(b) of the ages age, age - 1, ..., 0, as from(). If spread() is below 87, they are normal numbers or 0.
  const T* weights_from(Index age) const { return m_reversed_weights.data() + (m_stored - 1 - age); }

  /// Whether a query that has `tokens` keys, its own included, attends to any of them.
  bool attends(Index tokens) const { return tokens > m_first_attended && (m_has_tail || m_first_attended < m_reach); }

 private:
  // replaces the outer part of the ages up to `oldest` by a line
  template <class B>
  void fit(const B& b, Index oldest) {
    std::vector<double> outwards(static_cast<std::size_t>(oldest + 1));  // from the oldest age
    for (Index age = 0; age <= oldest; ++age) outwards[static_cast<std::size_t>(oldest - age)] = b(age);
    const FittedTails fitted = fitted_tails<T>(outwards, default_tolerance<T> / 4);
    if (oldest - fitted.tails.before >= m_reach) return;
    m_reach = oldest - fitted.tails.before;
    m_at_reach = b(m_reach);
    m_slope = fitted.tails.slope_before;
    m_deviation = fitted.deviation;
  }

  template <class B>
  void fill(Index reach, Index beyond, const B& b) {
    m_stored = reach + std::max<Index>(beyond, 1);
    m_reversed.resize(static_cast<std::size_t>(m_stored));
    const auto at = [&](Index age) {
      if (age < m_reach) return b(age);
      return m_has_tail ? m_at_reach + m_slope * static_cast<double>(age - m_reach) : minus_infinity;
    };
    for (Index age = 0; age < m_stored; ++age) m_reversed[static_cast<std::size_t>(m_stored - 1 - age)] = at(age);
    if (reach > m_reach) m_at_reach = at(reach), m_reach = reach;
    m_reversed_weights.reserve(m_reversed.size());
    for (const double each : m_reversed) {
      if (each > 0) m_spread = -minus_infinity;
      if (each > minus_infinity) m_spread = std::max(m_spread, -each);
      m_reversed_weights.push_back(static_cast<T>(std::exp(each)));
    }
  }

  Index m_reach = 0, m_stored = 0, m_first_attended = 0;
  bool m_has_tail = false;
  double m_at_reach = 0, m_slope = 0, m_deviation = 0;
  double m_spread = 0;
  std::vector<double> m_reversed;     // (stored)  the biases of the ages stored - 1, ..., 0
  std::vector<T> m_reversed_weights;  // (stored)  their exponentials
};

}  // namespace nprf
