// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nprf/core/engine.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/core/resize.hpp"

namespace nprf {

/// The bucket of a lag. Small distances have one bucket each, the exact buckets. Distances up to max_distance have
/// buckets at logarithmic intervals. All larger distances share the last bucket.
///
/// bidirectional: half of the buckets are for keys at or before the query, half for keys after it. causal: all buckets
/// are for keys at or before the query, and a lag > 0 has the bucket of lag 0. Source: Raffel et al. 2020. Their code
/// computes in fp32, and so does this function: where the exact quotient of logarithms lies on the boundary of a
/// bucket, the bucket depends on the last bit of the logarithms.
///
/// Throws InvalidArgument unless there are at least 4 (bidirectional) or 2 (causal) buckets and max_distance exceeds
/// the number of exact buckets.
inline Index t5_bucket(Index lag, Index num_buckets, Direction direction, Index max_distance) {
  check_direction(direction);
  const bool bidirectional = direction == Direction::bidirectional;
  require(num_buckets >= (bidirectional ? 4 : 2), "num_buckets: expected at least ", bidirectional ? 4 : 2, ", got ",
          num_buckets);
  Index bucket = 0, distance = std::max<Index>(-lag, 0);
  if (bidirectional) {
    num_buckets /= 2;
    if (lag > 0) bucket = num_buckets;
    distance = lag < 0 ? -lag : lag;
  }
  const Index exact = num_buckets / 2;
  require(max_distance > exact, "max_distance: expected more than ", exact, " (the number of exact buckets), got ",
          max_distance);
  if (distance < exact) return bucket + distance;
  // log is computed in double and then rounded to float: the last bit of the platform's float logarithm may be wrong
  const auto log = [](double x) { return static_cast<float>(std::log(x)); };
  const float ratio = log(static_cast<float>(distance) / static_cast<float>(exact)) /
                      log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const Index far = exact + static_cast<Index>(ratio * static_cast<float>(num_buckets - exact));
  return bucket + std::min(far, num_buckets - 1);
}

/// T5's relative position: one learned scalar for each bucket of lags. It is built for one direction; an attention of
/// the other direction throws InvalidArgument.
template <OnlyReal T>
class T5Position {
 public:
  using Scalar = T;

  /// bucket_weights has one scalar for each bucket. Throws InvalidArgument if their number is less than 4 or odd
  /// (bidirectional) or less than 2 (causal), if max_distance does not exceed the number of exact buckets or exceeds
  /// 2^24, or if a weight is NaN or +infinity. O(max_distance).
  T5Position(Vector<T> bucket_weights, Direction direction, Index max_distance = 128)
      : m_weights(std::move(bucket_weights)), m_direction(direction), m_max_distance(max_distance) {
    check_direction(direction);
    const bool bidirectional = direction == Direction::bidirectional;
    const Index n = num_buckets();
    require(bidirectional ? n >= 4 && n % 2 == 0 : n >= 2, "bucket_weights: expected ",
            bidirectional ? "an even number of scalars, at least 4" : "at least 2 scalars", ", got ", n);
    const Index exact = (bidirectional ? n / 2 : n) / 2;
    require(max_distance > exact && max_distance <= Index{1} << 24, "max_distance: expected more than ", exact,
            " (the number of exact buckets) and at most 2^24, got ", max_distance);
    check_weights(m_weights);

    // the last bucket starts at max_distance or before, and the bias is constant from there on
    Index reach = max_distance;
    while (reach > 1 && bucket(1 - reach) == bucket(-reach)) --reach;
    m_bias.first = -reach;
    auto buckets = std::make_shared<std::vector<Index>>(bidirectional ? 2 * reach + 1 : reach + 1);
    for (std::size_t l = 0; l < buckets->size(); ++l) (*buckets)[l] = bucket(m_bias.first + static_cast<Index>(l));
    m_buckets = std::move(buckets);
    set_bias();
  }

  /// The same position with other weights, for training that changes them at each step: it has the buckets of this one,
  /// and computes no logarithms. Throws InvalidArgument for another number of weights, NaN or +infinity.
  T5Position with_weights(Vector<T> bucket_weights) const {
    require(bucket_weights.size() == num_buckets(), "bucket_weights: expected ", num_buckets(),
            " scalars (those of the position), got ", bucket_weights.size());
    check_weights(bucket_weights);
    T5Position other = *this;
    other.m_weights = std::move(bucket_weights);
    other.set_bias();
    return other;
  }

  Index num_buckets() const { return m_weights.size(); }
  Index bucket(Index lag) const { return t5_bucket(lag, num_buckets(), m_direction, m_max_distance); }
  Direction direction() const { return m_direction; }
  const Vector<T>& bucket_weights() const { return m_weights; }
  const LagBias<T>& bias() const { return m_bias; }

  /// Sets d (buckets,1) to the gradient of the bucket weights; db holds dL/db of the lags first, first + 1, ... The
  /// gradient of each lag is added to that of its bucket.
  void gradient(Index first, std::span<const double> db, Matrix<double>& d) const {
    resize(d, num_buckets());
    d.setZero();
    for (std::size_t l = 0; l < db.size(); ++l)
      d(bucket_in_table(std::clamp(first + static_cast<Index>(l), m_bias.first, m_bias.last())), 0) += db[l];
  }

 private:
  static void check_weights(const Vector<T>& weights) {
    for (Index l = 0; l < weights.size(); ++l)
      require(weights[l] < std::numeric_limits<T>::infinity(), "bucket_weights[", l,
              "]: expected a finite number or -infinity, got ", weights[l]);
  }

  Index bucket_in_table(Index lag) const { return (*m_buckets)[static_cast<std::size_t>(lag - m_bias.first)]; }

  void set_bias() {
    resize(m_bias.table, static_cast<Index>(m_buckets->size()));
    for (Index l = 0; l < m_bias.table.size(); ++l) m_bias.table[l] = m_weights[bucket_in_table(m_bias.first + l)];
  }

  Vector<T> m_weights;
  Direction m_direction;
  Index m_max_distance;
  LagBias<T> m_bias;
  std::shared_ptr<const std::vector<Index>> m_buckets;  // the buckets of the lags of m_bias.table
};

template <OnlyReal T>
T5Position<T> t5_position(Vector<T> bucket_weights, Direction direction, Index max_distance = 128) {
  return T5Position<T>(std::move(bucket_weights), direction, max_distance);
}

}  // namespace nprf
