// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/causal_levels.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/key_exponents.hpp"
#include "nprf/toeplitz/leaf.hpp"
#include "nprf/toeplitz/panel.hpp"
#include "nprf/toeplitz/signal_gradients.hpp"

namespace nprf::toeplitz {

/// The gradients of BlockCausalEngine's product, the share of the blocks below the diagonal.
template <Real T>
class BlockCausalGradients {
 public:
  /// Refers to the levels.
  explicit BlockCausalGradients(const CausalLevels<T>& levels) : m_levels(levels) {}

  /// Adds them for G (n_q,p) = dL/dY, rows in their places; dc's first lag is `first`.
  void add(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, const MatrixView<T>& G,
           const KeyExponents<T>& exponents, GradientRefs<T> out, Index first, const Team& team) const {
    SignalGradients<T> frame(A, B, m_levels.axis().length(), m_levels.numbers(), team);
    const auto groups = ColumnGroups<T>(A.cols(), U.cols()).all();
    frame.run(U, G, groups, out, team, [&](const SignalPair<T>& x, Workspace& scratch) {
      Scratch with(m_levels, scratch);
      m_levels.for_each_family([&](const Family& family) {
        for_each_range(family, exponents, [&](const Range& range) {
          with.read(family, range, x, exponents, m_levels, m_levels.axis().queries.end);
          for (const int half : {0, 1}) add_gradients(half, family, x, with);
        });
      });
    });
    frame.add_to(out, team);
    m_levels.add_lag_gradient(frame.summed_correlations(), first, out.dc, team.workspace());
  }

 private:
  using Levels = CausalLevels<T>;
  using Family = typename Levels::Family;
  using Z = fft::ComplexLanes<T>;
  using Lanes = fft::Lanes<T>;

  // targets begin..end-1 of a family, whose sources' exponents are near enough to one
  struct Range {
    Index begin, end;
    double exponent;
  };

  template <class Use>
  void for_each_range(const Family& family, const KeyExponents<T>& exponents, Use&& use) const {
    constexpr double most = sizeof(T) == 4 ? 14 : 110;  // e^most squared, and more, is far from overflow
    const Index S = m_levels[family.level].size;
    const auto before = [&](Index s) { return exponents.largest(family.first + s * S, S); };
    double seen = before(0);
    for (Index begin = 0, end; begin < family.count; begin = end) {
      const double reference = seen;
      for (end = begin + 1; end < family.count; ++end) {
        seen = std::max(seen, before(end));
        if (seen != reference && !(seen - reference <= most)) break;
      }
      use(Range{begin, end, reference});
    }
  }

  // the signals of a family, sources' and targets', and its rows of a pair of features with the exponents' factors
  struct Scratch {
    Scratch(const Levels& levels, Workspace& workspace) {
      const Index n = levels.family_length();
      z = workspace.take<Z>(2 * (n + Levels::most * stride(0)));
      for (T** x : {&a, &b}) *x = workspace.take<T>(staggered<T>(2 * n));
      for (T** x : {&rows, &keys}) *x = workspace.take<T>(staggered<T>(n));
    }

    // later sources than the range's are zeros, and so are other targets
    void read(const Family& family, const Range& range, const SignalPair<T>& x, const KeyExponents<T>& exponents,
              const Levels& levels, Index queries_end) {
      const Index S = levels[family.level].size;
      for (Index s = 0; s < family.count; ++s) {
        const Index target = family.first + (s + 1) * S, end = std::min(S, queries_end - target);
        const T factor =
            range.begin <= s && s < range.end ? static_cast<T>(ratio(range.exponent, exponents.before(target))) : T(0);
        for (Index i = 0; i < S; ++i)
          rows[s * S + i] = i < end ? factor * exponents.rows(family.level)[target + i] : T(0);
        for (Index i = 0; i < end; ++i)
          for (Index c : {0, 1}) a[2 * (s * S + i) + c] = x.a[2 * (target + i) + c] * rows[s * S + i];
        std::fill(a + 2 * (s * S + end), a + 2 * (s + 1) * S, T(0));
        for (Index j0 = s * S; j0 < (s + 1) * S; j0 += Levels::block) {
          const Index place = family.first + j0;
          const T e =
              s < range.end ? static_cast<T>(ratio(exponents.largest(place / Levels::block), range.exponent)) : T(0);
          for (Index j = 0; j < Levels::block; ++j) {
            keys[j0 + j] = exponents.keys()[place + j] * e;
            for (Index c : {0, 1}) b[2 * (j0 + j) + c] = x.b[2 * (place + j) + c] * keys[j0 + j];
          }
        }
      }
    }

    Z* z;
    T *a, *b, *rows, *keys;
  };

  // the share of one half: signals are the sources' x, then the targets' w
  void add_gradients(int half, const Family& family, const SignalPair<T>& x, const Scratch& with) const {
    const auto& level = m_levels[family.level];
    const Index S = level.size, count = family.count;
    const Index targets = std::min(count * S, m_levels.axis().queries.end - family.first - S);
    const Lanes *u = x.u + family.first, *g = x.g + family.first + S;
    Lanes* du = x.du + family.first;
    level.tree->template convolve<2 * Levels::most>(
        half, with.z, stride(S), 2 * count,
        [=, a = with.a, b = with.b](Index s, Index j) {
          const Index at = (s < count ? s : s - count) * S + j;
          if (s >= count && at >= targets) return Z{};
          const Lanes value = s < count ? u[at] : g[at];
          const T* pair = (s < count ? b : a) + 2 * at;
          return Z{pair[0] * value, pair[1] * value};
        },
        [&](Index k, Z(&z)[2 * Levels::most][8]) {
          m_levels.correlate(level, half, k, count, z, z + count, x.correlation);
          m_levels.multiply(level, half, k, count, z);
          m_levels.multiply_transposed(level, half, k, count, z + count);
        },
        [=, &with, twist = level.tree->twist()](Index s, Index j, const Z(&twisted)[8]) {
          const bool source = s >= count;
          const Index first = (source ? s - count : s) * S + j;
          if (!source && first >= targets) return;
          Z products[8];
          for (Index l = 0; l < 8; ++l) {
            const Index at = first + l;
            products[l] = {};
            if (!source && at >= targets) continue;
            const Z t = half == 0 ? twisted[l] : untwisted(twisted[l], twist + 2 * (j + l));
            const Lanes value = source ? u[at] * with.keys[at] : g[at] * with.rows[at];
            products[l] = {value * t.re, value * t.im};
            if (source) du[at] += with.b[2 * at] * t.re + with.b[2 * at + 1] * t.im;
          }
          add_lane_sums<T>(products,
                           (source ? x.db : x.da) + in_eights(family.first + (source ? first : first + S), 0));
        });
  }

  static Index stride(Index size) { return staggered<Z>(size); }

  const Levels& m_levels;
};

}  // namespace nprf::toeplitz
