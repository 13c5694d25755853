// SPDX-License-Identifier: MIT
#include "nprf/position/position_view.hpp"

#include <span>
#include <type_traits>
#include <vector>

#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_position_view {

namespace {

// users' own positions: one that returns its bias by value and counts the calls
struct ByValue {
  using Scalar = double;
  LagBias<double> bias() const {
    ++calls;
    return {-1, Vector<double>::LinSpaced(3, 1, 3), -1, -2};
  }
  mutable int calls = 0;
};

// one whose bias is of a derived class
struct Derived {
  using Scalar = float;
  struct Named : LagBias<float> {
    int name = 7;
  };
  const Named& bias() const { return stored; }
  Named stored;
};

// one whose bias is of a type that converts to LagBias
struct Converting {
  using Scalar = double;
  struct Constant {
    operator LagBias<double>() const { return {0, Vector<double>::Constant(1, 4), 0, 0}; }
  };
  const Constant& bias() const { return stored; }
  Constant stored;
};

// a placed position with every other slot and one extra token, which returns everything by value
struct Placed : ByValue {
  using ByValue::bias;
  float bias(Index i, Index j) const { return static_cast<float>(10 * i + j); }
  int tokens() const { return 5; }
  int slot(Index cell) const { return static_cast<int>(2 * cell); }
  Matrix<double> extra() const { return Matrix<double>::Constant(1, 3, 6); }
};

template <class P>
void check_view(const P& position) {
  using T = typename P::Scalar;
  const PositionView<T> view = position;
  CHECK(&view.bias() == &position.bias());
  CHECK(!view.is_placed());
  CHECK(view.extra().size() == 0);
  CHECK(view.slot(9) == 9);
  Index wrong = 0;
  for (const Index offset : {-3, 0, 2})
    for (Index i = 0; i < 9; ++i)
      for (Index j = 0; j < 9; ++j) wrong += view.bias_between(i, j, offset) != bias_between(position, i, j, offset);
  CHECK(wrong == 0);
  Matrix<double> d, expected;
  const Matrix<double> db = normal<double>(17, 1, 3);
  const std::span<const double> all(db.data(), 17);
  view.gradient(-8, all, d);
  position.gradient(-8, all, expected);
  // sums of 17 lags of at most 8; the compiler may use fused multiply-adds in other places
  CHECK(worst_ratio(d, expected, 8 * 17 * epsilon<double>) <= 1);
}

static_assert(std::is_convertible_v<const ByValue&, PositionView<double>>);
static_assert(!std::is_convertible_v<const ByValue&, PositionView<float>>, "another scalar");
static_assert(!std::is_constructible_v<PositionView<float>, LagBias<float>>);
static_assert(!Position<PositionView<float>>, "whether a view is placed is not known at compile time");

}  // namespace

TEMPLATE_TEST_CASE("a view of a position has its bias and its gradient", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_view(NoPosition<T>());
  check_view(AlibiPosition<T>(T(0.5)));
  check_view(RelativePosition<T>(normal_vector<T>(9, 1)));
  check_view(t5_position<T>(normal_vector<T>(8, 2), Direction::bidirectional, 20));
}

TEMPLATE_TEST_CASE("a view of a grid has its slots and its extra tokens", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index E : {0, 2}) {
    const GridPosition<T> grid(2, 3, normal<T>(3, 5, 1), normal<T>(E, E + 2, 2));
    const PositionView<T> view = grid;
    CHECK(view.is_placed());
    CHECK(view.tokens() == 6 + E);
    CHECK(&view.extra() == &grid.extra());
    CHECK(&view.bias() == &grid.bias());
    for (Index cell = 0; cell < 6; ++cell) CHECK(view.slot(cell) == grid.slot(cell));
    Index wrong = 0;
    for (Index i = 0; i < grid.tokens(); ++i)
      for (Index j = 0; j < grid.tokens(); ++j)
        wrong += view.bias_between(i, j, 0) != static_cast<double>(grid.bias(i, j));
    CHECK(wrong == 0);
  }
}

TEST_CASE("a view stores a bias that its position returns by value", "[position]") {
  const ByValue position;
  const PositionView<double> view = position;
  const PositionView<double> copy = view;
  for (const PositionView<double>* x : {&view, &copy})
    for (const Index lag : {-5, -1, 0, 1, 4}) CHECK(x->bias_between(3, 3 + lag, 0) == ByValue().bias()[lag]);
  CHECK(position.calls == 1);
  CHECK(&copy.bias() != &view.bias());
}

TEST_CASE("a view accepts a bias of a derived or convertible type", "[position]") {
  Derived derived;
  derived.stored.table[0] = 3;
  CHECK(PositionView<float>(derived).bias()[0] == 3);
  CHECK(&PositionView<float>(derived).bias() == &derived.stored);
  const Converting converting;
  CHECK(PositionView<double>(converting).bias()[-100] == 4);
}

TEST_CASE("a view has the slots of a user's own placed position", "[position]") {
  const Placed position;
  const PositionView<double> view = position;
  CHECK(view.is_placed());
  CHECK(view.tokens() == 5);
  CHECK(view.slot(3) == 6);
  CHECK(view.extra() == Matrix<double>::Constant(1, 3, 6));
  CHECK(view.bias_between(2, 3, 0) == 23);
}

TEST_CASE("a placed position alone asks for its own number of tokens and for no offset", "[position]") {
  const Placed position;
  const PositionView<double> view = position;
  CHECK_NOTHROW(view.check_tokens(5, 0, "queries"));
  check_invalid([&] { view.check_tokens(4, 0, "queries"); }, {"queries: expected 5 rows", "got 4"});
  check_invalid([&] { view.check_tokens(5, 1, "queries"); }, {"offset: expected 0", "got 1"});
  const ByValue unplaced;
  CHECK_NOTHROW(PositionView<double>(unplaced).check_tokens(4, 1, "queries"));
}

TEST_CASE("the gradient of a view is rejected if the position has none", "[position]") {
  const ByValue position;
  const PositionView<double> view = position;
  Matrix<double> d;
  check_invalid([&] { view.gradient(0, {}, d); }, {"position: expected one with gradient()", "got one without"});
}

}  // namespace nprf::test::position_position_view
