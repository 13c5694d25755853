// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/banded/exponential_tail.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_banded_decomposition {

using toeplitz::BandDecomposition;

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();

// N(0,1) between straight lines, as a table of a range of lags
LagWeights<double> weights(Index first, Index size, double before, double after, LagRange range) {
  return exp_weights(LagBias<double>{first, normal_vector<double>(size, 1), before, after}, range);
}

// tables that have both tails, one, or none, within the lags -59..69 and beyond
std::vector<LagWeights<double>> tables() {
  const LagRange all{-59, 69};
  std::vector<LagWeights<double>> tables{
      weights(-3, 8, 0, -0.1, all),              // both
      weights(0, 1, -0.2, -0.1, {-100, 200}),    // both, and the table has more lags
      weights(-3, 8, 0.1, 0, all),               // one: the other line rises outwards
      weights(-3, 8, 0, 0, {-59, 0}),            // one: causal
      weights(-3, 8, -0.1, -0.1, {-40, 30}),     // none: the table ends before the farthest lag
      weights(-100, 200, 0, 0, {-100, 99}),      // none in reach
      weights(-100, 20, -0.1, -0.1, {-100, 99})  // all lags in one tail
  };
  LagBias<double> b{-20, normal_vector<double>(41, 2)};
  b.table[0] = never;
  tables.push_back(exp_weights(b, all));  // zeros before the band
  b.table[40] = never;
  tables.push_back(exp_weights(b, all));  // and after it
  return tables;
}

}  // namespace

TEST_CASE("each lag of non-zero weight is in a tail or in the band, with its weight", "[toeplitz]") {
  for (const LagWeights<double>& c : tables()) {
    Workspace workspace;
    const BandDecomposition<double> w(c.view(), {60, 70, 2, 2}, workspace);
    INFO("lags " << c.first << " to " << c.last() << ", tails " << w.before.lags << " and " << w.after.lags);
    for (Index lag = w.table.first; lag <= w.table.last(); ++lag) {
      const bool before = w.before.lags > 0 && lag <= w.before.edge, after = w.after.lags > 0 && lag >= w.after.edge,
                 band = lag >= w.band.first && lag <= w.band.last;
      INFO("lag " << lag);
      CHECK(before + after + band == (c[lag] != 0 || band));
      const toeplitz::ExponentialTail<double>& tail = before ? w.before : w.after;
      if (before || after)
        CHECK(std::abs(tail.weight * tail.power(std::abs(lag - tail.edge)) / c[lag] - 1) <= 16 * epsilon<double>);
    }
  }
}

TEST_CASE("the band keys of a tile are those that are in neither of its tails", "[toeplitz]") {
  const std::vector<Index> q = random_slots(60, 0.6, 1), k = random_slots(70, 0.7, 2);
  const Matrix<double> none(0, 0);
  const MatrixView<double> no = none;
  for (const Slots& queries : {Slots{60}, Slots{31, 17}, Slots{static_cast<Index>(q.size()), 0, q.data()}})
    for (const Slots& keys : {Slots{70}, Slots{1, 69}, Slots{static_cast<Index>(k.size()), 0, k.data()}, Slots{0}})
      for (const LagWeights<double>& c : tables()) {
        Workspace workspace;
        const BandDecomposition<double> w(c.view(), {60, 70, 2, 2}, workspace);
        const toeplitz::Factors<double> x{no, no, no, queries, keys};
        for (const Index tile : {1, 7, 30})
          for (Index i0 = 0; i0 < queries.count; i0 += tile) {
            const Index rows = std::min(tile, queries.count - i0);
            const auto [begin, end] = w.band_weights(x).keys(i0, rows, 64);
            REQUIRE((0 <= begin && begin <= end && end <= keys.count));
            for (Index j = 0; j < keys.count; ++j) {
              bool before = w.before.lags > 0, after = w.after.lags > 0, weight = false;
              for (Index i = i0; i < i0 + rows; ++i) {
                const Index lag = keys[j] - queries[i];
                before = before && lag <= w.before.edge;
                after = after && lag >= w.after.edge;
                weight = weight || c[lag] != 0;
              }
              const bool in_band = begin <= j && j < end;
              if (before || after) REQUIRE_FALSE(in_band);
              if (weight && !before && !after) REQUIRE(in_band);
            }
          }
      }
}

TEST_CASE("weights are constant if those of all lags are equal and not zero", "[toeplitz]") {
  const auto constant = [](LagRange range, double value, Index other = 1000) {
    LagWeights<double> c{range.first, Vector<double>::Constant(range.size(), value)};
    if (other < 1000) c.values[other - range.first] *= 1 + epsilon<double>;
    Workspace workspace;
    return BandDecomposition<double>(c.view(), {5, 7, 2, 2}, workspace).constant;
  };
  CHECK(constant({-4, 6}, 0.7) == 0.7);
  CHECK(constant({-9, 9}, -3) == -3);
  CHECK(constant({-9, 9}, 0.7, 7) == 0.7);  // no slot is so far away
  for (const Index lag : {-4, 0, 6}) CHECK(constant({-4, 6}, 0.7, lag) == 0);
  CHECK(constant({-3, 6}, 0.7) == 0);  // the farthest lag is not in the table
  CHECK(constant({-4, 5}, 0.7) == 0);
  CHECK(constant({-4, 6}, 0) == 0);
  CHECK(constant({0, -1}, 0) == 0);
  Workspace workspace;
  const LagWeights<double> single{0, Vector<double>::Constant(1, 2)};
  CHECK(BandDecomposition<double>(single.view(), {1, 1, 2, 2}, workspace).constant == 2);
}

}  // namespace nprf::test::toeplitz_banded_decomposition
