// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/exact/recomputed_rows.cuh"

#include <limits>
#include <type_traits>

#include "cuda/gradient_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_attention_exact_recomputed_rows {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
constexpr float infinity = std::numeric_limits<float>::infinity();

Matrix<double> in_double(const Matrix<float>& x) { return x.cast<double>(); }

RelativePosition<double> ramp(Index n, float step) {
  return RelativePosition<double>(
      Vector<float>::LinSpaced(2 * n - 1, 0, step * static_cast<float>(2 * n - 2)).cast<double>());
}

// `attention` is in double, where weights do not underflow: the rows are those of features
template <class S = float, class F, class P>
void check_features(const PlanCase& x, const Attention<F, P>& attention, double tolerance, int min_rows) {
  static_assert(std::is_same_v<typename F::Scalar, double>);
  const auto as_stored = [](const Matrix<float>& a) { return in_double(as_floats(stored<S>(a), a.rows(), a.cols())); };
  cuda::Counts counts{};
  const Matrix<float> y = x.result<S>(attention, &counts);
  INFO(name(x.options.engine) << ", recomputed rows " << counts.repaired_rows);
  const Matrix<double> expected = attention(as_stored(x.q), as_stored(x.k), as_stored(x.v));
  CHECK(worst_ratio(in_double(y), expected, tolerance * x.v.cwiseAbs().maxCoeff()) <= 1);
  CHECK(counts.repaired_rows >= min_rows);
  CHECK((counts.softmax_rows == 0 && counts.imprecise_rows == 0));
  CHECK((counts.empty_rows == 0 && counts.indefinite_rows == 0));
}

}  // namespace

TEST_CASE("rows whose weights underflow are recomputed from their features by every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const float step : {0.7f, -4.0f}) {
      const Index n = 150;
      const PlanCase x{{.n_q = n, .n_k = n, .d_v = step < 0 ? 70 : 3}, {.engine = engine}, 6};
      INFO("step " << step);
      check_features(x, Attention(orf<double>(6, 16, 7), ramp(n, step)), 30 * eps, 50);
      check_features(x, Attention(HyperbolicFeatures<double>({.input_dim = 6, .num_features = 9}), ramp(n, step)),
                     30 * eps, 50);
      check_features(x, Attention(EluFeatures<double>(6), ramp(n, step), {.normalization = Normalization::none()}),
                     30 * eps, 50);
    }
}

TEST_CASE("ALiBi rows that attend only to distant keys are recomputed from their features", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = 300, .n_k = 90, .d_v = 5}, {.engine = engine}, 6};
    check_features(x, Attention(orf<double>(6, 40, 7), AlibiPosition<double>(1.5)), 30 * eps, 100);
    check_features(
        x, Attention(TrigonometricFeatures<double>({.input_dim = 6, .num_features = 200}), AlibiPosition<double>(1.5)),
        300 * eps, 100);
  }
}

TEMPLATE_TEST_CASE("recomputed rows of 16-bit storage", "[cuda]", __half, __nv_bfloat16) {
  const PlanCase x{{.n_q = 150, .n_k = 150, .d_v = 5}, {.engine = cuda::Engine::direct}, 16};
  constexpr double u = std::is_same_v<TestType, __half> ? 0x1p-11 : 0x1p-8;
  check_features<TestType>(x, Attention(orf<double>(16, 32, 7), ramp(150, 0.7f)), 8 * u, 50);
}

TEST_CASE("rows whose features underflow are those of exact softmax", "[cuda]") {
  const Index n = 150;
  Vector<float> table = Vector<float>::LinSpaced(2 * n - 1, -1, 1);
  for (Index at = 1; at < table.size(); at += 2) table[at] = -infinity;  // even lags, since lag 0 is at n - 1 = 149
  const RelativePosition<double> position(table.cast<double>());
  for (const cuda::Engine engine : cuda_engines) {
    // half of the rows attend to key 7, beside whose features all others underflow
    PlanCase x{{.n_q = n, .n_k = n, .d_v = 70}, {.engine = engine}, 6};
    x.q *= 20;
    x.k *= 20;
    x.k.row(7).setZero();
    const auto check = [&](const auto& map) {
      const Attention attention(map, position, {.normalization = Normalization::none()});
      cuda::Counts counts{};
      const Matrix<double> y = in_double(x.result(attention, &counts)), q = in_double(x.q), k = in_double(x.k),
                           v = in_double(x.v);
      const Matrix<double> softmax =
          reference::softmax_attention<double>(q, k, v, position, Direction::bidirectional, Normalization::none());
      Matrix<double> expected = attention(q, k, v);
      for (Index i = 1; i < n; i += 2) expected.row(i) = softmax.row(i);
      INFO(name(engine));
      // exponents are up to 30^2, and their rounding errors eps times that
      CHECK(worst_ratio(y, expected, 1000 * 30 * eps * x.v.cwiseAbs().maxCoeff()) <= 1);
      CHECK(counts.softmax_rows == n / 2);
      CHECK(counts.repaired_rows >= counts.softmax_rows);
      CHECK((counts.imprecise_rows == 0 && counts.empty_rows == 0 && counts.indefinite_rows == 0));
    };
    check(orf<double>(6, 16, 7));
    check(HyperbolicFeatures<double>({.input_dim = 6, .num_features = 9}));
  }
}

TEST_CASE("elu rows whose features leave the range of sums are zero and counted", "[cuda]") {
  const Index n = 90;
  for (const cuda::Engine engine : cuda_engines) {
    PlanCase x{{.n_q = n, .n_k = n, .d_v = 3}, {.engine = engine, .gradients = true}, 6};
    x.k.setConstant(-30);
    x.q.topRows(10).setConstant(-50);         // products of 10^-35,
    x.q.middleRows(10, 10).setConstant(-35);  // 10^-28, and of 10^-13 or more
    const Attention elu(EluFeatures<float>(6), NoPosition<float>(), {.normalization = Normalization::none()});
    cuda::Counts counts{};
    const Matrix<float> y = x.result(elu, &counts);
    INFO(name(engine));
    CHECK(y.topRows(10).isZero(0));
    CHECK((y - elu(x.q, x.k, x.v)).bottomRows(n - 10).cwiseAbs().maxCoeff() <= 30 * eps * x.v.cwiseAbs().maxCoeff());
    CHECK(counts.imprecise_rows == 10);
    if (!uses_fft(engine)) CHECK(counts.repaired_rows == 10);
    CHECK((counts.softmax_rows == 0 && counts.indefinite_rows == 0));
    CHECK(gradients_of(x, *x.plan(elu), x.v).queries.topRows(10).isZero(0));
  }
}

TEST_CASE("recomputed rows are affected only by NaNs that they attend to", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Index n = 300;
  const Attention causal(orf<float>(6, 16, 7), RelativePosition<float>(Vector<float>::LinSpaced(2 * n - 1, 0, -300)),
                         {.direction = Direction::causal});
  const Attention far(orf<float>(6, 16, 7), RelativePosition<float>(Vector<float>::Zero(2 * n - 1)),
                      {.direction = Direction::causal, .normalization = Normalization::none()});
  const auto check = [&](PlanCase x, const auto& attention) {
    cuda::Counts counts{};
    const Matrix<float> before = x.result(attention, &counts);
    REQUIRE(counts.repaired_rows > 80);  // rows at the start
    x.q.row(30).setConstant(nan);
    x.v.row(60).setConstant(nan);
    x.k.row(61).setConstant(nan);
    const Matrix<float> after = x.result(attention);
    for (Index i = 0; i < 80; ++i) {
      const bool is_affected = i == 30 || i >= 60;
      CHECK((is_affected ? after.row(i).array().isNaN().all() : after.row(i) == before.row(i)));
    }
    return counts;
  };
  PlanCase x{{.n_q = n, .n_k = n, .d_v = 3}, {.engine = cuda::Engine::direct}, 6};
  CHECK(check(x, causal).softmax_rows == 0);
  x.k.topRows(100) *= 20;  // features underflow beside those of later keys
  CHECK(check(x, far).softmax_rows > 80);
}

}  // namespace nprf::test::cuda_attention_exact_recomputed_rows
