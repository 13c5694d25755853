// SPDX-License-Identifier: MIT
#include "nprf/position/position.hpp"

#include "support/catch.hpp"

using namespace nprf;

namespace {

// a user's own position, which makes its bias where it is asked for
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

static_assert(Position<NoPosition<float>> && Position<NoPosition<double>> && Position<Window>);
static_assert(!Position<int> && !Position<NoScalar> && !Position<OtherScalar> && !Position<NotConst>);
static_assert(!Position<NoBias> && !Position<LagBias<float>>);

}  // namespace

TEMPLATE_TEST_CASE("without a position the bias is zero at every lag", "[position]", float, double) {
  const NoPosition<TestType> position;
  for (const Index lag : {-100000, -1, 0, 1, 2, 100000}) CHECK(position.bias()[lag] == 0);
  CHECK(position.bias().max({-100000, 100000}) == 0);
}

TEST_CASE("no position has no parameters", "[position]") {
  CHECK(NoPosition<double>().gradient(-3, Vector<double>::Ones(7)).size() == 0);
  STATIC_REQUIRE(LearnedPosition<NoPosition<float>>);
}
