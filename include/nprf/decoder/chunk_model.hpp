// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "nprf/core/lags.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/decoder/step_bias.hpp"
#include "nprf/decoder/token_ring.hpp"
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"
#include "nprf/toeplitz/smooth/plan.hpp"

namespace nprf {

/// How a decoder sums the older tokens of a table that is smooth but for its first ages: by moments of chunks of
/// tokens, as the engine `smooth` does (toeplitz/smooth/plan.hpp). For the query at position u of chunk I,
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
    T W[2][toeplitz::term_pairs] = {}, Wt[2][toeplitz::term_pairs] = {};  // as in toeplitz::SmoothLevel
    std::vector<Coupling> coupled[2];                                     // of even and of odd chunks of queries
    Index kept = 2;                                                       // of how many chunks a state keeps moments
  };

  /// No chunks.
  ChunkModel() = default;

  /// Chunks, if they represent all weights of sequences of at most `ages` tokens but those of the first ages, if a step
  /// reads far fewer numbers than without them, and if a state takes at most twice the memory. A weight changes by at
  /// most a quarter of the default tolerance, relative to it. Weights of ages below `near` are taken to be 0.
  /// `rollback` tokens can be taken back. O(ages).
  ChunkModel(const StepBias<T>& bias, const TokenShape& shape, Index ages, Index near, Index rollback) {
    constexpr double most_spread = 80;  // weights of biases that are farther apart are not all normal numbers
    constexpr Index most_ages = Index{1} << 20;
    if (ages > most_ages || !bias.attends_to_all() || !(bias.spread() <= most_spread)) return;
    const double all_tokens = scalars_of_tokens(shape, std::min(bias.reach(), ages));
    if (2 * all_tokens < 6 * static_cast<double>(scalars(shape, toeplitz::least_terms)))
      return;  // too few for two levels
    // so many that each chunk consists of two whole ones of the level below
    const auto size = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>((ages + chunk - 1) / chunk))) * chunk;
    Workspace workspace;
    // the age 1 gets no weight: so the chunk before that of the query is near, whose moments are not needed yet
    const LagWeightsView<T> c = weights(bias, ages, size, std::max<Index>(near, 2), workspace);
    double least_time = 0.7 * all_tokens;
    for (Index terms = toeplitz::least_terms; terms <= toeplitz::most_terms; ++terms) {
      const Workspace::Scope scope(workspace);
      const toeplitz::SmoothPlan<T> plan(c, size, size, terms, workspace);
      ChunkModel model;
      model.take(plan, ages, rollback);
      if (!model.any()) continue;
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
  /// A bound of the errors of weights: their change, and the rounding errors of sums of moments; relative to each.
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

  // c by the lag from age `first` on, up to `size` ages
  static LagWeightsView<T> weights(const StepBias<T>& bias, Index ages, Index size, Index first, Workspace& workspace) {
    const Extrapolation beyond(bias, ages - 1);
    T* c = workspace.take<T>(2 * size);
    std::fill_n(c, 2 * size, T(0));
    for (Index age = first; age < size; ++age)
      c[size - age] = static_cast<T>(std::exp(age < ages ? bias(age) : beyond(age)));
    return {-size, c, 2 * size, {}, deviation_within(default_tolerance<T>)};
  }

  // The biases of ages that do not occur: a cubic polynomial of the logarithm of the age through four of the last ages.
  // It only has to go on smoothly, so that blocks which are partly beyond the last age are smooth, too
  struct Extrapolation {
    static constexpr std::size_t points = 4;
    double log_ages[points], differences[points];

    Extrapolation(const StepBias<T>& bias, Index last) {
      for (std::size_t i = 0; i < points; ++i) {
        const Index age = last - static_cast<Index>(0.05 * static_cast<double>(i) * static_cast<double>(last));
        log_ages[i] = std::log(static_cast<double>(age)), differences[i] = bias(age);
      }
      for (std::size_t order = 1; order < points; ++order)  // Newton's divided differences
        for (std::size_t i = points - 1; i >= order; --i)
          differences[i] = (differences[i] - differences[i - 1]) / (log_ages[i] - log_ages[i - order]);
    }
    double operator()(Index age) const {
      const double x = std::log(static_cast<double>(age));
      double sum = 0;
      for (std::size_t i = points; i-- > 0;) sum = sum * (x - log_ages[i]) + differences[i];
      return sum;
    }
  };

  void take(const toeplitz::SmoothPlan<T>& plan, Index ages, Index rollback) {
    m_terms = plan.terms();
    // all chunks up to the farthest block that is not smooth are near, also those whose blocks are
    const auto is_beyond = [=](Index D) { return D * chunk - (chunk - 1) >= ages; };
    m_near_chunks = *std::ranges::find_if_not(plan.tiles(), is_beyond) + 1;
    m_deviation = plan.deviation();
    const Index back =
        std::max<Index>((rollback + chunk - 1) / chunk, 1) - 1;  // more chunks of queries that can be needed again
    m_levels.resize(static_cast<std::size_t>(plan.top() + 1));
    for (Index l = 0; l <= plan.top(); ++l) {
      const toeplitz::SmoothLevel<T>& from = plan.level(l);
      Level& to = m_levels[static_cast<std::size_t>(l)];
      for (Index half : {0, 1}) {
        if (l == plan.top()) break;
        std::copy_n(from.W[half], toeplitz::term_pairs, to.W[half]);
        std::copy_n(from.Wt[half], toeplitz::term_pairs, to.Wt[half]);
      }
      for (Index parity : {0, 1})
        for (const auto& [offset, K] : from.side(toeplitz::Axis::queries).coupled[parity]) {
          const Index distance = -offset, first = distance + (distance + parity) % 2;
          if (first * (chunk << l) >= ages) continue;   // no chunk has a chunk of keys there
          if (distance << l < m_near_chunks) continue;  // chunks in it are near
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
    const auto is_unused = [](const Level& level) { return level.coupled[0].empty() && level.coupled[1].empty(); };
    while (any() && is_unused(m_levels.back())) m_levels.pop_back();
  }

  Index m_terms = 0, m_near_chunks = 0;
  double m_deviation = 0;
  std::vector<Level> m_levels;
};

}  // namespace nprf
