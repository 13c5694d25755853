// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "nprf/core/types.hpp"

namespace nprf::test::differential {

using Exact = long double;

inline constexpr Exact minus_infinity = -std::numeric_limits<Exact>::infinity();

enum class Place { none, table, t5, alibi, grid };

/// The parameters of a position. RowBias has its biases by the published formulas.
struct Bias {
  Place place = Place::none;
  std::string name = "none";
  std::vector<Exact> weights;  // table: lags -R..R; t5: buckets; grid: (2H-1) x (2W-1), row by row
  Exact slope = 0;             // alibi
  Direction direction = Direction::bidirectional;
  Index max_distance = 128;                       // t5, like the direction
  Index height = 1, width = 1, extra_tokens = 0;  // grid
  std::vector<Exact> extra;                       // E x (E+2)

  /// All parameters in order: those of the position, then those of extra tokens.
  Index num_own() const { return place == Place::alibi ? 1 : static_cast<Index>(weights.size()); }
  Index num_parameters() const { return num_own() + static_cast<Index>(extra.size()); }

  /// The number of tokens of a grid.
  Index tokens() const { return extra_tokens + height * width; }
};

/// The bucket of a lag, Raffel et al. 2020; in single precision, as published.
inline Index bucket_of(Index lag, Index buckets, Direction direction, Index max_distance) {
  Index start = 0, distance = std::max<Index>(-lag, 0);
  if (direction == Direction::bidirectional) {
    buckets /= 2;
    start = lag > 0 ? buckets : 0;
    distance = std::abs(lag);
  }
  const Index near = buckets / 2;
  if (distance < near) return start + distance;
  const auto log = [](double x) { return static_cast<float>(std::log(x)); };
  const float quotient = log(static_cast<float>(distance) / static_cast<float>(near)) /
                         log(static_cast<double>(max_distance) / static_cast<double>(near));
  const float beyond = quotient * static_cast<float>(buckets - near);
  return start + std::min(buckets - 1, near + static_cast<Index>(beyond));
}

/// The bias of a query and a key up to RowBias::common_offset(), the parameter on which it depends, and its derivative
/// with respect to this parameter.
struct Pair {
  Exact bias;
  Index parameter;  // -1: none
  Exact derivative;
};

/// The biases of query i, at position i + offset, for the keys 0..n_k-1.
class RowBias {
 public:
  RowBias(const Bias& bias, Index i, Index offset, Index n_k) : m_bias(bias), m_i(i), m_offset(offset) {
    // for ALiBi far from lag 0, differences of distances are exact
    const Index first = -i - offset, last = n_k - 1 - i - offset;
    m_nearest = first <= 0 && last >= 0 ? 0 : std::min(std::abs(first), std::abs(last));
  }

  Pair operator()(Index j) const {
    const Index lag = j - m_i - m_offset;
    switch (m_bias.place) {
      case Place::none: return {0, -1, 0};
      case Place::table: {
        const Index reach = static_cast<Index>(m_bias.weights.size()) / 2;
        return own(std::clamp(lag, -reach, reach) + reach);
      }
      case Place::t5:
        return own(bucket_of(lag, static_cast<Index>(m_bias.weights.size()), m_bias.direction, m_bias.max_distance));
      case Place::alibi:
        return {-m_bias.slope * static_cast<Exact>(std::abs(lag) - m_nearest), 0, -static_cast<Exact>(std::abs(lag))};
      case Place::grid: return of_grid(j);
    }
    return {0, -1, 0};
  }

  /// Whether key j is less than `width` tokens from the query; on a grid in each of its dimensions, and both are cells.
  bool is_near(Index j, Index width) const {
    if (m_bias.place != Place::grid) return std::abs(j - m_i - m_offset) < width;
    const Index E = m_bias.extra_tokens, W = m_bias.width, query = m_i - E, key = j - E;
    return query >= 0 && key >= 0 && std::abs(key / W - query / W) < width && std::abs(key % W - query % W) < width;
  }

  /// The constant that is subtracted from all biases of this row; attention does not depend on it.
  Exact common_offset() const {
    return m_bias.place == Place::alibi ? -m_bias.slope * static_cast<Exact>(m_nearest) : 0;
  }

 private:
  Pair own(Index at) const { return {m_bias.weights[static_cast<std::size_t>(at)], at, 1}; }
  Pair extra(Index token, Index which) const {
    const Index at = token * (m_bias.extra_tokens + 2) + which;
    return {m_bias.extra[static_cast<std::size_t>(at)], m_bias.num_own() + at, 1};
  }

  Pair of_grid(Index j) const {
    const Index E = m_bias.extra_tokens, W = m_bias.width;
    if (m_i < E) return extra(m_i, j < E ? 2 + j : 0);
    if (j < E) return extra(j, 1);
    const Index query = m_i - E, key = j - E;
    const Index down = key / W - query / W, right = key % W - query % W;
    return own((down + m_bias.height - 1) * (2 * W - 1) + right + W - 1);
  }

  const Bias& m_bias;
  Index m_i, m_offset, m_nearest;
};

}  // namespace nprf::test::differential
