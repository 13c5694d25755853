// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/fft/polynomial_tree.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"
#include "nprf/toeplitz/fft/spectral_ops.hpp"

namespace nprf::toeplitz {

/// A common axis of queries and keys on which every key with a non-zero weight comes no later than its query. Let o be
/// the last lag with a non-zero weight. If o > 0, the place of a query on the axis is its slot plus o, and that of a
/// key is its slot. Otherwise the place of a key is its slot plus |o|, and that of a query is its slot. A key at
/// distance d >= 0 before a query then has the weight c[o - d].
struct CausalAxis {
  struct Side {
    Index first, end;  // the places of slot 0 and of the slot after the last

    bool meets(Index begin, Index count) const { return first < begin + count && begin < end; }
  };

  /// `support` are the lags from the first to the last non-zero weight.
  CausalAxis(const LagRange& support, const ProductShape& span)
      : lags{std::max(support.first, 1 - span.n_q), std::min(support.last, span.n_k - 1)},
        queries{ahead(lags.last), ahead(lags.last) + span.n_q},
        keys{ahead(-lags.last), ahead(-lags.last) + span.n_k} {}

  Index length() const { return std::max(queries.end, keys.end); }

  /// The weight at distance d; 0 beyond the lags that the two sides reach.
  template <Real T>
  T weight(const LagWeightsView<T>& c, Index d) const {
    return d < 0 || d >= lags.size() ? T(0) : c[lags.last - d];
  }

  LagRange lags;  // of the support, as far as the two sides reach
  Side queries, keys;

 private:
  Index ahead(Index by) const { return lags.size() > 0 ? std::max<Index>(by, 0) : 0; }
};

/// A lower triangular Toeplitz matrix without its diagonal blocks, divided into blocks whose size grows with the
/// distance from the diagonal:
///
///     D . . . . . . . .     D   diagonal blocks of `diagonal` positions (diagonal_blocks.hpp)
///     1 D . . . . . . .     1   level 0: within a group of blocks of `diagonal`, each block of queries (a target) with
///     1 1 D . . . . . .         each earlier block of keys (a source)
///     2 2 2 D . . . . .     2   level 1: the same for groups of blocks of the size of a group of level 0
///     2 2 2 1 D . . . .
///     2 2 2 1 1 D . . .     (drawn for groups of 3; the cheapest have 4 to 32 blocks)
///
/// The offset D of two blocks of size S is the number of the block of queries minus that of the block of keys. Their
/// weights are those of distances D S - S + 1 .. D S + S - 1, and their product is one modulo z^2S + 1
/// (polynomial_tree.hpp). A group needs one transform for each block of keys and of queries. In the transformed values,
/// block I of queries is
///
///     Y_I = sum over J < I of g_(I-J) X_J
///
/// with the values X_J of block J of keys, and g_D of the weights at offset D. A block of keys only contributes to
/// later blocks of queries. The tables are in the team's workspace; threads share them.
template <Real T>
class CausalLevels {
 public:
  using Tree = fft::PolynomialTree<T>;
  using Z = fft::ComplexLanes<T>;
  static constexpr Index block = 128;  // consecutive keys whose log-scales have a common unit
  static constexpr Index most = 31;    // `most` sources in a group, and as many targets
  static constexpr Index diagonals[] = {block, 2 * block, 4 * block, 8 * block};  // sizes of diagonal blocks
  static constexpr std::size_t most_levels = 32;  // each is at least four times as large as the one before

  struct Level {
    Index size;     // S
    Index group;    // the number of blocks in a group
    Index offsets;  // the largest offset in use; the weights of larger offsets are zero
    std::shared_ptr<const Tree> tree;
    const T* spectra;       // (S/8,offsets,8) of g_D / S, real and imaginary parts
    const NormSums* norms;  // (offsets)  those of the weights at offset D, at D - 1
    Index before;           // how many numbers the spectra of all levels before this one have

    /// The index in `spectra` of the first number of leaf k.
    Index at_leaf(Index k) const { return k * offsets * 16; }
    Index end() const { return before + 2 * size * offsets; }
  };

  /// `count` blocks of keys, the sources, from place `first` on. Target s is the block of queries directly after source
  /// s, and needs the sources 0..s.
  struct BlockGroup {
    Index level, first, count;
  };

  CausalLevels(LagWeightsView<T> c, const CausalAxis& axis, Index diagonal, const Team& team)
      : m_axis(axis), m_diagonal(diagonal) {
    for (Index size = diagonal, group; size < axis.length(); size *= group) {
      group = plan(axis.length(), size).group;
      const Index others = std::min((axis.length() - 1) / size, group - 1);
      const Index offsets = std::min((axis.lags.size() + size - 2) / size, others);
      if (offsets == 0) break;
      T* spectra = team.workspace().take<T>(2 * size * offsets);
      const Index before = numbers();
      Level& level = m_levels[static_cast<std::size_t>(m_count++)];
      NormSums* norms = team.workspace().template take<NormSums>(offsets);
      level = {size, group, offsets, Tree::shared(size), spectra, norms, before};
      for (Index D = 1; D <= offsets; ++D) {
        norms[D - 1] = {};
        for (Index d = (D - 1) * size + 1; d < (D + 1) * size; ++d)
          norms[D - 1].add(static_cast<double>(m_axis.weight(c, d)));
      }
      team.run((offsets + W - 1) / W,
               [&](Index task, Workspace& scratch) { write_spectra(c, level, task * W, spectra, scratch); });
    }
  }

  Index count() const { return m_count; }
  const Level& operator[](Index level) const { return m_levels[static_cast<std::size_t>(level)]; }
  const CausalAxis& axis() const { return m_axis; }
  /// The size of the diagonal blocks.
  Index diagonal() const { return m_diagonal; }

  /// The largest number of places of the sources of a group.
  Index group_length() const {
    Index most_places = 0;
    for (const Level& level : levels()) {
      const Index sources = std::min((m_axis.length() - 1) / level.size, level.group - 1);
      most_places = std::max(most_places, level.size * sources);
    }
    return most_places;
  }

  /// The cost of the transforms and products of two signals over n places, relative to one product of spectral values.
  static double operations(Index n, Index diagonal) { return plan(n, diagonal).cost; }

  /// How many numbers the spectra of all levels have.
  Index numbers() const { return m_count == 0 ? 0 : levels().back().end(); }

  /// Calls use(group) for each group that has queries after keys.
  template <class Use>
  void for_each_group(Use&& use) const {
    for (Index level = 0; level < count(); ++level) {
      const auto [size, blocks] = std::pair((*this)[level].size, (*this)[level].group);
      for (Index first = 0; first < m_axis.queries.end; first += blocks * size) {
        const Index begin = std::max<Index>((m_axis.keys.first - first) / size, 0);
        const Index end = std::min((m_axis.queries.end - 1 - first) / size, blocks - 1);
        if (begin < end && m_axis.keys.meets(first + begin * size, (end - begin) * size) &&
            m_axis.queries.meets(first + (begin + 1) * size, (end - begin) * size))
          use(BlockGroup{level, first + begin * size, end - begin});
      }
    }
  }

  /// At leaf k, replaces the values z of `count` sources by those of the targets,
  /// z_s <- sum over t <= s of g_(s-t+1) z_t.
  void multiply(const Level& level, Index k, Index count, Z (*z)[8]) const {
    const T* g = level.spectra + level.at_leaf(k);
    // Two targets at a time, which share g; the last first, so that no source is overwritten before its last use
    for (Index s = count - 1; s >= 0; s -= 2)
      for (Index f = 0; f < 8; ++f) {
        Product later, earlier;
        Z x = z[s][f];
        const T* at = g + 2 * f;
        for (Index D = 0; D < std::min(s, level.offsets); ++D, at += 16) {
          const Z before = z[s - 1 - D][f];
          later.add(x, at);
          earlier.add(before, at);
          x = before;
        }
        if (s < level.offsets) later.add(x, at);
        z[s][f] = later.sum();
        if (s > 0) z[s - 1][f] = earlier.sum();
      }
  }

  /// The transposed operation: w_s <- sum over t >= s of conj(g_(t-s+1)) w_t, from the values of targets to those of
  /// sources.
  void multiply_transposed(const Level& level, Index k, Index count, Z (*w)[8]) const {
    const T* g = level.spectra + level.at_leaf(k);
    for (Index s = 0; s < count; s += 2)
      for (Index f = 0; f < 8; ++f) {
        Product earlier, later;
        Z x = w[s][f];
        const T* at = g + 2 * f;
        for (Index D = 0; D < std::min(count - 1 - s, level.offsets); ++D, at += 16) {
          const Z after = w[s + 1 + D][f];
          earlier.add(x, at);
          later.add(after, at);
          x = after;
        }
        if (count - 1 - s < level.offsets) earlier.add(x, at);
        w[s][f] = earlier.conjugate_sum();
        if (s + 1 < count) w[s + 1][f] = later.conjugate_sum();
      }
  }

  /// Adds, for each offset D, the sum over targets t and lanes of conj(w_t) x_(t-D+1) to the correlations. These have
  /// the layout of the spectra, except that eight real parts come before eight imaginary parts.
  void correlate(const Level& level, Index k, Index count, const Z (*x)[8], const Z (*w)[8], T* correlations) const {
    for (Index D = 0; D < std::min(count, level.offsets); ++D) {
      Lanes products[16];
      toeplitz::correlate<false>(w[D], x[0], products);
      for (Index s = D + 1; s < count; ++s) toeplitz::correlate<true>(w[s], x[s - D], products);
      add_lane_sums<T>(products, correlations + level.before + level.at_leaf(k) + 16 * D);
    }
  }

  /// Adds to dc of all lags of the axis the inverse transforms of the correlations of all levels and offsets. `first`
  /// is the lag of dc[0].
  void add_lag_gradient(const T* correlations, Index first, T* dc, Workspace& workspace) const {
    for (const Level& level : levels())
      for (Index D0 = 0; D0 < level.offsets; D0 += W) {
        const Workspace::Scope scope(workspace);
        add_lag_gradient(level, D0, correlations + level.before, first, dc, workspace.take<Z>(level.size));
      }
  }

 private:
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>;

  std::span<const Level> levels() const { return {m_levels.data(), static_cast<std::size_t>(m_count)}; }

  struct Plan {
    double cost;
    Index group;
  };

  // How many blocks of `size` slots form a group, and the cost of this level and of all levels of larger blocks. By
  // measurement, the transforms of m blocks of S slots cost m S (3 log2 S - 4), and each of the m (m+1)/2 products of a
  // block of keys and a later block of queries costs S.
  static Plan plan(Index n, Index size) {
    if (size >= n) return {0, 0};
    Plan best{std::numeric_limits<double>::infinity(), 0};
    for (const Index group : {4, 8, 16, 32}) {
      double cost = plan(n, size * group).cost;
      for (Index first = 0; first < n; first += group * size) {
        const double m = static_cast<double>(std::min((n - 1 - first) / size, group - 1)),
                     S = static_cast<double>(size);
        cost += m * S * (3 * std::log2(S) - 4) + m * (m + 1) / 2 * S;
      }
      if (cost < best.cost) best = {cost, group};
    }
    return best;
  }

  // Writes the spectra of the offsets D0 + 1, D0 + 2, ..., which are lanes. At offset D, block J of keys adds to block
  // I of queries the product of X_J and h modulo z^2S + 1. With c_d the weight of distance D S + d,
  //     h[d] = c_d for d >= 0    h[2S + d] = -c_d for d < 0
  void write_spectra(LagWeightsView<T> c, const Level& level, Index D0, T* spectra, Workspace& scratch) const {
    const Index S = level.size, width = std::min(W, level.offsets - D0);
    const T scale = 1 / static_cast<T>(S);
    Z* z = scratch.take<Z>(S);
    level.tree->values(
        [&](Index j) {
          Z h{};
          for (Index l = 0; l < width; ++l) {
            const Index d = (D0 + l + 1) * S + j;
            h.re[l] = scale * m_axis.weight(c, d);
            h.im[l] = j == 0 ? T(0) : -scale * m_axis.weight(c, d - S);
          }
          return h;
        },
        z);
    for (Index k = 0; k < S; ++k)
      for (Index l = 0; l < width; ++l) {
        T* g = spectra + level.at_leaf(k / 8) + (D0 + l) * 16 + 2 * (k % 8);
        g[0] = z[k].re[l];
        g[1] = z[k].im[l];
      }
  }

  // For the offsets D0 + 1, D0 + 2, ..., which are lanes. At offset D, the product w_i x_j of place i in the target and
  // place j in the source has the distance D S - (j - i). It is in coefficient j - i, or, if j < i, with the
  // opposite sign in coefficient j - i + 2S
  void add_lag_gradient(const Level& level, Index D0, const T* correlations, Index first, T* dc, Z* z) const {
    const Index S = level.size, width = std::min(W, level.offsets - D0);
    const T scale = 1 / static_cast<T>(S);
    level.tree->coefficients(
        z,
        [&](Index k, Index f) {
          Z sum{};
          for (Index l = 0; l < width; ++l) {
            const T* at = correlations + level.at_leaf(k) + 16 * (D0 + l) + f;
            sum.re[l] = at[0];
            sum.im[l] = at[8];
          }
          return sum;
        },
        [&](Index j, const Z& twisted) {
          const Z sum = untwisted(twisted, level.tree->twist() + 2 * j);
          for (Index l = 0; l < width; ++l) {
            const Index d = (D0 + l + 1) * S - j;
            if (d < m_axis.lags.size()) dc[m_axis.lags.last - d - first] += scale * sum.re[l];
            if (j > 0 && d + S < m_axis.lags.size()) dc[m_axis.lags.last - d - S - first] -= scale * sum.im[l];
          }
        });
  }

  // a sum of products x g in four independent chains of multiply-adds
  struct Product {
    NPRF_ALWAYS_INLINE void add(const Z& x, const T* g) {
      rr += x.re * g[0];
      ii += x.im * g[1];
      ir += x.im * g[0];
      ri += x.re * g[1];
    }
    Z sum() const { return {rr - ii, ir + ri}; }
    Z conjugate_sum() const { return {rr + ii, ir - ri}; }  // of x conj(g)

    Lanes rr{}, ii{}, ir{}, ri{};
  };

  CausalAxis m_axis;
  Index m_diagonal;
  std::array<Level, most_levels> m_levels;
  Index m_count = 0;
};

}  // namespace nprf::toeplitz
