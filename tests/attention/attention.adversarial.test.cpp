// SPDX-License-Identifier: MIT

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "support/adversarial.hpp"
#include "support/catch.hpp"

/// With every engine the error of each row is below the reported bound, and that is below the tolerance.
namespace nprf::test::attention_adversarial {

namespace {

using namespace adversarial;

// each bias with all norms and all sides; the other choices vary with the number of the case
std::vector<Case> cases() {
  std::vector<Case> all;
  for (std::size_t bias = 0; bias < biases().size(); ++bias)
    for (const Sides sides : {Sides::bidirectional, Sides::causal, Sides::cross})
      for (const double norm : {1.0, 4.0, 8.0, 30.0}) {
        Case c;
        const std::size_t k = all.size();
        c.bias = bias;
        c.sides = sides;
        c.norm = norm;
        c.normalised = norm > 8 || k % 5 != 0;
        c.values = static_cast<Values>(k % 7);
        c.keys = static_cast<Keys>(k / 7 % 4);
        c.n_q = k % 2 == 0 ? 271 : 288;
        c.n_k = sides == Sides::cross ? 150 + static_cast<Index>(k % 100) : c.n_q;
        c.seed = k;
        all.push_back(c);
      }
  return all;
}

template <class T>
double median(std::vector<T> x) {
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

// ratios of bounds to errors
template <class T>
void check(std::vector<double>& ratios) {
  const std::vector<Engine> all = all_engines();
  Index repaired = 0;
  for (const Case& c : cases()) {
    const Problem<T> problem(c);
    const Truth<T> truth(c, problem);
    for (const Engine engine : all) {
      const Outcome x = run(c, problem, truth, engine);
      INFO(message(c, sizeof(T) == 4 ? "float" : "double", engine, x));
      CHECK(x.ok);
      repaired += x.report.repaired_rows;
      // errors of identical keys cancel, which no bound can use
      if (x.error > 0 && c.keys != Keys::alike) ratios.push_back(x.bound / x.error);
    }
  }
  CHECK(repaired > 10000);
}

}  // namespace

TEST_CASE("errors are below the bound, and the bound is below the tolerance, with every engine", "[attention][long]") {
  REQUIRE(cases().size() >= 400);
  std::vector<double> ratios;
  check<float>(ratios);
  if (!NPRF_TEST_SANITIZED) check<double>(ratios);
  CHECK(median(ratios) <= 100);
}

}  // namespace nprf::test::attention_adversarial
