// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/normal.hpp"

namespace nprf {

/// Compares some rows of attention with the rows of exact softmax. `difference` is the sum of the squares of their
/// differences, `size` that of the squares of the rows of exact softmax, for values in units of 2^exponent.
struct SoftmaxDifference {
  Index rows = 0;
  double difference = 0, size = 0;
  int exponent = 0;

  /// The result has the unit of the operand with the larger sums, so that these do not overflow, and the smaller sums
  /// underflow only where they are negligible beside these.
  SoftmaxDifference& operator+=(const SoftmaxDifference& other) {
    const int unit = log2_of_sums() < other.log2_of_sums() ? other.exponent : exponent;
    const auto in_unit = [unit](double sum, int from) { return std::ldexp(sum, 2 * (from - unit)); };
    rows += other.rows;
    difference = in_unit(difference, exponent) + in_unit(other.difference, other.exponent);
    size = in_unit(size, exponent) + in_unit(other.size, other.exponent);
    exponent = unit;
    return *this;
  }

  double log2_of_sums() const { return std::log2(std::max(difference, size)) + 2.0 * exponent; }

  /// The relative error by the Frobenius norm; NaN if no row was compared.
  double relative_error() const {
    if (rows == 0) return std::numeric_limits<double>::quiet_NaN();
    return difference == 0 ? 0 : std::sqrt(difference / size);
  }
};

/// Sets `rows` to some of n queries, increasing. The queries are divided into rows.size() parts, at most n, whose
/// lengths differ by at most 1, and one query of each part is drawn, from the seed and the stream (Philox).
inline void draw_rows(Index n, std::uint64_t seed, std::uint64_t stream, std::span<Index> rows) {
  const auto word = [](std::uint64_t x, int part) { return static_cast<std::uint32_t>(x >> (32 * part)); };
  const Index count = static_cast<Index>(rows.size());
  for (Index at = 0; at < count; ++at) {
    const Index first = n / count * at + std::min(at, n % count), length = n / count + (at < n % count ? 1 : 0);
    const auto counter = static_cast<std::uint64_t>(at);
    const Philox::Words w = Philox::block({word(counter, 0), word(counter, 1), word(stream, 0), word(stream, 1)},
                                          {word(seed, 0), word(seed, 1)});
    const std::uint64_t drawn = (std::uint64_t{w[0]} << 32 | w[1]) % static_cast<std::uint64_t>(length);
    rows[static_cast<std::size_t>(at)] = first + static_cast<Index>(drawn);
  }
}

}  // namespace nprf
