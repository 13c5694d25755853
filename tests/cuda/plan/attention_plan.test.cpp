// SPDX-License-Identifier: MIT
#include "nprf/cuda.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_plan_attention_plan {

namespace {

// of y, relative to the largest |v|: the rounding errors of features of unit norm, and of sums
constexpr double tolerance = 20 * static_cast<double>(std::numeric_limits<float>::epsilon());

RelativePosition<float> clipped(Index reach = 20) {
  return RelativePosition<float>(normal_vector<float>(2 * reach + 1, 5));
}

// rises by `spread` over all lags, up and down by a little, so that it is not smooth
RelativePosition<float> rising(Index size, float spread) {
  Vector<float> table = Vector<float>::LinSpaced(size, 0, spread);
  for (Index k = 0; k < size; k += 2) table[k] += 0.05f;
  return RelativePosition<float>(table);
}

}  // namespace

TEST_CASE("normalisation agrees with the CPU's", "[cuda]") {
  for (const double norm : {1e-30, 1.0, 1e4, 1e30}) {
    PlanCase x{{.n_q = 70, .n_k = 70, .d_v = 5}, {.engine = cuda::Engine::direct}, 6};
    x.q *= static_cast<float>(norm);
    x.k *= static_cast<float>(norm);
    x.q.row(3).setZero();
    x.k.row(5).setZero();
    INFO("norms of about " << norm);
    for (const double radius : {1.0, 3.0})
      CHECK(x.error(Attention(orf<float>(6, 16, 7), clipped(), {.normalization = Normalization::unit(radius)})) <=
            radius * radius * tolerance);
  }
  for (const float norm : {1e-3f, 1.0f, 3.0f}) {
    PlanCase x{{.n_q = 70, .n_k = 70, .d_v = 5}, {.engine = cuda::Engine::direct}, 6};
    x.q *= norm;
    x.k *= norm;
    INFO("norms of about " << norm << ", not normalised");
    const AttentionOptions none{.normalization = Normalization::none()};
    CHECK(x.error(Attention(orf<float>(6, 16, 7), clipped(), none)) <= (1 + 6 * norm * norm) * tolerance);
    CHECK(x.error(Attention(EluFeatures<float>(6), clipped(), none)) <= tolerance);
  }
}

TEST_CASE("large exponents do not overflow", "[cuda]") {
  PlanCase x{{.n_q = 70, .n_k = 70, .d_v = 5}, {.engine = cuda::Engine::direct}, 6};
  x.q *= 1e4f;
  x.k *= 1e4f;
  const auto attention = Attention(orf<float>(6, 16, 7), clipped(), {.normalization = Normalization::none()});
  CHECK(x.result(attention).allFinite());
}

TEMPLATE_TEST_CASE("16-bit storage has the precision of its type", "[cuda]", __half, __nv_bfloat16) {
  // tensor cores round features, weights, values and y. The relative error of weights is up to 3 u, and two values
  // differ by up to twice the largest |v|
  constexpr double u = std::is_same_v<TestType, __half> ? 0x1p-11 : 0x1p-8;
  constexpr double tensor_core_tolerance = (3 * 2 + 1 + 1) * u;
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded})
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const auto& [n_q, n_k] : {std::pair<Index, Index>{90, 90}, {300, 200}}) {
        const Index d = n_q == 300 ? 16 : 6;  // with projections on tensor cores, and without
        const PlanCase x{{.n_q = n_q, .n_k = n_k, .d_v = 5, .offset = 3}, {.engine = engine}, d};
        INFO(name(engine) << ", n_q " << n_q << ", n_k " << n_k << (direction == Direction::causal ? ", causal" : ""));
        CHECK(x.error<TestType>(Attention(orf<float>(d, 16, 7), clipped(), {.direction = direction})) <=
              tensor_core_tolerance);
        CHECK(x.error<TestType>(Attention(EluFeatures<float>(d), clipped(), {.direction = direction})) <=
              tensor_core_tolerance);
      }
  const PlanCase x{{.n_q = 1500, .n_k = 1500, .d_v = 2}, {.engine = cuda::Engine::fused}, 3},
      by_cufft{{.n_q = 90, .n_k = 90, .d_v = 5}, {.engine = cuda::Engine::cufft}, 6};
  CHECK(x.error<TestType>(Attention(orf<float>(3, 2, 7), clipped())) <= u);
  CHECK(by_cufft.error<TestType>(Attention(orf<float>(6, 16, 7), clipped())) <= u);
}

TEST_CASE("features that do not fit half have the precision of bfloat16", "[cuda]") {
  if (!can_multiply<__nv_bfloat16>()) return;
  const AttentionOptions none{.normalization = Normalization::none()};
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
    PlanCase x{{.n_q = 300, .n_k = 200, .d_v = 5}, {.engine = engine}, 6};
    x.q *= 3;
    x.k *= 3;
    const Attention attention(orf<float>(6, 16, 7), clipped(), none);
    INFO(name(engine));
    // features of one head have a range far larger than that of half
    CHECK(x.error<__half>(attention) <= (3 * 2 + 1 + 1) * 0x1p-8);
  }
}

TEMPLATE_TEST_CASE("weights add up to 1 in any precision", "[cuda]", __half, __nv_bfloat16) {
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
    PlanCase x{{.n_q = 300, .n_k = 300, .d_v = 70}, {.engine = engine}, 6};
    x.v.setOnes();
    INFO(name(engine));
    CHECK(x.result<TestType>(Attention(orf<float>(6, 40, 7), clipped())) == x.v);
  }
}

TEST_CASE("heads may have different projections and positions, and sequences different padding", "[cuda]") {
  const HeadsCase x({.batch = 2, .heads = 3, .n_q = 70, .n_k = 70, .d_v = 5}, 6);
  cuda::AttentionModel model;
  std::vector<Attention<PositiveFeatures<float>, RelativePosition<float>>> attentions;
  for (std::uint64_t h = 0; h < 3; ++h) {
    attentions.emplace_back(orf<float>(6, 16, h), RelativePosition<float>(normal_vector<float>(41, 10 + h)));
    model.features.push_back(cuda::model_of(attentions.back().features()));
    model.positions.push_back(cuda::model_of(attentions.back().position()));
  }
  std::vector<unsigned char> keys(2 * 70, 1);
  std::fill_n(keys.begin() + 50, 20, 0);
  keys[75] = 0;
  const KeyMask mask(keys);
  for (const cuda::Engine engine : cuda_engines) {
    const cuda::AttentionPlan<float> plan(model, x.shape, {.engine = engine, .gradients = true});
    const HeadsResults got = x.results(plan, mask.call());
    INFO(name(engine));
    const auto of_head = [&](Index h) { return attentions[static_cast<std::size_t>(h)]; };
    check_heads(x, got, of_head, tolerance, tolerance, keys);
  }
}

TEMPLATE_TEST_CASE("NaNs affect only the rows that attend to them", "[cuda]", float, __half, __nv_bfloat16) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr Index d = 16;
  const Attention causal(orf<float>(d, 16, 7), clipped(), {.direction = Direction::causal});
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
    PlanCase x{{.n_q = 400, .n_k = 400, .d_v = 5}, {.engine = engine}, d};
    const Matrix<float> before = x.result<TestType>(causal);
    x.k.bottomRows(200).setConstant(nan);
    x.v.bottomRows(200).setConstant(nan);
    x.q.row(17).setConstant(nan);
    const Matrix<float> after = x.result<TestType>(causal);
    INFO(name(engine));
    for (Index i = 0; i < 400; ++i) {
      const bool is_affected = i == 17 || i >= 200;
      CHECK((is_affected ? after.row(i).array().isNaN().all() : after.row(i) == before.row(i)));
    }
  }
}

TEST_CASE("heads may have 256 channels", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = 70, .n_k = 90, .d_v = 150}, {.engine = engine}, 256};
    INFO(name(engine));
    CHECK(x.error(Attention(orf<float>(256, 100, 7), clipped())) <= 2 * tolerance);
  }
}

TEST_CASE("cuFFT works with slabs of any size", "[cuda]") {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{20000}}) {
    const PlanCase x{{.n_q = 90, .n_k = 70, .d_v = 5}, {.engine = cuda::Engine::cufft, .slab_bytes = bytes}, 6};
    INFO(bytes << " bytes");
    CHECK(x.error(Attention(orf<float>(6, 7, 7), clipped())) <= tolerance);
  }
}

TEST_CASE("the fused engine supports more tokens than fit in shared memory", "[cuda]") {
  const PlanCase x{{.n_q = 20000, .n_k = 17000, .d_v = 1}, {.engine = cuda::Engine::fused}, 6};
  CHECK(x.error(Attention(orf<float>(6, 2, 7), clipped())) <= tolerance);
}

TEST_CASE("the workspace for long sequences is small", "[cuda]") {
  const PlanCase x{{.n_q = 131072, .n_k = 131072, .d_v = 64}, {.owns_workspace = false}, 64};
  const auto plan = x.plan(Attention(orf<float>(64, 32, 7), rising(262143, 1)));
  CHECK(plan->engine() == cuda::Engine::fused);
  CHECK(plan->workspace_bytes() <= std::size_t{256} << 20);
}

TEST_CASE("the automatic engine chooses FFTs for long sequences if few rows fail the error bound", "[cuda]") {
  const auto engine = [](const auto& attention, Index n) {
    return PlanCase{{.n_q = n, .n_k = n, .d_v = 64}, {.owns_workspace = false}, 16}.plan(attention)->engine();
  };
  const auto of = [](auto position, Direction direction) {
    return Attention(orf<float>(16, 16, 7), std::move(position), {.direction = direction});
  };
  const auto table = [](float spread) { return rising(8191, spread); };
  CHECK(engine(of(table(1), Direction::bidirectional), 256) == cuda::Engine::direct);
  CHECK(engine(of(table(1), Direction::bidirectional), 4096) == cuda::Engine::fused);
  CHECK(engine(of(table(1), Direction::bidirectional), 20000) == cuda::Engine::fused);
  CHECK(engine(of(table(9), Direction::bidirectional), 4096) == cuda::Engine::fused);
  CHECK(engine(of(table(60), Direction::bidirectional), 4096) == cuda::Engine::direct);
  CHECK(engine(of(table(1), Direction::causal), 4096) == cuda::Engine::fused);
  CHECK(engine(of(table(200), Direction::causal), 4096) == cuda::Engine::fused);  // near keys have the largest weights
  // distant keys have the largest weights, so that most rows fail
  CHECK(engine(of(table(-200), Direction::causal), 4096) == cuda::Engine::direct);
  CHECK(engine(of(clipped(), Direction::causal), 4096) == cuda::Engine::banded);
  CHECK(engine(of(clipped(), Direction::bidirectional), 4096) == cuda::Engine::banded);

  // tensor cores make tiles faster
  const PlanCase in_half{{.n_q = 4096, .n_k = 4096, .d_v = 64}, {.owns_workspace = false}, 16};
  CHECK(in_half.plan<__half>(of(table(1), Direction::bidirectional))->engine() == cuda::Engine::direct);
}

TEST_CASE("inconsistent models are refused", "[cuda]") {
  const cuda::AttentionModel valid = cuda::model_of(Attention(orf<float>(4, 5, 7), clipped()));
  const auto refused = [&](auto&& modify, const char* message) {
    cuda::AttentionModel bad = valid;
    modify(bad);
    check_invalid([&] { cuda::AttentionPlan<float>(bad, {.n_q = 8, .n_k = 8, .d_v = 3}); }, {message});
  };
  refused([](auto& m) { m.features[0].projection.pop_back(); }, "projection: expected 5 x 4 scalars, got 19");
  refused([](auto& m) { m.positions[0].index.clear(); }, "position: expected parameters and an index for each lag");
  refused([](auto& m) { m.positions[0].parameters.clear(); },
          "position: expected parameters and an index for each lag");
  refused([](auto& m) { m.positions[0].index[3] = 41; }, "index: expected parameters 0 to 41 - 1, got 41");
  refused([](auto& m) { m.positions[0].linear = true; }, "position: expected parameters and an index for each lag");
  refused([](auto& m) { m.features[0].kind = cuda::FeatureKind::elu; },
          "num_features: expected 0 for elu and quadratic");
  refused([](auto& m) { m.direction = static_cast<Direction>(2); }, "direction: expected bidirectional or causal");
  refused([](auto& m) { m.features.clear(); }, "feature maps: expected 1 or 1 (heads), got 0");
}

TEST_CASE("sizes may be 0", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const auto& [n_q, n_k, d_v] : std::vector<std::array<Index, 3>>{{0, 0, 5}, {0, 7, 5}, {7, 0, 5}, {7, 7, 0}}) {
      const PlanCase x{{.n_q = n_q, .n_k = n_k, .d_v = d_v}, {.engine = engine}, 6};
      INFO(name(engine) << ", n_q " << n_q << ", n_k " << n_k << ", d_v " << d_v);
      CHECK(x.result(Attention(orf<float>(6, 16, 7), clipped())).isZero(0));
    }
  for (const cuda::Engine engine : cuda_engines) {
    const cuda::AttentionPlan<float> none(cuda::model_of(Attention(orf<float>(6, 16, 7), clipped())),
                                          {.batch = 0, .n_q = 7, .n_k = 7, .d_v = 5}, {.engine = engine});
    CHECK_NOTHROW(
        none.forward({nullptr, 0, 1, 7, 6}, {nullptr, 0, 1, 7, 6}, {nullptr, 0, 1, 7, 5}, {nullptr, 0, 1, 7, 5}));
  }
}

TEST_CASE("wrong shapes, strides, alignments and null pointers are refused", "[cuda]") {
  const Index n = 8, d = 4, d_v = 3;
  const Attention attention(orf<float>(d, 5, 7), clipped());
  const cuda::AttentionPlan<float> plan(cuda::model_of(attention), {.n_q = n, .n_k = n, .d_v = d_v});
  const DeviceArray<float> x(100), y(100);
  using View = cuda::DeviceMatrixView<float>;
  const View q(x.data(), n, d), v(x.data(), n, d_v), out(y.data(), n, d_v);
  const auto refused = [&](const View& a, const View& b, const View& c, const View& e, const char* message) {
    check_invalid([&] { plan.forward(a, b, c, e); }, {message});
  };
  refused(View(x.data(), n, d + 1), q, v, out, "q: expected 1 x 1 x 8 x 4");
  refused(q, View(x.data(), n - 1, d), v, out, "k: expected 1 x 1 x 8 x 4");
  refused(q, q, View(nullptr, n, d_v), out, "v: expected data, got a null pointer");
  View bad = out;
  bad.data = reinterpret_cast<float*>(reinterpret_cast<char*>(y.data()) + 2);
  refused(q, q, v, bad, "y: expected data aligned to 4 bytes");
  bad = out;
  bad.token_stride = 2;
  refused(q, q, v, bad, "y: expected a token_stride of at least 3");
  check_invalid([&] { plan.forward(q, q, v, out, {.workspace = x.data() + 1}, nullptr); },
                {"workspace: expected memory aligned to 256 bytes"});
  const cuda::AttentionPlan<float> without_workspace(cuda::model_of(attention), {.n_q = n, .n_k = n, .d_v = d_v},
                                                     {.owns_workspace = false});
  check_invalid([&] { without_workspace.forward(q, q, v, out); }, {"workspace: expected memory"});
  const auto refused_shape = [&](const cuda::PlanShape& shape, const char* message) {
    check_invalid([&] { cuda::AttentionPlan<float>(cuda::model_of(attention), shape); }, {message});
  };
  refused_shape({.n_q = -1, .n_k = n, .d_v = d_v}, "n_q: expected 0 to 2^28, got -1");
  check_invalid(
      [&] {
        cuda::AttentionPlan<float>(cuda::model_of(attention), {.n_q = n, .n_k = 1200000, .d_v = d_v},
                                   {.engine = cuda::Engine::fused});
      },
      {"n_q and n_k: expected at most 2^20 by Engine::fused, got 8 and 1200000"});
  check_invalid(
      [&] {
        cuda::AttentionPlan<float>(cuda::model_of(attention), {.n_q = n, .n_k = n, .d_v = d_v},
                                   {.engine = static_cast<cuda::Engine>(6)});
      },
      {"engine: expected one of nprf::cuda::Engine, got number 6"});
  refused_shape({.batch = 70000, .n_q = n, .n_k = n, .d_v = d_v}, "batch and heads");
}

TEST_CASE("a call can use its own workspace", "[cuda]") {
  const PlanCase x{{.n_q = 70, .n_k = 70, .d_v = 5}, {.engine = cuda::Engine::banded, .owns_workspace = false}, 6};
  const Attention attention(orf<float>(6, 16, 7), clipped());
  const auto plan = x.plan(attention);
  const DeviceArray<unsigned char> memory(plan->workspace_bytes());
  CHECK(x.error(attention, *plan, {.workspace = memory.data()}) <= tolerance);
  CHECK(plan->host_counts({.workspace = memory.data()}).empty_rows == 0);
  check_invalid([&] { plan->host_counts(); }, {"workspace: expected memory from the call"});
}

}  // namespace nprf::test::cuda_plan_attention_plan
