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

/// Where queries and keys stand so that no weight looks ahead: with o the last lag of non-zero weight, queries o later
/// than their slots, or keys -o later. Then c[o - d] is the weight at distance d >= 0.
struct CausalAxis {
  struct Side {
    Index first, end;  // the places of slot 0 and of the slot after the last

    bool meets(Index begin, Index count) const { return first < begin + count && begin < end; }
  };

  /// For the support of some weights.
  CausalAxis(const LagRange& support, const ProductShape& span)
      : lags{std::max(support.first, 1 - span.n_q), std::min(support.last, span.n_k - 1)},
        queries{ahead(lags.last), ahead(lags.last) + span.n_q},
        keys{ahead(-lags.last), ahead(-lags.last) + span.n_k} {}

  Index length() const { return std::max(queries.end, keys.end); }

  /// The weight at distance d; 0 beyond what the two sides reach.
  template <Real T>
  T weight(const LagWeightsView<T>& c, Index d) const {
    return d < 0 || d >= lags.size() ? T(0) : c[lags.last - d];
  }

  LagRange lags;  // those of the support that the two sides reach
  Side queries, keys;

 private:
  Index ahead(Index by) const { return lags.size() > 0 ? std::max<Index>(by, 0) : 0; }
};

/// A lower triangular Toeplitz matrix but for its diagonal blocks, cut into blocks that grow with their distance:
///
///     D . . . . . . . .     D   diagonal blocks of 128 places: not dealt with here
///     1 D . . . . . . .     1   level 0: within a family of blocks of 128, each target with each earlier source
///     1 1 D . . . . . .     2   level 1: the same for families of blocks that are as large as a family of level 0
///     2 2 2 D . . . . .
///     2 2 2 1 D . . . .     (drawn for families of 3; the cheapest have 4 to 32 blocks)
///     2 2 2 1 1 D . . .
///
/// Blocks of size S at offset D, target minus source, have the weights of distances D S - S + 1 .. D S + S - 1 in them:
/// a product modulo z^2S + 1 (polynomial_tree.hpp). A family needs one transform a source and one a target, between
/// which target I is
///
///     Y_I = sum over J < I of g_(I-J) X_J
///
/// No source feeds a target that is not wholly later. Its tables lie in the team's workspace; threads share it.
template <Real T>
class CausalLevels {
 public:
  using Tree = fft::PolynomialTree<T>;
  using Z = fft::ComplexLanes<T>;
  static constexpr Index block = 128, most = 31;  // sources in a family, and targets
  static constexpr std::size_t most_levels = 32;  // each is at least four times as large as the one before

  struct Level {
    Index size;     // S
    Index family;   // blocks in one
    Index offsets;  // the weights of those beyond are zero
    std::shared_ptr<const Tree> tree;
    const T* spectra;       // (S/8,offsets,8) of g_D / S, real and imaginary parts
    const NormSums* norms;  // (offsets)
    Index before;           // how many numbers the levels before it have in their spectra

    /// Where the numbers of a leaf begin.
    Index at_leaf(Index k) const { return k * offsets * 16; }
    Index end() const { return before + 2 * size * offsets; }
  };

  /// `count` sources from place `first` on; target s follows source s.
  struct Family {
    Index level, first, count;
  };

  CausalLevels(LagWeightsView<T> c, const CausalAxis& axis, const Team& team) : m_axis(axis) {
    for (Index size = block, family; size < axis.length(); size *= family) {
      family = plan(axis.length(), size).family;
      const Index others = std::min((axis.length() - 1) / size, family - 1);
      const Index offsets = std::min((axis.lags.size() + size - 2) / size, others);
      if (offsets == 0) break;
      T* spectra = team.workspace().take<T>(2 * size * offsets);
      const Index before = numbers();
      Level& level = m_levels[static_cast<std::size_t>(m_count++)];
      NormSums* norms = team.workspace().template take<NormSums>(offsets);
      level = {size, family, offsets, Tree::shared(size), spectra, norms, before};
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

  /// The most places that sources of a family have.
  Index family_length() const {
    Index most_places = 0;
    for (const Level& level : levels()) {
      const Index sources = std::min((m_axis.length() - 1) / level.size, level.family - 1);
      most_places = std::max(most_places, level.size * sources);
    }
    return most_places;
  }

  /// What two signals cost over n places, in steps of a product of spectra.
  static double operations(Index n) { return plan(n, block).cost; }

  /// How many numbers all spectra have.
  Index numbers() const { return m_count == 0 ? 0 : levels().back().end(); }

  /// use(family) for each that has queries after keys.
  template <class Use>
  void for_each_family(Use&& use) const {
    for (Index level = 0; level < count(); ++level) {
      const auto [size, blocks] = std::pair((*this)[level].size, (*this)[level].family);
      for (Index first = 0; first < m_axis.queries.end; first += blocks * size) {
        const Index begin = std::max<Index>((m_axis.keys.first - first) / size, 0);
        const Index end = std::min((m_axis.queries.end - 1 - first) / size, blocks - 1);
        if (begin < end && m_axis.keys.meets(first + begin * size, (end - begin) * size) &&
            m_axis.queries.meets(first + (begin + 1) * size, (end - begin) * size))
          use(Family{level, first + begin * size, end - begin});
      }
    }
  }

  /// At a leaf: the values of the sources become those of the targets, z_s <- sum over t <= s of g_(s-t+1) z_t.
  void multiply(const Level& level, Index k, Index count, Z (*z)[8]) const {
    const T* g = level.spectra + level.at_leaf(k);
    // two targets at a time, which share g; the last first: none overwrites what an earlier one needs
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

  /// The way back: the values w_s of targets become those of their sources, w_s <- sum over t >= s of conj(g_(t-s+1))
  /// w_t.
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

  /// For each offset, sum over targets of conj(w_t) x_(t-D+1), summed over lanes, is added to the correlations, which
  /// lie as all spectra do, but real parts first.
  void correlate(const Level& level, Index k, Index count, const Z (*x)[8], const Z (*w)[8], T* correlations) const {
    for (Index D = 0; D < std::min(count, level.offsets); ++D) {
      Lanes products[16];
      toeplitz::correlate<false>(w[D], x[0], products);
      for (Index s = D + 1; s < count; ++s) toeplitz::correlate<true>(w[s], x[s - D], products);
      add_lane_sums<T>(products, correlations + level.before + level.at_leaf(k) + 16 * D);
    }
  }

  /// dc of all lags that the axis has: the inverse transforms of the correlations, those of block sizes and offsets
  /// added up. `first` is the lag of dc[0].
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
    Index family;
  };

  // How many blocks of a size go into a family, and what that level and those above it cost, by measurement: with m
  // sources of S places, transforms m S (3 log2 S - 4), and m (m+1)/2 products of S values between them.
  static Plan plan(Index n, Index size) {
    if (size >= n) return {0, 0};
    Plan best{std::numeric_limits<double>::infinity(), 0};
    for (const Index family : {4, 8, 16, 32}) {
      double cost = plan(n, size * family).cost;
      for (Index first = 0; first < n; first += family * size) {
        const double m = static_cast<double>(std::min((n - 1 - first) / size, family - 1)),
                     S = static_cast<double>(size);
        cost += m * S * (3 * std::log2(S) - 4) + m * (m + 1) / 2 * S;
      }
      if (cost < best.cost) best = {cost, family};
    }
    return best;
  }

  // Y_I is the product of X_J and h modulo z^2S + 1, with h[d] the weight of distance D S + d, and minus that of d < 0
  // at h[2S + d]; offsets as lanes
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

  // w_i x_j is of distance D S - (j - i), and lies at j - i, or minus it at j - i + 2S
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

  // sums of x g: four chains of multiply-adds, none of which waits for another
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
  std::array<Level, most_levels> m_levels;
  Index m_count = 0;
};

}  // namespace nprf::toeplitz
