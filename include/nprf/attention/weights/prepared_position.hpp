// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nprf/attention/options.hpp"
#include "nprf/attention/segments.hpp"
#include "nprf/attention/weights/attendance.hpp"
#include "nprf/attention/weights/lower.hpp"
#include "nprf/attention/weights/query_biases.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/fitted_tails.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/position/position_view.hpp"
#include "nprf/toeplitz/bordered_product.hpp"
#include "nprf/toeplitz/plan/choose.hpp"

namespace nprf {

/// The product with the weights of a LagProblem, by the engine that was chosen. For Engine::automatic there are also
/// other products, which replace this one if masked keys make its engine slow or inaccurate.
template <Real T>
class ProductChoice {
 public:
  /// Chooses the engine for products of this shape. May change the problem's last weight
  /// (LagProblem::keep_last_weight()). Engine::smooth may replace biases by others that differ by at most
  /// `max_deviation`; so may Engine::automatic, if that admits a cheaper engine. Slots of a grid keep their biases.
  ProductChoice(const LagProblem<T>& problem, Engine engine, const ProductShape& shape, Pass pass, double max_deviation,
                const Team& team)
      : m_problem(problem),
        m_shape(shape),
        m_span{problem.query_slots, problem.key_slots, shape.r, shape.p},
        m_weights(problem.weights_within(max_deviation)),
        m_product(choose(engine, pass, max_deviation, team)) {}

  /// The product for all keys.
  const toeplitz::BorderedProduct<T>& product() const { return m_product; }

  /// The product for these keys. Engine::automatic selects another engine if the keys are few, or if without the masked
  /// keys many rows have such small weights that they would have to be recomputed.
  const toeplitz::BorderedProduct<T>& product(const Placement& keys, Workspace& workspace) const {
    if (!m_per_row[0] || keys.count() == m_problem.keys.count()) return m_product;
    const Slots& queries = m_problem.queries.slots;
    const toeplitz::CostInputs<T> inputs{m_weights, {queries.count, keys.slots.count, m_span.r, m_span.p}, m_span};
    const auto cost = [&](const toeplitz::BorderedProduct<T>& by) { return toeplitz::cost_of(by.engine(), inputs); };
    const auto& per_row = m_per_row[1] && cost(*m_per_row[1]) < cost(*m_per_row[0]) ? *m_per_row[1] : *m_per_row[0];
    if (cost(per_row) < cost(m_product)) return per_row;
    return toeplitz::is_admissible(m_product.engine(), inputs, cost(per_row), queries, keys.slots, m_use, workspace)
               ? m_product
               : per_row;
  }

  /// The product by the direct engine, whose rounding is per row, for factors of r features and p columns.
  toeplitz::BorderedProduct<T> direct_product(Index r, Index p, const Team& team) const {
    return {Engine::direct, m_weights, m_problem.border, {m_span.n_q, m_span.n_k, r, p}, team};
  }

  /// A bound of the difference between a bias that a product of this object uses and the position's bias; 0 unless
  /// tails were fitted, or the engine is `smooth`.
  double deviation(const toeplitz::BorderedProduct<T>& product) const { return m_deviation + product.deviation(); }

 private:
  using Rounding = toeplitz::Rounding;

  toeplitz::BorderedProduct<T> make(Engine engine, const Team& team) {
    if (toeplitz::properties_of(engine).accepts_key_log_scales) m_problem.keep_last_weight();
    return {engine, m_weights, m_problem.border, m_shape, m_span, team};
  }

  toeplitz::BorderedProduct<T> choose(Engine engine, Pass pass, double max_deviation, const Team& team) {
    if (engine != Engine::automatic || m_weights.support().size() == 0) return make(engine, team);
    engine = cheapest_admissible(pass, team.workspace());
    if (max_deviation > 0 && pass == Pass::forward && !m_problem.has_own_slots)
      engine = cheapest_with_fitted_tails(engine, max_deviation, team.workspace());
    std::size_t others = 0;
    for (const Engine other : {cheapest(m_weights, Rounding::per_row), Engine::direct})
      if (other != engine && (others == 0 || other != m_per_row[0]->engine()))
        m_per_row[others++].emplace(make(other, team));
    const bool is_grid = m_problem.has_own_slots && toeplitz::has_name<toeplitz::FftEngine<T>>(engine);
    return make(is_grid ? Engine::grid : engine, team);
  }

  Engine cheapest(const LagWeightsView<T>& weights, Rounding allowed) const {
    return toeplitz::cheapest<T>({weights, m_shape, m_span}, allowed);
  }

  Engine cheapest_admissible(Pass pass, Workspace& workspace) {
    const auto choose = [&](LagWeightsView<T> weights) {
      // causal weights count as one-sided even if an offset gives them lags on both sides
      const Rounding allowed = m_problem.direction == Direction::causal ? Rounding::per_block
                                                                        : toeplitz::allowed_rounding(weights.support());
      return toeplitz::choose(weights, m_shape, m_problem.queries.slots, m_problem.keys.slots, allowed, m_use,
                              workspace);
    };
    if (pass == Pass::forward) return choose(m_weights);
    // forward may have saved log-scales of keys: then backward needs forward's engine, which accepts them
    const Engine of_forward = choose(m_weights.with_equal_ends());
    if (toeplitz::properties_of(of_forward).accepts_key_log_scales) return of_forward;
    m_use = toeplitz::Use::gradients;
    return choose(m_weights);
  }

  // the logarithms of the weights of `reach`; -infinity where a weight is 0 because its lag is near
  std::span<const double> far_log_weights(Workspace& workspace) const {
    const LagRange& reach = m_problem.reach;
    double* far = workspace.take<double>(reach.size());
    for (Index lag = reach.first; lag <= reach.last; ++lag)
      far[lag - reach.first] = m_problem.near.contains(lag) ? LagProblem<T>::minus_infinity
                                                            : m_problem.log_weights[lag - m_problem.lags.first];
    return {far, static_cast<std::size_t>(reach.size())};
  }

  // replaces the tails of the weights by fitted ones if BandedEngine is cheaper with them than `engine`; then returns
  // the cheapest engine, else `engine`
  Engine cheapest_with_fitted_tails(Engine engine, double max_deviation, Workspace& workspace) {
    double least = toeplitz::cost_of<T>(engine, {m_weights, m_shape, m_span});
    const Workspace::Scope scope(workspace);
    const FittedTails fitted = fitted_tails<T>(far_log_weights(workspace), max_deviation);
    const Tails& both = fitted.tails;
    for (const Tails& tails :
         {Tails{both.before, 0, both.slope_before, 0}, Tails{0, both.after, 0, both.slope_after}, both}) {
      LagWeightsView<T> simpler = m_problem.weights;
      simpler.tails = tails;
      const double cost = toeplitz::BandedEngine<T>::cost({simpler, m_shape, m_span});
      if (!(cost < least)) continue;
      least = cost, m_weights = simpler, m_deviation = fitted.deviation;
      engine = cheapest(simpler, Rounding::per_row);
    }
    return engine;
  }

  LagProblem<T> m_problem;
  ProductShape m_shape, m_span;  // in tokens; in the slots that the tokens span
  LagWeightsView<T> m_weights;   // the problem's weights, or these with fitted tails
  double m_deviation = 0;        // of fitted tails
  toeplitz::Use m_use = toeplitz::Use::rows;
  // the products that Engine::automatic may select if keys are masked: their engines round per row, which is accurate
  // enough whichever keys are masked
  std::array<std::optional<toeplitz::BorderedProduct<T>>, 2> m_per_row;
  toeplitz::BorderedProduct<T> m_product;
};

/// What depends only on a position and on the numbers of tokens: the lowered problem, which queries attend to which
/// keys, and the product. All sequences of n_q queries and n_k keys share it. Its tables are in the workspace of the
/// team that it was made with.
template <Real T>
class PreparedPosition {
 public:
  /// `max_deviation` as in ProductChoice. Throws InvalidArgument if the position is for other numbers of tokens, or if
  /// Engine::grid is requested for a position that is not a grid.
  PreparedPosition(const PositionView<T>& position, const AttentionOptions& options, const ProductShape& shape,
                   Index offset, Pass pass, const Team& team, double max_deviation = 0)
      : m_problem(lower(position, options, offset, shape.n_q, shape.n_k, pass, team.workspace())),
        m_lag_vectors(position.lag_vectors()),
        m_lags_of_vectors(m_lag_vectors
                              ? LagRange{offset + 1 - options.near, offset + m_lag_vectors->cols() - options.near}
                              : LagRange{}),
        m_attendance(m_problem, team.workspace()),
        m_products(m_problem, options.engine, shape, pass, max_deviation, team) {
    require(options.engine != Engine::grid || m_problem.has_own_slots,
            "engine: expected another than grid for a one-dimensional position, got grid");
  }

  const LagProblem<T>& problem() const { return m_problem; }
  /// The biases of near pairs that depend on the vectors r (n_q,rank) of the queries; none if the rank is 0.
  QueryBiases<T> query_biases(const MatrixView<T>& r) const {
    return m_lag_vectors ? QueryBiases<T>(r, *m_lag_vectors, m_lags_of_vectors) : QueryBiases<T>();
  }
  /// The lags that have vectors; empty if the rank is 0.
  const LagRange& lags_of_vectors() const { return m_lags_of_vectors; }
  /// A bound of the magnitudes of such biases, from those of the finite rows of r and of the vectors of lags.
  double bound_of_query_biases(const MatrixView<T>& r) const {
    return m_lag_vectors ? largest_norm(r) * static_cast<double>(m_lag_vectors->colwise().norm().maxCoeff()) : 0;
  }
  const Attendance<T>& attendance() const { return m_attendance; }
  const ProductChoice<T>& products() const { return m_products; }

  const Placement& queries() const { return m_problem.queries; }
  /// The keys before `length` whose mask is true; an empty mask is all true. The placement's arrays are in the
  /// workspace.
  Placement keys(std::span<const bool> mask, Index length, Workspace& workspace) const {
    const Placement& all = m_problem.keys;
    if (mask.empty() && length == all.count()) return all;
    Index* token_indices = workspace.take<Index>(length);
    Index count = 0;
    for (Index j = 0; j < length; ++j)
      if (mask.empty() || mask[static_cast<std::size_t>(j)]) token_indices[count++] = j;
    if (!m_problem.has_own_slots) {
      const bool has_no_gaps = count == 0 || token_indices[count - 1] == count - 1;
      return has_no_gaps ? Placement(Slots{count}) : Placement({count, 0, token_indices}, 0, token_indices);
    }
    const Index outside = std::lower_bound(token_indices, token_indices + count, all.outside) - token_indices;
    Index* at = workspace.take<Index>(count - outside);
    for (Index j = outside; j < count; ++j) at[j - outside] = all.slots[token_indices[j] - all.outside];
    return Placement({count - outside, 0, at}, outside, token_indices);
  }

 private:
  LagProblem<T> m_problem;
  const Matrix<T>* m_lag_vectors;  // R of QueryBiases, or null
  LagRange m_lags_of_vectors;
  Attendance<T> m_attendance;
  ProductChoice<T> m_products;
};

/// How a call lowers its positions: the offset of its queries, the pass, and the deviation of biases that it allows
/// (ProductChoice).
struct LoweringOptions {
  Index offset = 0;
  Pass pass = Pass::forward;
  double max_deviation = 0;
};

/// A position prepared for each of the packed sequences. Sequences with the same n_q and the same n_k share one
/// PreparedPosition.
template <Real T>
class PreparedSegments {
 public:
  /// Makes a PreparedPosition for each pair of n_q and n_k that a segment has, for r features and p columns of the
  /// product. The tables are in the team's workspace. O(s log s) for s sequences.
  void build(const PositionView<T>& position, const AttentionOptions& options, std::span<const Segment> segments,
             Index r, Index p, const LoweringOptions& lowering, const Team& team) {
    clear();
    const auto size = [&](std::size_t s) { return std::pair(segments[s].n_q, segments[s].n_k); };
    m_by_size.resize(segments.size());
    std::iota(m_by_size.begin(), m_by_size.end(), std::size_t{0});
    std::ranges::sort(m_by_size, {}, size);
    std::size_t sizes = 0;
    for (std::size_t at = 0; at < m_by_size.size(); ++at)
      sizes += at == 0 || size(m_by_size[at]) != size(m_by_size[at - 1]);
    m_prepared.reserve(sizes);
    m_index.resize(segments.size());
    for (std::size_t at = 0; at < m_by_size.size(); ++at) {
      const std::size_t s = m_by_size[at];
      if (at == 0 || size(s) != size(m_by_size[at - 1]))
        m_prepared.emplace_back(position, options, ProductShape{segments[s].n_q, segments[s].n_k, r, p},
                                lowering.offset, lowering.pass, team, lowering.max_deviation);
      m_index[s] = m_prepared.size() - 1;
    }
  }

  /// Removes all prepared positions, but keeps the memory of the lists.
  void clear() {
    m_prepared.clear();
    m_index.clear();
  }

  const PreparedPosition<T>& operator[](std::size_t segment) const { return m_prepared[m_index[segment]]; }

  /// The range of the position's lags over all sequences: position of the key minus position of the query, where query
  /// i has position i + offset.
  LagRange distances() const {
    LagRange all{0, -1};
    for (const PreparedPosition<T>& one : m_prepared) {
      const LagProblem<T>& x = one.problem();
      const LagRange lags{x.lags.first - x.offset, x.lags.last - x.offset};
      if (lags.size() == 0) continue;
      all = all.size() == 0 ? lags : LagRange{std::min(all.first, lags.first), std::max(all.last, lags.last)};
    }
    return all;
  }

 private:
  std::vector<PreparedPosition<T>> m_prepared;
  std::vector<std::size_t> m_index;    // (segments)  the index in m_prepared of each
  std::vector<std::size_t> m_by_size;  // the segments, sorted by n_q and n_k
};

}  // namespace nprf
