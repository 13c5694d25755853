// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/smooth/chunk_sums.hpp"
#include "nprf/toeplitz/smooth/plan.hpp"

namespace nprf::toeplitz {

namespace detail {

// out[p,q] += N_p.M_q for N and M (terms,n)
template <Index terms, Real T>
void add_dot_products(const T* N, const T* M, Index n, double* out) {
  using P = Pack<T>;
  // products of some rows of M at once, so that the sums stay in registers
  constexpr Index most = P::registers >= 32 ? (terms + 1) / 2 : 2;
  const auto add = [=]<Index rows>(Index q0, std::integral_constant<Index, rows>) {
    P sum[terms][rows];
    for (auto& row : sum) std::fill_n(row, rows, P::all(0));
    const auto add_pack = [&](Index k, auto load) {
      P m[rows];
      NPRF_UNROLL
      for (Index q = 0; q < rows; ++q) m[q] = load(M + (q0 + q) * n + k);
      NPRF_UNROLL
      for (Index p = 0; p < terms; ++p) {
        const P each = load(N + p * n + k);
        NPRF_UNROLL
        for (Index q = 0; q < rows; ++q) sum[p][q] = multiply_add(each, m[q], sum[p][q]);
      }
    };
    Index k = 0;
    for (; k + P::size <= n; k += P::size) add_pack(k, [](const T* x) { return P::load(x); });
    if (k < n) add_pack(k, [=](const T* x) { return P::load(x, n - k); });
    for (Index p = 0; p < terms; ++p)
      for (Index q = 0; q < rows; ++q) out[p * most_terms + q0 + q] += static_cast<double>(sum[p][q].sum());
  };
  Index q = 0;
  for (; q + most <= terms; q += most) add(q, std::integral_constant<Index, most>());
  if constexpr (terms % most != 0) add(q, std::integral_constant<Index, terms % most>());
}

}  // namespace detail

/// The gradient of the weights of smooth blocks: that of the product that is computed, in which each such weight is a
/// linear function of the weights of its block at level 0.
template <Real T>
class WeightGradients {
 public:
  /// For the moments of the keys, and of the queries with G as values; `sums` are those of the keys' gradients.
  WeightGradients(const SmoothPlan<T>& plan, const ChunkSums<T>& sums, const ChunkMoments<T>& of_queries,
                  const ChunkMoments<T>& of_keys, Workspace& workspace)
      : m_plan(plan), m_sums(sums), m_queries(of_queries), m_keys(of_keys) {
    for (Index l = 0; l <= plan.top(); ++l) {
      const Index size = share_size(l) * shares(l);
      m_shares[l] = workspace.take<double>(size);
      std::fill_n(m_shares[l], size, 0.0);
    }
  }

  /// Adds the pairs of the queries and keys in the blocks of chunk J of the keys that are summed at level l.
  void add_blocks(Index l, Index J) const {
    const Index parity = J % 2;
    double* dK = share(l, m_sums.group(l, J), parity);
    for (const Coupling<T>& each : coupled(l, parity)) {
      // dK[p,q] += N_I[p].M_J[q]
      if (const Index I = J + each.offset; I >= 0 && I < m_queries.chunks(l))
        m_keys.for_each_part([&](Index at, Index n) {
          with_terms(m_plan.terms(), [&]<Index terms>() {
            detail::add_dot_products<terms>(m_queries.at(l, I) + at, m_keys.at(l, J) + at, n, dK);
          });
        });
      dK += term_pairs;
    }
  }

  /// Adds the gradients of the weights of the lags `first`, first + 1, ... to dc, after all blocks were added.
  void add_to(std::span<T> dc, Index first, Workspace& workspace) const {
    if (m_plan.top() < 0) return;
    const Workspace::Scope scope(workspace);
    const double* outer = nullptr;
    for (Index l = m_plan.top(); l >= 0; --l) {
      double* dK = workspace.take<double>(m_plan.level(l).count * term_pairs);
      std::fill_n(dK, m_plan.level(l).count * term_pairs, 0.0);
      if (outer) add_outer(l, outer, dK);
      add_shares(l, dK);
      outer = dK;
    }
    const SmoothLevel<T>& lowest = m_plan.level(0);
    for (Index k = 0; k < lowest.count; ++k)
      if (lowest.blocks[k].kind == BlockKind::smooth)
        add_block(outer + k * term_pairs, -(lowest.first + k) * smooth_chunk - (smooth_chunk - 1) - first, dc);
  }

 private:
  // each group of chunks has a share: dK of each coupling of even chunks, then of odd ones
  Index shares(Index l) const { return m_sums.group(l, m_keys.chunks(l) - 1) + 1; }
  std::span<const Coupling<T>> coupled(Index l, Index parity) const {
    return m_plan.level(l).side(Axis::keys).coupled[parity];
  }
  Index share_size(Index l) const {
    return static_cast<Index>(coupled(l, 0).size() + coupled(l, 1).size()) * term_pairs;
  }
  double* share(Index l, Index group, Index parity) const {
    return m_shares[l] + group * share_size(l) +
           (parity == 0 ? 0 : static_cast<Index>(coupled(l, 0).size()) * term_pairs);
  }

  // dK of level l from that of level l + 1: K above = sum W_a^T K W_b
  void add_outer(Index l, const double* outer, double* dK) const {
    const SmoothLevel<T>&level = m_plan.level(l), &above = m_plan.level(l + 1);
    const Halves halves(smooth_chunk << l, m_plan.terms());
    for (Index k = 0; k < above.count; ++k) {
      if (above.blocks[k].kind != BlockKind::smooth) continue;
      for (Index a : {0, 1})
        for (Index b : {0, 1})
          detail::add_product(halves.W[a], outer + k * term_pairs, halves.Wt[b],
                              dK + (2 * (above.first + k) + a - b - level.first) * term_pairs);
    }
  }
  void add_shares(Index l, double* dK) const {
    for (Index group = 0; group < shares(l); ++group)
      for (Index parity : {0, 1}) {
        const double* from = share(l, group, parity);
        for (const Coupling<T>& each : coupled(l, parity)) {
          double* to = dK + (each.offset - m_plan.level(l).first) * term_pairs;
          for (Index k = 0; k < term_pairs; ++k) to[k] += from[k];
          from += term_pairs;
        }
      }
  }

  // adds the gradients of the weights of a block of level 0, the first of which is dc[first]
  void add_block(const double* dK, Index first, std::span<T> dc) const {
    constexpr Index middle = smooth_chunk - 1, last = ChunkBasis<T>::lags - 1;
    const double* products = ChunkBasis<T>::get().by_lag;
    for (Index x = 0; x <= middle; ++x, products += term_pairs) {
      double sums[2] = {};  // of the p + q that are even, and that are odd
      for (Index p = 0; p < most_terms; ++p)
        for (Index q = 0; q < most_terms; ++q)
          sums[(p + q) % 2] += dK[p * most_terms + q] * products[p * most_terms + q];
      dc[static_cast<std::size_t>(first + x)] += static_cast<T>(sums[0] + sums[1]);
      if (x < middle) dc[static_cast<std::size_t>(first + last - x)] += static_cast<T>(sums[0] - sums[1]);
    }
  }

  const SmoothPlan<T>& m_plan;
  const ChunkSums<T>& m_sums;
  const ChunkMoments<T>&m_queries, &m_keys;
  double* m_shares[SmoothPlan<T>::most_levels] = {};
};

}  // namespace nprf::toeplitz
