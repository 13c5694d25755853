// SPDX-License-Identifier: MIT
#include "nprf/position/grid.hpp"

#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "nprf/position/position.hpp"
#include "nprf/position/relative.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_grid {

static_assert(Position<GridPosition<float>> && LearnedPosition<GridPosition<float>> &&
              PlacedPosition<GridPosition<float>>);
static_assert(!PlacedPosition<RelativePosition<float>> && !PlacedPosition<NoPosition<double>>);

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

const std::vector<std::pair<Index, Index>> sizes{{1, 1}, {1, 6}, {6, 1}, {2, 2}, {5, 7}, {7, 5}, {16, 16}};

GridPosition<double> grid(Index H, Index W, Index E) {
  return {H, W, normal<double>(2 * H - 1, 2 * W - 1, 1), normal<double>(E, E + 2, 2)};
}

}  // namespace

TEST_CASE("grid: the bias of two cells is the table's entry for their displacement, key minus query", "[position]") {
  for (const auto& [H, W] : sizes)
    for (const Index E : {0, 1, 3}) {
      const Matrix<double> b = normal<double>(2 * H - 1, 2 * W - 1, 1), extra = normal<double>(E, E + 2, 2);
      const GridPosition<double> position(H, W, b, extra);
      INFO(H << " x " << W << " and " << E << " extra tokens");
      CHECK(position.height() == H);
      CHECK(position.width() == W);
      CHECK(position.tokens() == E + H * W);
      CHECK(same_bits(position.extra(), extra));
      Index wrong = 0;
      for (Index r = 0; r < H; ++r)
        for (Index c = 0; c < W; ++c) {
          const Index query = E + r * W + c;
          for (Index s = 0; s < H; ++s)
            for (Index t = 0; t < W; ++t)
              wrong += position.bias(query, E + s * W + t) != b(s - r + H - 1, t - c + W - 1);
          for (Index e = 0; e < E; ++e) {
            wrong += position.bias(e, query) != extra(e, 0);
            wrong += position.bias(query, e) != extra(e, 1);
          }
        }
      for (Index e = 0; e < E; ++e)
        for (Index f = 0; f < E; ++f) wrong += position.bias(e, f) != extra(e, 2 + f);
      CHECK(wrong == 0);
      for (Index i = 0; i < position.tokens(); i += 3)
        CHECK(bias_between(position, i, position.tokens() - 1, 0) == position.bias(i, position.tokens() - 1));
    }
}

TEST_CASE("grid: the bias of two cells depends on the difference of their slots", "[position]") {
  for (const auto& [H, W] : sizes) {
    const GridPosition<double> position = grid(H, W, 0);
    std::set<Index> lags;
    Index wrong = 0;
    for (Index i = 0; i < H * W; ++i)
      for (Index j = 0; j < H * W; ++j) {
        const Index lag = position.slot(j) - position.slot(i);
        lags.insert(lag);
        wrong += position.bias()[lag] != position.bias(i, j);
        if (j == i + 1) wrong += lag < 1;  // slots increase
      }
    INFO(H << " x " << W);
    CHECK(wrong == 0);
    CHECK(position.slot(0) == 0);
    // each entry of the table belongs to one difference of slots
    CHECK(static_cast<Index>(lags.size()) == (2 * H - 1) * (2 * W - 1));
    CHECK(*lags.begin() == position.bias().first);
    CHECK(*lags.rbegin() == position.bias().last());
  }
}

TEST_CASE("grid: the gradient of each entry of the table is that of its lag", "[position]") {
  for (const auto& [H, W] : sizes) {
    const GridPosition<double> position = grid(H, W, 2);
    // for all differences of slots, and one more at each end
    const Index first = position.bias().first - 1, count = (2 * H - 1) * (2 * W - 1) + 2;
    std::vector<double> db(static_cast<std::size_t>(count));
    for (std::size_t l = 0; l < db.size(); ++l) db[l] = static_cast<double>(l);
    Matrix<double> d = Matrix<double>::Constant(3, 4, 5);  // previous contents of another shape
    position.gradient(first, db, d);
    INFO(H << " x " << W);
    REQUIRE(d.rows() == 2 * H - 1);
    REQUIRE(d.cols() == 2 * W - 1);
    Index wrong = 0;
    for (Index i = 0; i < H * W; ++i)
      for (Index j = 0; j < H * W; ++j)
        wrong += d(j / W - i / W + H - 1, j % W - i % W + W - 1) !=
                 db[static_cast<std::size_t>(position.slot(j) - position.slot(i) - first)];
    CHECK(wrong == 0);
    // the gradient is 0 for the lags that are not given
    position.gradient(0, std::vector<double>{3}, d);
    CHECK(d(H - 1, W - 1) == 3);
    CHECK(d.sum() == 3);
  }
}

TEST_CASE("grid: -infinity is accepted, NaN and +infinity are rejected", "[position]") {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -minus_infinity}) {
    Matrix<double> b = Matrix<double>::Constant(3, 5, minus_infinity),
                   extra = Matrix<double>::Constant(1, 3, minus_infinity);
    const GridPosition<double> position(2, 3, b, extra);
    CHECK(position.bias(0, 3) == minus_infinity);
    b(2, 1) = bad;
    check_invalid([&] { GridPosition<double>(2, 3, b, extra); },
                  {"b(2, 1)", "finite number or -infinity", std::isnan(bad) ? "nan" : "inf"});
    b(2, 1) = 0;
    extra(0, 2) = bad;
    check_invalid([&] { GridPosition<double>(2, 3, b, extra); }, {"extra(0, 2)", "finite number or -infinity"});
  }
}

TEST_CASE("grid: invalid sizes and tables of wrong shapes are rejected", "[position]") {
  const auto make = [](Index H, Index W, Index rows, Index cols, Index E = 0, Index columns = 2) {
    GridPosition<float>(H, W, Matrix<float>::Zero(rows, cols), Matrix<float>::Zero(E, columns));
  };
  check_invalid([&] { make(0, 3, 1, 5); }, {"height: expected 1 to 2^30", "got 0"});
  check_invalid([&] { make(3, 0, 5, 1); }, {"width: expected 1 to 2^30", "got 0"});
  check_invalid([&] { make(-2, 3, 1, 5); }, {"height", "got -2"});
  check_invalid([&] { make((Index{1} << 30) + 1, 3, 1, 5); }, {"height: expected 1 to 2^30", "got 1073741825"});
  check_invalid([&] { make(3, std::numeric_limits<Index>::max(), 5, 1); }, {"width: expected 1 to 2^30"});
  check_invalid([&] { make(2, 3, 5, 3); }, {"b: expected 3 x 5", "grid of 2 x 3", "got 5 x 3"});
  check_invalid([&] { make(2, 3, 2, 3); }, {"b: expected 3 x 5", "got 2 x 3"});
  check_invalid([&] { make(2, 3, 0, 0); }, {"b: expected 3 x 5", "got 0 x 0"});
  check_invalid([&] { make(2, 3, 3, 5, 1, 2); }, {"extra: expected 1 x 3", "E x E+2", "got 1 x 2"});
  check_invalid([&] { make(2, 3, 3, 5, 0, 0); }, {"extra: expected 0 x 2", "got 0 x 0"});
}

}  // namespace nprf::test::position_grid
