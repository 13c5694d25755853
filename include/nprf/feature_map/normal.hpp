// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/philox.hpp"

namespace nprf {

/// A generator of independent N(0,1) deviates in double, by the method of Box and Muller (1958) from random words of
/// Philox.
///
/// The seed and the stream determine the random integers on every platform. Streams of one seed are independent.
class NormalDeviates {
 public:
  explicit NormalDeviates(std::uint64_t seed, std::uint64_t stream = 0) : m_seed(seed), m_stream(stream) {}

  double operator()() {
    if (m_at == 2) refill();
    return m_pair[m_at++];
  }

  /// A rows x cols matrix, filled row by row.
  Matrix<double> matrix(Index rows, Index cols) {
    Matrix<double> g(rows, cols);
    for (Index i = 0; i < g.size(); ++i) g.data()[i] = (*this)();
    return g;
  }

 private:
  void refill() {
    const auto word = [](std::uint64_t x, int part) { return static_cast<std::uint32_t>(x >> (32 * part)); };
    const Philox::Words w = Philox::block({word(m_block, 0), word(m_block, 1), word(m_stream, 0), word(m_stream, 1)},
                                          {word(m_seed, 0), word(m_seed, 1)});
    ++m_block;
    const double radius = std::sqrt(-2 * std::log(1 - fraction(w[0], w[1])));
    const double angle = 2 * std::numbers::pi * fraction(w[2], w[3]);
    m_pair = {radius * std::cos(angle), radius * std::sin(angle)};
    m_at = 0;
  }

  // 53 bits, uniform in [0,1)
  static double fraction(std::uint32_t high, std::uint32_t low) {
    return static_cast<double>(((std::uint64_t{high} << 32) | low) >> 11) * 0x1p-53;
  }

  std::uint64_t m_seed, m_stream, m_block = 0;
  std::array<double, 2> m_pair{};
  std::size_t m_at = 2;
};

}  // namespace nprf
