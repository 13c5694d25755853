// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"

namespace nprf::toeplitz {

/// The largest of some source blocks: features relative to e^exponent, and values; lanes are columns of values with one
/// feature (the same in all lanes), or features with one column.
template <Real T>
struct BlockMaxima {
  using Lanes = fft::Lanes<T>;

  static BlockMaxima none() { return {-std::numeric_limits<double>::infinity(), Lanes{}, Lanes{}}; }

  void include(const BlockMaxima& other) {
    const double top = std::max(exponent, other.exponent);
    const T mine = static_cast<T>(ratio(exponent, top)), its = static_cast<T>(ratio(other.exponent, top));
    b = larger(b * mine, other.b * its);
    u = larger(u, other.u);
    exponent = top;
  }

  double exponent;
  Lanes b, u;

 private:
  static Lanes larger(const Lanes& x, const Lanes& y) { return x > y ? x : y; }
};

/// The scales (fft/signal_layout.hpp) and the exponent that a run of targets shares.
///
/// A target's must depend on its sources alone, so that nothing later changes a bit of it: powers of two are exact, but
/// not when they make a number underflow. A run begins with the scales of the sources so far, and goes on as long as
/// they serve: nothing grows near overflow.
template <Real T>
struct SourceScales {
  using Lanes = fft::Lanes<T>;

  explicit SourceScales(const BlockMaxima<T>& sources) : exponent(sources.exponent), b(sources.b), u(sources.u) {
    for (Index l = 0; l < fft::lane_count<T>; ++l) {
      b[l] = power_of_two_scale<T>(b[l]);
      u[l] = power_of_two_scale<T>(u[l]);
    }
  }

  bool fit(const BlockMaxima<T>& sources) const {
    const T grown = static_cast<T>(ratio(sources.exponent, exponent));
    bool all = grown <= most_growth;
    for (Index l = 0; l < fft::lane_count<T>; ++l) all &= fits(sources.b[l] * grown, b[l]) && fits(sources.u[l], u[l]);
    return all;
  }

  double exponent;
  Lanes b, u;

 private:
  static constexpr T most_growth = static_cast<T>(sizeof(T) == 4 ? 0x1p20 : 0x1p160);

  // no more than that much above the scale; a column of zeros still one
  static bool fits(T largest, T scale) { return std::isfinite(scale) ? largest <= most_growth * scale : largest == 0; }
};

/// The largest of each source block of each level, and what scales a family's targets take. O(n (r + p)).
template <Real T>
class LevelMaxima {
 public:
  using Lanes = fft::Lanes<T>;

  /// Of B and U, whose rows are places.
  LevelMaxima(const MatrixView<T>& B, const MatrixView<T>& U, const RunningKeyMax<T>& exponents,
              const CausalLevels<T>& levels, const Team& team)
      : m_r(B.cols()), m_p(U.cols()), m_levels(team.workspace().take<Of>(levels.count())) {
    for (Index level = 0; level < levels.count(); ++level) {
      const Index blocks = (levels.axis().length() + levels[level].size - 1) / levels[level].size;
      const Of of = m_levels[level] = take(blocks, team.workspace());
      const Of* finer = level > 0 ? m_levels + level - 1 : nullptr;
      team.run(blocks, [&](Index k, Workspace&) {
        if (finer)
          merge(*finer, k, levels[level - 1].family, of);
        else
          measure(B, U, exponents, k, of);
      });
    }
  }

  /// Of a block: feature r, and `width` columns from p on.
  BlockMaxima<T> feature(Index level, Index k, Index r, Index p, Index width) const {
    const Of& of = m_levels[level];
    return {of.exponents[k], Lanes{} + of.b[k * m_r + r], fft::load_lanes(of.u + k * m_p + p, width)};
  }
  /// The same for features as lanes and one column.
  BlockMaxima<T> column(Index level, Index k, const FeatureLanes<T>& features, Index p) const {
    const Of& of = m_levels[level];
    return {of.exponents[k], features.load(of.b + k * m_r), Lanes{} + of.u[k * m_p + p]};
  }

 private:
  static constexpr Index block = CausalLevels<T>::block;

  // of all blocks of one level
  struct Of {
    Index blocks;
    double* exponents;  // (blocks)
    T *b, *u;           // (blocks,r) relative to e^exponent, (blocks,p)
  };

  Of take(Index blocks, Workspace& workspace) const {
    return {blocks, workspace.take<double>(blocks), workspace.take<T>(blocks * m_r), workspace.take<T>(blocks * m_p)};
  }

  // largest <- max(largest, |row| factor), which NaN does not enter
  static void include(T* largest, const T* row, T factor, Index n) {
    for (Index c = 0; c < n; ++c) {
      const T x = std::abs(row[c]) * factor;
      largest[c] = x > largest[c] ? x : largest[c];
    }
  }

  void measure(const MatrixView<T>& B, const MatrixView<T>& U, const RunningKeyMax<T>& exponents, Index k,
               const Of& of) const {
    T *b = of.b + k * m_r, *u = of.u + k * m_p;
    std::fill_n(b, m_r, T(0));
    std::fill_n(u, m_p, T(0));
    of.exponents[k] = exponents.largest(k);
    for (Index j = k * block; j < std::min((k + 1) * block, B.rows()); ++j) {
      include(b, B.row(j).data(), exponents.keys()[j], m_r);
      include(u, U.row(j).data(), T(1), m_p);
    }
  }

  void merge(const Of& finer, Index k, Index family, const Of& of) const {
    T *b = of.b + k * m_r, *u = of.u + k * m_p;
    std::fill_n(b, m_r, T(0));
    std::fill_n(u, m_p, T(0));
    const Index first = k * family, end = std::min(first + family, finer.blocks);
    of.exponents[k] = *std::max_element(finer.exponents + first, finer.exponents + end);
    for (Index j = first; j < end; ++j) {
      include(b, finer.b + j * m_r, static_cast<T>(ratio(finer.exponents[j], of.exponents[k])), m_r);
      include(u, finer.u + j * m_p, T(1), m_p);
    }
  }

  Index m_r, m_p;
  Of* m_levels;
};

}  // namespace nprf::toeplitz
