// SPDX-License-Identifier: MIT
//
// The gradients of rows that are recomputed from their features or by exact softmax, without a near field.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "cuda/gradient_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_attention_exact_backward_rows {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// for sums of terms of one sign: the rounding errors of features, products and weights, here and on the CPU
constexpr double tolerance = 20 * static_cast<double>(std::numeric_limits<float>::epsilon());

PlanCase plan_case(const cuda::PlanShape& shape, cuda::Engine engine, Index d = 6) {
  return {shape, {.engine = engine, .gradients = true}, d};
}

/// The error of the gradients, of which forward recomputes at least so many rows from their features.
template <class S = float, class F, class P>
double error(const PlanCase& x, const Attention<F, P>& attention, int min_rows) {
  cuda::Counts counts{};
  x.template result<S>(attention, &counts);
  INFO(name(x.options.engine) << ", recomputed rows " << counts.repaired_rows);
  CHECK(counts.repaired_rows >= min_rows);
  CHECK((counts.softmax_rows == 0 && counts.imprecise_rows == 0));
  return gradient_error<S>(x, attention);
}

/// Biases that rise (sign 1) or fall (sign -1) by 100 every `width` lags: a row's sum is dominated by the keys of one
/// step.
RelativePosition<float> stairs(Index reach, Index width, float sign) {
  Vector<float> b = 0.3f * normal_vector<float>(2 * reach + 1, 5);
  for (Index at = 0; at < b.size(); ++at) b[at] += sign * 100 * static_cast<float>(at / width);
  return RelativePosition<float>(b);
}

RelativePosition<float> ramp(Index reach, float step) {
  return RelativePosition<float>(Vector<float>::LinSpaced(2 * reach + 1, 0, step * static_cast<float>(2 * reach)));
}

HyperbolicFeatures<float> hyperbolic(Index d, Index m) {
  return HyperbolicFeatures<float>({.input_dim = d, .num_features = m});
}

const AttentionOptions causal{.direction = Direction::causal}, none{.normalization = Normalization::none()};

}  // namespace

TEST_CASE("gradients of rows whose weights underflow agree with the CPU's for every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x = plan_case({.n_q = 100, .n_k = 80, .d_v = 3, .offset = 3}, engine);
    CHECK(error(x, Attention(orf<float>(6, 8, 7), stairs(110, 30, 1)), 50) <= tolerance);
    CHECK(error(x, Attention(hyperbolic(6, 4), stairs(110, 30, -1)), 50) <= tolerance);
    const PlanCase wide = plan_case({.n_q = 40, .n_k = 70, .d_v = 70}, engine, 70);
    CHECK(error(wide, Attention(orf<float>(70, 40, 7), stairs(70, 15, 1)), 20) <= tolerance);
    const PlanCase distant = plan_case({.n_q = 200, .n_k = 70, .d_v = 5}, engine);
    CHECK(error(distant, Attention(orf<float>(6, 16, 7), AlibiPosition<float>(1.5f)), 80) <= tolerance);
  }
}

TEST_CASE("gradients of recomputed rows are accurate at any height of a linear bias", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x = plan_case({.n_q = 100, .n_k = 100, .d_v = 3}, engine);
    CHECK(error(x, Attention(orf<float>(6, 16, 7), ramp(100, 0.7f)), 30) <= tolerance);
    CHECK(error(x, Attention(hyperbolic(6, 9), ramp(100, -1.5f)), 60) <= tolerance);
    CHECK(error(x, Attention(orf<float>(6, 16, 7), ramp(100, -0.7f), causal), 30) <= tolerance);
  }
}

TEST_CASE("gradients of recomputed rows of features that are no exponentials", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x = plan_case({.n_q = 70, .n_k = 70, .d_v = 70}, engine);
    CHECK(error(x, Attention(EluFeatures<float>(6), stairs(70, 20, 1)), 20) <= tolerance);
    CHECK(error(x, Attention(EluFeatures<float>(6), ramp(70, -1.5f), none), 20) <= tolerance);
  }
  const TrigonometricFeatures<float> trigonometric({.input_dim = 6, .num_features = 200});
  const PlanCase x = plan_case({.n_q = 70, .n_k = 70, .d_v = 5}, cuda::Engine::direct);
  CHECK(error(x, Attention(trigonometric, stairs(70, 20, 1)), 20) <= tolerance);
}

TEST_CASE("gradients of rows whose features underflow are those of exact softmax", "[cuda]") {
  const Index n = 90;
  Vector<float> table = 0.3f * normal_vector<float>(2 * n + 1, 5);
  for (Index at = 0; at < table.size(); at += 2) table[at] = -std::numeric_limits<float>::infinity();
  const RelativePosition<double> halved(table.cast<double>());
  for (const cuda::Engine engine : cuda_engines) {
    // half of the rows attend to key 7, beside whose features all others underflow
    PlanCase x = plan_case({.n_q = n, .n_k = n, .d_v = 70}, engine);
    x.k *= 20;
    x.k.row(7).setZero();
    const Matrix<float> dy = normal<float>(n, 70, 9);
    const auto check = [&](const auto& map) {
      const Attention by_features(map, halved, none),
          by_softmax(map, halved, {.normalization = Normalization::none(), .near = n});
      cuda::Counts counts{};
      x.result(by_features, &counts);
      INFO(name(engine) << ", rows by softmax " << counts.softmax_rows);
      CHECK(counts.softmax_rows == n / 2);
      std::array<Gradients<double>, 2> of;  // of both halves, whose sums are the gradients
      for (const Index odd : {0, 1}) {
        Matrix<double> of_half = dy.cast<double>();
        for (Index i = 1 - odd; i < n; i += 2) of_half.row(i).setZero();
        Saved<double> saved;
        const auto& attention = odd ? by_softmax : by_features;
        attention.forward(x.q.cast<double>(), x.k.cast<double>(), x.v.cast<double>(), saved);
        of[static_cast<std::size_t>(odd)] = attention.backward(saved, of_half);
      }
      LargestDifference worst;
      const auto compare = [&](const char* what, const Matrix<float>& got, const auto& a, const auto& b) {
        const Matrix<double> expected = a + b;
        worst.compare(what, got, expected, expected.cwiseAbs().maxCoeff());
      };
      const Gradients<float> got = gradients_of(x, *x.plan(by_features), dy);
      compare("dq", got.queries, of[0].queries, of[1].queries);
      compare("dk", got.keys, of[0].keys, of[1].keys);
      compare("dv", got.values, of[0].values, of[1].values);
      compare("bias", got.bias, of[0].bias, of[1].bias);
      CHECK(worst.value() <= 30 * tolerance);  // of exponents of about 50
    };
    check(orf<double>(6, 16, 7));
    check(HyperbolicFeatures<double>({.input_dim = 6, .num_features = 9}));
  }
}

TEST_CASE("gradients of recomputed rows can be stored in half precision", "[cuda]") {
  const PlanCase x = plan_case({.n_q = 70, .n_k = 70, .d_v = 5}, cuda::Engine::direct);
  CHECK(error<__half>(x, Attention(orf<float>(6, 16, 7), stairs(70, 20, 1)), 40) <= 0x1p-11);
}

TEST_CASE("gradients of recomputed rows are affected only by keys that the row attends to", "[cuda]") {
  PlanCase x = plan_case({.n_q = 90, .n_k = 90, .d_v = 5}, cuda::Engine::direct);
  const auto plan = x.plan(Attention(orf<float>(6, 16, 7), stairs(90, 30, -1), causal));
  const Matrix<float> dy = normal<float>(90, 5, 9);
  cuda::Counts counts{};
  x.result(*plan, {}, &counts);
  CHECK(counts.repaired_rows >= 30);  // rows at the start
  const Gradients<float> before = gradients_of(x, *plan, dy);
  x.k.bottomRows(60).setConstant(nan);
  x.v.bottomRows(60).setConstant(nan);
  const Gradients<float> after = gradients_of(x, *plan, dy);
  CHECK(!before.queries.topRows(30).isZero(0));
  CHECK(after.queries.topRows(30) == before.queries.topRows(30));
  CHECK(after.queries.bottomRows(60).array().isNaN().all());
  // padding takes no part
  std::vector<unsigned char> key_mask(90, 1);
  std::fill(key_mask.begin() + 30, key_mask.end(), 0);
  const Gradients<float> padded = gradients_of(x, *plan, dy, KeyMask(key_mask).call());
  CHECK(padded.queries.topRows(30) == before.queries.topRows(30));
  CHECK((padded.queries.allFinite() && padded.keys.allFinite() && padded.values.allFinite()));
  CHECK((padded.keys.bottomRows(60).isZero(0) && padded.values.bottomRows(60).isZero(0)));
}

TEST_CASE("gradients of recomputed rows are zero without columns", "[cuda]") {
  const PlanCase x = plan_case({.n_q = 70, .n_k = 70, .d_v = 0}, cuda::Engine::direct);
  const Attention attention(orf<float>(6, 16, 7), stairs(70, 20, 1));
  x.result(attention);
  const Gradients<float> g = gradients_of(x, *x.plan(attention), Matrix<float>(70, 0));
  CHECK((g.queries.isZero(0) && g.keys.isZero(0) && g.values.isZero(0) && g.bias.isZero(0)));
}

}  // namespace nprf::test::cuda_attention_exact_backward_rows
