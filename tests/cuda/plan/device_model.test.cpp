// SPDX-License-Identifier: MIT
#include "nprf/cuda/plan/device_model.cuh"

#include <cmath>
#include <limits>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/attention/weights/lower.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/cuda/plan/model_of.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/position_view.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_plan_device_model {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

std::vector<float> fetch(const float* from, std::size_t count) {
  std::vector<float> x(count);
  if (count > 0)
    cuda::check(cudaMemcpyAsync(x.data(), from, count * sizeof(float), cudaMemcpyDeviceToHost, nullptr), "fetching");
  cuda::check(cudaStreamSynchronize(nullptr), "fetching");
  return x;
}

// the weights on the device, and weights_of(), are those of the CPU's LagProblem
template <class P>
void check_weights(const P& position, Direction direction) {
  for (const auto& [n_q, n_k, offset] : {std::array<Index, 3>{1, 1, 0}, {70, 50, 0}, {50, 70, 30}, {40, 40, -90}}) {
    INFO("n_q " << n_q << ", n_k " << n_k << ", offset " << offset
                << (direction == Direction::causal ? ", causal" : ""));
    Workspace workspace;
    const LagProblem<float> x =
        lower<float>(position, {.direction = direction}, offset, n_q, n_k, Pass::backward, workspace);
    const cuda::DeviceModel model(cuda::model_of(Attention(orf<float>(4, 5, 7), position, {.direction = direction})),
                                  {.n_q = n_q, .n_k = n_k, .d_v = 3, .offset = offset}, true, nullptr);
    const cuda::DeviceWeights c = model.weights();
    REQUIRE((c.first == x.lags.first && c.size == x.lags.size()));
    CHECK((c.first_attended == x.lags.first && c.last_attended == x.reach.last));
    const std::vector<float> on_device = fetch(c.values, static_cast<std::size_t>(c.size));
    const std::vector<double> on_host = model.weights_of(model.model().positions.front());
    for (Index lag = x.lags.first; lag <= x.lags.last; ++lag) {
      const auto k = static_cast<std::size_t>(lag - x.lags.first);
      const double expected = static_cast<double>(x.weights[lag]);
      // the exponent has an error of eps |b| at most, where b is computed as a difference in double: one rounding to
      // float
      CHECK(std::abs(static_cast<double>(on_device[k]) - expected) <= eps * expected);
      CHECK(std::abs(on_host[k] - expected) <= eps * expected);
    }
  }
}

}  // namespace

TEST_CASE("a model has the near field and the sinks of its attention", "[cuda]") {
  const cuda::AttentionModel model = cuda::model_of(Attention(orf<float>(4, 6), {.near = 5, .sinks = 2}));
  CHECK(model.near == 5);
  CHECK(model.sinks == 2);
}

TEST_CASE("weights of lags are those of the CPU's lag problem", "[cuda]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    check_weights(NoPosition<float>(), direction);
    check_weights(RelativePosition<float>(normal_vector<float>(41, 5)), direction);
    check_weights(t5_position<float>(normal_vector<float>(32, 3), direction, 40), direction);
    check_weights(AlibiPosition<float>(0.25f), direction);
    check_weights(AlibiPosition<float>(-0.25f), direction);
    Vector<float> window = normal_vector<float>(31, 5);
    window.head(10).setConstant(-std::numeric_limits<float>::infinity());
    check_weights(RelativePosition<float>(window), direction);
  }
}

}  // namespace nprf::test::cuda_plan_device_model
