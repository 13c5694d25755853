// SPDX-License-Identifier: MIT
#include "nprf/cuda/plan/backward.cuh"

#include <array>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/gradient_magnitudes.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_plan_backward {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

RelativePosition<float> clipped(Index reach = 20) {
  return RelativePosition<float>(normal_vector<float>(2 * reach + 1, 5));
}

// for sums of terms of one sign: the rounding errors of features, of three products and of the CPU's float arithmetic
constexpr double tolerance = 10 * static_cast<double>(std::numeric_limits<float>::epsilon());

// y relative to the largest |v|: the rounding errors of features of unit norm, and of sums
template <class F, class P>
void check_plan(const PlanCase& x, const Attention<F, P>& attention, double condition = 1) {
  CHECK(x.error(attention) <= 2 * condition * tolerance);
  CHECK(gradient_error(x, attention) <= tolerance);
}

}  // namespace

TEST_CASE("results and gradients agree with the CPU's for every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      INFO(name(engine) << (direction == Direction::causal ? ", causal" : ""));
      for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{1, 1}, {65, 65}, {300, 300}, {40, 300}}) {
        INFO("n_q " << n_q << ", n_k " << n_k);
        const PlanCase x{{.n_q = n_q, .n_k = n_k, .d_v = 20}, {.engine = engine, .gradients = true}, 16};
        check_plan(x, Attention(orf<float>(16, 24, 7), clipped(), {.direction = direction}));
      }
      const PlanCase with_offset{
          {.n_q = 150, .n_k = 40, .d_v = 70, .offset = 3}, {.engine = engine, .gradients = true}, 7};
      check_plan(with_offset, Attention(orf<float>(7, 40, 7), clipped(), {.direction = direction}));
    }
}

TEST_CASE("a plan supports all of nprf's feature maps and positions, and their gradients", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = 90, .n_k = 90, .d_v = 5}, {.engine = engine, .gradients = true}, 6};
    INFO(name(engine));
    check_plan(x, Attention(HyperbolicFeatures<float>({.input_dim = 6, .num_features = 9}), clipped()));
    check_plan(x, Attention(EluFeatures<float>(6), clipped()));
    // rows of whole vectors of 16 bytes
    const PlanCase aligned{{.n_q = 70, .n_k = 70, .d_v = 8}, {.engine = engine, .gradients = true}, 8};
    check_plan(aligned, Attention(EluFeatures<float>(8), clipped()));
    // denominators of both signs, with condition numbers of tens
    check_plan(x, Attention(TrigonometricFeatures<float>({.input_dim = 6, .num_features = 200}), clipped()), 10);
    check_plan(x, Attention(orf<float>(6, 16, 7), NoPosition<float>()));
    check_plan(x, Attention(orf<float>(6, 16, 7), AlibiPosition<float>(0.02f)));
    check_plan(x, Attention(orf<float>(6, 16, 7),
                            t5_position<float>(normal_vector<float>(32, 3), Direction::bidirectional, 40)));
    const AttentionOptions none{.normalization = Normalization::none()};
    check_plan(x, Attention(EluFeatures<float>(6), clipped(), none));
    CHECK(gradient_error(x, Attention(orf<float>(6, 16, 7), clipped(), none)) <= tolerance);
  }
}

TEST_CASE("the gradients of recomputed rows are computed by tiles", "[cuda]") {
  const Index n = 200;
  for (const cuda::Engine engine : {cuda::Engine::fused, cuda::Engine::cufft})
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const float last_bias : {20.0f, -20.0f}) {
        INFO(name(engine) << (direction == Direction::causal ? ", causal" : "") << ", last bias " << last_bias);
        const PlanCase x{{.n_q = n, .n_k = n, .d_v = 20}, {.engine = engine, .gradients = true}, 16};
        const Attention steep(orf<float>(16, 24, 7),
                              RelativePosition<float>(Vector<float>::LinSpaced(399, 0, last_bias)),
                              {.direction = direction});
        CHECK(gradient_error(x, steep) <= tolerance);
      }
}

TEST_CASE("heads may have 256 channels: gradients", "[cuda]") {
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded})
    for (const Index d : {Index{65}, Index{256}}) {
      const PlanCase x{{.n_q = 40, .n_k = 70, .d_v = 150}, {.engine = engine, .gradients = true}, d};
      INFO(name(engine) << ", d " << d);
      CHECK(gradient_error(x, Attention(orf<float>(d, 100, 7), clipped())) <= 2 * tolerance);
    }
}

TEST_CASE("gradients of lags outside a band are exact", "[cuda]") {
  // many chunks before and after the band
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const PlanCase x{
        {.n_q = 700, .n_k = 900, .d_v = 3, .offset = 100}, {.engine = cuda::Engine::banded, .gradients = true}, 4};
    CHECK(gradient_error(x, Attention(orf<float>(4, 5, 7), clipped(3), {.direction = direction})) <= tolerance);
    CHECK(gradient_error(x,
                         Attention(orf<float>(4, 5, 7), t5_position<float>(normal_vector<float>(32, 3), direction, 100),
                                   {.direction = direction})) <= tolerance);
  }
}

TEST_CASE("correlations work with slabs of any size", "[cuda]") {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{20000}}) {
    const PlanCase x{
        {.n_q = 40, .n_k = 50, .d_v = 5}, {.engine = cuda::Engine::cufft, .gradients = true, .slab_bytes = bytes}, 6};
    INFO(bytes << " bytes");
    CHECK(gradient_error(x, Attention(orf<float>(6, 7, 7), clipped())) <= tolerance);
  }
}

TEST_CASE("gradients support 16-bit storage", "[cuda]") {
  const PlanCase x{{.n_q = 90, .n_k = 90, .d_v = 5}, {.engine = cuda::Engine::direct, .gradients = true}, 6};
  const Attention attention(orf<float>(6, 16, 7), clipped());
  CHECK(gradient_error<__half>(x, attention) <= 0x1p-11);
  CHECK(gradient_error<__nv_bfloat16>(x, attention) <= 0x1p-8);
}

TEMPLATE_TEST_CASE("gradients on tensor cores have the precision of their type", "[cuda]", __half, __nv_bfloat16) {
  if (!can_multiply<TestType>()) return;
  // two factors of a weight, the weight, its third factor and in tails a state are rounded, and then the gradient; the
  // errors of D and y, of which G consists, are those of the forward pass: 4 u, and 8 u of the largest |v|
  constexpr double u = std::is_same_v<TestType, __half> ? 0x1p-11 : 0x1p-8, of_products = 18.2 * u + tolerance;
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      INFO(name(engine) << (direction == Direction::causal ? ", causal" : ""));
      const cuda::PlanOptions options{.engine = engine, .gradients = true, .gradients_on_tensor_cores = true};
      for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{1, 1}, {65, 65}, {40, 300}, {300, 150}}) {
        INFO("n_q " << n_q << ", n_k " << n_k);
        const PlanCase x{{.n_q = n_q, .n_k = n_k, .d_v = 20}, options, 16};
        CHECK(gradient_error<TestType>(x, Attention(orf<float>(16, 24, 7), clipped(), {.direction = direction})) <=
              of_products);
        CHECK(gradient_error<TestType>(x, Attention(orf<float>(16, 24, 7), AlibiPosition<float>(0.05f),
                                                    {.direction = direction})) <= of_products);
      }
      const PlanCase x{{.n_q = 150, .n_k = 90, .d_v = 64, .offset = 3}, options, 6};
      CHECK(gradient_error<TestType>(x, Attention(EluFeatures<float>(6), clipped(), {.direction = direction})) <=
            of_products);
    }
}

TEMPLATE_TEST_CASE("gradients on tensor cores of several heads and sequences", "[cuda]", __half, __nv_bfloat16) {
  if (!can_multiply<TestType>()) return;
  // as above; y has an error of 8 u of the largest |v|
  constexpr double u = std::is_same_v<TestType, __half> ? 0x1p-11 : 0x1p-8;
  HeadsCase x({.batch = 2, .heads = 2, .n_q = 65, .n_k = 70, .d_v = 20}, 16);
  for (Matrix<float>* inputs : {&x.q, &x.k, &x.v, &x.dy})
    *inputs = as_floats(stored<TestType>(*inputs), inputs->rows(), inputs->cols());
  const Attention attention(orf<float>(16, 24, 7), clipped());
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
    const cuda::PlanOptions options{.engine = engine, .gradients = true, .gradients_on_tensor_cores = true};
    const cuda::AttentionPlan<TestType> plan(cuda::model_of(attention), x.shape, options);
    INFO(name(engine));
    check_heads(
        x, x.results(plan), [&](Index) { return attention; }, 8 * u, 18.2 * u + tolerance);
  }
}

TEMPLATE_TEST_CASE("gradients on tensor cores are near those in float, beside exact pairs", "[cuda]", __half,
                   __nv_bfloat16) {
  if (!can_multiply<TestType>()) return;
  // in units of the largest entry, which may be smaller than the terms that an entry is a sum of
  constexpr double u = std::is_same_v<TestType, __half> ? 0x1p-11 : 0x1p-8, of_entries = 64 * u;
  const Matrix<float> dy = normal<float>(100, 20, 9);
  const auto difference_of = [](const auto& got, const auto& expected) {
    return static_cast<double>((got - expected).cwiseAbs().maxCoeff() / expected.cwiseAbs().maxCoeff());
  };
  const auto check = [&](const auto& attention, const cuda::PlanOptions& options) {
    PlanCase in_float{{.n_q = 100, .n_k = 150, .d_v = 20}, options, 16};
    in_float.q *= 4, in_float.k *= 4;
    PlanCase on_tensor_cores = in_float;
    on_tensor_cores.options.gradients_on_tensor_cores = true;
    const auto plan = in_float.template plan<TestType>(attention),
               tensor_plan = on_tensor_cores.template plan<TestType>(attention);
    const Gradients<float> expected = gradients_of<TestType>(in_float, *plan, dy),
                           got = gradients_of<TestType>(on_tensor_cores, *tensor_plan, dy);
    CHECK(difference_of(got.queries, expected.queries) <= of_entries);
    CHECK(difference_of(got.keys, expected.keys) <= of_entries);
    CHECK(difference_of(got.values, expected.values) <= of_entries);
    // of the keys that are near no query, which may be far smaller
    CHECK(difference_of(got.keys.bottomRows(40), expected.keys.bottomRows(40)) <= of_entries);
    CHECK(difference_of(got.values.bottomRows(40), expected.values.bottomRows(40)) <= of_entries);
  };
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded})
    for (const auto& [near, sinks] : std::vector<std::pair<Index, Index>>{{0, 0}, {4, 0}, {0, 2}}) {
      INFO(name(engine) << ", near " << near << ", sinks " << sinks);
      const cuda::PlanOptions options{.engine = engine, .gradients = true};
      check(Attention(orf<float>(16, 32, 7), clipped(), {.near = near, .sinks = sinks}), options);
      // the logarithms of the features of a row are far from those of its exact pairs
      check(Attention(orf<float>(16, 32, 7), clipped(),
                      {.normalization = Normalization::none(), .near = near, .sinks = sinks}),
            options);
    }
}

TEST_CASE("gradients are affected only by keys that the row attends to", "[cuda]") {
  const Attention causal(orf<float>(6, 16, 7), clipped(), {.direction = Direction::causal});
  const Matrix<float> dy = normal<float>(300, 5, 9);
  for (const cuda::Engine engine : cuda_engines) {
    PlanCase x{{.n_q = 300, .n_k = 300, .d_v = 5}, {.engine = engine, .gradients = true}, 6};
    const auto plan = x.plan(causal);
    const Gradients<float> before = gradients_of(x, *plan, dy);
    const double magnitude = gradient_magnitudes(causal, x.q, x.k, x.v, dy, 0).queries;
    x.k.bottomRows(150).setConstant(nan);
    x.v.bottomRows(150).setConstant(nan);
    const Gradients<float> after = gradients_of(x, *plan, dy);
    INFO(name(engine));
    // with an FFT engine all rows are recomputed by tiles
    const Matrix<float> change = (after.queries - before.queries).topRows(150);
    CHECK(static_cast<double>(change.cwiseAbs().maxCoeff()) <= tolerance * magnitude);
    CHECK(after.queries.bottomRows(150).array().isNaN().all());
    CHECK(after.bias.bottomRows(20).isZero(0));  // lags that no query attends to
  }
}

TEST_CASE("gradients are zero for rows that attend to no key, and for padding", "[cuda]") {
  const Attention causal(orf<float>(6, 16, 7), clipped(), {.direction = Direction::causal});
  for (const cuda::Engine engine : cuda_engines) {
    PlanCase x{{.n_q = 70, .n_k = 60, .d_v = 5, .offset = -10}, {.engine = engine, .gradients = true}, 6};
    INFO(name(engine));
    CHECK(gradient_error(x, causal) <= tolerance);
    x.k.row(7).setConstant(nan);
    x.v.row(7).setConstant(nan);
    std::vector<unsigned char> key_mask(60, 1);
    key_mask[7] = 0;
    const Gradients<float> g = gradients_of(x, *x.plan(causal), normal<float>(70, 5, 9), KeyMask(key_mask).call());
    CHECK(g.queries.topRows(10).isZero(0));
    CHECK((g.keys.row(7).isZero(0) && g.values.row(7).isZero(0)));
    CHECK((g.keys.allFinite() && g.values.allFinite()));
    CHECK(g.queries.allFinite());
    CHECK(g.bias.allFinite());
  }
}

TEST_CASE("a position that heads share has the sum of their gradients", "[cuda]") {
  const HeadsCase x({.batch = 2, .heads = 3, .n_q = 70, .n_k = 70, .d_v = 5}, 6);
  for (const bool shared : {false, true}) {
    cuda::AttentionModel model;
    std::vector<Attention<PositiveFeatures<float>, RelativePosition<float>>> attentions;
    for (std::uint64_t h = 0; h < 3; ++h) {
      // with a steep bias rows fail the FFT error bound or underflow, in other heads none does
      const Vector<float> bias =
          shared || h == 1 ? Vector<float>(Vector<float>::LinSpaced(41, 0, 200)) : normal_vector<float>(41, 10 + h);
      attentions.emplace_back(orf<float>(6, 16, h), RelativePosition<float>(bias));
      model.features.push_back(cuda::model_of(attentions.back().features()));
      if (!shared || h == 0) model.positions.push_back(cuda::model_of(attentions.back().position()));
    }
    for (const cuda::Engine engine : cuda_engines) {
      const cuda::AttentionPlan<float> plan(model, x.shape, {.engine = engine, .gradients = true});
      INFO(name(engine) << (shared ? ", shared" : ""));
      const auto of_head = [&](Index h) { return attentions[static_cast<std::size_t>(h)]; };
      check_heads(x, x.results(plan), of_head, 0.5e-4, tolerance);
    }
  }
}

TEST_CASE("gradients support sizes of 0, and refuse wrong shapes", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const auto& [n_q, n_k, d_v] : std::vector<std::array<Index, 3>>{{0, 0, 5}, {0, 7, 5}, {7, 0, 5}, {7, 7, 0}}) {
      const PlanCase x{{.n_q = n_q, .n_k = n_k, .d_v = d_v}, {.engine = engine, .gradients = true}, 6};
      INFO(name(engine) << ", n_q " << n_q << ", n_k " << n_k << ", d_v " << d_v);
      const Gradients<float> g =
          gradients_of(x, *x.plan(Attention(orf<float>(6, 16, 7), clipped())), Matrix<float>::Zero(n_q, d_v));
      CHECK((g.queries.isZero(0) && g.keys.isZero(0) && g.values.isZero(0) && g.bias.isZero(0)));
    }
  const PlanCase x{{.n_q = 8, .n_k = 8, .d_v = 3}, {}, 4};
  const Attention attention(orf<float>(4, 5, 7), clipped());
  check_invalid([&] { gradients_of(x, *x.plan(attention), Matrix<float>::Zero(8, 3)); },
                {"gradients: expected a plan with PlanOptions::gradients"});
  const PlanCase y{{.n_q = 8, .n_k = 8, .d_v = 3}, {.gradients = true}, 4};
  check_invalid([&] { gradients_of(y, *y.plan(attention), Matrix<float>::Zero(8, 4)); },
                {"dy: expected 1 x 1 x 8 x 3"});
}

}  // namespace nprf::test::cuda_plan_backward
