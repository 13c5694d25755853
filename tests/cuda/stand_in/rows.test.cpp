// SPDX-License-Identifier: MIT
//
// Recomputed rows, on devices with different numbers of multiprocessors, and with different orders of threads.
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/gradient_case.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "cuda/stand_in/machine.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_stand_in_rows {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

}  // namespace

TEST_CASE("the sums of a recomputed row do not depend on other rows, with one part of the keys or several", "[cuda]") {
  using Order = stand_in::Settings::Order;
  const auto before = stand_in::settings();
  const Attention causal(orf<float>(16, 32, 7), RelativePosition<float>(Vector<float>::LinSpaced(399, 0, -60)),
                         {.direction = Direction::causal});
  const PlanCase x{{.n_q = 200, .n_k = 200, .d_v = 70}, {.engine = cuda::Engine::cufft}, 16};
  for (const int multiprocessors : {1, 6, 132}) {  // 1, 1 and 3 parts of the keys
    stand_in::settings().multiprocessors = multiprocessors;
    cuda::Counts counts{};
    const Matrix<float> y = x.result(causal, &counts);
    CHECK(counts.repaired_rows > 100);
    CHECK(counts.repaired_rows < 200);
    for (const Order order : {Order::backward, Order::shuffled}) {  // which also changes the order of the lists of rows
      stand_in::settings().order = order;
      CHECK((x.result(causal) == y));
    }
    stand_in::settings() = before;
    CHECK(x.error(causal) <= 0.5e-4 + 20 * eps);
  }
}

TEST_CASE("recomputed rows are independent for heads and sequences, with few or many blocks", "[cuda]") {
  const Index n = 70;
  const HeadsCase x({.batch = 2, .heads = 2, .n_q = n, .n_k = n, .d_v = 5}, 6);
  const auto before = stand_in::settings();
  const auto attention = [](Index h) {
    return Attention(orf<float>(6, 16, static_cast<std::uint64_t>(h)),
                     RelativePosition<float>(Vector<float>::LinSpaced(139, 0, h == 0 ? 1.0f : 600.0f)));
  };
  cuda::AttentionModel model = cuda::model_of(attention(0)), of_other = cuda::model_of(attention(1));
  model.features.push_back(of_other.features[0]);
  model.positions.push_back(of_other.positions[0]);
  std::vector<unsigned char> keys(static_cast<std::size_t>(2 * n));
  for (std::size_t j = 0; j < keys.size(); ++j) keys[j] = j < keys.size() / 2 ? j < 50 : j % 3 == 0;
  const KeyMask mask(keys);
  for (const int multiprocessors : {1, 132}) {
    stand_in::settings().multiprocessors = multiprocessors;
    const cuda::AttentionPlan<float> plan(model, x.shape, {.engine = cuda::Engine::direct, .gradients = true});
    const HeadsResults got = x.results(plan, mask.call());
    stand_in::settings() = before;
    INFO("multiprocessors " << multiprocessors);
    check_heads(x, got, attention, 30 * eps, 20 * eps, keys);
  }
}

TEST_CASE("results are bitwise reproducible, in whatever order threads run", "[cuda]") {
  using Order = stand_in::Settings::Order;
  const auto before = stand_in::settings();
  const Matrix<float> dy = normal<float>(70, 5, 9);
  const auto check = [&](cuda::Engine engine, float last_bias, const AttentionOptions& options) {
    const PlanCase x{{.n_q = 70, .n_k = 70, .d_v = 5}, {.engine = engine, .gradients = true}, 6};
    const RelativePosition<float> steep(Vector<float>(Vector<float>::LinSpaced(139, 0, last_bias)));
    const auto plan = x.plan(Attention(orf<float>(6, 16, 7), steep, options));
    cuda::Counts counts{};
    const Matrix<float> y = x.result(*plan, {}, &counts);
    const Gradients<float> gradients = gradients_of(x, *plan, dy);
    INFO(name(engine) << ", last bias " << last_bias << ", near " << options.near);
    CHECK(counts.repaired_rows > 0);
    for (const Order order : {Order::backward, Order::shuffled}) {  // which also changes the order of the lists of rows
      stand_in::settings().order = order;
      const Matrix<float> same_y = x.result(*plan);
      const Gradients<float> same_gradients = gradients_of(x, *plan, dy);
      stand_in::settings() = before;
      CHECK(same_bits(same_y, y));
      CHECK(same_bits(same_gradients, gradients));
    }
  };
  check(cuda::Engine::cufft, -60, {.direction = Direction::causal});             // rows are recomputed by tiles,
  check(cuda::Engine::direct, 600, {});                                          // from features,
  check(cuda::Engine::cufft, -60, {.direction = Direction::causal, .near = 5});  // and by exact softmax
}

}  // namespace nprf::test::cuda_stand_in_rows
