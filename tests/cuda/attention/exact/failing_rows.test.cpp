// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/exact/failing_rows.cuh"

#include <limits>

#include "cuda/gradient_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_attention_exact_failing_rows {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());

RelativePosition<float> clipped() { return RelativePosition<float>(normal_vector<float>(41, 5)); }

}  // namespace

TEST_CASE("rows whose terms cancel are computed by exact softmax, and counted as on the CPU", "[cuda]") {
  for (const Index near : {0, 3})
    for (const double radius : {2.0, 3.5}) {
      const PlanCase x{
          {.n_q = 90, .n_k = 130, .d_v = 5, .offset = 3}, {.engine = cuda::Engine::direct, .gradients = true}, 6};
      const Attention attention(TaylorFeatures<float>({.input_dim = 6}), clipped(),
                                {.direction = Direction::causal,
                                 .normalization = Normalization::unit(radius),
                                 .engine = Engine::direct,
                                 .near = near});
      Report report;
      attention(x.q, x.k, x.v, {.offset = 3, .report = &report});
      cuda::Counts counts{};
      x.result(attention, &counts);
      INFO("near " << near << ", radius " << radius);
      CHECK(counts.repaired_rows > 0);
      CHECK(counts.repaired_rows < 90);
      CHECK(counts.repaired_rows == report.repaired_rows);
      CHECK(counts.softmax_rows == counts.repaired_rows);
      CHECK(counts.indefinite_rows == report.indefinite_rows);
      CHECK(counts.empty_rows == report.empty_rows);
      // exponents up to radius^2, and terms of features that are up to 16 times their sum
      CHECK(x.error(attention) <= 16 * 20 * eps);
      CHECK(relative_gradient_error(x, attention) <= 16 * 40 * eps);
    }
}

TEST_CASE("rows that fail the FFT error bound are computed by exact softmax", "[cuda]") {
  for (const cuda::Engine engine : {cuda::Engine::fused, cuda::Engine::cufft})
    for (const float last_bias : {20.0f, -20.0f}) {
      const PlanCase x{{.n_q = 200, .n_k = 200, .d_v = 4}, {.engine = engine, .gradients = true}, 16};
      const Attention steep(orf<float>(16, 24, 7), RelativePosition<float>(Vector<float>::LinSpaced(399, 0, last_bias)),
                            {.near = 5});
      cuda::Counts counts{};
      x.result(steep, &counts);
      INFO(name(engine) << ", last bias " << last_bias);
      CHECK(counts.repaired_rows > 0);
      CHECK(counts.softmax_rows == counts.repaired_rows);
      // softmax of all pairs, for the rows of the CPU that fail its own error bound
      const Attention all(orf<float>(16, 24, 7), steep.position(), {.near = 1000});
      const Matrix<float> y = x.result(steep), softmax = x.result(all), features = steep(x.q, x.k, x.v);
      for (Index i = 0; i < 200; ++i) {
        const auto distance = [&](const Matrix<float>& from) {
          return static_cast<double>((y.row(i) - from.row(i)).cwiseAbs().maxCoeff() / x.v.cwiseAbs().maxCoeff());
        };
        CHECK(std::min(distance(softmax), distance(features)) <= 1e-4);  // the tolerance of a plan
      }
      CHECK(gradients_of(x, *x.plan(steep), x.v).queries.allFinite());
    }
}

TEST_CASE("rows that attend to no key are zero and counted, with a near field and with Taylor features", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = 70, .n_k = 40, .d_v = 5, .offset = -10}, {.engine = engine, .gradients = true}, 6};
    const Attention near(orf<float>(6, 16, 7), clipped(), {.direction = Direction::causal, .near = 4});
    const Attention taylor(TaylorFeatures<float>({.input_dim = 6}), clipped(), {.direction = Direction::causal});
    const auto check_empty = [&](const auto& attention) {
      cuda::Counts counts{};
      CHECK(x.result(attention, &counts).topRows(10).isZero(0));
      CHECK(counts.empty_rows == 10);
      if (!uses_fft(engine)) CHECK(x.error(attention) <= 40 * eps);
      CHECK(gradients_of(x, *x.plan(attention), normal<float>(70, 5, 9)).queries.topRows(10).isZero(0));
    };
    INFO(name(engine));
    check_empty(near);
    check_empty(taylor);
  }
}

}  // namespace nprf::test::cuda_attention_exact_failing_rows
