// SPDX-License-Identifier: MIT
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

/// Attention sinks: the first keys of a sequence, which have the weights of exact softmax for every query.
namespace nprf::test::cuda_plan_attention_plan_sinks {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
constexpr double tolerance = 40 * eps;            // of y, as in near_sums.test.cpp
constexpr double gradient_tolerance = 100 * eps;  // as in exact/backward.test.cpp
constexpr double no_tolerance = std::numeric_limits<double>::infinity();

RelativePosition<float> clipped() { return RelativePosition<float>(normal_vector<float>(41, 5)); }
GridPosition<float> grid(Index extra) { return {5, 7, normal<float>(9, 13, 5), normal<float>(extra, extra + 2, 6)}; }

/// The error of the gradients, of which those of biases are compared with a tenth of their terms: that of an FFT is.
template <class F, class P>
double gradient_error_of(const PlanCase& x, const Attention<F, P>& attention) {
  return relative_gradient_error(x, attention, 0.1);
}

}  // namespace

TEST_CASE("exact pairs keep their digits however far their biases are below the largest of all", "[cuda]") {
  constexpr Index n = 80;
  for (const float low : {-1e5f, -1e9f, -1e16f, std::numeric_limits<float>::lowest()})
    for (const bool has_peak : {false, true}) {
      Vector<float> table = normal_vector<float>(2 * n - 1, 5);
      if (has_peak)  // to which the first queries do not attend
        table[n - 1 - 30] = -low;
      else  // the first queries attend to no other lags
        table.segment(n - 20, 20).setConstant(low);
      for (const auto& [near, sinks] : std::vector<std::pair<Index, Index>>{{0, n}, {n, 0}, {5, n}}) {
        INFO("low " << low << (has_peak ? ", peak" : "") << ", near " << near << ", sinks " << sinks);
        const Attention attention(orf<float>(6, 16, 7), RelativePosition<float>(table),
                                  {.direction = Direction::causal, .near = near, .sinks = sinks});
        const PlanCase x{{.n_q = n, .n_k = n, .d_v = 5}, {.engine = cuda::Engine::direct, .gradients = true}, 6};
        CHECK(x.error_beyond_fft(attention) <= tolerance);
        CHECK(gradient_error_of(x, attention) <= gradient_tolerance);
      }
    }
}

TEST_CASE("attention sinks and their gradients agree with the CPU's for every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const auto& [near, sinks] : std::vector<std::pair<Index, Index>>{{0, 1}, {0, 70}, {7, 3}, {0, 1000}}) {
        INFO(name(engine) << (direction == Direction::causal ? ", causal" : "") << ", near " << near << ", sinks "
                          << sinks);
        const AttentionOptions options{
            .direction = direction, .normalization = Normalization::unit(2), .near = near, .sinks = sinks};
        const cuda::PlanOptions of_plan{.engine = engine, .gradients = true, .tolerance = no_tolerance};
        const PlanCase x{{.n_q = 90, .n_k = 130, .d_v = 5, .offset = 3}, of_plan, 6},
            wide{{.n_q = 130, .n_k = 70, .d_v = 70, .offset = -20}, of_plan, 40};
        const Attention by_table(orf<float>(6, 16, 7), clipped(), options);
        const Attention by_alibi(orf<float>(40, 16, 7), AlibiPosition<float>(0.1f), options);
        CHECK(x.error_beyond_fft(by_table) <= tolerance);
        CHECK(wide.error_beyond_fft(by_alibi) <= tolerance);
        // an FFT computes the first rows of causal attention with large errors
        if (uses_fft(engine) && direction == Direction::causal) continue;
        CHECK(gradient_error_of(x, by_table) <= gradient_tolerance);
        CHECK(gradient_error_of(wide, by_alibi) <= gradient_tolerance);
        CHECK(gradient_error_of(x, Attention(TaylorFeatures<float>({.input_dim = 6, .directions = 3}), clipped(),
                                             {.direction = direction, .near = near, .sinks = sinks})) <=
              gradient_tolerance);
      }
}

TEST_CASE("attention sinks work with all feature maps that estimate exp", "[cuda]") {
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::fused}) {
    const PlanCase x{{.n_q = 90, .n_k = 90, .d_v = 5}, {.engine = engine, .tolerance = no_tolerance}, 6};
    INFO(name(engine));
    for (const AttentionOptions& options :
         {AttentionOptions{.sinks = 2}, AttentionOptions{.normalization = Normalization::none(), .sinks = 2}}) {
      CHECK(x.error_beyond_fft(Attention(orf<float>(6, 16, 7), clipped(), options)) <= tolerance);
      CHECK(x.error_beyond_fft(Attention(HyperbolicFeatures<float>({.input_dim = 6, .num_features = 9}), clipped(),
                                         options)) <= tolerance);
      CHECK(x.error_beyond_fft(
                Attention(TaylorFeatures<float>({.input_dim = 6, .directions = 3}), clipped(), options)) <= tolerance);
    }
  }
}

TEST_CASE("the first tokens of a grid may be sinks, among them tokens without a slot", "[cuda]") {
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::cufft})
    for (const Index extra : {0, 2})
      for (const Index sinks : {1, 4})
        for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
          const Index n = extra + 5 * 7;
          INFO(name(engine) << ", " << extra << " extra tokens, sinks " << sinks
                            << (direction == Direction::causal ? ", causal" : ""));
          const PlanCase x{
              {.n_q = n, .n_k = n, .d_v = 5}, {.engine = engine, .gradients = true, .tolerance = no_tolerance}, 6};
          const Attention attention(orf<float>(6, 16, 7), grid(extra),
                                    {.direction = direction, .near = 2, .sinks = sinks});
          CHECK(x.error_beyond_fft(attention) <= tolerance);
          // an FFT computes the first rows of causal attention with large errors
          if (uses_fft(engine) && direction == Direction::causal) continue;
          CHECK(gradient_error_of(x, attention) <= gradient_tolerance);
        }
}

TEST_CASE("padding is no sink, and a sink that is NaN affects the rows that attend to it", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr Index n = 130;
  const Attention causal(orf<float>(6, 16, 7), clipped(), {.direction = Direction::causal, .near = 4, .sinks = 3});
  std::vector<unsigned char> keys(n, 1);
  std::fill_n(keys.begin(), 65, 0);  // more than a tile of keys
  keys[66] = 0;
  const KeyMask mask(keys);
  const cuda::PlanCall call = mask.call();
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
    PlanCase x{{.n_q = n, .n_k = n, .d_v = 5}, {.engine = engine, .gradients = true}, 6};
    x.k.topRows(65).setConstant(nan);
    const auto plan = x.plan(causal);
    const Matrix<float> y = x.result(*plan, call),
                        expected = causal(x.q, x.k, x.v, {.key_mask = mask.on_cpu(), .tolerance = 1e-6});
    INFO(name(engine));
    CHECK(static_cast<double>((y - expected).cwiseAbs().maxCoeff()) <=
          tolerance * static_cast<double>(x.v.cwiseAbs().maxCoeff()));
    const Matrix<float> dy = normal<float>(n, 5, 9);
    Saved<float> saved;
    causal.forward(x.q, x.k, x.v, saved, {.key_mask = mask.on_cpu(), .tolerance = 1e-6});
    const Gradients<float> expected_gradients = causal.backward(saved, dy), got = gradients_of(x, *plan, dy, call);
    const auto size = [](const Matrix<float>& a) { return static_cast<double>(a.cwiseAbs().maxCoeff()); };
    CHECK(difference(got, expected_gradients,
                     {size(expected_gradients.queries), size(expected_gradients.keys), size(expected_gradients.values),
                      size(expected_gradients.bias)}) <= gradient_tolerance);
    x.k.row(68).setConstant(nan);  // the last sink: 65, 67 and 68
    const Matrix<float> after = x.result(*plan, call);
    CHECK(after.topRows(68) == y.topRows(68));
    CHECK(after.bottomRows(n - 68).array().isNaN().all());
  }
}

TEMPLATE_TEST_CASE("the sinks of 16-bit storage are in float", "[cuda]", __half, __nv_bfloat16) {
  const PlanCase x{{.n_q = 90, .n_k = 130, .d_v = 5}, {.engine = cuda::Engine::direct}, 6};
  // y is rounded, and if all keys are sinks nothing else
  CHECK(x.error<TestType>(Attention(orf<float>(6, 16, 7), clipped(), {.sinks = 1000})) <= 0x1p-8);
  CHECK(x.error<TestType>(Attention(orf<float>(6, 16, 7), clipped(), {.sinks = 3})) <= 8 * 0x1p-8);
}

TEST_CASE("a plan refuses sinks of features that do not estimate exp", "[cuda]") {
  cuda::AttentionModel model = cuda::model_of(Attention(EluFeatures<float>(4), clipped()));
  model.sinks = 3;
  check_invalid([&] { cuda::AttentionPlan<float>(model, {.n_q = 8, .n_k = 8, .d_v = 3}); },
                {"sinks: expected 0 or more, or 0 for elu features, got 3"});
}

}  // namespace nprf::test::cuda_plan_attention_plan_sinks
