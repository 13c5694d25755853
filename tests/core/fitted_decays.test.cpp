// SPDX-License-Identifier: MIT
#include "nprf/core/fitted_decays.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_fitted_decays {

namespace {

struct Formula {
  std::string name;
  std::function<double(Index k)> b;
};

double log_sum(const std::vector<DecayTerm>& terms, Index k) {
  double sum = 0;
  for (const DecayTerm& each : terms) sum += std::exp(each.log_weight + each.slope * static_cast<double>(k));
  return std::log(sum);
}

double worst(const FittedDecays& found, Index last, const Formula& of) {
  double error = 0;
  for (Index k = 0; k <= last; ++k) error = std::max(error, std::abs(log_sum(found.terms, k) - of.b(k)));
  return error;
}

}  // namespace

TEST_CASE("sums of a few decays are found", "[core]") {
  const auto sum = [](std::vector<DecayTerm> terms) {
    return Formula{std::to_string(terms.size()) + " terms", [=](Index k) { return log_sum(terms, k); }};
  };
  for (const Formula& each :
       {sum({{2, -0.01}}), sum({{0, -0.1}, {-2, -0.001}}), sum({{0, -0.2}, {-1, -0.02}, {-3, -1e-4}}), sum({{1, 0}})}) {
    INFO(each.name);
    const FittedDecays found = fitted_decays(5000, 16, 1e-6, each.b);
    REQUIRE((found.terms.size() >= 1 && found.terms.size() <= 6));
    CHECK(found.deviation <= 1e-6);
    CHECK(worst(found, 5000, each) <= found.deviation + 1e-9);
  }
}

TEST_CASE("biases that fall ever more slowly are near a sum of decays, at every lag", "[core]") {
  const Formula formulas[] = {
      {"log", [](Index k) { return -std::log1p(64.0 + static_cast<double>(k)); }},
      {"log, slowly", [](Index k) { return -0.5 * std::log1p(0.1 * (64 + static_cast<double>(k))); }},
      {"power", [](Index k) { return -0.5 * std::pow(64 + static_cast<double>(k), 0.3); }}};
  for (const Formula& each : formulas)
    for (const Index last : {0, 1, 100, 8000, 65536})
      for (const double most : {1e-3, 2.5e-5}) {
        INFO(each.name << " to " << last << " within " << most);
        const FittedDecays found = fitted_decays(last, 16, most, each.b);
        REQUIRE_FALSE(found.terms.empty());
        CHECK(found.deviation <= most);
        CHECK(worst(found, last, each) <= found.deviation + 1e-9);
        for (const DecayTerm& term : found.terms) CHECK(term.slope <= 0);
      }
}

TEST_CASE("what is no sum of decays, or of too many, is not fitted", "[core]") {
  const Formula formulas[] = {
      {"rising", [](Index k) { return 0.001 * static_cast<double>(k); }},
      {"concave", [](Index k) { return -1e-6 * static_cast<double>(k * k); }},
      {"noise", [](Index k) { return -0.001 * static_cast<double>(k) + 1e-3 * std::sin(static_cast<double>(k * k)); }},
      {"a step", [](Index k) { return k < 500 ? 0.0 : -1.0; }},
      {"a hole", [](Index k) { return k == 500 ? -std::numeric_limits<double>::infinity() : 0.0; }}};
  for (const Formula& each : formulas) {
    INFO(each.name);
    CHECK(fitted_decays(3000, 16, 2.5e-5, each.b).terms.empty());
  }
  const auto log = [](Index k) { return -std::log1p(static_cast<double>(k)); };
  CHECK(fitted_decays(3000, 2, 2.5e-5, log).terms.empty());
}

}  // namespace nprf::test::core_fitted_decays
