// SPDX-License-Identifier: MIT
#include "nprf/decoder/window_kernels.hpp"

#include <algorithm>

#include "support/catch.hpp"

namespace nprf::test::decoder_window_plan {

namespace {

// windows cover all positions from the first on, one after the other, and can be computed before they begin
void check(const WindowPlan& plan, Index positions) {
  REQUIRE(plan.any());
  Index next = plan.after(0).first, size = 0;
  CHECK(plan.at(next - 1).size == 0);
  for (Index position = next; position < positions; ++position) {
    const Window window = plan.at(position);
    if (position == next) {
      CHECK(window.size >= std::max<Index>(size, 1));
      size = window.size;
      CHECK(plan.has(size));
      CHECK(window.first == next);
      CHECK(window == plan.after(next - 1));
      CHECK(window.far_end() >= 0);
      CHECK(window.far_end() <= plan.begin_of_work(window, 0));
      CHECK(plan.begin_of_work(window, 3) == plan.begin_of_work(window, 0) + 3);
      CHECK(plan.begin_of_work(window, 0) < window.first);
      next = window.end();
    }
    REQUIRE((window.size == size && window.first <= position && position < window.end()));
  }
}

}  // namespace

TEST_CASE("window plan: of one size", "[decoder]") {
  check(WindowPlan::fixed(16), 500);
  CHECK(WindowPlan::fixed(16).after(0) == Window{32, 16});
  CHECK(WindowPlan::fixed(16).largest() == 16);
  CHECK_FALSE(WindowPlan::fixed(16).has(32));
}

TEST_CASE("window plan: none", "[decoder]") {
  const WindowPlan plan;
  CHECK_FALSE(plan.any());
  CHECK(plan.at(100000).size == 0);
  CHECK(plan.largest() == 0);
}

TEST_CASE("window plan: by cost", "[decoder]") {
  WindowCosts costs{32, 64, 2080, Index{1} << 20, 4};
  check(WindowPlan::cheapest(costs, 4), 70000);
  const auto bytes = [&](const WindowPlan& plan, Index position) { return 2 * plan.at(position).size * costs.signals; };
  for (const double memory : {0.5, 1.0, 4.0}) {
    const WindowPlan plan = WindowPlan::cheapest(costs, memory);
    for (Index position = 1; position < costs.tokens; position *= 2)
      CHECK(static_cast<double>(bytes(plan, position)) <= memory * static_cast<double>(position * (32 + 64)));
    // windows pay for long sequences alone
    CHECK(plan.at(1000).size == 0);
    CHECK(plan.at(costs.tokens).size > 0);
  }
  CHECK_FALSE(WindowPlan::cheapest(costs, 0).any());
  // a ring of few tokens is as cheap
  costs.tokens = 500;
  CHECK_FALSE(WindowPlan::cheapest(costs, 4).any());
  // a window is never smaller than the near field or than what is taken back needs
  costs.tokens = Index{1} << 20, costs.least = 3000;
  CHECK(WindowPlan::cheapest(costs, 1e3).after(0).size >= 3000);
}

}  // namespace nprf::test::decoder_window_plan
