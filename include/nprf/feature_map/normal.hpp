// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "nprf/core/types.hpp"

namespace nprf {

/// Philox4x32-10, a counter-based generator: four random words are a pure function of (key, counter).
///
/// Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
struct Philox {
  using Words = std::array<std::uint32_t, 4>;
  using Key = std::array<std::uint32_t, 2>;

  static constexpr Words block(Words x, Key key) {
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t even = std::uint64_t{0xD2511F53} * x[0];
      const std::uint64_t odd = std::uint64_t{0xCD9E8D57} * x[2];
      x = {high(odd) ^ x[1] ^ key[0], low(odd), high(even) ^ x[3] ^ key[1], low(even)};
      key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
    }
    return x;
  }

 private:
  static constexpr std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }
  static constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
};

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
