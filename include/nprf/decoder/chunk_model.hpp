// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "nprf/core/lags.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/decoder/step_bias.hpp"
#include "nprf/decoder/token_ring.hpp"
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"
#include "nprf/toeplitz/smooth/plan.hpp"

namespace nprf {

/// How a decoder sums the older tokens of a table that is smooth but for its first ages: by moments of chunks of
/// tokens, as the engine `smooth` does (toeplitz/smooth/plan.hpp). For the query at place u of chunk I,
///
///     the sum over the tokens j of chunks <= I - near_chunks() of c(age of j) phi(k_j)^T [v_j 1]
///         = sum_p P_p(u) L_I[p]    L_I[p] = sum_J,q K[p,q] M_J[q]    M_J: the moments of chunk J
///
/// where chunks J of several sizes are used, larger ones for older tokens. A state keeps the moments of a few chunks of
/// each size, and L_I.
template <Real T>
class ChunkModel {
 public:
  static constexpr Index chunk = toeplitz::smooth_chunk;

  /// A block of weights of a chunk of queries and the chunk of keys `distance` chunks before it: K = 2^exponent
  /// scaled_K (terms,terms), for polynomials of both.
  struct Coupling {
    Index distance;
    double exponent;
    T scaled_K[toeplitz::term_pairs];
  };
  /// Chunks of 2^l chunk tokens, at level l.
  struct Level {
    T W[2][toeplitz::term_pairs], Wt[2][toeplitz::term_pairs];  // as in toeplitz::SmoothLevel
    std::vector<Coupling> coupled[2];                           // of even and of odd chunks of queries
    Index kept = 2;                                             // of how many chunks a state keeps moments
  };

  /// No chunks.
  ChunkModel() = default;

  /// Chunks, if they represent all weights of sequences of at most `ages` tokens but those of the first ages, if a step
  /// reads far fewer numbers than without them, and if a state takes at most twice the memory. A weight changes by at
  /// most a quarter of the default tolerance, relative to it. Weights of ages below `near` are taken to be 0.
  /// `rollback` tokens can be taken back. O(ages).
  ChunkModel(const StepBias<T>& bias, const TokenShape& shape, Index ages, Index near, Index rollback) {
    constexpr double most_spread = 80;  // the weights of more are not all normal numbers
    constexpr Index most_ages = Index{1} << 20;
    if (ages > most_ages || !bias.attends_to_all() || !(bias.spread() <= most_spread)) return;
    const double all_tokens = scalars_of_tokens(shape, std::min(bias.reach(), ages));
    if (2 * all_tokens < 6 * static_cast<double>(scalars(shape, toeplitz::least_terms))) return;  // those of two levels
    Workspace workspace;
    double least_time = 0.7 * all_tokens;
    for (Index terms = toeplitz::least_terms; terms <= toeplitz::most_terms; ++terms) {
      const Workspace::Scope scope(workspace);
      const auto plan_from = [&](Index age) {
        return toeplitz::SmoothPlan<T>(weights(bias, ages, age, workspace), {ages, ages, 1, 1}, terms, workspace);
      };
      // The age 1 gets no weight, so that the chunk before that of the query is near: its moments are not needed yet.
      // Nor do those blocks that are smooth among others that are not: all near chunks are summed token by token
      const toeplitz::SmoothPlan<T> all = plan_from(std::max<Index>(near, 2));
      if (all.top() < 0) continue;
      const toeplitz::SmoothPlan<T> plan = plan_from(all.tiles().front() * chunk + 1);
      if (plan.top() < 0) continue;
      ChunkModel model;
      model.take(plan, rollback);
      const double tokens = scalars_of_tokens(shape, model.reach()), sums = static_cast<double>(scalars(shape, terms));
      if (tokens + model.kept_chunks() * sums > 2 * all_tokens || tokens + sums >= least_time) continue;
      least_time = tokens + sums;
      *this = std::move(model);
    }
  }

  bool any() const { return !m_levels.empty(); }
  Index terms() const { return m_terms; }
  Index levels() const { return static_cast<Index>(m_levels.size()); }
  const Level& level(Index l) const { return m_levels[static_cast<std::size_t>(l)]; }
  /// The tokens of how many chunks, that of the query and those before it, are summed one by one.
  Index near_chunks() const { return m_near_chunks; }
  /// The age from which on no token is summed by itself.
  Index reach() const { return m_near_chunks * chunk; }
  /// The first token that is summed by itself, by a query that has `tokens` keys, its own included.
  Index first_near(Index tokens) const { return std::max<Index>((tokens - 1) / chunk - m_near_chunks + 1, 0) * chunk; }
  /// A bound of the relative change of a weight, and of the rounding errors of sums of moments, relative to the row.
  double deviation() const { return m_deviation; }

  /// The numbers of sums of a chunk: (r,terms,padded d_v) for the values, and (terms,padded r) for the column of ones.
  static Index scalars(const TokenShape& shape, Index terms) {
    return terms * (shape.r * padded_to_lanes(shape.d_v) + padded_to_lanes(shape.r));
  }

 private:
  static double scalars_of_tokens(const TokenShape& shape, Index tokens) {
    return static_cast<double>(tokens) * static_cast<double>(shape.r + padded_to_lanes(shape.d_v));
  }
  // of how many chunks a state has sums: the moments that it keeps, and L of two chunks
  double kept_chunks() const {
    Index sum = 2;
    for (const Level& level : m_levels) sum += level.kept;
    return static_cast<double>(sum);
  }

  // c by the lag from age `first` on, up to whole chunks; beyond the last age b goes on as a line, so that the last
  // block is smooth, too
  static LagWeightsView<T> weights(const StepBias<T>& bias, Index ages, Index first, Workspace& workspace) {
    const Index size = (ages + chunk - 1) / chunk * chunk + chunk, last = ages - 1;
    const double slope = last > 0 ? bias(last) - bias(last - 1) : 0;
    T* c = workspace.take<T>(2 * size);
    std::fill_n(c, 2 * size, T(0));
    for (Index age = first; age < size; ++age)
      c[size - age] = static_cast<T>(
          std::exp(bias(std::min(age, last)) + slope * static_cast<double>(std::max<Index>(age - last, 0))));
    return {-size, c, 2 * size, {}, default_tolerance<T> / 4};
  }

  void take(const toeplitz::SmoothPlan<T>& plan, Index rollback) {
    m_terms = plan.terms();
    m_near_chunks = plan.tiles().front() + 1;
    m_deviation = plan.deviation();
    const Index back = std::max<Index>((rollback + chunk - 1) / chunk, 1) - 1;  // further chunks of queries
    m_levels.resize(static_cast<std::size_t>(plan.top() + 1));
    for (Index l = 0; l <= plan.top(); ++l) {
      const toeplitz::SmoothLevel<T>& from = plan.level(l);
      Level& to = m_levels[static_cast<std::size_t>(l)];
      for (Index half : {0, 1}) {
        if (l == plan.top()) continue;
        std::copy_n(from.W[half], toeplitz::term_pairs, to.W[half]);
        std::copy_n(from.Wt[half], toeplitz::term_pairs, to.Wt[half]);
      }
      for (Index parity : {0, 1})
        for (const auto& [offset, K] : from.side(toeplitz::Axis::queries).coupled[parity]) {
          const Index distance = -offset, first = distance + (distance + parity) % 2;
          if (first >= from.side(toeplitz::Axis::queries).chunks) continue;  // no chunk has a chunk of keys there
          Coupling& each = to.coupled[parity].emplace_back();
          each.distance = distance;
          int exponent;
          std::frexp(std::ranges::max(std::span(K, toeplitz::term_pairs), {}, [](T k) { return std::abs(k); }),
                     &exponent);
          each.exponent = exponent;
          for (Index k = 0; k < toeplitz::term_pairs; ++k) each.scaled_K[k] = std::ldexp(K[k], -exponent);
          to.kept = std::max(to.kept, each.distance + 1);
        }
      to.kept += (back + (Index{1} << l) - 1) >> l;
    }
  }

  Index m_terms = 0, m_near_chunks = 0;
  double m_deviation = 0;
  std::vector<Level> m_levels;
};

}  // namespace nprf
