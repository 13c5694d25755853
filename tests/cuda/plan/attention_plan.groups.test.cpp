// SPDX-License-Identifier: MIT
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

/// Groups of heads of queries that share a head of keys and values.
namespace nprf::test::cuda_plan_attention_plan_groups {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
constexpr double tolerance = 20 * eps;           // of y, as in attention_plan.test.cpp
constexpr double gradient_tolerance = 10 * eps;  // as in backward.test.cpp

constexpr Index d = 8;
const cuda::PlanShape shape{.batch = 2, .heads = 4, .n_q = 70, .n_k = 50, .d_v = 5, .offset = -3, .heads_k = 2};

PositiveFeatures<float> random_map(std::uint64_t h) { return orf<float>(d, 16, h); }

/// The position of head h.
RelativePosition<float> position_of(const Vector<float>& table, std::uint64_t h) {
  return RelativePosition<float>(Vector<float>((1 - 0.2f * static_cast<float>(h)) * table));
}
Vector<float> random_biases() { return normal_vector<float>(41, 5); }
Vector<float> ramp(float last_bias) { return Vector<float>::LinSpaced(139, 0, last_bias); }

/// A model whose heads have one feature map or a map each, and positions of their own.
template <class MapOfHead>
cuda::AttentionModel model_of_heads(bool shares_map, const AttentionOptions& options, const MapOfHead& map_of_head,
                                    const Vector<float>& table) {
  cuda::AttentionModel model = cuda::model_of(Attention(map_of_head(0), position_of(table, 0), options));
  for (std::uint64_t h = 1; h < 4; ++h) {
    if (!shares_map) model.features.push_back(cuda::model_of(map_of_head(h)));
    model.positions.push_back(cuda::model_of(position_of(table, h)));
  }
  return model;
}

/// Checks that a plan has the numbers of one with the keys and values of each group repeated. Returns how many rows
/// were recomputed.
template <class S = float>
int check_repeated(const cuda::AttentionModel& model, cuda::Engine engine) {
  const cuda::PlanOptions options{.engine = engine, .gradients = true};
  const HeadsCase x(shape, d), repeated = x.repeated();
  const HeadsResults got = x.results(cuda::AttentionPlan<S>(model, x.shape, options));
  const HeadsResults expected = repeated.results(cuda::AttentionPlan<S>(model, repeated.shape, options));
  CHECK(got.y == expected.y);
  CHECK(got.dq == expected.dq);
  CHECK(got.parameters == expected.parameters);
  CHECK(got.counts.repaired_rows == expected.counts.repaired_rows);
  if constexpr (std::is_same_v<S, float>) {  // else those of each head are rounded
    CHECK(got.dk == x.summed(expected.dk));
    CHECK(got.dv == x.summed(expected.dv));
  }
  CHECK((got.dk.allFinite() && got.dv.allFinite()));
  return got.counts.repaired_rows;
}

}  // namespace

TEST_CASE("groups of heads agree with the CPU's", "[cuda]") {
  const HeadsCase x(shape, d);
  for (const bool shares_map : {true, false})
    for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::fused}) {
      const cuda::AttentionModel model = model_of_heads(shares_map, {}, random_map, random_biases());
      const cuda::AttentionPlan<float> plan(model, shape, {.engine = engine, .gradients = true});
      INFO(name(engine) << (shares_map ? ", one map" : ", a map for each head"));
      const auto of_head = [&](Index head) {
        const auto h = static_cast<std::uint64_t>(head);
        return Attention(random_map(shares_map ? 0 : h), position_of(random_biases(), h));
      };
      check_heads(x, x.results(plan), of_head, tolerance, gradient_tolerance);
    }
}

TEST_CASE("a group of heads has the results of repeated keys, for every engine", "[cuda]") {
  const AttentionOptions scaled{.normalization = Normalization::none()};
  for (const cuda::Engine engine : cuda_engines)
    for (const bool shares_map : {true, false}) {
      INFO(name(engine) << (shares_map ? ", one map" : ", a map for each head"));
      check_repeated(model_of_heads(shares_map, scaled, random_map, random_biases()), engine);
    }
}

TEST_CASE("a group of heads has the results of repeated keys where rows are recomputed", "[cuda]") {
  const AttentionOptions causal{.direction = Direction::causal}, near{.direction = Direction::causal, .near = 5};
  const auto taylor = [](std::uint64_t) { return TaylorFeatures<float>({.input_dim = d, .directions = 3}); };
  for (const bool shares_map : {true, false}) {
    INFO((shares_map ? "one map" : "a map for each head"));
    // by tiles, from features, and by exact softmax
    CHECK(check_repeated(model_of_heads(shares_map, causal, random_map, ramp(-60)), cuda::Engine::cufft) > 0);
    CHECK(check_repeated(model_of_heads(shares_map, {}, random_map, ramp(600)), cuda::Engine::direct) > 0);
    CHECK(check_repeated(model_of_heads(shares_map, near, random_map, ramp(-60)), cuda::Engine::cufft) > 0);
    CHECK(check_repeated(model_of_heads(shares_map, causal, taylor, ramp(-60)), cuda::Engine::cufft) > 0);
    check_repeated(model_of_heads(shares_map, near, random_map, random_biases()), cuda::Engine::direct);
    check_repeated(model_of_heads(shares_map, {.sinks = 3}, random_map, random_biases()), cuda::Engine::banded);
  }
}

TEST_CASE("groups of heads support 16-bit storage", "[cuda]") {
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded, cuda::Engine::fused})
    for (const bool shares_map : {true, false}) {
      INFO(name(engine) << (shares_map ? ", one map" : ", a map for each head"));
      check_repeated<__nv_bfloat16>(model_of_heads(shares_map, {}, random_map, random_biases()), engine);
    }
}

TEST_CASE("more tokens than fit in shared memory may have groups of heads", "[cuda]") {
  const cuda::PlanShape large{.heads = 2, .n_q = 17000, .n_k = 16500, .d_v = 1, .heads_k = 1};
  const HeadsCase x(large, 2), repeated = x.repeated();
  const cuda::AttentionModel model =
      cuda::model_of(Attention(orf<float>(2, 2, 7), RelativePosition<float>(random_biases())));
  const auto result = [&](const HeadsCase& of) {
    const DeviceArray<float> q(stored<float>(of.q)), k(stored<float>(of.k)), v(stored<float>(of.v)),
        y(static_cast<std::size_t>(of.dy.size()));
    const Index heads_k = 2 / of.shape.group();
    const cuda::AttentionPlan<float> plan(model, of.shape, {.engine = cuda::Engine::fused});
    plan.forward({q.data(), 1, 2, large.n_q, 2}, {k.data(), 1, heads_k, large.n_k, 2},
                 {v.data(), 1, heads_k, large.n_k, 1}, {y.data(), 1, 2, large.n_q, 1});
    return y.fetch();
  };
  CHECK(result(x) == result(repeated));
}

TEST_CASE("a key that only one head of a group attends to affects no other head, even if it is NaN", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  // heads 0 and 2 attend to all keys, heads 1 and 3 only to keys at lags up to 0
  Vector<float> past = Vector<float>::Zero(201);
  past.tail(100).setConstant(-infinity);
  cuda::AttentionModel model = model_of_heads(true, {}, random_map, random_biases());
  model.positions[1] = model.positions[3] = cuda::model_of(RelativePosition<float>(past));
  model.positions[0] = model.positions[2] = cuda::model_of(RelativePosition<float>(Vector<float>::Zero(201)));
  for (const cuda::Engine engine : cuda_engines) {
    const cuda::PlanOptions options{.engine = engine, .gradients = true};
    HeadsCase x({.heads = 4, .n_q = 40, .n_k = 50, .d_v = 5, .heads_k = 2}, d);
    x.k.row(45).setConstant(nan);  // after all queries, of the first group
    x.v.row(45).setConstant(nan);
    const HeadsResults got = x.results(cuda::AttentionPlan<float>(model, x.shape, options));
    INFO(name(engine));
    CHECK(x.queries_of(got.y, 0).array().isNaN().all());
    for (Index z = 1; z < 4; ++z) CHECK((x.queries_of(got.y, z).allFinite() && x.queries_of(got.dq, z).allFinite()));
  }
}

TEST_CASE("numbers of heads that form no groups are refused", "[cuda]") {
  const cuda::AttentionModel model = model_of_heads(true, {}, random_map, random_biases());
  const auto refused = [&](Index heads_k, const char* message) {
    cuda::PlanShape bad = shape;
    bad.heads_k = heads_k;
    check_invalid([&] { cuda::AttentionPlan<float>(model, bad); },
                  {"heads_k: expected a divisor of 4 (heads), or 0 for as many", message});
  };
  refused(3, "got 3");
  refused(8, "got 8");
  refused(-2, "got -2");
  const HeadsCase x(shape, d);
  const cuda::AttentionPlan<float> plan(model, shape, {.gradients = true});
  check_invalid([&] { x.repeated().results(plan); },
                {"k: expected 2 x 2 x 50 x 8 (batch, heads, tokens, channels), got 2 x 4 x 50 x 8"});
}

}  // namespace nprf::test::cuda_plan_attention_plan_groups
