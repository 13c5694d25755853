// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/smooth/kernel.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/tensor_cores.hpp"
#include "cuda/tile_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_smooth_kernel {

using cuda::SmoothChunks;

namespace {

constexpr double deviation = 2.5e-5;

// the weights of a lag in a head
using Weight = std::function<double(int head, int lag)>;

template <class Case>
typename Case::Data data_of(const Case& x, const Weight& weight) {
  auto data = x.data();
  for (int h = 0; h < x.heads; ++h)
    for (int lag = 1 - x.n_q; lag < x.n_k; ++lag)
      data.c(h, lag + x.n_q - 1) = lag > x.last_attended ? 0.0f : static_cast<float>(weight(h, lag));
  return data;
}

template <class Types>
Matrix<double> result(const TileCaseOf<Types>& x, const typename TileCaseOf<Types>::Data& data, int at_once = 2) {
  using S = typename Types::S;
  using Feature = typename Types::Feature;
  return x.result_of(data, 2, [&](const cuda::TileTask<S, Feature>& task, float* N, float* D) {
    const int rows = cuda::TileOf<S, Feature, Types::shape>::queries;
    const cuda::SmoothPlanner planner({task.c, {}, {}, x.heads, deviation}, x.n_q, x.n_k, rows / SmoothChunks::size);
    planner.queue(nullptr);
    const std::size_t chunks = static_cast<std::size_t>(at_once * SmoothChunks::below(std::max(x.n_q, x.n_k), 20));
    const std::size_t size = chunks * static_cast<std::size_t>(SmoothChunks::terms * x.stored_features() * (x.p + 1));
    const DeviceArray<float> moments(std::vector<float>(size, std::numeric_limits<float>::quiet_NaN())),
        sums(std::vector<float>(size, std::numeric_limits<float>::quiet_NaN()));
    cuda::queue_smooth<S, Feature, Types::shape>({task, planner.blocks(), moments.data(), sums.data(), N, D, 0}, x.z(),
                                                 at_once, nullptr);
  });
}

double far(int, int lag) { return 1 / (1 + std::abs(lag) / 50.0); }

}  // namespace

TEMPLATE_TEST_CASE("products with smooth weights are those of the formula up to the deviation", "[cuda]",
                   (TileTypes<float, float>), (TileTypes<__half, float>), (TileTypes<__half, __nv_bfloat16>),
                   (TileTypes<__nv_bfloat16, __nv_bfloat16>), (TileTypes<__half, __half>),
                   (TileTypes<__half, __half, cuda::MmaShape::m8n8k4>)) {
  if (!can_multiply<typename TestType::Feature, TestType::shape>()) return;
  using Feature = typename TestType::Feature;
  using Case = TileCaseOf<TestType>;
  constexpr double u = std::is_same_v<Feature, float> ? 0 : std::is_same_v<Feature, __half> ? 0x1p-11 : 0x1p-8;
  const auto check = [&](const Case& x, const Weight& weight) {
    INFO("n_q " << x.n_q << ", n_k " << x.n_k << ", r " << x.r << ", p " << x.p << ", last attended lag "
                << x.last_attended);
    auto data = data_of(x, weight);
    const Matrix<double> got = result<TestType>(x, data), expected = x.expected(data);
    data.V = data.V.cwiseAbs();
    const Matrix<double> terms = x.expected(data);  // A and B are not negative
    // a weight of a tile is rounded to 16 bits; the sums of a chunk, of polynomials and over r features are in float,
    // and their magnitudes add up to a few times the weights
    const double tolerance = deviation + u + 4 * (x.r + 64 + 100) * 0x1p-24;
    CHECK(((got - expected).array().abs() <= (tolerance * terms).array()).all());
  };
  for (const auto& [n_q, n_k] : {std::pair{700, 700}, {64, 64}, {1, 1}, {650, 200}, {130, 900}})
    check({.n_q = n_q, .n_k = n_k, .p = 8}, far);
  check({.n_q = 900, .n_k = 900, .p = 8, .last_attended = 0}, far);
  check({.n_q = 700, .n_k = 700, .p = 8, .last_attended = -200}, far);
  // all blocks are smooth but those that the tokens do not fill, also around the diagonal
  check({.n_q = 640, .n_k = 512, .p = 8}, [](int, int lag) { return std::exp(lag / 2000.0); });
  // a step, and zeros in between
  check({.n_q = 700, .n_k = 700, .p = 8}, [](int, int lag) { return lag < -300 ? 0.25 : far(0, lag); });
  check({.n_q = 700, .n_k = 700, .p = 8}, [](int, int lag) { return lag > 290 && lag < 410 ? 0 : far(0, lag); });
  if (NPRF_TEST_FEW_CASES) return;
  for (const int r : {5, 40, 70})
    for (const int p : {0, 7, 72}) check({.n_q = 330, .n_k = 300, .r = r, .p = p}, far);
  check({.batch = 2, .heads = 3, .n_q = 330, .n_k = 400, .p = 9, .masked = true},
        [](int h, int lag) { return h == 1 && lag < 0 ? 0.5 : far(0, lag * (h + 1)); });
}

TEST_CASE("blocks that are not rough have no tile", "[cuda]") {
  const TileCase<float, float> x{.n_q = 2048, .n_k = 2048, .last_attended = 0};
  const DeviceArray<float> c(stored<float>(data_of(x, far).c));
  for (const int chunks_of_tile : {1, 2}) {
    const cuda::SmoothPlanner planner({{c.data(), 0, x.lags(), 1 - x.n_q, 1, 1 - x.n_q, 0}, {}, {}, 1, deviation},
                                      x.n_q, x.n_k, chunks_of_tile);
    planner.queue(nullptr);
    const cuda::SmoothBlocks blocks = planner.blocks();
    const int runs = cuda::copied_to_host(blocks.run_counts, nullptr);
    CHECK(runs == 1);
    const int2 near = cuda::copied_to_host(blocks.runs, nullptr);
    CHECK((near.x >= -2 && near.y == chunks_of_tile - 1));
  }
}

TEST_CASE("rows that attend to a key that is not finite are those that the weights of zero allow", "[cuda]") {
  const TileCase<float, float> x{.n_q = 600, .n_k = 600, .p = 3, .last_attended = 0};
  auto data = data_of(x, far);
  using Types = TileTypes<float, float>;
  const Matrix<double> before = result<Types>(x, data);
  data.V(300, 1) = data.B(300, 2) = std::numeric_limits<float>::quiet_NaN();
  const Matrix<double> after = result<Types>(x, data);
  CHECK(after.topRows(300) == before.topRows(300));
  CHECK(after.bottomRows(300).array().isNaN().rowwise().any().all());
}

}  // namespace nprf::test::cuda_toeplitz_smooth_kernel
