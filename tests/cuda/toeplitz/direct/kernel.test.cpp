// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/direct/kernel.cuh"

#include <limits>
#include <utility>

#include "cuda/tensor_cores.hpp"
#include "cuda/tile_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_direct_kernel {

TEMPLATE_TEST_CASE("tiles of integers are exact for any shape", "[cuda]", (TileTypes<float, float>),
                   (TileTypes<__half, float>), (TileTypes<__half, __nv_bfloat16>),
                   (TileTypes<__nv_bfloat16, __nv_bfloat16>), (TileTypes<__half, __half>),
                   (TileTypes<__half, __half, cuda::MmaShape::m8n8k4>)) {
  if (!can_multiply<typename TestType::Feature, TestType::shape>()) return;
  using Case = TileCaseOf<TestType>;
  const std::vector<float> weights{0, 0.5f, 1, 2};
  const auto check = [&](const Case& x, int parts) {
    INFO("n_q " << x.n_q << ", n_k " << x.n_k << ", r " << x.r << ", p " << x.p << ", V at " << x.v_offset << " by "
                << x.v_stride << ", " << parts << " parts, last attended lag " << x.last_attended);
    const auto data = x.data();
    CHECK(x.result(data, parts) == x.expected(data));
  };
  for (const auto& [n_q, n_k] : {std::pair{1, 1}, {63, 65}, {128, 64}, {129, 200}, {300, 1}})
    check({.n_q = n_q, .n_k = n_k, .weights = weights}, 1);
  for (const int r : {1, 15, 33, 64, 65, 100}) check({.n_q = 40, .n_k = 70, .r = r, .p = 5, .weights = weights}, 1);
  for (const int p : {0, 1, 7, 8, 63, 72, 130}) check({.n_q = 40, .n_k = 70, .p = p, .weights = weights}, 1);
  for (const int parts : {2, 5}) check({.n_q = 150, .n_k = 260, .p = 8, .weights = weights}, parts);
  for (const int last_attended : {-30, 0, 3})
    check({.n_q = 150, .n_k = 170, .p = 8, .weights = weights, .last_attended = last_attended}, 2);
  for (const auto& [offset, stride] : {std::pair{0, 72}, {8, 64}, {1, 64}, {0, 65}, {4, 68}})
    check({.n_q = 20, .n_k = 70, .v_offset = offset, .v_stride = stride, .weights = weights}, 1);
  for (const int p : {9, 16})
    check({.batch = 2, .heads = 3, .n_q = 50, .n_k = 70, .p = p, .weights = weights, .masked = true}, 2);
}

TEMPLATE_TEST_CASE("keys of weight 0 contribute nothing, even if they or their values are non-finite", "[cuda]",
                   (TileTypes<float, float>), (TileTypes<__nv_bfloat16, __nv_bfloat16>), (TileTypes<__half, __half>),
                   (TileTypes<__half, __half, cuda::MmaShape::m8n8k4>)) {
  if (!can_multiply<typename TestType::Feature, TestType::shape>()) return;
  using Case = TileCaseOf<TestType>;
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Case x{.n_q = 150, .n_k = 150, .r = 20, .p = 70, .weights = {0.5f, 1}, .last_attended = 0};
  auto data = x.data();
  data.A.col(0).setOnes();  // all scores are positive, so that an infinite value gives an infinite row
  data.B.col(0).setOnes();
  const Matrix<double> before = x.result(data, 1);
  data.V(100, 3) = infinity;
  data.V(101, 69) = nan;
  data.B(120, 5) = nan;
  const Matrix<double> after = x.result(data, 1);
  for (int i = 0; i < x.n_q; ++i)
    for (int k = 0; k <= x.p; ++k) {
      INFO("row " << i << ", column " << k);
      if (i >= 120 || (i >= 101 && k == 69))
        CHECK(std::isnan(after(i, k)));
      else if (i >= 100 && k == 3)
        CHECK(after(i, k) == static_cast<double>(infinity));
      else
        CHECK(after(i, k) == before(i, k));
    }
}

TEMPLATE_TEST_CASE("sums in half are exact for weights of any scale", "[cuda]", (TileTypes<__half, __half>),
                   (TileTypes<__half, __half, cuda::MmaShape::m8n8k4>)) {
  if (!can_multiply<typename TestType::Feature, TestType::shape>()) return;
  for (const float weight : {0x1p-100f, 0x1p-60f, 0x1p-20f}) {
    const TileCaseOf<TestType> x{.n_q = 150, .n_k = 260, .p = 9, .weights = {weight, 2 * weight}};
    const auto data = x.data();
    INFO("weights " << weight);
    CHECK(x.result(data, 1) == x.expected(data));
  }
}

TEMPLATE_TEST_CASE("rows in half whose weights rise or fall keep the precision of half", "[cuda]",
                   (TileTypes<__half, __half>), (TileTypes<__half, __half, cuda::MmaShape::m8n8k4>)) {
  if (!can_multiply<typename TestType::Feature, TestType::shape>()) return;
  // from tile to tile of keys, the weights change by a factor of up to exp(32)
  for (const float slope : {0.5f, 0.05f, -0.05f, -0.5f}) {
    const TileCaseOf<TestType> x{.n_q = 150, .n_k = 260, .p = 9, .slopes = {slope}};
    auto data = x.data();
    const Matrix<double> got = x.result(data, 1), expected = x.expected(data);
    data.V = data.V.cwiseAbs();
    const Matrix<double> terms = x.expected(data);
    // P is rounded; entries that are small beside the largest of the row have an error of 2^-39 of it, and |v| <= 8
    const Matrix<double> bound =
        ((1.01 * 0x1p-11 + 300 * 0x1p-24) * terms).colwise() + 8 * x.n_k * 0x1p-39 * terms.col(x.p);
    INFO("slope " << slope);
    // weights below the normal numbers have the precision of the smallest
    CHECK(((got - expected).array().abs() <= bound.array() + 200.0 * x.r * 8 * 0x1p-126).all());
  }
}

}  // namespace nprf::test::cuda_toeplitz_direct_kernel
