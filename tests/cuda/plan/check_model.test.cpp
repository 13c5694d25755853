// SPDX-License-Identifier: MIT
#include "nprf/cuda/plan/check_model.cuh"

#include <utility>

#include "nprf/attention/attention.hpp"
#include "nprf/cuda/plan/model_of.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_plan_check_model {

TEST_CASE("a model that does not fit its plan is refused", "[cuda]") {
  const cuda::PlanShape shape{.batch = 2, .heads = 3, .n_q = 8, .n_k = 9, .d_v = 4, .offset = 1};
  const cuda::AttentionModel model = cuda::model_of(
      Attention(orf<float>(4, 5, 7), RelativePosition<float>(Vector<float>(normal<float>(1, 13, 1).row(0)))));
  cuda::check_model(model, shape);
  const auto refused = [&](const char* message, auto&& change) {
    auto x = std::pair(model, shape);
    change(x.first, x.second);
    check_invalid([&] { cuda::check_model(x.first, x.second); }, {message});
  };
  refused("n_k: expected 0 to 2^28", [](auto&, auto& of) { of.n_k = (1 << 28) + 1; });
  refused("d_v: expected 0 to 16384", [](auto&, auto& of) { of.d_v = 16385; });
  refused("batch and heads", [](auto&, auto& of) { of.heads = 0; });
  refused("offset", [](auto&, auto& of) { of.offset = -(1 << 28) - 1; });
  refused("feature maps: expected 1 or 3", [](auto& of, auto&) { of.features.resize(2, of.features[0]); });
  refused("positions: expected 1 or 3", [](auto& of, auto&) { of.positions.clear(); });
  refused("feature maps: expected all of one kind", [](auto& of, auto&) {
    of.features.resize(3, of.features[0]);
    of.features[2].m = 4;
  });
  refused("positions: expected all of one kind", [](auto& of, auto&) {
    of.positions.resize(3, of.positions[0]);
    of.positions[1].first += 1;
  });
  refused("input_dim: expected 1 to 256", [](auto& of, auto&) { of.features[0].d = 257; });
  refused("projection: expected 5 x 4", [](auto& of, auto&) { of.features[0].projection.pop_back(); });
  refused("position: expected parameters", [](auto& of, auto&) { of.positions[0].index.clear(); });
  refused("index: expected parameters 0 to 13", [](auto& of, auto&) { of.positions[0].index[2] = 13; });
  refused("near: expected 0 or more", [](auto& of, auto&) { of.near = -1; });
  refused("sinks: expected 0 or more", [](auto& of, auto&) { of.sinks = -1; });
  refused("heads_k: expected a divisor of 3 (heads), or 0 for as many, got 2", [](auto&, auto& of) { of.heads_k = 2; });
  refused("num_features", [](auto& of, auto&) { of.features[0].m = 0, of.features[0].projection.clear(); });
  refused("features: expected at most 1024",
          [](auto& of, auto&) { of.features[0].m = 1025, of.features[0].projection.resize(4 * 1025); });
}

TEST_CASE("a grid that does not fit its plan is refused", "[cuda]") {
  const cuda::PlanShape shape{.n_q = 14, .n_k = 14, .d_v = 4};
  const cuda::AttentionModel model = cuda::model_of(
      Attention(orf<float>(4, 5, 7), GridPosition<float>(3, 4, normal<float>(5, 7, 1), normal<float>(2, 4, 2))));
  cuda::check_model(model, shape);
  const auto refused = [&](const char* message, auto&& change) {
    auto x = std::pair(model, shape);
    change(x.first, x.second);
    check_invalid([&] { cuda::check_model(x.first, x.second); }, {message});
  };
  refused("keys: expected 14 rows", [](auto&, auto& of) { of.n_k = 13; });
  refused("offset: expected 0", [](auto&, auto& of) { of.offset = 2; });
  refused("slots: expected ascending",
          [](auto& of, auto&) { std::swap(of.positions[0].slots[1], of.positions[0].slots[2]); });
  refused("position: expected a parameter for each", [](auto& of, auto&) { of.positions[0].index.pop_back(); });
  refused("near: expected 0 or more", [](auto& of, auto&) { of.near = 2, of.positions[0].pitch = 0; });
}

}  // namespace nprf::test::cuda_plan_check_model
