// SPDX-License-Identifier: MIT
#include "nprf/position/position.hpp"

#include <limits>
#include <span>
#include <vector>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_position {

namespace {

// a user's own position, which returns its bias by value
struct Window {
  using Scalar = double;
  LagBias<double> bias() const { return {-1, Vector<double>::Zero(3), -1, -1}; }
};

struct NoScalar {
  LagBias<float> bias() const { return {}; }
};

struct OtherScalar {
  using Scalar = double;
  LagBias<float> bias() const { return {}; }
};

struct NotConst {
  using Scalar = float;
  LagBias<float> bias() { return {}; }
};

struct NoBias {
  using Scalar = float;
};

struct Learned : Window {
  void gradient(Index, std::span<const double>, Matrix<double>&) const {}
};

// a gradient function that returns the gradient instead of writing it
struct Returning : Window {
  Matrix<double> gradient(Index, std::span<const double>) const { return {}; }
};

// a position that assigns slots to tokens
struct Placed : Window {
  using Window::bias;
  double bias(Index i, Index j) const { return static_cast<double>(10 * i + j); }
  Index tokens() const { return 5; }
  Index slot(Index i) const { return 2 * i; }
  const Matrix<double>& extra() const { return none; }
  Matrix<double> none;
};

// a position that is built for one direction
struct CausalWindow : Window {
  Direction direction() const { return Direction::causal; }
};

struct Unbounded : Window {
  LagBias<double> bias() const { return {0, Vector<double>::Constant(1, std::numeric_limits<double>::infinity())}; }
};

struct NoExtra : Window {
  Index tokens() const { return 5; }
  Index slot(Index i) const { return 2 * i; }
};

static_assert(LearnedPosition<Learned> && !LearnedPosition<Window> && !LearnedPosition<Returning>);
static_assert(DirectedPosition<CausalWindow> && !DirectedPosition<Window>);
static_assert(Position<Placed> && PlacedPosition<Placed>);
static_assert(!PlacedPosition<Window> && !PlacedPosition<NoExtra> && !PlacedPosition<NoPosition<float>>);
static_assert(Position<NoPosition<float>> && Position<NoPosition<double>> && Position<Window>);
static_assert(!Position<int> && !Position<NoScalar> && !Position<OtherScalar> && !Position<NotConst>);
static_assert(!Position<NoBias> && !Position<LagBias<float>>);

}  // namespace

TEMPLATE_TEST_CASE("NoPosition has the bias zero at every lag", "[position]", NPRF_TEST_SCALARS) {
  const NoPosition<TestType> position;
  for (const Index lag : {-100000, -1, 0, 1, 2, 100000}) CHECK(position.bias()[lag] == 0);
  CHECK(position.bias().max({-100000, 100000}) == 0);
}

TEST_CASE("NoPosition has no parameters", "[position]") {
  const std::vector<double> db(7, 1.0);
  Matrix<double> d = Matrix<double>::Ones(2, 3);
  NoPosition<double>().gradient(-3, db, d);
  CHECK(d.rows() == 0);
  CHECK(d.cols() == 0);
  STATIC_REQUIRE(LearnedPosition<NoPosition<float>>);
}

TEST_CASE("a position is refused for the direction that it was not built for, and if its bias is not valid",
          "[position]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    CHECK_NOTHROW(check_position(Window(), direction));
  CHECK_NOTHROW(check_position(CausalWindow(), Direction::causal));
  check_invalid([] { check_position(CausalWindow(), Direction::bidirectional); },
                {"position: expected one for bidirectional attention, got one that was built for causal"});
  check_invalid([] { check_position(Window(), static_cast<Direction>(2)); }, {"direction", "got number 2"});
  check_invalid([] { check_position(Unbounded(), Direction::causal); }, {"bias.table[0]", "got inf"});
}

TEST_CASE("bias_between is the bias of the lag, or that of the tokens for a placed position", "[position]") {
  const Window window;
  for (Index i = 0; i < 5; ++i)
    for (Index j = 0; j < 5; ++j)
      for (const Index offset : {-3, 0, 2}) {
        CHECK(bias_between(window, i, j, offset) == window.bias()[j - (i + offset)]);
        CHECK(bias_between(Placed(), i, j, offset) == static_cast<double>(10 * i + j));
      }
}

}  // namespace nprf::test::position_position
