// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "nprf/attention/options.hpp"
#include "nprf/attention/weights/sliding_window_max.hpp"
#include "nprf/attention/weights/visibility.hpp"
#include "nprf/core/fitted_tails.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/position/position_view.hpp"
#include "nprf/toeplitz/bordered_product.hpp"
#include "nprf/toeplitz/plan/choose.hpp"

namespace nprf {

/// Forwards, weights that are alike at an end of the table are one tail; backwards, each has a gradient of its own.
enum class Pass { forward, backward };

/// What one position says of n_q queries and n_k keys: where they stand, the weights exp(b - max b) and the product
/// with them. It serves every sequence of that size. Its tables lie in the workspace of the team that it was made with,
/// and it refers to the position.
template <Real T>
class HeadWeights {
 public:
  /// Biases may be off by `most_deviation` where Engine::automatic finds a cheaper product for such ones. Throws
  /// InvalidArgument if the position has places for other numbers of tokens.
  HeadWeights(const PositionView<T>& position, const AttentionOptions& options, const ProductShape& shape, Index offset,
              Pass pass, const Team& team, double most_deviation = 0)
      : m_position(position),
        m_direction(options.direction),
        m_offset(offset),
        m_queries(place(shape.n_q, "queries", team.workspace())),
        m_keys(place(shape.n_k, "keys", team.workspace())),
        m_span{slots_of(m_queries), slots_of(m_keys), shape.r, shape.p},
        m_lags(reachable_lags(m_span.n_q, m_span.n_k, offset, m_direction)),
        m_visible(
            seen_slot_lags(), [this](Index lag) { return slot_bias(lag) > never; }, team.workspace()),
        m_product(make_product(options.engine, shape, pass, most_deviation, team)) {
    require(options.engine != Engine::grid || m_position.is_placed(),
            "engine: expected grid for a position of two dimensions only, got it for one of one");
  }

  /// The product for all keys.
  const toeplitz::BorderedProduct<T>& product() const { return m_product; }

  /// The product for these keys: where they are few, or where those that are missing leave some rows far less than
  /// others, Engine::automatic takes another.
  const toeplitz::BorderedProduct<T>& product(const Placement& keys, Workspace& workspace) const {
    if (!m_by_rows[0] || keys.count() == m_keys.count()) return m_product;
    const toeplitz::CostInputs<T> inputs{m_rows, {m_queries.slots.count, keys.slots.count, m_span.r, m_span.p}, m_span};
    const auto cost = [&](const toeplitz::BorderedProduct<T>& by) { return toeplitz::cost_of(by.engine(), inputs); };
    const auto& by_rows = m_by_rows[1] && cost(*m_by_rows[1]) < cost(*m_by_rows[0]) ? *m_by_rows[1] : *m_by_rows[0];
    if (cost(by_rows) < cost(m_product)) return by_rows;
    return toeplitz::is_admissible(m_product.rounding(), m_rows, m_queries.slots, keys.slots, m_use, workspace)
               ? m_product
               : by_rows;
  }

  /// The product by tiles, whose rounding is each row's own.
  toeplitz::BorderedProduct<T> direct_product(Index r, Index p, const Team& team) const {
    return {Engine::direct, m_rows, m_border, {m_span.n_q, m_span.n_k, r, p}, team};
  }

  const Placement& queries() const { return m_queries; }

  /// The lags that the product's gradient has: its first, at distances j - i, and their number.
  LagRange gradient_lags() const { return {-(m_span.n_q - 1) - m_offset, m_span.n_k - 1 - m_offset}; }
  /// c[lag], the derivative of c by b.
  T weight(Index lag) const { return m_c[lag]; }
  /// (E,E+2)
  const toeplitz::BorderWeights<T>& border() const { return m_border; }

  /// The keys before `length` that a mask leaves; all of them for an empty one. Numbers lie in the workspace.
  Placement keys(std::span<const bool> mask, Index length, Workspace& workspace) const {
    if (mask.empty() && length == m_keys.count()) return m_keys;
    Index* numbers = workspace.take<Index>(length);
    Index count = 0;
    for (Index j = 0; j < length; ++j)
      if (mask.empty() || mask[static_cast<std::size_t>(j)]) numbers[count++] = j;
    if (!m_position.is_placed()) {
      const bool padded_at_the_end = count == 0 || numbers[count - 1] == count - 1;
      return padded_at_the_end ? Placement(Slots{count}) : Placement({count, 0, numbers}, 0, numbers);
    }
    const Index E = m_border.count, outside = std::lower_bound(numbers, numbers + count, E) - numbers;
    Index* at = workspace.take<Index>(count - outside);
    for (Index j = outside; j < count; ++j) at[j - outside] = m_position.slot(numbers[j] - E);
    return Placement({count - outside, 0, at}, outside, numbers);
  }

  /// The bias of query i for the key of that number, -infinity if the query does not see it.
  double bias(Index i, Index key) const {
    if (m_direction == Direction::causal && key > i + m_offset) return -std::numeric_limits<double>::infinity();
    return m_position.bias_between(i, key, m_offset);
  }

  /// Whether query i sees the key of that number.
  bool sees_key(Index i, Index key) const { return bias(i, key) > never; }

  /// The differences of slots that there are, those of them that the direction reaches, and the bias of one, -infinity
  /// for the others.
  LagRange slot_lags() const { return {-(m_span.n_q - 1), m_span.n_k - 1}; }
  LagRange seen_slot_lags() const { return {m_lags.first + m_offset, m_lags.last + m_offset}; }
  double slot_bias(Index lag) const {
    const Index distance = lag - m_offset;
    if (distance < m_lags.first || distance > m_lags.last) return -std::numeric_limits<double>::infinity();
    return m_position.bias()[distance];
  }

  /// The difference of the biases of two such lags (LagBias::difference()), -infinity for one that is not reached.
  double slot_bias_difference(Index lag, Index from) const {
    const Index distance = lag - m_offset;
    if (distance < m_lags.first || distance > m_lags.last) return -std::numeric_limits<double>::infinity();
    return m_position.bias().difference(distance, from - m_offset);
  }

  /// By how much the product's biases may be off.
  double deviation() const { return m_deviation; }

  /// By how much the finite biases of those lags differ at most.
  double bias_spread() const {
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (Index lag = m_lags.first; lag <= m_lags.last; ++lag) {
      const double b = m_position.bias()[lag];
      if (b > -std::numeric_limits<double>::infinity()) least = std::min(least, b), most = std::max(most, b);
    }
    return std::max(most - least, 0.0);
  }

  /// sees (n_q,p) becomes 1 where a query sees one of the keys that mark(j, x) marks, by ones in its row x (p) of
  /// zeros, else 0. O((n_q + n_k) p log n), and O(E n_k p) for E tokens outside of the axis.
  template <class Mark>
  void any_seen(const Placement& keys, const Mark& mark, MatrixMap<double> sees, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    const Index p = sees.cols(), outside = m_queries.outside;
    auto X = workspace.template matrix<double>(m_span.n_k, p), x = workspace.template matrix<double>(1, p);
    auto in_slots = workspace.template matrix<double>(m_queries.slots.count, p);
    X.setZero();
    for (Index j = 0; j < keys.slots.count; ++j) mark(keys.outside + j, X.row(keys.slots[j]));
    m_visible.any_seen(m_queries.slots, X, in_slots, workspace);
    sees.topRows(outside).setZero();
    sees.bottomRows(in_slots.rows()) = in_slots;
    const auto add = [&](auto&& row) { row = row.cwiseMax(x.row(0)); };
    for (Index j = 0; j < keys.count() && outside + keys.outside > 0; ++j) {
      x.setZero();
      mark(j, x.row(0));
      if (x.isZero(0)) continue;
      for (Index i = 0; i < outside; ++i)
        if (sees_key(i, keys.number(j))) add(sees.row(i));
      if (j < keys.outside && in_slots.rows() > 0 && sees_key(outside, keys.number(j)))  // one scalar for all cells
        for (Index i = outside; i < sees.rows(); ++i) add(sees.row(i));
    }
  }

  /// seen (n_k,p) becomes 1 where one of the queries sees a key that mark(i, x) marks, else 0; likewise.
  template <class Mark>
  void seen_by_any(const Placement& keys, const Mark& mark, MatrixMap<double> seen, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    const Index p = seen.cols(), outside = m_queries.outside;
    auto X = workspace.template matrix<double>(m_span.n_q, p), x = workspace.template matrix<double>(1, p);
    auto in_slots = workspace.template matrix<double>(keys.slots.count, p);
    X.setZero();
    for (Index i = 0; i < m_queries.slots.count; ++i) mark(outside + i, X.row(m_queries.slots[i]));
    m_visible.seen_by_any(keys.slots, X, in_slots, workspace);
    seen.topRows(keys.outside).setZero();
    seen.bottomRows(in_slots.rows()) = in_slots;
    for (Index i = 0; i < m_queries.count() && outside + keys.outside > 0; ++i) {
      x.setZero();
      mark(i, x.row(0));
      if (x.isZero(0)) continue;
      for (Index j = 0; j < (i < outside ? keys.count() : keys.outside); ++j)
        if (sees_key(i, keys.number(j))) seen.row(j) = seen.row(j).cwiseMax(x);
    }
  }

  /// Whether each query (n_q) sees any of the keys, and whether any query sees each of the keys (n_k). O(n) where the
  /// lags that are seen have no gaps, log n a token where slots have some; else as any_seen().
  void sees_any(const Placement& keys, bool* sees, Workspace& workspace) const {
    if (is_one_run(keys)) return any_in_run(m_queries.slots, keys.slots, m_visible.longest_run(), sees);
    const Workspace::Scope scope(workspace);
    auto any = workspace.template matrix<double>(m_queries.count(), 1);
    any_seen(
        keys, [](Index, auto&& x) { x.setOnes(); }, any, workspace);
    for (Index i = 0; i < any.rows(); ++i) sees[i] = any(i, 0) > 0;
  }
  void seen_by_any(const Placement& keys, bool* seen, Workspace& workspace) const {
    if (is_one_run(keys)) {
      const LagRange run = m_visible.longest_run();
      return any_in_run(keys.slots, m_queries.slots, {-run.last, -run.first}, seen);
    }
    const Workspace::Scope scope(workspace);
    auto any = workspace.template matrix<double>(keys.count(), 1);
    seen_by_any(
        keys, [](Index, auto&& x) { x.setOnes(); }, any, workspace);
    for (Index j = 0; j < any.rows(); ++j) seen[j] = any(j, 0) > 0;
  }

  /// hit (gradient_lags().size(),1) becomes 1 for a lag at which a query that marked(i) sees one of the keys, else 0;
  /// both of them in slots. O((n_q + n_k) log n).
  template <class Marked>
  void lags_seen(const Placement& keys, const Marked& marked, MatrixMap<double> hit, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    // slots are a set of lags, too: from l to t = s + l, shifted to where l >= 0
    auto of_queries = workspace.template matrix<double>(m_span.n_q, 1),
         X = workspace.template matrix<double>(m_span.n_k, 1);
    of_queries.setZero();
    X.setZero();
    for (Index i = 0; i < m_queries.slots.count; ++i)
      if (marked(m_queries.outside + i)) of_queries(m_queries.slots[i], 0) = 1;
    for (Index j = 0; j < keys.slots.count; ++j) X(keys.slots[j], 0) = 1;
    const Index shift = m_span.n_q - 1;
    const Visibility queries(
        {-shift, 0}, [&](Index lag) { return of_queries(lag + shift, 0) > 0; }, workspace);
    queries.any_seen({hit.rows()}, X, hit, workspace);
    for (Index l = 0; l < hit.rows(); ++l)
      if (slot_bias(l - shift) == never) hit(l, 0) = 0;
  }

  /// largest (n_q): of the sizes (n_k), one a key, the largest that each query sees; where b = -infinity hides lags in
  /// between, more than half of it. No entry depends on keys that its query does not see. O((n_q + n_k) log n), for
  /// every eight powers of two that sizes stand apart where lags are hidden, and O(E n_k).
  void largest_seen(const T* sizes, const Placement& keys, T* largest, Workspace& workspace) const {
    for (Index i = 0; i < m_queries.outside; ++i) {
      largest[i] = 0;
      for (Index j = 0; j < keys.count(); ++j)
        if (sees_key(i, keys.number(j))) largest[i] = std::max(largest[i], sizes[j]);
    }
    T outside = 0;  // one scalar a key for all cells
    for (Index j = 0; j < keys.outside; ++j)
      if (sees_key(m_queries.outside, keys.number(j))) outside = std::max(outside, sizes[j]);
    const Slots& queries = m_queries.slots;
    T* in_slots = largest + m_queries.outside;
    std::fill_n(in_slots, queries.count, outside);
    nprf::largest_seen(sizes + keys.outside, queries, keys.slots, m_visible.longest_run(), in_slots, workspace);
    if (m_visible.runs() < 2) return;
    const Workspace::Scope scope(workspace);
    constexpr Index columns = 8;  // at a time
    auto X = workspace.template matrix<double>(m_span.n_k, columns),
         any = workspace.template matrix<double>(queries.count, columns);
    int* exponents = workspace.template take<int>(keys.slots.count);
    bool* is_found = workspace.template take<bool>(queries.count);
    std::fill_n(is_found, queries.count, false);
    const Index number = nprf::exponents_of(sizes + keys.outside, keys.slots.count, exponents);
    for (Index k0 = 0, found = 0; k0 < number && found < queries.count; k0 += columns) {
      const Index cols = std::min(columns, number - k0);
      X.setZero();
      for (Index j = 0; j < keys.slots.count; ++j)
        if (const T size = sizes[keys.outside + j]; size > 0)
          for (Index k = 0; k < cols; ++k) X(keys.slots[j], k) = std::ilogb(size) == exponents[k0 + k] ? 1 : 0;
      m_visible.any_seen(queries, X, any, workspace);
      for (Index i = 0; i < queries.count; ++i)
        for (Index k = 0; k < cols && !is_found[i]; ++k) {
          if (!(any(i, k) > 0)) continue;
          is_found[i] = true;
          in_slots[i] = std::max(in_slots[i], std::ldexp(T(1), exponents[k0 + k]));
          ++found;
        }
    }
  }

  /// Where in the border (E,E+2) the bias of query i and a key stands, one of them outside of the axis.
  Index border_place(Index i, Index key) const {
    const Index E = m_border.count;
    return i >= E ? key * (E + 2) + 1 : i * (E + 2) + (key < E ? 2 + key : 0);
  }

 private:
  static constexpr double never = -std::numeric_limits<double>::infinity();

  // whether all is seen that is in slots and in a range of lags, and nothing else
  bool is_one_run(const Placement& keys) const {
    return m_visible.runs() == 1 && m_queries.outside + keys.outside == 0;
  }

  // whether there are any of the others at these lags
  static void any_in_run(const Slots& slots, const Slots& others, LagRange lags, bool* any) {
    for (Index i = 0; i < slots.count; ++i)
      any[i] = others.below(slots[i] + lags.first) < others.below(slots[i] + lags.last + 1);
  }

  // of all n tokens
  Placement place(Index n, const char* name, Workspace& workspace) const {
    if (!m_position.is_placed()) return Slots{n};
    const Index E = m_position.extra().rows();
    require(n == m_position.tokens(), name, ": expected ", m_position.tokens(), " rows (the position's tokens), got ",
            n);
    require(m_offset == 0, "offset: expected 0 for a position with places of its own, got ", m_offset);
    Index* at = workspace.take<Index>(n - E);
    for (Index cell = 0; cell < n - E; ++cell) at[cell] = m_position.slot(cell);
    return Placement({n - E, 0, at}, E);
  }

  static Index slots_of(const Placement& all) { return all.slots.count == 0 ? 0 : all.slots[all.slots.count - 1] + 1; }

  toeplitz::BorderedProduct<T> make_product(Engine engine, const ProductShape& shape, Pass pass, double most_deviation,
                                            const Team& team) {
    Workspace& workspace = team.workspace();
    const LagBias<T>& bias = m_position.bias();
    double largest = bias.max(m_lags);
    const Index E = m_position.extra().rows();
    for (Index e = 0; e < E; ++e) largest = std::max(largest, border_bias(e, 1));
    T* border = workspace.take<T>(E * (E + 2));
    for (Index e = 0; e < E; ++e) {
      double row = border_bias(e, 0);  // an extra token's own row has a scale of its own
      for (Index f = 0; f < E; ++f) row = std::max(row, border_bias(e, 2 + f));
      for (Index f = 0; f < E + 2; ++f) {
        const double b = border_bias(e, f);
        border[e * (E + 2) + f] = b > -std::numeric_limits<double>::infinity()
                                      ? static_cast<T>(std::exp(b - (f == 1 ? largest : row)))
                                      : T(0);
      }
    }
    m_border = {E, border};
    T* c = workspace.take<T>(m_lags.size());
    exp_weights(bias, m_lags, largest, c);
    constexpr T smallest = std::numeric_limits<T>::min();
    m_c = {m_lags.first, c, m_lags.size(), tails(bias, m_lags)};
    if (pass == Pass::forward) m_c = m_c.with_equal_ends();
    m_rows = m_c;
    m_rows.first += m_offset;
    const auto product = [&](Engine by) {
      // a row is relative to the keys up to its last weight's: one that underflows is the smallest number, not nothing
      if (toeplitz::properties_of(by).accepts_key_log_scales) {
        Index last = m_lags.last;
        while (last > m_lags.first && bias[last] == never) --last;
        if (m_lags.size() > 0 && bias[last] > never)
          c[last - m_lags.first] = std::max(c[last - m_lags.first], smallest);
      }
      return toeplitz::BorderedProduct<T>(by, m_rows, m_border, shape, m_span, team);
    };
    if (m_rows.support().size() == 0) return product(engine);
    if (engine != Engine::automatic) return product(engine);
    // causal weights are one-sided even where an offset hides it
    const toeplitz::Rounding allowed =
        m_direction == Direction::causal ? toeplitz::Rounding::per_block : toeplitz::allowed_rounding(m_rows.support());
    const auto choose = [&](LagWeightsView<T> weights) {
      return toeplitz::choose(weights, shape, m_queries.slots, m_keys.slots, allowed, m_use, workspace);
    };
    // forward may have saved log-scales of keys: then backward takes forward's engine, which accepts them
    const Engine of_forward = pass == Pass::backward ? choose(m_rows.with_equal_ends()) : Engine::automatic;
    const bool may_have_log_scales = toeplitz::properties_of(of_forward).accepts_key_log_scales;
    if (pass == Pass::backward && !may_have_log_scales) m_use = toeplitz::Use::gradients;
    engine = may_have_log_scales ? of_forward : choose(m_rows);
    if (most_deviation > 0 && !m_position.is_placed()) {
      double least = toeplitz::cost_of<T>(engine, {m_rows, shape, m_span});
      const FittedTails fitted = fitted_tails(bias, m_lags, largest, most_deviation);
      const Tails& both = fitted.tails;
      for (const Tails& tails :
           {Tails{both.before, 0, both.slope_before, 0}, Tails{0, both.after, 0, both.slope_after}, both}) {
        LagWeightsView<T> simpler = m_rows;
        simpler.tails = tails;
        const double cost = toeplitz::BandedEngine<T>::cost({simpler, shape, m_span});
        if (!(cost < least)) continue;
        least = cost, m_rows = simpler, m_deviation = fitted.deviation;
        engine = toeplitz::cheapest<T>({simpler, shape, m_span}, toeplitz::Rounding::per_row);
      }
    }
    std::size_t others = 0;
    for (const Engine by_rows :
         {toeplitz::cheapest<T>({m_rows, shape, m_span}, toeplitz::Rounding::per_row), Engine::direct})
      if (by_rows != engine && (others == 0 || by_rows != m_by_rows[0]->engine()))
        m_by_rows[others++].emplace(product(by_rows));
    return product(engine == Engine::lanes && m_position.is_placed() ? Engine::grid : engine);
  }

  // extra(e, f), -infinity where the direction hides it
  double border_bias(Index e, Index f) const {
    const bool hidden = m_direction == Direction::causal && (f == 0 || f - 2 > e);
    return hidden ? -std::numeric_limits<double>::infinity() : m_position.extra()(e, f);
  }

  PositionView<T> m_position;
  Direction m_direction;
  Index m_offset;
  Placement m_queries, m_keys;  // all of them
  ProductShape m_span;          // how many slots the axis has
  LagRange m_lags;              // that this direction reaches
  Visibility m_visible;
  LagWeightsView<T> m_c, m_rows;  // by distance, and by difference of slots
  toeplitz::BorderWeights<T> m_border;
  double m_deviation = 0;
  toeplitz::Use m_use = toeplitz::Use::rows;
  // the other engines that Engine::automatic takes for some keys: without an FFT, so that they serve any
  std::array<std::optional<toeplitz::BorderedProduct<T>>, 2> m_by_rows;
  toeplitz::BorderedProduct<T> m_product;
};

}  // namespace nprf
