// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/banded/kernel.cuh"

#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/tensor_cores.hpp"
#include "cuda/tile_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_banded_kernel {

namespace {

// adds 1 to all features but those of padding, so that no product of two rows is far smaller than others
template <class Case>
void make_positive(const Case& x, typename Case::Data& data) {
  data.A.array() += 1;
  for (int s = 0; s < x.z(); ++s)
    for (int j = 0; j < x.n_k; ++j)
      if (data.mask[static_cast<std::size_t>(s / x.heads * x.n_k + j)]) data.B.row(s * x.n_k + j).array() += 1;
}

}  // namespace

TEMPLATE_TEST_CASE("banded products of integers are exact for any shape", "[cuda]", (TileTypes<float, float>),
                   (TileTypes<__half, float>), (TileTypes<__half, __nv_bfloat16>),
                   (TileTypes<__nv_bfloat16, __nv_bfloat16>), (TileTypes<__half, __half>),
                   (TileTypes<__half, __half, cuda::MmaShape::m8n8k4>)) {
  if (!can_multiply<typename TestType::Feature, TestType::shape>()) return;
  using Case = TileCaseOf<TestType>;
  const std::vector<float> weights{0, 0.5f, 1, 2};
  // B has few ones, so that the 8 bits of bfloat16 represent the sums of chunks
  const auto check = [&](const Case& x, int parts) {
    INFO("n_q " << x.n_q << ", n_k " << x.n_k << ", r " << x.r << ", p " << x.p << ", band " << x.band.first << " to "
                << x.band.last << ", " << parts << " parts, last attended lag " << x.last_attended);
    const auto data = x.data();
    CHECK(x.result(data, parts, true) == x.expected(data));
  };
  constexpr double few = 0.05;
  for (const auto& [n_q, n_k] : {std::pair{1, 1}, {150, 150}, {500, 400}, {40, 500}, {500, 40}})
    for (const int parts : {1, 3})
      check({.n_q = n_q,
             .n_k = n_k,
             .p = 8,
             .density = few,
             .weights = weights,
             .band = {-20, 17},
             .before = 2,
             .after = 0.5f},
            parts);
  for (const cuda::Band band : {cuda::Band{-150, -40}, {30, 200}, {1, 0}, {-299, 399}})
    check(
        {.n_q = 300, .n_k = 400, .p = 8, .density = few, .weights = weights, .band = band, .before = 0.5f, .after = 2},
        1);
  for (const int r : {5, 40, 70})
    for (const int p : {0, 7, 72})
      check({.n_q = 70, .n_k = 300, .r = r, .p = p, .density = few, .weights = weights, .band = {-9, 9}, .before = 2},
            1);
  check({.n_q = 400,
         .n_k = 400,
         .p = 8,
         .density = few,
         .weights = weights,
         .band = {-20, 0},
         .after = 0,
         .last_attended = 0},
        2);
  check({.batch = 2,
         .heads = 3,
         .n_q = 100,
         .n_k = 200,
         .p = 9,
         .density = few,
         .weights = weights,
         .band = {-9, 3},
         .masked = true},
        1);
}

TEST_CASE("running sums over many chunks are compensated for rounding errors", "[cuda]") {
  // 1 is less than half a unit in the last place of the sum that it is added to
  const TileCase<float, float> x{.n_q = 1, .n_k = 128 * 40, .r = 1, .p = 1, .band = {0, 0}};
  auto data = x.data();
  data.A.setOnes();
  data.B.setZero();
  data.V.setOnes();
  for (int chunk = 1; chunk < 40; ++chunk) data.B(128 * chunk, 0) = chunk == 39 ? 0x1p24f : 1;
  CHECK(x.result(data, 1, true)(0, 0) == 0x1p24 + 38);
}

TEMPLATE_TEST_CASE("banded products with exponential tails are those of the formula, whatever the slope", "[cuda]",
                   (TileTypes<float, float>), (TileTypes<__half, float>), (TileTypes<__half, __nv_bfloat16>),
                   (TileTypes<__nv_bfloat16, __nv_bfloat16>), (TileTypes<__half, __half>),
                   (TileTypes<__half, __half, cuda::MmaShape::m8n8k4>)) {
  if (!can_multiply<typename TestType::Feature, TestType::shape>()) return;
  using Feature = typename TestType::Feature;
  using Case = TileCaseOf<TestType>;
  constexpr bool is_float = std::is_same_v<Feature, float>, is_half = std::is_same_v<Feature, __half>;
  constexpr double u = is_half ? 0x1p-11 : 0x1p-8;
  const auto check = [&](Case x, int parts) {
    INFO("n_q " << x.n_q << ", n_k " << x.n_k << ", r " << x.r << ", p " << x.p << ", slope " << x.slopes.front()
                << ", band " << x.band.first << " to " << x.band.last << ", " << parts << " parts");
    auto data = x.data();
    if (is_half) make_positive(x, data);
    const Matrix<double> got = x.result(data, parts, true), expected = x.expected(data);
    data.V = data.V.cwiseAbs();
    const Matrix<double> terms = x.expected(data);  // A and B are not negative
    // float: sums over r features, over a tile of keys and over a chunk, each rounded to half an eps. Tensor cores: A
    // and B are exact; weighted B and M, or P, are rounded to 16 bits
    const double tolerance = is_float ? (x.r + 64 + 128 + 10) * 0x1p-24 : 2.01 * u + 400 * 0x1p-24;
    // small numbers in half, A and B being 1 or 2: of weighted B for 128 keys, of M, and of P for all keys
    const double small = is_half ? 32.0 * (x.n_k + 130) * 0x1p-38 : 0.0;
    // weights below the normal numbers have the precision of the smallest
    const double underflow = 200.0 * x.r * 8 * 0x1p-126;
    const Matrix<double> bound = (tolerance * terms).colwise() + small * terms.col(x.p);
    CHECK(((got - expected).array().abs() <= bound.array() + underflow).all());
  };
  for (const float slope : NPRF_TEST_FEW_CASES
                               ? std::vector<float>{0, -0.03f, -1e30f, 1e-3f, 1e30f}
                               : std::vector<float>{0, -1e-7f, -1e-3f, -0.03f, -0.7f, -20, -1e30f, 1e-3f, 0.5f, 1e30f})
    for (const auto& [n_q, n_k] : {std::pair{1, 1}, {300, 300}, {40, 500}, {500, 40}})
      check({.n_q = n_q, .n_k = n_k, .p = 8, .band = {1, 0}, .slopes = {slope}}, 1);
  for (const float slope : {-0.02f, 0.02f}) {
    // causal, and queries far before and after all keys
    check({.n_q = 400, .n_k = 400, .p = 8, .band = {1, 0}, .last_attended = 0, .slopes = {slope}}, 2);
    check({.n_q = 300, .n_k = 300, .p = 8, .band = {301, 300}, .slopes = {slope}, .origin = 400}, 1);
    check({.n_q = 300, .n_k = 300, .p = 8, .band = {-298, -299}, .slopes = {slope}, .origin = -350}, 1);
    check({.n_q = 300, .n_k = 300, .p = 8, .band = {-99, -100}, .last_attended = -100, .slopes = {slope}}, 1);
    check({.n_q = 300, .n_k = 300, .p = 8, .band = {-7, 5}, .slopes = {slope}}, 3);
    for (const int r : {5, 70})
      for (const int p : {0, 7, 72})
        check({.n_q = 200, .n_k = 300, .r = r, .p = p, .band = {1, 0}, .slopes = {slope}}, 1);
    check(
        {.batch = 2, .heads = 2, .n_q = 150, .n_k = 290, .p = 9, .band = {1, 0}, .masked = true, .slopes = {slope, 0}},
        1);
  }
}

TEST_CASE("keys that no query of a tile attends to contribute nothing to exponential tails", "[cuda]") {
  const TileCase<float, float> x{
      .n_q = 500, .n_k = 500, .p = 3, .band = {1, 0}, .last_attended = 0, .slopes = {-0.01f}};
  auto data = x.data();
  const Matrix<double> before = x.result(data, 1, true);
  data.V(300, 1) = data.B(300, 2) = std::numeric_limits<float>::quiet_NaN();
  const Matrix<double> after = x.result(data, 1, true);
  CHECK(after.topRows(300) == before.topRows(300));
  CHECK(after.bottomRows(200).array().isNaN().rowwise().any().all());
}

}  // namespace nprf::test::cuda_toeplitz_banded_kernel
