// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"

namespace nprf::toeplitz {

/// The largest |B_jr| (b) and |U_jp| (u) in some source blocks, where b is relative to e^log_scale. Either the lanes of
/// u are columns and all lanes of b have one feature, or the lanes of b are features and all lanes of u have one
/// column.
template <Real T>
struct BlockMaxima {
  using Lanes = fft::Lanes<T>;

  static BlockMaxima none() { return {-std::numeric_limits<double>::infinity(), Lanes{}, Lanes{}}; }

  void include(const BlockMaxima& other) {
    const double most = std::max(log_scale, other.log_scale);
    b = larger(b * static_cast<T>(ratio(log_scale, most)), other.b * static_cast<T>(ratio(other.log_scale, most)));
    u = larger(u, other.u);
    log_scale = most;
  }

  double log_scale;
  Lanes b, u;

 private:
  static Lanes larger(const Lanes& x, const Lanes& y) { return x > y ? x : y; }
};

/// The power-of-two scales and the log-scale that a run of targets shares.
///
/// The scales of a target may only depend on its sources. Otherwise later keys could change bits of the target, because
/// multiplying by a power of two is not exact if the result is subnormal. A run begins with the scales of the sources
/// so far, and continues while no source is so large relative to these scales that products might overflow.
template <Real T>
struct SourceScales {
  using Lanes = fft::Lanes<T>;

  explicit SourceScales(const BlockMaxima<T>& sources) : log_scale(sources.log_scale), b(sources.b), u(sources.u) {
    for (Index l = 0; l < fft::lane_count<T>; ++l) {
      b[l] = power_of_two_scale<T>(b[l]);
      u[l] = power_of_two_scale<T>(u[l]);
    }
  }

  /// Whether these scales can be used for sources with the maxima `sources`.
  bool fit(const BlockMaxima<T>& sources) const {
    const T grown = static_cast<T>(ratio(sources.log_scale, log_scale));
    bool all = grown <= most_growth;
    for (Index l = 0; l < fft::lane_count<T>; ++l) all &= fits(sources.b[l] * grown, b[l]) && fits(sources.u[l], u[l]);
    return all;
  }

  double log_scale;
  Lanes b, u;

 private:
  static constexpr T most_growth = static_cast<T>(sizeof(T) == 4 ? 0x1p20 : 0x1p160);

  // whether `largest` is at most most_growth times the scale. The scale infinity of a column of zeros only fits zeros
  static bool fits(T largest, T scale) { return std::isfinite(scale) ? largest <= most_growth * scale : largest == 0; }
};

/// The largest entries of each source block of each level. O(n (r + p)).
template <Real T>
class LevelMaxima {
 public:
  using Lanes = fft::Lanes<T>;

  /// B and U have one row for each place.
  LevelMaxima(const MatrixView<T>& B, const MatrixView<T>& U, const RunningKeyMax<T>& key_max,
              const CausalLevels<T>& levels, const Team& team)
      : m_r(B.cols()), m_p(U.cols()), m_levels(team.workspace().take<Of>(levels.count())) {
    for (Index level = 0; level < levels.count(); ++level) {
      const Index size = levels[level].size, blocks = (levels.axis().length() + size - 1) / size;
      const Of of = m_levels[level] = take(blocks, team.workspace());
      team.run(blocks, [&](Index k, Workspace&) {
        T *b = of.b + k * m_r, *u = of.u + k * m_p;
        std::fill_n(b, m_r, T(0));
        std::fill_n(u, m_p, T(0));
        of.log_scales[k] = key_max.largest(k * size, size);
        const auto add = [&](const T* of_b, T factor, const T* of_u) {
          include(b, of_b, factor, m_r);
          include(u, of_u, T(1), m_p);
        };
        if (level == 0) {
          for (Index j = k * size; j < std::min((k + 1) * size, B.rows()); ++j)
            add(row_of(B, j).data(), key_max.keys()[j], row_of(U, j).data());
          return;
        }
        const Of& finer = m_levels[level - 1];
        const Index group = levels[level - 1].group;
        for (Index j = k * group; j < std::min((k + 1) * group, finer.blocks); ++j)
          add(finer.b + j * m_r, static_cast<T>(ratio(finer.log_scales[j], of.log_scales[k])), finer.u + j * m_p);
      });
    }
  }

  /// The maxima of source block k for feature r and the `width` columns from p on, which are lanes.
  BlockMaxima<T> feature(Index level, Index k, Index r, Index p, Index width) const {
    const Of& of = m_levels[level];
    return {of.log_scales[k], Lanes{} + of.b[k * m_r + r], fft::load_lanes(of.u + k * m_p + p, width)};
  }
  /// The maxima of source block k for column p and some features, which are lanes.
  BlockMaxima<T> column(Index level, Index k, const FeatureLanes<T>& features, Index p) const {
    const Of& of = m_levels[level];
    return {of.log_scales[k], features.load(of.b + k * m_r), Lanes{} + of.u[k * m_p + p]};
  }

 private:
  // the maxima of the blocks of a level
  struct Of {
    Index blocks;
    double* log_scales;  // (blocks)
    T *b, *u;            // (blocks,r) relative to e^log_scale, (blocks,p)
  };

  Of take(Index blocks, Workspace& workspace) const {
    return {blocks, workspace.take<double>(blocks), workspace.take<T>(blocks * m_r), workspace.take<T>(blocks * m_p)};
  }

  // largest <- max(largest, |row| * factor), ignoring NaN
  static void include(T* largest, const T* row, T factor, Index n) {
    for (Index c = 0; c < n; ++c) {
      const T x = std::abs(row[c]) * factor;
      largest[c] = x > largest[c] ? x : largest[c];
    }
  }

  Index m_r, m_p;
  Of* m_levels;
};

}  // namespace nprf::toeplitz
