// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/step_bias.hpp"
#include "nprf/decoder/window_plan.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/fft/polynomial_tree.hpp"
#include "nprf/toeplitz/fft/convolution_error.hpp"

namespace nprf {

/// The weights of the windows of one size M, as spectra. The tokens before far_end() are divided into blocks of 3 M,
/// from the last on, and the sums of the M queries of a window over a block are a convolution modulo z^4M + 1:
///
///     y_i = sum_j c(a + i - j) x_j     i < M, j < 3 M     a = (3 k + 4) M, of block k
///
/// where c(age) = exp(b(age) - log_unit()), and 0 from `limit` on. The weights do not depend on the window.
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
  /// Tokens of a block.
  Index block() const { return 3 * m_size; }
  const Tree& tree() const { return *m_tree; }
  double log_unit() const { return m_log_unit; }
  /// The first token that has a weight for a query of the window.
  Index first_token(const Window& window) const { return std::max<Index>(window.first - m_limit + 1, 0); }
  Index blocks(const Window& window) const { return (window.far_end() - first_token(window) + block() - 1) / block(); }

  /// (2 M) of block k, divided by the length of the transform: real and imaginary parts alternate.
  const T* spectrum(Index k) const { return m_spectra.data() + k * 4 * m_size; }
  /// Of the weights of block k.
  const toeplitz::NormSums& norms(Index k) const { return m_norms[static_cast<std::size_t>(k)]; }

  /// Computes the spectra of all blocks of `tokens` tokens, and of as many again.
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

  // coefficient m of the kernel of block k, 0 <= m < 4 M: that of i - j = m, or m - 4 M with the opposite sign
  double weight(const StepBias<T>& bias, Index k, Index m) const {
    if (m == m_size) return 0;
    const Index age = (3 * k + 4) * m_size + (m < m_size ? m : m - 4 * m_size);
    return age < m_limit ? std::exp(bias(age) - m_log_unit) : 0.0;
  }

  // of the blocks k, k + 1, ..., one in each lane
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
