// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/smooth/cost.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include "nprf/toeplitz/direct/engine.hpp"
#include "support/catch.hpp"
#include "toeplitz/smooth/smooth_tables.hpp"

namespace nprf::test::toeplitz_smooth_cost {

using toeplitz::SmoothCost;

namespace {

SmoothCost cost(const std::function<double(double)>& weight, Index n, double max_deviation, Index last = 0) {
  const LagWeights<float> c = weights_of<float>({"", weight}, n, n, max_deviation, last);
  const ProductShape shape{n, n, 32, 65};
  return toeplitz::smooth_cost<float>({c.view(), shape, shape});
}

double smooth(double lag) { return 1 / (1 + std::abs(lag)); }

}  // namespace

TEST_CASE("smooth weights cost less than all pairs, and the more so the more there are", "[toeplitz]") {
  double share = 1;
  for (const Index n : {2048, 8192, 32768}) {
    const LagWeights<float> c = weights_of<float>({"", smooth}, n, n, 0, 0);
    const ProductShape shape{n, n, 32, 65};
    const double of_all = toeplitz::DirectEngine<float>::cost({c.view(), shape, shape});
    CHECK(cost(smooth, n, 2.5e-5).cost < 0.7 * share * of_all);
    share = cost(smooth, n, 2.5e-5).cost / of_all;
    CHECK(cost(smooth, n, 2.5e-5, n).cost < 2 * cost(smooth, n, 2.5e-5).cost);
  }
}

TEST_CASE("a smaller deviation needs more polynomials", "[toeplitz]") {
  CHECK(cost(smooth, 8192, 1e-3).terms < cost(smooth, 8192, 1e-6).terms);
  CHECK(cost(smooth, 8192, 1e-3).cost < cost(smooth, 8192, 1e-6).cost);
}

TEST_CASE("where nothing can be gained the cost is infinite", "[toeplitz]") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(cost(smooth, 8192, 0).cost == infinity);
  CHECK(cost(smooth, 400, 1e-3).cost == infinity);
  CHECK(cost([](double lag) { return 1.5 + std::sin(lag * lag); }, 8192, 1e-3).cost == infinity);
  CHECK(cost([](double lag) { return std::exp(-std::abs(lag)); }, 8192, 1e-3).cost == infinity);
}

TEST_CASE("rough tangents cost tiles", "[toeplitz]") {
  const Index n = 4096;
  const LagWeights<float> c = weights_of<float>({"", smooth}, n, n, 1e-4, 0),
                          rough = weights_of<float>({"", [](double lag) { return std::sin(lag * lag); }}, n, n, 0, 0);
  const ProductShape shape{n, n, 32, 65};
  LagWeightsView<float> view = c.view();
  view.tangents = c.values.data();
  CHECK(toeplitz::smooth_cost<float>({view, shape, shape}).cost < 1e10);
  view.tangents = rough.values.data();
  CHECK(toeplitz::smooth_cost<float>({view, shape, shape}).cost == std::numeric_limits<double>::infinity());
}

}  // namespace nprf::test::toeplitz_smooth_cost
