// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/banded/kernel.cuh"

#include <limits>
#include <utility>

#include "cuda/tile_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_toeplitz_banded_kernel {

TEMPLATE_TEST_CASE("banded products of integers are exact for any shape", "[cuda]", (TileTypes<float, float>),
                   (TileTypes<__half, float>), (TileTypes<__half, __nv_bfloat16>),
                   (TileTypes<__nv_bfloat16, __nv_bfloat16>)) {
  using Case = TileCase<typename TestType::S, typename TestType::Feature>;
  const std::vector<float> weights{0, 0.5f, 1, 2};
  // B has few ones, so that bfloat16's 8 bits represent the sums of chunks
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

}  // namespace nprf::test::cuda_toeplitz_banded_kernel
