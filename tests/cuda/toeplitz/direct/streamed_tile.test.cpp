// SPDX-License-Identifier: MIT
#include "nprf/cuda/toeplitz/direct/streamed_tile.cuh"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "cuda/tensor_cores.hpp"
#include "cuda/tile_case.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_toeplitz_direct_streamed_tile {

namespace {

// whether the device has asynchronous copies, as it has the instruction
template <class T>
bool can_stream() {
  return can_multiply<T, cuda::MmaShape::m16n8k16>();
}

template <class T>
typename TileCase<T, T>::Data random_data(const TileCase<T, T>& x) {
  auto data = x.data();
  const auto draw = [](Matrix<float>& a, std::uint64_t stream) { a = normal<float>(a.rows(), a.cols(), stream); };
  draw(data.A, 1), draw(data.B, 2), draw(data.V, 3);
  return data;
}

// a key of weight 0 may have a score that is not finite, and Catch compares NaNs as unequal
void check_same(const Matrix<double>& got, const Matrix<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (Index k = 0; k < got.size(); ++k) {
    const double a = got.reshaped()[k], b = expected.reshaped()[k];
    if (!(a == b || (std::isnan(a) && std::isnan(b)))) FAIL("entry " << k << ": " << a << ", expected " << b);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("streamed tiles have the bits of tiles, for any shape", "[cuda]", __half, __nv_bfloat16) {
  if (!can_stream<TestType>()) return;
  const auto check = [](TileCase<TestType, TestType> x, int parts) {
    INFO("n_q " << x.n_q << ", n_k " << x.n_k << ", r " << x.r << ", p " << x.p << ", " << parts
                << " parts, last attended lag " << x.last_attended);
    x.weights = {0.3f, 0, 1, 1.7f};
    const auto data = random_data(x);
    const Matrix<double> expected = x.result(data, parts);
    x.streams = true;
    check_same(x.result(data, parts), expected);
  };
  for (const auto& [n_q, n_k] : {std::pair{1, 1}, {63, 65}, {128, 64}, {129, 200}, {300, 1}})
    check({.n_q = n_q, .n_k = n_k}, 1);
  for (const int r : {1, 15, 33, 64, 65}) check({.n_q = 40, .n_k = 270, .r = r, .p = 8}, 1);
  for (const int p : {8, 24, 72, 136}) check({.n_q = 40, .n_k = 170, .p = p}, 1);
  for (const int parts : {2, 5}) check({.n_q = 150, .n_k = 260, .p = 8}, parts);
  for (const int last_attended : {-30, 0, 3})
    check({.batch = 2, .heads = 3, .n_q = 150, .n_k = 170, .p = 8, .last_attended = last_attended}, 2);
}

TEMPLATE_TEST_CASE("streamed tiles skip non-finite keys and values of weight 0", "[cuda]", __half, __nv_bfloat16) {
  if (!can_stream<TestType>()) return;
  TileCase<TestType, TestType> x{.n_q = 150, .n_k = 150, .r = 20, .p = 72, .weights = {0.5f, 1}, .last_attended = 0};
  auto data = x.data();
  data.V(100, 3) = std::numeric_limits<float>::infinity();
  data.V(101, 69) = std::numeric_limits<float>::quiet_NaN();
  data.B(120, 5) = std::numeric_limits<float>::quiet_NaN();
  const Matrix<double> expected = x.result(data, 1);
  CHECK(expected.topRows(100).allFinite());
  x.streams = true;
  check_same(x.result(data, 1), expected);
}

TEST_CASE("streamed tiles are not used for padding, rows that are not aligned, and more than 64 features", "[cuda]") {
  using T = __nv_bfloat16;
  const auto supports = [](const TileCase<T, T>& x) {
    bool found = false;
    x.result_of(x.data(), 1, [&](const cuda::TileTask<T, T>& task, float*, float*) {
      found = cuda::StreamedTile<T>::supports(task);
    });
    return found;
  };
  CHECK(supports({.n_q = 5, .n_k = 5, .r = 64, .p = 8}));
  CHECK_FALSE(supports({.n_q = 5, .n_k = 5, .r = 65, .p = 8}));
  CHECK_FALSE(supports({.n_q = 5, .n_k = 5, .p = 9}));
  CHECK_FALSE(supports({.n_q = 5, .n_k = 5, .p = 8, .v_offset = 1}));
  CHECK_FALSE(supports({.n_q = 5, .n_k = 5, .p = 8, .masked = true}));
}

}  // namespace nprf::test::cuda_toeplitz_direct_streamed_tile
