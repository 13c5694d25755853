// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/checked_product.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/plan_case.hpp"
#include "nprf/cuda/plan/device_model.cuh"
#include "support/adversarial.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

/// With every engine the errors of all rows are within the tolerance.
namespace nprf::test::cuda_attention_checked_product {

namespace {

using namespace adversarial;

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
const std::vector<cuda::Engine> fft_engines{cuda::Engine::fused, cuda::Engine::cufft};

// bound of the error that features of norm R, and sums, add
double base_error(double R) { return 20 * eps + 5e-7 * R * R; }

PlanCase plan_case(const Case& c, const Problem<float>& problem, const cuda::PlanOptions& options) {
  PlanCase x{{.n_q = c.n_q, .n_k = c.n_k, .d_v = c.d_v}, options, c.d};
  x.q = problem.x.q, x.k = problem.x.k, x.v = problem.x.v;
  return x;
}

// all combinations of biases and sides; norms, values, keys, sizes and engines cycle with the index of the case
std::vector<Case> cases() {
  static constexpr std::array norms{1.0, 8.0, 2.0, 30.0};
  std::vector<Case> all;
  for (std::size_t bias = 0; bias < biases().size(); ++bias)
    for (const Sides sides : {Sides::bidirectional, Sides::causal, Sides::cross}) {
      Case c;
      const std::size_t k = all.size();
      c.bias = bias;
      c.sides = sides;
      c.norm = norms[k / 2 % 4];
      c.normalised = c.norm > 8 || k % 5 != 0;
      c.values = static_cast<Values>(k % 7);
      c.keys = static_cast<Keys>(k / 7 % 4);
      c.n_q = k % 2 == 0 ? 201 : 224;
      c.n_k = sides == Sides::cross ? 150 + static_cast<Index>(k % 100) : c.n_q;
      c.d_v = 3 + static_cast<Index>(k / 3 % 2);
      c.seed = k;
      all.push_back(c);
    }
  return all;
}
cuda::Engine fft_engine_of(const Case& c) { return fft_engines[c.seed % 2]; }

double median(std::vector<double> x) {
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

}  // namespace

TEST_CASE("the error of every row is within the tolerance", "[cuda]") {
  long repaired_rows = 0, softmax_rows = 0;
  for (const Case& c : cases()) {
    const Problem<float> problem(c);
    const Truth<float> truth(c, problem);
    for (const cuda::Engine engine : {fft_engine_of(c), cuda::Engine::direct}) {
      if (engine == cuda::Engine::direct && c.seed % 4 != 0) continue;
      cuda::Counts counts{};
      const PlanCase x = plan_case(c, problem, {.engine = engine});
      const Matrix<float> y = x.result(problem.attention(c, Engine::direct), &counts);
      const double error = truth.error(y, counts.softmax_rows);
      INFO(name(engine) << ": error " << error << ", bound " << counts.fft_error_bound << ", repaired rows "
                        << counts.repaired_rows << ", rows by softmax " << counts.softmax_rows << ": " << c.name());
      CHECK(error <= 1e-4 + 5e-7 * truth.largest_norm * truth.largest_norm);
      CHECK(static_cast<double>(counts.fft_error_bound) <= 0.5e-4);
      CHECK(counts.indefinite_rows == 0);
      CHECK(counts.empty_rows == truth.empty);
      repaired_rows += counts.repaired_rows - counts.softmax_rows;
      softmax_rows += counts.softmax_rows;
    }
  }
  CHECK(repaired_rows > 3000);
  CHECK(softmax_rows > 100);
}

TEST_CASE("FFT error bounds exceed the errors, by a median factor of at most 100", "[cuda]") {
  std::vector<double> ratios;
  for (const Case& c : cases()) {
    if (c.norm > 8) continue;
    const Problem<float> problem(c);
    const Truth<float> truth(c, problem);
    const cuda::Engine engine = fft_engine_of(c);
    for (const double tolerance : {c.seed % 3 == 0 ? 1e-5 : 1e-2, std::numeric_limits<double>::infinity()}) {
      cuda::Counts counts{};
      const PlanCase x = plan_case(c, problem, {.engine = engine, .tolerance = tolerance});
      const double error = truth.error(x.result(problem.attention(c, Engine::direct), &counts));
      const double bound = static_cast<double>(counts.fft_error_bound);
      INFO(name(engine) << ", tolerance " << tolerance << ": error " << error << ", bound " << bound
                        << ", repaired rows " << counts.repaired_rows << ": " << c.name());
      CHECK(bound <= tolerance / 2);
      CHECK(error <= bound + base_error(truth.largest_norm));
      // a row whose denominator vanishes by rounding has no finite error, and so no ratio
      const bool is_from_fft = std::isfinite(error) && error > 2 * base_error(truth.largest_norm);
      if (is_from_fft && c.keys != Keys::alike) ratios.push_back(bound / error);
    }
  }
  REQUIRE(ratios.size() > 30);
  CHECK(median(ratios) <= 100);
}

TEST_CASE("with benign input of any scale no row is recomputed", "[cuda]") {
  for (const cuda::Engine engine : fft_engines)
    for (const Index d_v : {5, 12})
      for (const float scale : {1e-30f, 1e-6f, 1.0f, 1e6f, 1e30f}) {
        PlanCase x{{.n_q = 200, .n_k = 200, .d_v = d_v}, {.engine = engine}, 16};
        x.v *= scale;
        const Attention attention(orf<float>(16, 16, 7), RelativePosition<float>(normal_vector<float>(399, 5)));
        cuda::Counts counts{};
        x.result(attention, &counts);
        INFO(name(engine) << ", d_v " << d_v << ", scale " << scale);
        CHECK(counts.repaired_rows == 0);
        CHECK(counts.fft_error_bound > 0);
        CHECK(x.error(attention) <= 20 * eps);
      }
}

TEST_CASE("with FFT engines non-finite inputs affect only the rows that attend to them", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const Attention causal(orf<float>(6, 16, 7), RelativePosition<float>(normal_vector<float>(41, 5)),
                         {.direction = Direction::causal});
  for (const cuda::Engine engine : fft_engines) {
    PlanCase x{{.n_q = 400, .n_k = 400, .d_v = 5}, {.engine = cuda::Engine::direct}, 6};
    const Matrix<float> before = x.result(causal);
    const double largest = static_cast<double>(x.v.cwiseAbs().maxCoeff());
    x.options.engine = engine;
    const auto check_rows = [&](double tolerance, auto&& is_affected) {
      const Matrix<float> after = x.result(causal);
      for (Index i = 0; i < 400; ++i)
        if (is_affected(i))
          CHECK(!after.row(i).array().isFinite().any());
        else
          CHECK(static_cast<double>((after.row(i) - before.row(i)).cwiseAbs().maxCoeff()) <= tolerance * largest);
    };
    INFO(name(engine));
    x.q.row(17).setConstant(nan);
    check_rows(0.5e-4 + 20 * eps, [](Index i) { return i == 17; });
    x.v.row(300).setConstant(infinity);  // all rows fail, and are recomputed by tiles
    check_rows(20 * eps, [](Index i) { return i == 17 || i >= 300; });
    x.k.bottomRows(200).setConstant(nan);
    check_rows(20 * eps, [](Index i) { return i == 17 || i >= 200; });
  }
}

TEST_CASE("NaNs in padding affect no row and no error bound", "[cuda]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const Index n = 300;
  const Attention attention(orf<float>(6, 16, 7), RelativePosition<float>(normal_vector<float>(599, 5)));
  std::vector<unsigned char> keys(static_cast<std::size_t>(n), 0);
  std::fill_n(keys.begin(), 200, 1);
  const KeyMask mask(keys);
  for (const cuda::Engine engine : fft_engines) {
    PlanCase x{{.n_q = n, .n_k = n, .d_v = 5}, {.engine = engine}, 6};
    x.k.bottomRows(100).setConstant(nan);
    x.v.bottomRows(100).setConstant(nan);
    cuda::Counts counts{};
    const Matrix<float> y = x.result(*x.plan(attention), mask.call(), &counts),
                        expected = attention(x.q, x.k, x.v, {.key_mask = mask.on_cpu()});
    INFO(name(engine));
    CHECK((y - expected).cwiseAbs().maxCoeff() <=
          20 * static_cast<float>(eps) * x.v.topRows(200).cwiseAbs().maxCoeff());
    CHECK(counts.repaired_rows == 0);
  }
}

TEST_CASE("set_parameters updates the error bounds", "[cuda]") {
  const Index n = 300;
  for (const cuda::Engine engine : fft_engines) {
    const PlanCase x{{.n_q = n, .n_k = n, .d_v = 5}, {.engine = engine}, 6};
    const Attention first(orf<float>(6, 16, 7), RelativePosition<float>(normal_vector<float>(599, 5)));
    Vector<float> ramp = Vector<float>::LinSpaced(599, 0, 60);
    ramp.segment(100, 30).setConstant(-std::numeric_limits<float>::infinity());
    const Attention other(first.features(), RelativePosition<float>(ramp));
    const auto plan = x.plan(first);
    {
      const DeviceArray<float> parameters(cuda::model_of(other.position()).parameters);
      plan->set_parameters(parameters.data(), nullptr);
    }
    INFO(name(engine));
    CHECK(x.error(other, *plan) <= 0.5e-4 + 20 * eps);
    cuda::Counts counts{};
    x.result(*plan, {}, &counts);
    CHECK(counts.repaired_rows > 0);
  }
}

TEST_CASE("failing_share predicts the number of failing rows for equal keys", "[cuda]") {
  const Index n = 300;
  int partial_shares = 0;
  for (const double slope : {0.0, 0.02, 0.05, -0.05, 0.3})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      Vector<float> table = Vector<float>::LinSpaced(2 * n - 1, 0, static_cast<float>(slope) * (2 * n - 2));
      PlanCase x{{.n_q = n, .n_k = n, .d_v = 4}, {.engine = cuda::Engine::fused}, 6};
      x.k.rowwise() = x.k.row(0).eval();
      x.v.setOnes();
      cuda::AttentionModel model =
          cuda::model_of(Attention(orf<float>(6, 16, 7), RelativePosition<float>(table), {.direction = direction}));
      const cuda::DeviceModel on_device(model, x.shape, {}, nullptr);
      const double share =
          cuda::failing_share(on_device.weights_of(model.positions[0]), n, n, 2048, x.options.tolerance);
      cuda::Counts counts{};
      x.result(cuda::AttentionPlan<float>(model, x.shape, x.options), {}, &counts);
      INFO("slope " << slope << (direction == Direction::causal ? ", causal" : ""));
      CHECK(std::abs(share * n - counts.repaired_rows) <= 2);  // some rows are close to the limit
      partial_shares += share > 0.1 && share < 0.9;
    }
  CHECK(partial_shares > 2);
}

TEST_CASE("invalid tolerances are refused", "[cuda]") {
  const Attention attention(orf<float>(6, 16, 7), NoPosition<float>());
  for (const double tolerance : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    const PlanCase x{{.n_q = 9, .n_k = 9, .d_v = 5}, {.tolerance = tolerance}, 6};
    check_invalid([&] { x.plan(attention); }, {"tolerance: expected 0 or more, got"});
  }
}

}  // namespace nprf::test::cuda_attention_checked_product
