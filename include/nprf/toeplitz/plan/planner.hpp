// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/config.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/banded/exponential_tail.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"

namespace nprf::toeplitz {

/// The sum of the weights' absolute values that each query sees over the keys that there are, (n_q) in the workspace: 0
/// only if all of them are. O(n_q + n_k): among keys with many gaps a query stands for those near it. There must be a
/// query and a key.
template <Real T>
std::span<const double> row_sums(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  double* sums = workspace.take<double>(queries.count);
  std::fill_n(sums, queries.count, 0.0);
  const Workspace::Scope scope(workspace);
  const Index last = queries[queries.count - 1], lags = last + keys[keys.count - 1] + 1;
  double* before = workspace.take<double>(lags + 1);  // the sum of |c| of the lags before k - last
  Index* nonzero = workspace.take<Index>(lags + 1);   // how many of them are not 0
  before[0] = 0, nonzero[0] = 0;
  for (Index k = 0; k < lags; ++k) {
    before[k + 1] = before[k] + std::abs(static_cast<double>(c[k - last]));
    nonzero[k + 1] = nonzero[k] + (c[k - last] != T(0));
  }
  const auto run_end = [&](Index j) {
    Index end = j + 1;
    while (end < keys.count && keys[end] == keys[end - 1] + 1) ++end;
    return end;
  };
  Index runs = 0;
  for (Index j = 0; j < keys.count; j = run_end(j)) ++runs;
  const Index step = 1 + runs * queries.count / (16384 + 4 * lags);
  for (Index j = 0, end; j < keys.count; j = end) {
    end = run_end(j);
    const Index from = last + keys[j], to = last + keys[end - 1] + 1;
    for (Index i = 0; i < queries.count; i += step) {
      const Index at = queries[i];
      // what is lost beside larger weights is not nothing
      if (nonzero[to - at] > nonzero[from - at])
        sums[i] += std::max(before[to - at] - before[from - at], std::numeric_limits<double>::min());
    }
  }
  for (Index i = 0; i < queries.count; ++i) sums[i] = sums[i - i % step];
  return {sums, static_cast<std::size_t>(queries.count)};
}

/// The smallest over the largest of the rows' sums: where it is small, an FFT's rounding, which is relative to the
/// largest rows, drowns the smallest. As row_sums().
template <Real T>
double row_balance(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  if (queries.count == 0 || keys.count == 0) return 0;
  const Workspace::Scope scope(workspace);
  const auto sums = row_sums(c, queries, keys, workspace);
  const auto [smallest, largest] = std::minmax_element(sums.begin(), sums.end());
  return *largest > 0 ? *smallest / *largest : 0;
}

/// The same within blocks of rows that CausalLevels may work at once: of any power of two from 128 on, but the first
/// ones. Rows that see nothing take no part. As row_sums().
template <Real T>
double block_balance(LagWeightsView<T> c, const Slots& queries, const Slots& keys, Workspace& workspace) {
  if (queries.count == 0 || keys.count == 0) return 0;
  const Workspace::Scope scope(workspace);
  const auto sums = row_sums(c, queries, keys, workspace);
  const Index n_q = queries[queries.count - 1] + 1, n_k = keys[keys.count - 1] + 1;
  const Index ahead = CausalAxis(c.support(), {n_q, n_k, 1, 1}).queries.first, size = CausalLevels<T>::block;
  struct Range {
    double smallest = std::numeric_limits<double>::infinity(), largest = 0;

    void add(const Range& other) {
      smallest = std::min(smallest, other.smallest), largest = std::max(largest, other.largest);
    }
  };
  Index count = (n_q + ahead + size - 1) / size;
  Range* blocks = workspace.take<Range>(count + 1);
  std::fill_n(blocks, count + 1, Range{});
  for (Index i = 0; i < queries.count; ++i)
    if (const double sum = sums[static_cast<std::size_t>(i)]; sum > 0)
      blocks[(queries[i] + ahead) / size].add({sum, sum});
  double balance = 1;
  for (; count > 1; count = (count + 1) / 2) {
    for (Index block = 1; block < count; ++block)
      if (blocks[block].largest > 0) balance = std::min(balance, blocks[block].smallest / blocks[block].largest);
    blocks[count] = {};
    for (Index block = 0; block < (count + 1) / 2; ++block) {
      blocks[block] = blocks[2 * block];
      blocks[block].add(blocks[2 * block + 1]);
    }
  }
  return balance;
}

/// Where weights are less balanced than that, Engine::automatic does not take an FFT: a third of the digits may go.
template <Real T>
double least_balance() {
  return std::cbrt(static_cast<double>(std::numeric_limits<T>::epsilon()));
}

/// The pairs of a query and a key, in all slots, whose lag is in a range.
inline double pairs_in(LagRange range, Index n_q, Index n_k) {
  // the lags up to l: a trapezoid of n_q rows, whose longest diagonals have min(n_q, n_k) pairs
  const auto up_to = [n_q = static_cast<double>(n_q), n_k = static_cast<double>(n_k)](double l) {
    const double rising = std::clamp(l + n_q, 0.0, n_q + n_k - 1), shorter = std::min(n_q, n_k);
    const double flat = std::max(rising - shorter, 0.0), falling = std::max(rising - std::max(n_q, n_k), 0.0);
    return rising * (rising + 1) / 2 - flat * (flat + 1) / 2 - falling * (falling + 1) / 2;
  };
  if (range.size() == 0 || n_q == 0 || n_k == 0) return 0;
  return up_to(static_cast<double>(range.last)) - up_to(static_cast<double>(range.first - 1));
}

/// How many signals B_r o U_p a product of r features and p columns transforms, lanes of registers that are not filled
/// included. One of a column that is left over (ColumnGroups) counts as `left_over` others.
template <Real T>
double signals(Index r, Index p, double left_over) {
  const ColumnGroups<T> groups(r, p);
  constexpr Index W = fft::lane_count<T>;
  return static_cast<double>(groups.count * W * r) +
         left_over * static_cast<double>(groups.left_over * ((r + W - 1) / W) * W);
}

/// What a product costs by each engine, in units of one multiply-add of the direct engine's tiles. The formulas count
/// what an engine does; their factors are measured by AVX2 and AVX-512. `bench/planner` prints measured over modelled
/// time. W is how many numbers a register holds.
///
///     direct         pairs (r + p + weight)                        of lags in c's support and `edge` beyond; where
///                                                                  slots are empty, a weight costs `sought`
///                      + subnormal pairs p subnormal               whose weight is below the smallest normal number
///     banded         band pairs (r + p + weight)
///                      + n_q banded_tile (r + p + place)           what tiles take along of each row
///                      + tails (n_q + n_k) r (p + 2W) tail         (n_q + n_k) r p sum where all weights are alike
///     lanes          2n (signals + W) (level log2(2n) + point)     n = max(n_q, n_k) slots; W: those of c
///     block_causal   n block/2 (r + p + place)                     n places and operations of CausalLevels
///                      + operations signals causal
///     certificate    (n_q + n_k) (r certified + token)             of the last two: their noise()
struct Costs {
  template <Real T>
  Costs(LagWeightsView<T> c, const ProductShape& tokens, const ProductShape& slots) {
    if (tokens.empty()) return;
    const double r = static_cast<double>(tokens.r), p = static_cast<double>(tokens.p);
    const double n_q = static_cast<double>(tokens.n_q), n = n_q + static_cast<double>(tokens.n_k);
    const double all = pairs_in({-(slots.n_q - 1), slots.n_k - 1}, slots.n_q, slots.n_k);
    const LagRange support = c.support();
    const LagRange tiles{support.first - edge, support.last + edge};
    if (support.size() > 0) {
      double slow = 0;
      for (Index lag = support.first; lag <= support.last; ++lag)
        if (is_subnormal(c[lag])) slow += pairs_in({lag, lag}, slots.n_q, slots.n_k);
      const double there = n_q * static_cast<double>(tokens.n_k) / all;  // of all slots' pairs
      const double of_weight = tokens.n_q + tokens.n_k < slots.n_q + slots.n_k ? sought : weight;
      direct = there * (pairs_in(tiles, slots.n_q, slots.n_k) * (r + p + of_weight) + slow * p * subnormal);
    }

    const Tail<T> before(Side::before, c, slots), after(Side::after, c, slots);
    if (const int tails = (before.lags > 0) + (after.lags > 0); tails > 0) {
      const double band = static_cast<double>(band_between(before, after, c).size());
      const bool all_alike = band <= 1 && before.flat() && after.flat();
      const double states = n * r * (p + static_cast<double>(2 * fft::lane_count<T>));
      banded = all_alike ? n * r * p * sum
                         : n_q * (band * (r + p + weight) + banded_tile * (r + p + place)) + tails * states * tail;
    }
    certificate = n * (r * certified + token);
    lanes = of_lanes<T>(slots);
    const Index length = CausalAxis(support, slots).length();
    block_causal = static_cast<double>(length) * static_cast<double>(CausalLevels<T>::block) / 2 * (r + p + place) +
                   CausalLevels<T>::operations(length) * signals<T>(tokens.r, tokens.p, causal_left_over) * causal;
  }

  static double of_direct(const ProductShape& x) {
    return static_cast<double>(x.n_q) * static_cast<double>(x.n_k) * (static_cast<double>(x.r + x.p) + weight);
  }
  template <Real T>
  static double of_lanes(const ProductShape& x) {
    const double length = static_cast<double>(2 * std::max(x.n_q, x.n_k));
    // the column of ones, the last, is a product of its own
    const double columns = signals<T>(x.r, std::max<Index>(x.p - 1, 0), lanes_left_over),
                 ones = signals<T>(x.r, 1, lanes_left_over), of_weights = static_cast<double>(fft::lane_count<T>);
    return length * (columns + ones + of_weights) * (level * std::log2(length) + point);
  }

  /// Of the product alone; NaN for an engine that choose() does not know.
  double product(Engine engine) const {
    switch (engine) {
      case Engine::direct: return direct;
      case Engine::banded:
      case Engine::recurrence: return banded;
      case Engine::lanes:
      case Engine::grid: return lanes;
      case Engine::block_causal: return block_causal;
      default: return std::numeric_limits<double>::quiet_NaN();
    }
  }

  /// With what it takes to bound the rounding of an FFT.
  double of(Engine engine) const {
    const bool is_certified = engine == Engine::lanes || engine == Engine::grid || engine == Engine::block_causal;
    return product(engine) + (is_certified ? certificate : 0);
  }

  double direct = 0, banded = std::numeric_limits<double>::infinity(), lanes = 0, block_causal = 0, certificate = 0;

 private:
  template <Real T>
  static bool is_subnormal(T x) {
    return x != T(0) && std::abs(x) < std::numeric_limits<T>::min();
  }

  static constexpr Index edge = 48;
  static constexpr double subnormal = 256;
  static constexpr double lanes_left_over = 1.4, causal_left_over = 2.5;
  static constexpr double weight = 16, sought = 40, certified = 60, token = 4000, banded_tile = 24, sum = 2,
                          place = 112;
  static constexpr double tail = 2, causal = 5, level = 3, point = 25;
};

/// The cost of a product with a weight for every lag.
template <Real T>
double dense_cost(const ProductShape& shape) {
  if (shape.empty()) return 0;
  return std::min(Costs::of_direct(shape), Costs::of_lanes<T>(shape));
}

/// How many threads a product of such a cost is worth: waking one costs some microseconds, and more on a busy machine.
inline Index worthwhile_threads(double cost) {
  constexpr double for_each_thread = 4e6;
  return static_cast<Index>(std::clamp(cost / for_each_thread, 1.0, static_cast<double>(num_threads())));
}

/// Which engines may serve: any; for weights that hide what is later, none where a row feels later keys; where some
/// rows see far less than others, only those whose rounding is relative to each row by itself.
enum class Rows { alike, causal, unlike };

/// Weights on one side only hide what is later, or what is earlier.
inline Rows rows_of(const LagRange& support) {
  return support.first < 0 && support.last > 0 ? Rows::alike : Rows::causal;
}

/// The cheapest engine for tokens in slots 0..n_q-1 and 0..n_k-1 of `slots`.
template <Real T>
Engine choose(LagWeightsView<T> lags, const ProductShape& tokens, const ProductShape& slots, Rows rows) {
  const Costs costs(lags, tokens, slots);
  const bool flat = lags.tails.slope_before == 0 && lags.tails.slope_after == 0;
  Engine best = Engine::direct;
  double least = costs.direct;
  const auto consider = [&](Engine engine) {
    if (const double cost = costs.of(engine); cost < least) best = engine, least = cost;
  };
  consider(flat ? Engine::banded : Engine::recurrence);
  if (rows == Rows::alike) consider(Engine::lanes);
  if (rows == Rows::causal) consider(Engine::block_causal);
  return best;
}

/// Whether the rounding of an engine is small beside each row that it makes of these keys, as far as weights tell.
template <Real T>
bool serves(Engine engine, LagWeightsView<T> lags, const Slots& queries, const Slots& keys, Workspace& workspace) {
  if (engine == Engine::lanes || engine == Engine::grid)
    return row_balance(lags, queries, keys, workspace) >= least_balance<T>();
  if (engine == Engine::block_causal) return block_balance(lags, queries, keys, workspace) >= least_balance<T>();
  return true;
}

/// What an engine is asked for: the product's rows, or gradients too, which are sums over queries as well.
enum class Use { rows, gradients };

/// The same for a use: gradients of keys are rows of the product with queries and keys exchanged and both axes turned
/// round.
template <Real T>
bool serves(Engine engine, LagWeightsView<T> lags, const Slots& queries, const Slots& keys, Use use,
            Workspace& workspace) {
  if (!serves(engine, lags, queries, keys, workspace)) return false;
  if (use == Use::rows || queries.count == 0 || keys.count == 0) return true;
  const Workspace::Scope scope(workspace);
  const auto turned = [&](const Slots& x) {
    Index* at = workspace.take<Index>(x.count);
    const Index last = x[x.count - 1];
    for (Index i = 0; i < x.count; ++i) at[i] = last - x[x.count - 1 - i];
    return Slots{x.count, 0, at};
  };
  lags.first += queries[queries.count - 1] - keys[keys.count - 1];
  return serves(engine, lags, turned(keys), turned(queries), workspace);
}

/// The cheapest engine that serves these tokens.
template <Real T>
Engine choose(LagWeightsView<T> lags, const ProductShape& tokens, const Slots& queries, const Slots& keys, Rows rows,
              Use use, Workspace& workspace) {
  const auto slots_of = [](const Slots& x) { return x.count == 0 ? 0 : x[x.count - 1] + 1; };
  const ProductShape slots{slots_of(queries), slots_of(keys), tokens.r, tokens.p};
  const Engine engine = choose(lags, tokens, slots, rows);
  return serves(engine, lags, queries, keys, use, workspace) ? engine : choose(lags, tokens, slots, Rows::unlike);
}

/// The engine that Engine::automatic stands for.
template <Real T>
Engine choose(LagWeightsView<T> lags, const ProductShape& tokens, const Slots& queries, const Slots& keys,
              Workspace& workspace) {
  return choose(lags, tokens, queries, keys, rows_of(lags.support()), Use::rows, workspace);
}

}  // namespace nprf::toeplitz
