// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/recompute_log_domain.cuh"

#include <algorithm>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/positive.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_attention_recompute_log_domain {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

// `attention` is in double, where features and weights do not underflow
template <class F, class P>
void check(const PlanCase& x, const Attention<F, P>& attention, double tolerance, int min_log_domain_rows) {
  static_assert(std::is_same_v<typename F::Scalar, double>);
  const auto in_double = [](const Matrix<float>& a) { return a.cast<double>().eval(); };
  cuda::Counts counts{};
  const Matrix<float> y = x.result(*x.plan(attention), {}, &counts);
  INFO(name(x.options.engine) << ", rows in the log domain " << counts.log_domain_rows);
  const Matrix<double> expected = attention(in_double(x.q), in_double(x.k), in_double(x.v));
  CHECK(worst_ratio(in_double(y), expected, tolerance * x.v.cwiseAbs().maxCoeff()) <= 1);
  CHECK(counts.log_domain_rows >= min_log_domain_rows);
  CHECK(counts.empty_rows == 0);
  CHECK(counts.indefinite_rows == 0);
}

}  // namespace

TEST_CASE("rows whose weights underflow are recomputed in the log domain by every engine", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const float step : {0.7f, -4.0f}) {
      const Index n = 150, d_v = step < 0 ? 70 : 3;
      const PlanCase x{{.n_q = n, .n_k = n, .d_v = d_v}, {.engine = engine}, 6};
      const RelativePosition<double> ramp(
          Vector<float>::LinSpaced(2 * n - 1, 0, step * static_cast<float>(2 * n - 2)).cast<double>());
      INFO("step " << step);
      if (step > 0)
        check(x, Attention(orf<double>(6, 16, 7), ramp), 30 * eps, 50);
      else
        check(x, Attention(HyperbolicFeatures<double>({.input_dim = 6, .num_features = 9}), ramp), 30 * eps, 50);
    }
}

TEST_CASE("ALiBi rows that attend only to distant keys are recomputed in the log domain", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = 300, .n_k = 90, .d_v = 5}, {.engine = engine}, 6};
    check(x, Attention(orf<double>(6, 40, 7), AlibiPosition<double>(1.5)), 30 * eps, 100);
  }
}

TEST_CASE("rows whose features underflow are recomputed in the log domain", "[cuda]") {
  // log-scales differ by about 30^2 / 2, and their rounding errors are eps times that
  for (const cuda::Engine engine : cuda_engines) {
    PlanCase x{{.n_q = 150, .n_k = 150, .d_v = 5}, {.engine = engine}, 6};
    x.q *= 20;
    x.k *= 20;
    x.k.row(7).setZero();  // its log-scale is far above all others, but the rows that underflow do not attend to it
    Vector<double> table = Vector<double>::Zero(299);
    for (Index lag = 0; lag < 299; ++lag)
      if ((lag - 149) % 2 == 0) table[lag] = -std::numeric_limits<double>::infinity();
    const AttentionOptions none{.normalization = Normalization::none()};
    check(x, Attention(orf<double>(6, 16, 7), RelativePosition<double>(table), none), 30 * eps * 1000, 50);
    check(x,
          Attention(HyperbolicFeatures<double>({.input_dim = 6, .num_features = 9}), RelativePosition<double>(table),
                    none),
          30 * eps * 1000, 50);
  }
}

TEST_CASE("non-exponential features have no log domain, and rows that underflow are counted", "[cuda]") {
  const Index n = 200;
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = n, .n_k = n, .d_v = 3}, {.engine = engine}, 6};
    const Attention attention(EluFeatures<float>(6), RelativePosition<float>(Vector<float>::LinSpaced(399, 0, 278)));
    cuda::Counts counts{};
    const Matrix<float> y = x.result(attention, &counts), expected = attention(x.q, x.k, x.v);
    int right = 0, zero = 0;
    for (Index i = 0; i < n; ++i) {
      right += static_cast<double>((y.row(i) - expected.row(i)).cwiseAbs().maxCoeff()) <= 0.5e-4;
      zero += y.row(i).isZero(0);
    }
    INFO(name(engine));
    CHECK(counts.log_domain_rows == 0);
    CHECK(counts.empty_rows == 0);
    CHECK(counts.indefinite_rows == zero);  // D is 0
    CHECK(counts.imprecise_rows > zero);
    CHECK(right >= n - counts.imprecise_rows);
  }
}

TEST_CASE("rows in the log domain are affected only by NaNs that they attend to", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Index n = 300;
  PlanCase x{{.n_q = n, .n_k = n, .d_v = 3}, {.engine = cuda::Engine::direct}, 6};
  const Attention causal(orf<float>(6, 16, 7), RelativePosition<float>(Vector<float>::LinSpaced(2 * n - 1, 0, -300)),
                         {.direction = Direction::causal});
  cuda::Counts counts{};
  const Matrix<float> before = x.result(causal, &counts);
  REQUIRE(counts.log_domain_rows > 80);  // rows at the start
  x.q.row(30).setConstant(nan);
  x.v.row(60).setConstant(nan);
  x.k.row(61).setConstant(nan);
  const Matrix<float> after = x.result(causal);
  for (Index i = 0; i < 80; ++i) {
    const bool is_affected = i == 30 || i >= 60;
    CHECK((is_affected ? after.row(i).array().isNaN().all() : after.row(i) == before.row(i)));
  }
}

}  // namespace nprf::test::cuda_attention_recompute_log_domain
