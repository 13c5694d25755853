// SPDX-License-Identifier: MIT
#include "nprf/cuda/feature_map/constants.cuh"

#include <limits>
#include <utility>

#include "cuda/gradient_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_feature_map_constants_centring {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

RelativePosition<float> clipped() { return RelativePosition<float>(normal_vector<float>(41, 5)); }

// rows with other means than 0, and the constants of the rows as attention normalises them
struct CentredCase : PlanCase {
  CentredCase(const cuda::PlanShape& shape_, const cuda::PlanOptions& options_, Index d)
      : PlanCase(shape_, options_, d) {
    q = 0.5f * q + Matrix<float>::Constant(q.rows(), d, 0.4f);
    k = 0.5f * k - Matrix<float>::Constant(k.rows(), d, 0.3f);
  }
  Centring<float> constants() const {
    const float s = std::pow(static_cast<float>(q.cols()), -0.25f);
    return balance<float>(Matrix<float>(s * q), Matrix<float>(s * k)).constants;
  }
  template <class F>
  Attention<Centred<F>, RelativePosition<float>> attention(F features, Direction direction) const {
    return {Centred<F>(std::move(features), constants()),
            clipped(),
            {.direction = direction, .normalization = Normalization::none()}};
  }
};

}  // namespace

TEST_CASE("centred features agree with the CPU's for every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      INFO(name(engine) << (direction == Direction::causal ? ", causal" : ""));
      const CentredCase x{{.n_q = 90, .n_k = 130, .d_v = 5, .offset = 3}, {.engine = engine}, 6};
      // of y: the errors of exponents of a few units, which the factors of the centring are part of, and of sums
      CHECK(x.error(x.attention(orf<float>(6, 16, 7), direction)) <= 40 * eps);
      CHECK(x.error(x.attention(HyperbolicFeatures<float>({.input_dim = 6, .num_features = 9}), direction)) <=
            40 * eps);
      if (uses_fft(engine) && direction == Direction::causal) continue;  // in which rows fail the FFT error bound
      CHECK(x.error(x.attention(TaylorFeatures<float>({.input_dim = 6, .directions = 4}), direction)) <= 40 * eps);
    }
}

TEST_CASE("the gradients of centred features agree with the CPU's for every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const CentredCase x{{.n_q = 70, .n_k = 90, .d_v = 5, .offset = 3}, {.engine = engine, .gradients = true}, 6};
    INFO(name(engine));
    const Direction causal = Direction::causal;
    CHECK(gradient_error(x, x.attention(orf<float>(6, 16, 7), causal)) <= 10 * eps);
    CHECK(gradient_error(x, x.attention(HyperbolicFeatures<float>({.input_dim = 6, .num_features = 9}), causal)) <=
          10 * eps);
    CHECK(gradient_error(x, x.attention(TaylorFeatures<float>({.input_dim = 6, .directions = 4}),
                                        Direction::bidirectional)) <= 10 * eps);
  }
  const CentredCase wide{{.n_q = 70, .n_k = 40, .d_v = 3}, {.engine = cuda::Engine::direct, .gradients = true}, 150};
  CHECK(gradient_error(wide, wide.attention(orf<float>(150, 40, 7), Direction::bidirectional)) <= 10 * eps);
  CHECK(gradient_error(wide, wide.attention(TaylorFeatures<float>({.input_dim = 150}), Direction::bidirectional)) <=
        10 * eps);
}

TEST_CASE("centred queries and keys of one norm: features and gradients", "[cuda]") {
  const CentredCase x{{.n_q = 70, .n_k = 90, .d_v = 5}, {.engine = cuda::Engine::direct, .gradients = true}, 6};
  const Attention attention(Centred(orf<float>(6, 16, 7), x.constants()), clipped(),
                            {.normalization = Normalization::unit(2)});
  CHECK(x.error(attention) <= 40 * eps);
  CHECK(gradient_error(x, attention) <= 10 * eps);
}

TEST_CASE("rows whose centred features underflow are those of exact softmax", "[cuda]") {
  // keys far from the others, to which alone the first queries attend
  CentredCase x{{.n_q = 70, .n_k = 70, .d_v = 5}, {.engine = cuda::Engine::direct, .gradients = true}, 6};
  const Centred map(orf<float>(6, 16, 7), x.constants());
  x.k.topRows(3) *= 40.0f;
  AttentionOptions options{.direction = Direction::causal, .normalization = Normalization::none()};
  const Attention attention(map, clipped(), options);
  options.near = 70;
  const Attention softmax(map, clipped(), options);
  cuda::Counts counts{};
  const Matrix<float> y = x.result(attention, &counts), dy = normal<float>(70, 5, 9);
  CHECK(counts.softmax_rows == 3);
  Saved<float> saved;
  const Matrix<float> expected = softmax.forward(x.q, x.k, x.v, saved).topRows(3),
                      dq = softmax.backward(saved, dy).queries.topRows(3);
  const double tolerance = 400 * eps;  // exponents of about 50
  CHECK(worst_ratio(y.topRows(3), expected, tolerance * x.v.cwiseAbs().maxCoeff()) <= 1);
  CHECK(worst_ratio(gradients_of(x, *x.plan(attention), dy).queries.topRows(3), dq,
                    tolerance * dq.cwiseAbs().maxCoeff()) <= 1);
}

TEST_CASE("16-bit storage of centred features has the precision of bfloat16", "[cuda]") {
  const CentredCase x{{.n_q = 90, .n_k = 130, .d_v = 5}, {.engine = cuda::Engine::direct}, 6};
  CHECK(x.error<__nv_bfloat16>(x.attention(orf<float>(6, 16, 7), Direction::causal)) <= 8 * 0x1p-8);
}

TEST_CASE("the constants of a centring must have the shapes of the map", "[cuda]") {
  const CentredCase x{{.n_q = 8, .n_k = 8, .d_v = 3}, {}, 4};
  const cuda::AttentionModel valid = cuda::model_of(x.attention(orf<float>(4, 5, 7), Direction::causal));
  const auto refused = [&](auto&& modify, const char* message) {
    cuda::AttentionModel bad = valid;
    modify(bad.features[0]);
    check_invalid([&] { cuda::AttentionPlan<float>(bad, {.n_q = 8, .n_k = 8, .d_v = 3}); }, {message});
  };
  refused([](auto& map) { map.centring.key_mean.pop_back(); }, "key_mean: expected 4 scalars, got 3");
  refused([](auto& map) { map.centring.key_axes.push_back(0); }, "key_axes: expected 16 scalars, got 17");
  refused([](auto& map) { map.kind = cuda::FeatureKind::elu, map.m = 0, map.projection.clear(); },
          "centring: expected a feature map that estimates exp, got elu");
}

}  // namespace nprf::test::cuda_feature_map_constants_centring
