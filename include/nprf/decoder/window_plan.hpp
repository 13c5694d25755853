// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "nprf/core/index.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/cost.hpp"

namespace nprf {

/// Successive positions first..first+size-1 whose queries get their sums over the tokens before far_end() from one
/// online convolution (far_window.hpp). Size 0: they get them from the tokens.
struct Window {
  Index first = 0, size = 0;

  Index end() const { return first + size; }
  Index far_end() const { return first - size; }
  bool operator==(const Window&) const = default;
};

/// What the choice of windows depends on.
struct WindowCosts {
  Index r, d_v;   // features, and columns of values
  Index signals;  // that are transformed, whole registers of them
  Index tokens;   // the most whose weights are not those of running sums
  Index least;    // the smallest window
};

/// The windows by position. Their sizes are powers of two that depend on the position alone, as does where they begin,
/// so that rows do not depend on how the tokens were divided between calls.
class WindowPlan {
 public:
  /// No windows.
  WindowPlan() = default;

  /// Windows of `size` tokens, a power of two, from position 2 size on.
  static WindowPlan fixed(Index size) {
    WindowPlan plan;
    for (std::size_t e = 0; e < plan.m_sizes.size(); ++e)
      if ((Index{1} << e) >= 2 * size) plan.m_sizes[e] = size;
    plan.set_first();
    return plan;
  }

  /// The sizes of least cost whose two buffers take at most `memory` times what the stored tokens take.
  static WindowPlan cheapest(const WindowCosts& x, double memory) {
    WindowPlan plan;
    auto least = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(std::max<Index>(x.least, 64))));
    for (std::size_t e = 8; e < plan.m_sizes.size(); ++e) {
      const Index tokens = std::min(Index{1} << e, x.tokens);
      const double of_tokens = static_cast<double>(tokens * (x.r + x.d_v));
      double best = 0.8 * tokens_cost(x, static_cast<double>(tokens));  // a smaller gain is not worth the memory
      for (Index size = least; 4 * size <= tokens; size *= 2) {
        if (static_cast<double>(2 * size * x.signals) > memory * of_tokens) break;
        if (const double cost = window_cost(x, size, tokens); cost < best) best = cost, plan.m_sizes[e] = size;
      }
      least = std::max(least, plan.m_sizes[e]);
      if (plan.m_sizes[e] == 0) plan.m_sizes[e] = plan.m_sizes[e - 1];
    }
    plan.set_first();
    return plan;
  }

  bool any() const { return m_sizes.back() > 0; }
  /// Whether there are windows of that size.
  bool has(Index size) const { return std::find(m_sizes.begin(), m_sizes.end(), size) != m_sizes.end(); }
  Index largest() const { return m_sizes.back(); }

  /// That of the query at a position.
  Window at(Index position) const {
    const Index size =
        position > 0 ? m_sizes[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(position)) - 1)] : 0;
    return size == 0 ? Window{} : Window{position / size * size, size};
  }
  /// The first one that begins after a position. Requires any().
  Window after(Index position) const {
    if (const Window now = at(position); now.size > 0) return at(now.end());
    return at(m_first);
  }
  /// The position from which on it is computed, for steps that can take back `rollback` tokens: the queries before are
  /// those of the window before, whose buffer may still be needed up to there.
  Index begin_of_work(const Window& window, Index rollback) const {
    const Window before = at(window.first - 1);
    return (before.size > 0 ? before.first : window.far_end()) + rollback;
  }

 private:
  void set_first() {
    m_first = 1;
    while (any() && at(m_first).size == 0) m_first *= 2;
  }

  // in multiply-adds of a tile (toeplitz/cost.hpp)
  static double tokens_cost(const WindowCosts& x, double tokens) {
    constexpr double of_memory = 4;
    return of_memory * tokens * static_cast<double>(x.r + x.d_v + 1);
  }
  static double window_cost(const WindowCosts& x, Index size, Index tokens) {
    const double blocks = std::ceil(static_cast<double>(tokens) / static_cast<double>(3 * size)) + 1,
                 length = static_cast<double>(4 * size), transform = length * toeplitz::fft_value_cost(length) / 2;
    return tokens_cost(x, 1.5 * static_cast<double>(size)) +
           static_cast<double>(x.signals) * (blocks * transform / static_cast<double>(size) + 4);
  }

  Index m_first = 0;                // the first position in a window
  std::array<Index, 48> m_sizes{};  // of windows at positions 2^e .. 2^(e+1) - 1
};

}  // namespace nprf
