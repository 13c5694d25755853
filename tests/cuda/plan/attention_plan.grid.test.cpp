// SPDX-License-Identifier: MIT
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/grid.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

/// Grids of tokens, with and without extra tokens.
namespace nprf::test::cuda_plan_attention_plan_grid {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// of y, relative to the largest |v|, and of gradients, relative to the magnitude of the terms that they are sums of
constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon()), tolerance = 20 * eps,
                 gradient_tolerance = 10 * eps;

GridPosition<float> grid(Index height, Index width, Index extra, float scale = 1) {
  return {height, width, scale * normal<float>(2 * height - 1, 2 * width - 1, 5),
          scale * normal<float>(extra, extra + 2, 6)};
}

auto attention(const GridPosition<float>& position, Direction direction = Direction::bidirectional) {
  return Attention(orf<float>(6, 16, 7), position, {.direction = direction});
}

PlanCase plan_case(const GridPosition<float>& position, cuda::Engine engine = cuda::Engine::direct) {
  return {{.n_q = position.tokens(), .n_k = position.tokens(), .d_v = 5}, {.engine = engine, .gradients = true}, 6};
}

const std::vector<cuda::Engine> engines{cuda::Engine::direct, cuda::Engine::cufft};

struct Size {
  Index height, width, extra;
};
const std::vector<Size> sizes{{1, 1, 0}, {1, 1, 1}, {9, 11, 0}, {1, 70, 1}, {70, 1, 2}, {12, 13, 3}};

}  // namespace

TEST_CASE("a plan computes attention and gradients of a grid, with extra tokens", "[cuda]") {
  for (const Size& s : sizes)
    for (int k = 0; k < 4; ++k) {
      const Direction direction = k % 2 == 0 ? Direction::bidirectional : Direction::causal;
      const GridPosition<float> position = grid(s.height, s.width, s.extra);
      const PlanCase x = plan_case(position, engines[static_cast<std::size_t>(k / 2)]);
      INFO(name(x.options.engine) << ", " << s.height << " x " << s.width << " and " << s.extra << " extra tokens"
                                  << (direction == Direction::causal ? ", causal" : ""));
      CHECK(x.error(attention(position, direction)) <= tolerance);
      CHECK(x.error<__half>(attention(position, direction)) <= 0x1p-11 + tolerance);
      CHECK(gradient_error(x, attention(position, direction)) <= gradient_tolerance);
    }
  for (const cuda::Engine engine : engines) {
    const GridPosition<float> position = grid(9, 11, 2);
    const PlanCase x = plan_case(position, engine);
    INFO(name(engine));
    CHECK(x.error(Attention(EluFeatures<float>(6), position)) <= tolerance);
    CHECK(x.error(Attention(TrigonometricFeatures<float>({.input_dim = 6, .num_features = 200}), position)) <=
          10 * tolerance);
    CHECK(gradient_error(x, Attention(EluFeatures<float>(6), position)) <= gradient_tolerance);
  }
}

TEST_CASE(
    "rows of a grid that fail the FFT error bound are recomputed, with "
    "the border",
    "[cuda]") {
  for (const float steepness : {20.0f, -20.0f})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      Matrix<float> b(23, 25);
      for (Index row = 0; row < 23; ++row)
        for (Index column = 0; column < 25; ++column)
          b(row, column) = steepness * static_cast<float>(25 * row + column) / (23 * 25);
      const GridPosition<float> position(12, 13, b, normal<float>(2, 4, 6));
      PlanCase x = plan_case(position, cuda::Engine::cufft);
      x.options.tolerance = 1e-6;
      cuda::Counts counts{};
      x.result(attention(position, direction), &counts);
      INFO("steepness " << steepness << (direction == Direction::causal ? ", causal" : "") << ", repaired rows "
                        << counts.repaired_rows);
      CHECK(counts.repaired_rows > 0);
      CHECK(x.error(attention(position, direction)) <= 1e-6 + tolerance);
      CHECK(gradient_error(x, attention(position, direction)) <= gradient_tolerance);
      x.options.tolerance = 1e-4;
      cuda::Counts fewer{};
      x.result(attention(position, direction), &fewer);
      CHECK(fewer.repaired_rows < counts.repaired_rows);
      CHECK(x.error(attention(position, direction)) <= 0.5e-4 + tolerance);
    }
}

TEST_CASE("the automatic engine of a large grid is an FFT", "[cuda]") {
  const auto engine = [](Index side, float scale) {
    const GridPosition<float> position = grid(side, side, 1, scale);
    const PlanCase x{{.n_q = position.tokens(), .n_k = position.tokens(), .d_v = 64}, {.owns_workspace = false}, 16};
    return x.plan(Attention(orf<float>(16, 16, 7), position))->engine();
  };
  CHECK(engine(10, 1) == cuda::Engine::direct);
  CHECK(engine(150, 1) == cuda::Engine::cufft);
}

TEST_CASE("biases of a grid and of its border may be -infinity", "[cuda]") {
  Matrix<float> b = normal<float>(15, 17, 5), extra = normal<float>(2, 4, 6);
  b.leftCols(6).setConstant(-infinity);
  b(7, 8) = -infinity;  // a cell does not attend to itself
  extra(0, 0) = extra(1, 1) = extra(1, 2) = -infinity;
  const GridPosition<float> position(8, 9, b, extra);
  for (int k = 0; k < 4; ++k) {
    const Direction direction = k % 2 == 0 ? Direction::bidirectional : Direction::causal;
    const PlanCase x = plan_case(position, engines[static_cast<std::size_t>(k / 2)]);
    INFO(name(x.options.engine) << (direction == Direction::causal ? ", causal" : ""));
    CHECK(x.error(attention(position, direction)) <= tolerance);
    CHECK(gradient_error(x, attention(position, direction)) <= gradient_tolerance);
  }
  // no query attends to any key
  const GridPosition<float> blind(3, 3, Matrix<float>::Constant(5, 5, -infinity),
                                  Matrix<float>::Constant(1, 3, -infinity));
  for (const cuda::Engine engine : engines) {
    cuda::Counts counts{};
    CHECK(plan_case(blind, engine).result(attention(blind), &counts).isZero(0));
    CHECK(counts.empty_rows == 10);
  }
}

TEST_CASE("padding of a grid takes no part", "[cuda]") {
  const GridPosition<float> position = grid(8, 9, 2);
  PlanCase x = plan_case(position);
  std::vector<unsigned char> keys(74);
  for (std::size_t j = 0; j < 74; ++j) keys[j] = j != 1 && (j < 20 || j > 40);
  const KeyMask mask(keys);
  const auto on_cpu = attention(position);
  const Matrix<float> expected = on_cpu(x.q, x.k, x.v, {.key_mask = mask.on_cpu()});
  for (const cuda::Engine engine : engines) {
    x.options.engine = engine;
    INFO(name(engine));
    CHECK(gradient_error(x, on_cpu, keys) <= gradient_tolerance);
    PlanCase with_infinities = x;
    with_infinities.k.row(1).setConstant(infinity), with_infinities.v.row(30).setConstant(infinity);
    const Matrix<float> y = with_infinities.result(*with_infinities.plan(on_cpu), mask.call());
    CHECK((y - expected).cwiseAbs().maxCoeff() <= static_cast<float>(tolerance) * x.v.cwiseAbs().maxCoeff());
  }
}

TEST_CASE("rows of a grid whose weights underflow are recomputed from their features", "[cuda]") {
  Matrix<float> b = Matrix<float>::Constant(15, 17, -150), extra = Matrix<float>::Constant(2, 4, -140);
  b.topLeftCorner(8, 9).setZero();  // of a key in a row not below and a column not to the right
  b(7, 8) = -150;                   // the first cell attends to all others with small weights alone
  extra(0, 3) = 20;                 // the largest bias of extra token 0
  b += normal<float>(15, 17, 5);
  const GridPosition<float> position(8, 9, b, extra);
  for (const cuda::Engine engine : engines) {
    const PlanCase x = plan_case(position, engine);
    cuda::Counts counts{};
    x.result(attention(position), &counts);
    INFO(name(engine));
    CHECK((counts.repaired_rows >= 1 && counts.softmax_rows == 0));
    CHECK(x.error(attention(position)) <= 30 * eps);
    CHECK(gradient_error(x, attention(position)) <= 3 * gradient_tolerance);
  }
}

TEST_CASE("heads have grids with biases of their own, which may change on the device", "[cuda]") {
  const GridPosition<float> positions[] = {grid(6, 7, 1), grid(6, 7, 1, 0.5f)};
  const Index n = positions[0].tokens();
  const HeadsCase x({.batch = 2, .heads = 2, .n_q = n, .n_k = n, .d_v = 5}, 6);
  cuda::AttentionModel model = cuda::model_of(attention(positions[1]));
  model.positions.push_back(cuda::model_of(positions[0]));  // in the other order at first
  const cuda::Engine engine = GENERATE(cuda::Engine::direct, cuda::Engine::cufft);
  cuda::AttentionPlan<float> plan(model, x.shape, {.engine = engine, .gradients = true});
  std::vector<float> parameters = model.positions[1].parameters;
  parameters.insert(parameters.end(), model.positions[0].parameters.begin(), model.positions[0].parameters.end());
  plan.set_parameters(DeviceArray<float>(parameters).data(), nullptr);
  check_heads(
      x, x.results(plan), [&](Index h) { return attention(positions[h]); }, tolerance, gradient_tolerance);
}

TEST_CASE("grids of other sizes, and other engines, are refused", "[cuda]") {
  const GridPosition<float> position = grid(3, 4, 1);
  const auto refused = [&](const cuda::PlanShape& shape, const cuda::PlanOptions& options, const char* message) {
    check_invalid([&] { cuda::AttentionPlan<float>(cuda::model_of(attention(position)), shape, options); }, {message});
  };
  refused({.n_q = 12, .n_k = 13, .d_v = 3}, {}, "queries: expected 13 rows (the position's tokens), got 12");
  refused({.n_q = 13, .n_k = 14, .d_v = 3}, {}, "keys: expected 13 rows (the position's tokens), got 14");
  refused({.n_q = 13, .n_k = 13, .d_v = 3, .offset = 1}, {}, "offset: expected 0");
  for (const cuda::Engine engine : {cuda::Engine::banded, cuda::Engine::fused})
    refused({.n_q = 13, .n_k = 13, .d_v = 3}, {.engine = engine},
            "engine: expected direct or cufft for a grid on a GPU, got");
  cuda::AttentionModel bad = cuda::model_of(attention(position));
  bad.positions[0].slots[2] = bad.positions[0].slots[1];
  check_invalid([&] { cuda::AttentionPlan<float>(bad, {.n_q = 13, .n_k = 13, .d_v = 3}); },
                {"slots: expected ascending"});
}

}  // namespace nprf::test::cuda_plan_attention_plan_grid
