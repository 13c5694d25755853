// SPDX-License-Identifier: MIT
#include "nprf/decoder/step_weights.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::decoder_step_weights {

TEMPLATE_TEST_CASE("step weights: those of the formula", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index n = 90, reach = 20, rollback = 9;
  const auto map = orf<T>(4, 6, 1);
  const RelativePosition<T> position(random_table<T>(reach, 3));
  for (const Index near : {0, 5, 40})
    for (const double spread : {1.0, 40.0}) {
      const AttentionOptions options{.direction = Direction::causal, .near = near};
      StepModel<T> model(FeatureMapView<T>(map), PositionView<T>(position), options, rollback);
      model.reserve(n);
      const Vector<double> log_scales = spread * normal<double>(n, 1, 5).col(0);
      const Vector<T> features = Vector<T>::Ones(6), value = Vector<T>::Ones(2), key = Vector<T>::Ones(4);
      TokenRing<T> ring(model.shape(2), model.pending() + 1);
      RunningSums<T> sums(6, 2);
      Workspace scratch;
      Index first = 0, by_tables = 0;
      for (Index tokens = 1; tokens <= n; ++tokens) {
        ring.reserve(tokens);
        ring.put(tokens - 1,
                 {features.data(), 1, value.data(), log_scales[tokens - 1], T(0), static_cast<T>(tokens), true, true},
                 key.data());
        for (; tokens - first > model.pending(); ++first)
          sums.add(std::array{ring.token(first)}, model.bias.slope(), scratch);
        const StepWeights<T> weights(model, ring, sums, nullptr, tokens, first, scratch);
        // as of the formula; the reference is the largest exponent, or near it
        double of_sums = -std::numeric_limits<double>::infinity(), largest = of_sums;
        const double unit = model.bias.largest(tokens);
        if (first > 0) largest = of_sums = sums.log_scale() + (model.bias(tokens - first) - unit);
        const Index far = std::max(first, tokens - near);
        for (Index j = first; j < far; ++j)
          largest = std::max(largest, log_scales[j] + (model.bias(tokens - 1 - j) - unit));
        CHECK(weights.any_pending() == (far > first));
        by_tables += weights.reference() != largest;
        if (weights.reference() != largest) {
          CHECK(weights.reference() == ring.scale_reference() - unit);
          CHECK(largest <= weights.reference() + 16);
          CHECK(largest >= weights.reference() - 24 * std::numbers::ln2);
        }
        largest = weights.reference();
        if (first > 0) CHECK(weights.of_sums() == static_cast<T>(std::exp(of_sums - largest)));
        Vector<double> expected = Vector<double>::Zero(weights.slots());
        for (Index j = first; j < far; ++j)
          expected[ring.slot(j)] = std::exp(log_scales[j] + (model.bias(tokens - 1 - j) - unit) - largest);
        const Eigen::Map<const Vector<T>> got(weights.weights(), weights.slots());
        // relative to each weight, but for those below the normal numbers: two roundings of exp, and one of 1 + rest
        const Vector<double> tolerance =
            (4 * epsilon<T> + 100 * epsilon<double>)*expected.array() + std::numeric_limits<T>::min();
        CHECK(worst_ratio(got, expected, tolerance) <= 1);
        const T youngest = far > first ? static_cast<T>(far) : sums.largest_value();
        if (spread == 1.0) CHECK(weights.largest_value() == youngest);
      }
      if (spread == 1.0 && near == 0) CHECK(by_tables > n / 2);
      if (spread == 40.0) CHECK(by_tables < n / 2);
    }
}

TEST_CASE("step weights: a line that rises steeply with the age of keys", "[decoder]") {
  const auto map = orf<float>(4, 6, 1);
  const AlibiPosition<float> position(-20);
  StepModel<float> model(FeatureMapView<float>(map), PositionView<float>(position), {.direction = Direction::causal},
                         9);
  model.reserve(9);
  TokenRing<float> ring(model.shape(2), model.pending() + RunningSums<float>::block);
  const RunningSums<float> sums(6, 2);
  const Vector<float> ones = Vector<float>::Ones(6);
  Workspace scratch;
  for (Index tokens = 1; tokens <= 9; ++tokens) {  // none of which is in the sums
    ring.reserve(tokens);
    ring.put(tokens - 1, {ones.data(), 1, ones.data(), 0, 0, 1, true, true}, ones.data());
    const StepWeights<float> weights(model, ring, sums, nullptr, tokens, 0, scratch);
    CHECK(weights.reference() == 0);
    CHECK(weights.weights()[0] == 1);
    const double youngest = std::exp(-20.0 * static_cast<double>(tokens - 1));
    CHECK(std::abs(weights.weights()[tokens - 1] - youngest) <=
          4 * epsilon<float> * youngest + std::numeric_limits<float>::min());
  }
}

TEST_CASE("step weights: keys with small factors, after a large one has left the ring", "[decoder]") {
  const auto map = orf<float>(4, 6, 1);
  const NoPosition<float> position;
  StepModel<float> model(FeatureMapView<float>(map), PositionView<float>(position), {.direction = Direction::causal},
                         9);
  model.reserve(9);
  TokenRing<float> ring(model.shape(2), model.pending() + RunningSums<float>::block);
  ring.reserve(4);
  const Vector<float> ones = Vector<float>::Ones(6);
  for (const Index j : {0, 1, 2, 3})
    ring.put(j, {ones.data(), 1, ones.data(), j == 0 ? 0.0 : -30.0, 0, 1, true, true}, ones.data());
  Workspace scratch;
  const StepWeights<float> weights(model, ring, RunningSums<float>(6, 2), nullptr, 4, 1, scratch);
  CHECK(weights.reference() == -30);
  CHECK(weights.weights()[0] == 0);
  for (const Index j : {1, 2, 3}) CHECK(weights.weights()[j] == 1);
}

TEST_CASE("step weights: runs of slots", "[decoder]") {
  TokenRing<float> ring({1, 1, 0}, 30);  // 32 slots
  std::vector<Index> found;
  const auto add = [&](Index j, Index s, Index count) { found.insert(found.end(), {j, s, count}); };
  ring.for_each_run(3, 20, add);
  CHECK(found == std::vector<Index>{3, 3, 17});
  found.clear();
  ring.for_each_run(90, 101, add);
  CHECK(found == std::vector<Index>{90, 26, 6, 96, 0, 5});
  found.clear();
  ring.for_each_run(5, 5, add);
  CHECK(found.empty());
}

}  // namespace nprf::test::decoder_step_weights
