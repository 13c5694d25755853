// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/gradient_magnitudes.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

/// Gradients of special calls: long sequences, padding, empty batches, alternating plans.
namespace nprf::test::cuda_plan_backward_calls {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

RelativePosition<float> clipped(Index reach = 20) {
  return RelativePosition<float>(normal_vector<float>(2 * reach + 1, 5));
}

// as in backward.test.cpp
constexpr double tolerance = 10 * static_cast<double>(std::numeric_limits<float>::epsilon());

/// Bounds of the largest gradients, with all terms replaced by their absolute values. For a query's features
///
///     sum_f A_if |dA_if| <= sum_j P_ij |dy_i| (|v_j| + |y_i|) <= 2 |dy| |v|     P = ((A B^T) o C) / D
///
/// and likewise for a key's, times sum_i P_ij, and for a bias's, summed over all queries.
template <class F, class P>
GradientMagnitudes bounds(const Attention<F, P>& attention, const PlanCase& x, const Matrix<float>& dy) {
  Saved<float> saved;
  attention.forward(x.q, x.k, Matrix<float>::Ones(x.k.rows(), 1), saved);
  const Gradients<float> ones = attention.backward(saved, Matrix<float>::Ones(x.q.rows(), 1));
  const double columns = static_cast<double>(ones.values.maxCoeff());  // max_j sum_i P_ij
  const double dy_v = 2 * static_cast<double>(dy.cwiseAbs().maxCoeff() * x.v.cwiseAbs().maxCoeff());
  const auto slope = [&](const Matrix<float>& tokens) {  // |dphi/dx| / phi for |x'| = 1
    return (static_cast<double>(attention.features().projection().cwiseAbs().maxCoeff()) + 1) /
           static_cast<double>(tokens.rowwise().norm().minCoeff());
  };
  return {dy_v * slope(x.q), dy_v * columns * slope(x.k), columns * static_cast<double>(dy.cwiseAbs().maxCoeff()),
          dy_v * static_cast<double>(x.q.rows())};
}

}  // namespace

TEST_CASE("gradients of more tokens than fit in shared memory agree with the CPU's", "[cuda]") {
  const PlanCase x{{.n_q = 16400, .n_k = 300, .d_v = 1}, {.engine = cuda::Engine::fused, .gradients = true}, 4};
  const Attention attention(orf<float>(4, 1, 7), clipped());
  const Matrix<float> dy = normal<float>(x.shape.n_q, 1, 9);
  Saved<float> saved;
  attention.forward(x.q, x.k, x.v, saved, {.tolerance = 1e-6});
  CHECK(difference(gradients_of(x, *x.plan(attention), dy), attention.backward(saved, dy), bounds(attention, x, dy)) <=
        tolerance);
}

TEST_CASE("non-finite keys that no query attends to affect no gradient", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    INFO(name(engine));
    PlanCase x{{.n_q = 60, .n_k = 90, .d_v = 5}, {.engine = engine, .gradients = true}, 6};
    const Attention attention(orf<float>(6, 16, 7), clipped(), {.direction = Direction::causal});
    const Matrix<float> dy = normal<float>(60, 5, 9);
    Saved<float> saved;
    attention.forward(x.q, x.k, x.v, saved, {.tolerance = 1e-6});
    const Gradients<float> expected = attention.backward(saved, dy);
    const GradientMagnitudes sizes = gradient_magnitudes(attention, x.q, x.k, x.v, dy, 0);
    x.k.bottomRows(20).setConstant(nan);
    CHECK(difference(gradients_of(x, *x.plan(attention), dy), expected, sizes) <= tolerance);
    x.v.bottomRows(25).setConstant(std::numeric_limits<float>::infinity());
    CHECK(difference(gradients_of(x, *x.plan(attention), dy), expected, sizes) <= tolerance);
  }
}

TEST_CASE("gradients with a key mask agree with the CPU's", "[cuda]") {
  std::vector<unsigned char> keys(100, 0);
  std::fill_n(keys.begin() + 20, 60, 1);
  for (const cuda::Engine engine : cuda_engines) {
    INFO(name(engine));
    const PlanCase x{{.n_q = 90, .n_k = 100, .d_v = 5}, {.engine = engine, .gradients = true}, 6};
    CHECK(gradient_error(x, Attention(orf<float>(6, 16, 7), clipped()), keys) <= tolerance);
  }
}

TEST_CASE("the gradients of parameters are zero for an empty batch", "[cuda]") {
  const Attention attention(orf<float>(6, 16, 7), clipped());
  for (const cuda::Engine engine : cuda_engines) {
    const cuda::AttentionPlan<float> plan(cuda::model_of(attention), {.batch = 0, .n_q = 7, .n_k = 9, .d_v = 5},
                                          {.engine = engine, .gradients = true});
    const DeviceArray<float> parameters(std::vector<float>(43, nan));
    const cuda::DeviceMatrixView<float> q(nullptr, 0, 1, 7, 6), k(nullptr, 0, 1, 9, 6), v(nullptr, 0, 1, 9, 5),
        dy(nullptr, 0, 1, 7, 5);
    plan.backward(q, k, v, dy, {q, k, v, parameters.data() + 1}, {}, nullptr);
    const std::vector<float> got = parameters.fetch();
    INFO(name(engine));
    CHECK((std::isnan(got.front()) && std::isnan(got.back())));
    CHECK(std::all_of(got.begin() + 1, got.end() - 1, [](float x) { return x == 0; }));
  }
}

TEST_CASE("plans with different widths and features can alternate", "[cuda]") {
  const Attention wide(orf<float>(130, 5, 7), clipped()), narrow(orf<float>(5, 12, 8), clipped(3));
  for (std::size_t e = 0; e < cuda_engines.size(); ++e) {
    const PlanCase x{{.n_q = 70, .n_k = 40, .d_v = 3}, {.engine = cuda_engines[e], .gradients = true}, 130},
        y{{.n_q = 30, .n_k = 90, .d_v = 8}, {.engine = cuda_engines[(e + 1) % 4], .gradients = true}, 5};
    const Matrix<float> dx = normal<float>(70, 3, 9), dy = normal<float>(30, 8, 9);
    const auto results = [](const PlanCase& c, const cuda::AttentionPlan<float>& plan, const Matrix<float>& of_y) {
      const Gradients<float> g = gradients_of(c, plan, of_y);
      return std::vector<Matrix<float>>{c.result(plan), g.queries, g.keys, g.values, g.bias};
    };
    const auto wide_plan = x.plan(wide);
    const auto wide_result = results(x, *wide_plan, dx);
    const auto narrow_plan = y.plan(narrow);
    const auto narrow_result = results(y, *narrow_plan, dy);
    INFO(name(x.options.engine) << " and " << name(y.options.engine));
    CHECK(results(x, *wide_plan, dx) == wide_result);
    CHECK(results(y, *narrow_plan, dy) == narrow_result);
    CHECK(x.error(wide, *wide_plan) <= 2 * tolerance);
    CHECK(y.error(narrow, *narrow_plan) <= 2 * tolerance);
  }
}

}  // namespace nprf::test::cuda_plan_backward_calls
