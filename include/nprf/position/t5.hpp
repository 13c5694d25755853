// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "nprf/core/engine.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/core/resize.hpp"

namespace nprf {

/// The bucket of a lag: one each for near lags, then logarithmic up to max_distance, then one for all that is farther.
///
/// bidirectional: half of the buckets for keys at or before the query, half for keys after it. causal: all of them for
/// keys at or before it, and lags > 0 count as 0. Source: Raffel et al. 2020, whose code computes in fp32, as does
/// this; where the exact quotient of logarithms is a bucket's boundary, the bucket hangs on the last bit of theirs.
///
/// Throws InvalidArgument unless there are at least 4 (bidirectional) or 2 (causal) buckets and max_distance exceeds
/// the number of exact ones.
inline Index t5_bucket(Index lag, Index num_buckets, Direction direction, Index max_distance) {
  check_direction(direction);
  const bool both = direction == Direction::bidirectional;
  require(num_buckets >= (both ? 4 : 2), "num_buckets: expected at least ", both ? 4 : 2, ", got ", num_buckets);
  Index bucket = 0, distance = std::max<Index>(-lag, 0);
  if (both) {
    num_buckets /= 2;
    if (lag > 0) bucket = num_buckets;
    distance = lag < 0 ? -lag : lag;
  }
  const Index exact = num_buckets / 2;
  require(max_distance > exact, "max_distance: expected more than ", exact, " (the number of exact buckets), got ",
          max_distance);
  if (distance < exact) return bucket + distance;
  // logarithms in double, then rounded: those of the platform's float library may be off by a bit
  const auto log = [](double x) { return static_cast<float>(std::log(x)); };
  const float ratio = log(static_cast<float>(distance) / static_cast<float>(exact)) /
                      log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const Index far = exact + static_cast<Index>(ratio * static_cast<float>(num_buckets - exact));
  return bucket + std::min(far, num_buckets - 1);
}

/// T5's relative position: one learned scalar for each bucket of lags.
template <OnlyReal T>
class T5Position {
 public:
  using Scalar = T;

  /// Throws InvalidArgument unless the buckets are at least 4 and even (bidirectional) or at least 2 (causal),
  /// max_distance exceeds the number of exact buckets, and no weight is NaN or +infinity.
  T5Position(Vector<T> bucket_weights, Direction direction, Index max_distance = 128)
      : m_weights(std::move(bucket_weights)), m_direction(direction), m_max_distance(max_distance) {
    check_direction(direction);
    const bool both = direction == Direction::bidirectional;
    const Index n = num_buckets();
    require(both ? n >= 4 && n % 2 == 0 : n >= 2, "bucket_weights: expected ",
            both ? "an even number of scalars, at least 4" : "at least 2 scalars", ", got ", n);
    const Index exact = (both ? n / 2 : n) / 2;
    require(max_distance > exact && max_distance <= Index{1} << 24, "max_distance: expected more than ", exact,
            " (the number of exact buckets) and at most 2^24, got ", max_distance);
    for (Index l = 0; l < n; ++l)
      require(m_weights[l] < std::numeric_limits<T>::infinity(), "bucket_weights[", l,
              "]: expected a finite number or -infinity, got ", m_weights[l]);

    // the last bucket starts at max_distance at the latest: from there on the end scalars repeat
    Index reach = max_distance;
    while (reach > 1 && bucket(1 - reach) == bucket(-reach)) --reach;
    m_bias.first = -reach;
    m_bias.table = Vector<T>(both ? 2 * reach + 1 : reach + 1);
    for (Index l = 0; l < m_bias.table.size(); ++l) m_bias.table[l] = m_weights[bucket(m_bias.first + l)];
  }

  Index num_buckets() const { return m_weights.size(); }
  Index bucket(Index lag) const { return t5_bucket(lag, num_buckets(), m_direction, m_max_distance); }
  Direction direction() const { return m_direction; }
  const Vector<T>& bucket_weights() const { return m_weights; }
  const LagBias<T>& bias() const { return m_bias; }

  /// dL/dweights (buckets,1): each lag counts for its bucket.
  void gradient(Index first, std::span<const double> db, Matrix<double>& d) const {
    resize(d, num_buckets());
    d.setZero();
    for (std::size_t l = 0; l < db.size(); ++l)
      d(bucket(std::clamp(first + static_cast<Index>(l), m_bias.first, -m_bias.first)), 0) += db[l];
  }

 private:
  Vector<T> m_weights;
  Direction m_direction;
  Index m_max_distance;
  LagBias<T> m_bias;
};

template <OnlyReal T>
T5Position<T> t5_position(Vector<T> bucket_weights, Direction direction, Index max_distance = 128) {
  return T5Position<T>(std::move(bucket_weights), direction, max_distance);
}

}  // namespace nprf
