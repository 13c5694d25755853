// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "nprf/core/pack.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/smooth/chunk_rows.hpp"
#include "nprf/toeplitz/smooth/plan.hpp"

namespace nprf::toeplitz {

/// A term M x of a sum, for M (terms,terms) and x (terms,n).
template <Real T>
struct MixedTerm {
  const T *M, *x;
};

namespace detail {

template <Index terms, Real T>
void set_mixed(Index n, Index at, std::span<const MixedTerm<T>> sum, T* out) {
  constexpr Index W = Pack<T>::size;
  const auto set = [&](Index k, auto load, auto store) {
    Pack<T> y[terms];
    NPRF_UNROLL
    for (Index i = 0; i < terms; ++i) y[i] = Pack<T>::all(0);
    for (const MixedTerm<T>& term : sum) {
      NPRF_UNROLL
      for (Index j = 0; j < terms; ++j) {
        const Pack<T> x = load(term.x + at + j * n + k);
        NPRF_UNROLL
        for (Index i = 0; i < terms; ++i) y[i] = multiply_add(Pack<T>::all(term.M[i * most_terms + j]), x, y[i]);
      }
    }
    NPRF_UNROLL
    for (Index i = 0; i < terms; ++i) store(y[i], out + i * n + k);
  };
  Index k = 0;
  for (; k + W <= n; k += W)
    set(
        k, [](const T* x) { return Pack<T>::load(x); }, [](const Pack<T>& y, T* x) { y.store(x); });
  if (k < n)
    set(
        k, [=](const T* x) { return Pack<T>::load(x, n - k); }, [=](const Pack<T>& y, T* x) { y.store(x, n - k); });
}

}  // namespace detail

/// out (terms,n) = the sum of the terms M x, for `terms` from least_terms to most_terms. Each x begins at its scalar
/// number `at`.
template <Real T>
void set_mixed(Index terms, Index n, Index at, std::span<const MixedTerm<T>> sum, T* out) {
  with_terms(terms, [&]<Index count>() { detail::set_mixed<count>(n, at, sum, out); });
}

/// The moments of the chunks of one axis at all levels of a plan, for tokens with factors B (n,r) and values U (n,p):
///
///     M_J[p] = sum over the tokens j of chunk J of P_p(v_j) B_j^T U_j    (terms,r,p)
///
/// in the layout of ChunkValues. The memory is in the workspace.
template <Real T>
class ChunkMoments {
 public:
  ChunkMoments(const SmoothPlan<T>& plan, Axis axis, const Slots& slots, const MatrixView<T>& B,
               const ChunkValues<T>& U, Workspace& workspace)
      : m_plan(plan), m_axis(axis), m_rows(plan.terms(), slots, B), m_U(U) {
    for (Index l = 0; l <= plan.top(); ++l) m_M[l] = workspace.take<T>(chunks(l) * size());
  }

  Index chunks(Index l) const { return m_plan.level(l).side(m_axis).chunks; }
  /// The number of scalars of one chunk.
  Index size() const { return m_rows.cols() * (m_U.packed() + m_U.apart()); }
  T* at(Index l, Index J) const { return m_M[l] + J * size(); }

  /// Sets the moments of a chunk of level l, and of all chunks in it.
  void set(Index l, Index J, Workspace& scratch) const {
    if (l == 0) return set_moments(m_rows, J, m_U, at(0, J), scratch);
    for (Index half = 2 * J; half < std::min(2 * J + 2, chunks(l - 1)); ++half) set(l - 1, half, scratch);
    join(l, J);
  }
  /// Sets the moments of a chunk of level l from those of its halves.
  void join(Index l, Index J) const {
    MixedTerm<T> halves[2];
    std::size_t count = 0;
    for (Index half = 2 * J; half < std::min(2 * J + 2, chunks(l - 1)); ++half)
      halves[count++] = {m_plan.level(l - 1).Wt[half % 2], at(l - 1, half)};
    mix({halves, count}, at(l, J));
  }
  /// Calls use(at, n) for each part of the moments, which is (terms,n) from scalar number `at` on.
  template <class Use>
  void for_each_part(Use&& use) const {
    const Index r = m_rows.cols() / m_plan.terms();
    use(Index{0}, r * m_U.packed());
    for (Index c = 0; c < m_U.apart(); ++c) use(m_rows.cols() * (m_U.packed() + c), r);
  }
  /// out = the sum of the terms; each x is moments or sums of moments of one chunk.
  void mix(std::span<const MixedTerm<T>> sum, T* out) const {
    for_each_part([&](Index at, Index n) { set_mixed<T>(m_plan.terms(), n, at, sum, out + at); });
  }

 private:
  const SmoothPlan<T>& m_plan;
  Axis m_axis;
  ChunkRows<T> m_rows;
  ChunkValues<T> m_U;
  T* m_M[SmoothPlan<T>::most_levels] = {};
};

/// The sums of the moments of one axis that each chunk I of the other axis needs, with L_I (terms,r,p) at level 0:
///
///     L_I[p] = sum over the chunks J of smooth blocks, at all levels, of K[p,q] M_J[q]
template <Real T>
class ChunkSums {
 public:
  ChunkSums(const SmoothPlan<T>& plan, Axis axis, const ChunkMoments<T>& moments)
      : m_plan(plan),
        m_axis(axis),
        m_moments(moments),
        m_low(std::clamp<Index>(plan.top(), 0, 3)),
        m_groups(std::max(groups(chunks(0)), groups(moments.chunks(0)))) {}

  /// The group of chunk I of level l. The sums of the chunks of a group are computed one after another.
  Index group(Index l, Index I) const { return l < m_low ? I >> (m_low - l) : I; }

  /// Computes all moments and calls finish(I, L, scratch) for each chunk I of level 0; L is null if no block is smooth.
  /// Before it, calls with_moments(l, I) for this chunk and for all that it is in, once each, when the moments that
  /// their blocks need have just been read. Chunks are passed over in the order in which they depend on each other: so
  /// in one direction moments are used while they are in the cache.
  template <class Finish, class WithMoments>
  void run(const Team& team, Finish&& finish, WithMoments&& with_moments) const {
    const Workspace::Scope scope(team.workspace());
    const Index top = m_plan.top();
    Levels levels;
    for (Index l = m_low; l <= top; ++l) levels.L[l] = team.workspace().template take<T>(chunks(l) * m_moments.size());
    const bool is_reversed = m_axis == Axis::keys && m_plan.is_one_sided();
    const Index step = m_plan.is_one_sided() ? 4 : m_groups;
    for (Index done = 0; done < m_groups; done += step) {
      const Index next = std::min(done + step, m_groups);
      const RowRange window = is_reversed ? RowRange{m_groups - next, m_groups - done} : RowRange{done, next};
      if (top >= 0) {
        set_moments_of(window, is_reversed, levels, team);
        set_sums_of(window, is_reversed, levels, team, with_moments);
      }
      const Index end = std::min(window.end, groups(chunks(0)));
      team.run(std::max<Index>(end - window.begin, 0), [&](Index task, Workspace& scratch) {
        const Index I = window.begin + task;
        descend(m_low, I, top >= 0 ? levels.L[m_low] + I * m_moments.size() : nullptr, scratch, finish, with_moments);
      });
    }
  }
  template <class Finish>
  void run(const Team& team, Finish&& finish) const {
    run(team, finish, [](Index, Index) {});
  }

 private:
  // from level m_low on: the sums, and of how many chunks there are moments and sums already
  struct Levels {
    T* L[SmoothPlan<T>::most_levels] = {};
    Index moments[SmoothPlan<T>::most_levels] = {}, sums[SmoothPlan<T>::most_levels] = {};
  };

  Index chunks(Index l) const { return m_plan.level(l).side(m_axis).chunks; }
  // the number of groups, the chunks of level m_low, of chunks of level 0
  Index groups(Index of) const { return (of + (Index{1} << m_low) - 1) >> m_low; }

  // calls body(chunk, scratch) for the chunks of a level that are new when `count` of them are done
  template <class Body>
  static void run_new(Index& done, Index count, Index all, bool is_reversed, const Team& team, Body&& body) {
    if (count <= done) return;
    team.run(count - done, [&](Index task, Workspace& scratch) {
      const Index at = done + task;
      body(is_reversed ? all - 1 - at : at, scratch);
    });
    done = count;
  }

  // of each level the chunks that lie in the groups up to the window
  void set_moments_of(RowRange window, bool is_reversed, Levels& levels, const Team& team) const {
    for (Index l = m_low; l <= m_plan.top(); ++l) {
      const Index all = m_moments.chunks(l), shift = l - m_low, size = Index{1} << shift;
      const Index first = (window.begin + size - 1) >> shift;
      const Index end = window.end >= groups(m_moments.chunks(0)) ? all : window.end >> shift;
      const Index count = is_reversed ? all - std::min(first, all) : end;
      run_new(levels.moments[l], count, all, is_reversed, team,
              [&](Index J, Workspace& scratch) { l == m_low ? m_moments.set(l, J, scratch) : m_moments.join(l, J); });
    }
  }
  // of each level the chunks that have a part in the groups up to the window
  template <class WithMoments>
  void set_sums_of(RowRange window, bool is_reversed, Levels& levels, const Team& team,
                   WithMoments& with_moments) const {
    for (Index l = m_plan.top(); l >= m_low; --l) {
      const Index all = chunks(l), shift = l - m_low, size = Index{1} << shift;
      const Index end = std::min((window.end + size - 1) >> shift, all);
      const Index count = is_reversed ? all - std::min(window.begin >> shift, all) : end;
      run_new(levels.sums[l], count, all, is_reversed, team, [&](Index I, Workspace& scratch) {
        const T* outer = l < m_plan.top() ? levels.L[l + 1] + I / 2 * m_moments.size() : nullptr;
        add_up(l, I, outer, levels.L[l] + I * m_moments.size(), scratch);
        with_moments(l, I);
      });
    }
  }

  // L = the sum over the blocks of chunk I that are summed at level l, and its share of the sum of the level above
  void add_up(Index l, Index I, const T* outer, T* L, Workspace& scratch) const {
    const Workspace::Scope scope(scratch);
    const SmoothLevel<T>& level = m_plan.level(l);
    const auto coupled = level.side(m_axis).coupled[I % 2];
    auto* terms = scratch.take<MixedTerm<T>>(static_cast<Index>(coupled.size()) + 1);
    std::size_t count = 0;
    if (outer) terms[count++] = {level.W[I % 2], outer};
    for (const auto& [offset, K] : coupled)
      if (const Index J = I + offset; J >= 0 && J < m_moments.chunks(l)) terms[count++] = {K, m_moments.at(l, J)};
    m_moments.mix({terms, count}, L);
  }

  // calls finish for the chunks of level 0 in chunk I of level l
  template <class Finish, class WithMoments>
  void descend(Index l, Index I, const T* L, Workspace& scratch, Finish& finish, WithMoments& with_moments) const {
    if (l == 0) return finish(I, L, scratch);
    for (Index half = 2 * I; half < std::min(2 * I + 2, chunks(l - 1)); ++half) {
      const Workspace::Scope scope(scratch);
      T* own = L ? scratch.take<T>(m_moments.size()) : nullptr;
      if (L) {
        add_up(l - 1, half, L, own, scratch);
        with_moments(l - 1, half);
      }
      descend(l - 1, half, own, scratch, finish, with_moments);
    }
  }

  const SmoothPlan<T>& m_plan;
  Axis m_axis;
  const ChunkMoments<T>& m_moments;
  Index m_low, m_groups;  // the level whose chunks are the groups; the number of groups
};

}  // namespace nprf::toeplitz
