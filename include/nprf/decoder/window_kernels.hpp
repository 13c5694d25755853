// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "nprf/core/index.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/step_bias.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/fft/polynomial_tree.hpp"
#include "nprf/toeplitz/cost.hpp"
#include "nprf/toeplitz/fft/convolution_error.hpp"

namespace nprf {

/// The tokens first..first+size-1 of a sequence, whose queries get their sums over the tokens before far_end() from one
/// online convolution (far_window.hpp). Size 0: there is no window, and queries sum over the tokens themselves.
struct Window {
  Index first = 0, size = 0;

  Index end() const { return first + size; }
  Index far_end() const { return first - size; }
  bool operator==(const Window&) const = default;
};

/// What the choice of windows depends on.
struct WindowCosts {
  Index r, d_v;   // features, and columns of values
  Index signals;  // the number of signals that are transformed, rounded up to whole registers
  Index tokens;   // the largest number of earlier tokens that a query attends to and that are not in running sums
  Index least;    // the smallest size of a window
};

/// The window of each token of a sequence. The sizes of windows are powers of two. A window's size and first token
/// depend on the index of the token alone, so that rows do not depend on how the tokens were divided between calls.
class WindowPlan {
 public:
  /// No windows.
  WindowPlan() = default;

  /// Windows of `size` tokens, a power of two, from token 2 * size on.
  static WindowPlan fixed(Index size) {
    WindowPlan plan;
    for (std::size_t e = 0; e < plan.m_sizes.size(); ++e)
      if ((Index{1} << e) >= 2 * size) plan.m_sizes[e] = size;
    plan.set_first();
    return plan;
  }

  /// Windows of the sizes of least cost. The two buffers of windows (OnlineConvolution) take at most `memory` times the
  /// memory of the stored tokens.
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
  bool has(Index size) const { return std::find(m_sizes.begin(), m_sizes.end(), size) != m_sizes.end(); }
  Index largest() const { return m_sizes.back(); }

  /// The window of the query at a position; Window{} if it has none.
  Window at(Index position) const {
    const Index size =
        position > 0 ? m_sizes[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(position)) - 1)] : 0;
    return size == 0 ? Window{} : Window{position / size * size, size};
  }
  /// The first window that begins after a position. Requires any().
  Window after(Index position) const {
    if (const Window now = at(position); now.size > 0) return at(now.end());
    return at(m_first);
  }
  /// The position at which the work on a window begins, if `rollback` tokens can be taken back. Before it, a rollback
  /// may lead to a query of the second window before this one, whose memory this window takes; or, if this is the first
  /// window, take back tokens that this window sums.
  Index begin_of_work(const Window& window, Index rollback) const {
    const Window before = at(window.first - 1);
    return (before.size > 0 ? before.first : window.far_end()) + rollback;
  }

 private:
  void set_first() {
    m_first = 1;
    while (any() && at(m_first).size == 0) m_first *= 2;
  }

  // costs are in multiply-adds of a tile (toeplitz/cost.hpp)
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
  std::array<Index, 48> m_sizes{};  // entry e: the size of windows at positions 2^e .. 2^(e+1) - 1
};

/// The weights of the windows of one size M, as spectra. The tokens before far_end() are divided into blocks of 3 M
/// tokens; block 0 has the last ones. The sums of the M queries of a window over a block are a convolution modulo
/// z^(4M) + 1:
///
///     y_i = sum_j c(a + i - j) x_j     i < M, j < 3 M     a = (3 k + 4) M, of block k
///
/// where x_j is the signal of token j of the block, y_i the sum for query i of the window, and
/// c(age) = exp(b(age) - log_unit()), or 0 for ages from `limit` on. The weights do not depend on the window.
template <Real T>
class WindowKernels {
 public:
  using Tree = fft::PolynomialTree<T>;
  using Z = fft::ComplexLanes<T>;

  WindowKernels(Index size, const StepBias<T>& bias, Index limit)
      : m_size(size), m_limit(limit), m_tree(Tree::shared(2 * size)) {
    for (Index age = size; age < limit; ++age) m_log_unit = std::max(m_log_unit, bias(age));
  }

  Index size() const { return m_size; }
  /// The number of tokens of a block.
  Index block() const { return 3 * m_size; }
  const Tree& tree() const { return *m_tree; }
  double log_unit() const { return m_log_unit; }
  /// The first token that has a weight for a query of the window.
  Index first_token(const Window& window) const { return std::max<Index>(window.first - m_limit + 1, 0); }
  Index blocks(const Window& window) const { return (window.far_end() - first_token(window) + block() - 1) / block(); }

  /// (2 M)  The spectrum of the weights of block k, complex (real and imaginary parts alternate), divided by the length
  /// of the transform.
  const T* spectrum(Index k) const { return m_spectra.data() + k * 4 * m_size; }
  /// What the norms of the weights of block k are computed from.
  const toeplitz::NormSums& norms(Index k) const { return m_norms[static_cast<std::size_t>(k)]; }

  /// Computes the spectra of the blocks that `tokens` tokens need, and of as many blocks again, up to the limit.
  void reserve(const StepBias<T>& bias, Index tokens) {
    const Index needed = (std::min(tokens, m_limit) + block() - 1) / block() + 1,
                before = static_cast<Index>(m_norms.size());
    if (needed <= before) return;
    const Index blocks = std::min(2 * needed, (m_limit + block() - 1) / block() + 1);
    Vector<T> spectra(blocks * 4 * m_size);
    std::copy_n(m_spectra.data(), m_spectra.size(), spectra.data());
    std::vector<toeplitz::NormSums> norms = m_norms;
    Workspace scratch;
    Z* z = scratch.take<Z>(m_tree->length());
    for (Index k = before; k < blocks; k += W) add_spectra(bias, k, std::min(W, blocks - k), z, spectra, norms);
    m_spectra = std::move(spectra), m_norms = std::move(norms);
  }

 private:
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>;

  // the weight that is coefficient m of the kernel of block k, 0 <= m < 4 M: if m < M, that of i - j = m; if m > M,
  // that of i - j = m - 4 M, where the coefficient has the opposite sign
  double weight(const StepBias<T>& bias, Index k, Index m) const {
    if (m == m_size) return 0;
    const Index age = (3 * k + 4) * m_size + (m < m_size ? m : m - 4 * m_size);
    return age < m_limit ? std::exp(bias(age) - m_log_unit) : 0.0;
  }

  // computes the spectra of the blocks k..k+count-1, one in each lane
  void add_spectra(const StepBias<T>& bias, Index k, Index count, Z* z, Vector<T>& spectra,
                   std::vector<toeplitz::NormSums>& norms) const {
    const Index L = m_tree->length();
    norms.resize(static_cast<std::size_t>(k + count));
    const double scale = 1 / static_cast<double>(L);
    const auto coefficients = [&](Index m) {
      Lanes all{};
      for (Index lane = 0; lane < count; ++lane) {
        const double c = weight(bias, k + lane, m);
        norms[static_cast<std::size_t>(k + lane)].add(c);
        all[lane] = static_cast<T>(m <= m_size ? scale * c : -scale * c);
      }
      return all;
    };
    m_tree->values([&](Index j) { return Z{coefficients(j), coefficients(j + L)}; }, z);
    for (Index lane = 0; lane < count; ++lane) {
      T* to = spectra.data() + (k + lane) * 2 * L;
      for (Index j = 0; j < L; ++j) to[2 * j] = z[j].re[lane], to[2 * j + 1] = z[j].im[lane];
    }
  }

  Index m_size, m_limit;
  std::shared_ptr<const Tree> m_tree;
  double m_log_unit = -std::numeric_limits<double>::infinity();
  Vector<T> m_spectra;                      // (blocks,2 M)  complex
  std::vector<toeplitz::NormSums> m_norms;  // (blocks)
};

}  // namespace nprf
