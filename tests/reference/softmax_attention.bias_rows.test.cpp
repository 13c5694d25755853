// SPDX-License-Identifier: MIT
#include "nprf/reference/softmax_attention_definition.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::reference_bias_rows {

using reference::BiasRows;

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// checks the biases of all tiles of rows and of keys, up to one constant for each tile
template <Position P>
void check(const P& position, Index n_q, Index n_k, Index offset = 0) {
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const bool causal = direction == Direction::causal;
    const BiasRows<double> rows(position, direction, n_q, n_k, offset);
    const auto expected = [&](Index i, Index j) {
      return causal && j > i + offset ? minus_infinity : bias_between(position, i, j, offset);
    };
    bool any_masked = false;
    for (Index i = 0; i < n_q; ++i)
      for (Index j = 0; j < n_k; ++j) any_masked = any_masked || expected(i, j) == minus_infinity;
    if (any_masked) CHECK(rows.any_masked());
    for (const Index tile_rows : {1, 3, 50})
      for (const Index tile_cols : {1, 4, 50})
        for (Index i0 = 0; i0 < n_q; i0 += tile_rows) {
          const Index count = std::min(tile_rows, n_q - i0);
          const Index end = causal ? std::clamp<Index>(i0 + count + offset, 0, n_k) : n_k;
          auto tile = rows.tile(i0, count, end);
          double constant = minus_infinity, largest = minus_infinity;
          Index wrong = 0;
          for (Index j0 = 0; j0 < end; j0 += tile_cols)
            for (Index i = 0; i < count; ++i) {
              const Index cols = std::min(tile_cols, end - j0);
              const Vector<double> row = tile.row(i, j0, cols).matrix().transpose();
              REQUIRE(row.size() == cols);
              for (Index j = 0; j < cols; ++j) {
                const double b = expected(i0 + i, j0 + j);
                wrong += (row[j] == minus_infinity) != (b == minus_infinity);
                if (b == minus_infinity || row[j] == minus_infinity) continue;
                if (constant == minus_infinity) constant = row[j] - b;
                wrong += !(std::abs(row[j] - b - constant) <= 1e-12);
                largest = std::max(largest, row[j]);
              }
            }
          INFO((causal ? "causal, rows from " : "rows from ")
               << i0 << ", tiles " << tile_rows << " x " << tile_cols << ", offset " << offset);
          CHECK(wrong == 0);
          CHECK(largest <= 0);
        }
  }
}

}  // namespace

TEST_CASE("the tiles of a position have the biases of their lags", "[reference]") {
  Vector<double> b = normal_vector<double>(7, 1), masked = Vector<double>::Constant(1, minus_infinity);
  b[1] = b[5] = minus_infinity;
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{1, 1}, {9, 9}, {4, 11}, {11, 4}}) {
    for (const Index offset : {0, 7, -3}) check(RelativePosition<double>(b), n_q, n_k, offset);
    check(NoPosition<double>(), n_q, n_k);
    check(RelativePosition<double>(masked), n_q, n_k);
  }
}

TEST_CASE("the tiles of a placed position have the biases of their tokens", "[reference]") {
  for (const auto& [H, W] : std::vector<std::pair<Index, Index>>{{1, 1}, {1, 5}, {5, 1}, {3, 4}})
    for (const Index E : {0, 1, 6}) {
      Matrix<double> b = normal<double>(2 * H - 1, 2 * W - 1, 1), extra = normal<double>(E, E + 2, 2);
      for (Index l = 1; l < b.size(); l += 3) b.data()[l] = minus_infinity;
      for (Index l = 1; l < extra.size(); l += 4) extra.data()[l] = minus_infinity;
      const Index n = E + H * W;
      INFO(H << " x " << W << ", " << E << " extra tokens");
      check(GridPosition<double>(H, W, b, extra), n, n);
      b.setConstant(minus_infinity);
      extra.setConstant(minus_infinity);
      check(GridPosition<double>(H, W, b, extra), n, n);
    }
}

TEST_CASE("any_masked is false if no bias is -infinity, and a grid rejects other numbers of tokens", "[reference]") {
  CHECK(!BiasRows<float>(NoPosition<float>(), Direction::bidirectional, 5, 6).any_masked());
  CHECK(!BiasRows<float>(NoPosition<float>(), Direction::bidirectional, 0, 0).any_masked());
  const GridPosition<float> grid(2, 2, Matrix<float>::Zero(3, 3));
  CHECK(!BiasRows<float>(grid, Direction::bidirectional, 4, 4).any_masked());
  check_invalid([&] { BiasRows<float>(grid, Direction::bidirectional, 4, 5); },
                {"expected 4 rows each", "position's tokens", "got 4 and 5"});
  check_invalid([&] { BiasRows<float>(grid, Direction::bidirectional, 4, 4, 1); }, {"offset: expected 0", "got 1"});
}

}  // namespace nprf::test::reference_bias_rows
