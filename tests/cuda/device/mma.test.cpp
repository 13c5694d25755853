// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/mma.cuh"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/storage.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_device_mma {

namespace {

using cuda::MmaLayout;
using cuda::MmaShape;

// These kernels pass each lane's registers from memory, unchanged.

template <class T>
__global__ void m16n8k16_kernel(const unsigned* a, const unsigned* b, float* c) {
  cuda::start_kernel();
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned left[4] = {a[4 * lane], a[4 * lane + 1], a[4 * lane + 2], a[4 * lane + 3]};
  const unsigned right[2] = {b[2 * lane], b[2 * lane + 1]};
  float sum[4] = {c[4 * lane], c[4 * lane + 1], c[4 * lane + 2], c[4 * lane + 3]};
  cuda::mma_m16n8k16<T>(sum, left, right);
  for (int e = 0; e < 4; ++e) c[4 * lane + e] = sum[e];
}

template <int warps>
__global__ void m16n8k8_kernel(const unsigned* a, const unsigned* b, float* c) {
  cuda::start_kernel();
  const int lane = static_cast<int>(threadIdx.x);
  float sum[4] = {c[4 * lane], c[4 * lane + 1], c[4 * lane + 2], c[4 * lane + 3]};
  cuda::mma_m16n8k8(sum, a[2 * lane], a[2 * lane + 1], b[lane]);
  for (int e = 0; e < 4; ++e) c[4 * lane + e] = sum[e];
}

template <MmaLayout a_layout, MmaLayout b_layout>
__global__ void m8n8k4_kernel(const unsigned* a, const unsigned* b, float* c) {
  cuda::start_kernel();
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned left[2] = {a[2 * lane], a[2 * lane + 1]}, right[2] = {b[2 * lane], b[2 * lane + 1]};
  float sum[2][4];
  for (int e = 0; e < 8; ++e) sum[e / 4][e % 4] = c[8 * lane + e];
  cuda::mma_m8n8k4<a_layout, b_layout>(sum, left, right);
  for (int e = 0; e < 8; ++e) c[8 * lane + e] = sum[e / 4][e % 4];
}

template <class T, bool transposed>
__global__ void load_kernel(unsigned* x) {
  cuda::start_kernel();
  T* tile = cuda::shared_memory<T>();  // (32,8), filled with 0, 1, ..
  const int lane = static_cast<int>(threadIdx.x);
  for (int k = 0; k < 8; ++k) cuda::store(tile + 8 * lane + k, static_cast<float>(8 * lane + k));
  __syncthreads();
  unsigned loaded[4];
  cuda::load_matrices<transposed>(loaded, tile + 8 * lane);
  for (int i = 0; i < 4; ++i) x[4 * lane + i] = loaded[i];
}

template <class T>
__global__ void pack_kernel(const float* x, unsigned* both) {
  cuda::start_kernel();
  const int lane = static_cast<int>(threadIdx.x);
  both[lane] = cuda::pack<T>(x[2 * lane], x[2 * lane + 1]);
}

template <class T>
unsigned bits(float x) {
  const std::vector<T> rounded = stored<T>(Matrix<float>::Constant(1, 1, x));
  std::uint16_t half;
  static_assert(sizeof(half) == sizeof(T));
  std::memcpy(&half, rounded.data(), sizeof(half));
  return half;
}
template <class T>
unsigned word(float first, float second) {
  return bits<T>(first) | bits<T>(second) << 16;
}

Matrix<float> integers(Index rows, Index columns, std::uint64_t seed) {
  return (10 * normal<float>(rows, columns, seed)).array().round();
}

// runs a kernel with one warp, and returns the sums
template <class Kernel>
std::vector<float> sums_of(Kernel* kernel, const std::vector<unsigned>& a, const std::vector<unsigned>& b,
                           const std::vector<float>& c) {
  const DeviceArray<unsigned> da(a), db(b);
  const DeviceArray<float> dc(c);
  cuda::launch("test", kernel, dim3{1, 1, 1}, dim3{32, 1, 1}, 0, nullptr, da.data(), db.data(), dc.data());
  return dc.fetch();
}

// m16n8k8 and m16n8k16: lane 4 g + t has rows g and g + 8 of A and C, and column g of B
template <class T, int depth, class Kernel>
void check_octets(Kernel* kernel) {
  const Matrix<float> A = integers(16, depth, 1), B = integers(depth, 8, 2), C = integers(16, 8, 3);
  constexpr int left = depth / 4, right = depth / 8;  // registers
  std::vector<unsigned> a(left * 32), b(right * 32);
  std::vector<float> c(4 * 32);
  const auto place = [](Index lane, int size, int e) { return static_cast<std::size_t>(lane * size + e); };
  for (Index lane = 0; lane < 32; ++lane) {
    const Index g = lane / 4, t = lane % 4;
    for (int e = 0; e < left; ++e) {
      const Index i = g + 8 * (e % 2), k = 2 * t + 8 * (e / 2);
      a[place(lane, left, e)] = word<T>(A(i, k), A(i, k + 1));
    }
    for (int e = 0; e < right; ++e) b[place(lane, right, e)] = word<T>(B(2 * t + 8 * e, g), B(2 * t + 8 * e + 1, g));
    for (int e = 0; e < 4; ++e) c[place(lane, 4, e)] = C(g + e / 2 * 8, 2 * t + e % 2);
  }
  c = sums_of(kernel, a, b, c);
  const Matrix<float> expected = C + A * B;
  for (Index lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e) {
      INFO("depth " << depth << ", lane " << lane << ", register " << e);
      CHECK(c[place(lane, 4, e)] == expected(lane / 4 + e / 2 * 8, 2 * (lane % 4) + e % 2));
    }
}

// each pair of quads, the lanes 4 q .. and 4 q + 16 .., multiplies A (8,4) and B (4,8) of its own
template <MmaLayout a_layout, MmaLayout b_layout>
void check_quad_pairs() {
  const Matrix<float> A = integers(4 * 8, 4, 1), B = integers(4 * 4, 8, 2), C = integers(4 * 8, 8, 3);
  std::vector<unsigned> a(2 * 32), b(2 * 32);
  std::vector<float> c(8 * 32);
  const auto row = [](Index lane, Index e) { return lane % 2 + (e & 2) + (lane < 16 ? 0 : 4); };
  const auto column = [](Index lane, Index e) { return (e & 4) + (lane & 2) + (e & 1); };
  for (Index lane = 0; lane < 32; ++lane) {
    const Index q = lane / 4 % 4, t = lane % 4, four = lane < 16 ? 0 : 4;
    const auto left = [&](Index e) {
      return a_layout == MmaLayout::row ? A(8 * q + t + four, e) : A(8 * q + e + four, t);
    };
    const auto right = [&](Index e) {
      return b_layout == MmaLayout::row ? B(4 * q + t, e + four) : B(4 * q + e, t + four);
    };
    for (Index e = 0; e < 4; e += 2) {
      const auto at = static_cast<std::size_t>(2 * lane + e / 2);
      a[at] = word<__half>(left(e), left(e + 1));
      b[at] = word<__half>(right(e), right(e + 1));
    }
    for (Index e = 0; e < 8; ++e) c[static_cast<std::size_t>(8 * lane + e)] = C(8 * q + row(lane, e), column(lane, e));
  }
  c = sums_of(m8n8k4_kernel<a_layout, b_layout>, a, b, c);
  for (Index lane = 0; lane < 32; ++lane) {
    const Index q = lane / 4 % 4;
    const Matrix<float> expected = C.middleRows(8 * q, 8) + A.middleRows(8 * q, 8) * B.middleRows(4 * q, 4);
    for (Index e = 0; e < 8; ++e) {
      INFO("A by " << (a_layout == MmaLayout::row ? "rows" : "columns") << ", B by "
                   << (b_layout == MmaLayout::row ? "rows" : "columns") << ", lane " << lane << ", register " << e);
      CHECK(c[static_cast<std::size_t>(8 * lane + e)] == expected(row(lane, e), column(lane, e)));
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("m16n8k16 multiplies matrices in the register layout that PTX documents", "[cuda]", __half,
                   __nv_bfloat16) {
  if (can_multiply<TestType, MmaShape::m16n8k16>()) check_octets<TestType, 16>(m16n8k16_kernel<TestType>);
}

TEST_CASE("m16n8k8 multiplies matrices in the register layout that PTX documents", "[cuda]") {
  if (can_multiply<__half, MmaShape::m16n8k8>()) check_octets<__half, 8>(m16n8k8_kernel<1>);
}

TEST_CASE("m8n8k4 multiplies matrices in the register layout that PTX documents", "[cuda]") {
  if (!can_multiply<__half, MmaShape::m8n8k4>()) return;
  check_quad_pairs<MmaLayout::row, MmaLayout::row>();
  check_quad_pairs<MmaLayout::row, MmaLayout::column>();
  check_quad_pairs<MmaLayout::column, MmaLayout::row>();
  check_quad_pairs<MmaLayout::column, MmaLayout::column>();
}

TEMPLATE_TEST_CASE("load_matrices fills registers in the layout that PTX documents", "[cuda]", __half, __nv_bfloat16) {
  using T = TestType;
  if (!can_multiply < T, std::is_same_v<T, __half> ? MmaShape::m16n8k8 : MmaShape::m16n8k16 > ()) return;
  const DeviceArray<unsigned> dx(4 * 32), dt(4 * 32);
  const std::size_t shared = sizeof(T) * 32 * 8;
  cuda::launch("test", load_kernel<T, false>, dim3{1, 1, 1}, dim3{32, 1, 1}, shared, nullptr, dx.data());
  cuda::launch("test", load_kernel<T, true>, dim3{1, 1, 1}, dim3{32, 1, 1}, shared, nullptr, dt.data());
  const std::vector<unsigned> x = dx.fetch(), transposed = dt.fetch();
  const auto entry = [](int matrix, int row, int column) { return static_cast<float>(64 * matrix + 8 * row + column); };
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      INFO("lane " << lane << ", register " << i);
      const std::size_t at = static_cast<std::size_t>(4 * lane + i);
      const int g = lane / 4, t = lane % 4;
      CHECK(x[at] == word<T>(entry(i, g, 2 * t), entry(i, g, 2 * t + 1)));
      CHECK(transposed[at] == word<T>(entry(i, 2 * t, g), entry(i, 2 * t + 1, g)));
    }
}

TEMPLATE_TEST_CASE("pack rounds two floats to the nearest, ties to even", "[cuda]", __half, __nv_bfloat16) {
  using T = TestType;
  if (!can_multiply<T>()) return;
  constexpr float u = std::is_same_v<T, __half> ? 0x1p-10f : 0x1p-7f;  // the distance of numbers near 1
  std::vector<float> x(64);
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = (k % 2 == 0 ? 1.0f : -3.0f) * (1 + static_cast<float>(k) * u / 8);
  const DeviceArray<float> dx(x);
  const DeviceArray<unsigned> dboth(32);
  cuda::launch("test", pack_kernel<T>, dim3{1, 1, 1}, dim3{32, 1, 1}, 0, nullptr, dx.data(), dboth.data());
  const std::vector<unsigned> both = dboth.fetch();
  for (std::size_t k = 0; k < 32; ++k) {
    const auto value = [&](unsigned half) {
      const auto lower = static_cast<std::uint16_t>(half);
      T y;
      std::memcpy(&y, &lower, sizeof(y));
      return as_float(y);
    };
    for (std::size_t e = 0; e < 2; ++e) {
      const float exact = x[2 * k + e], step = std::abs(exact) < 2 ? u : std::abs(exact) < 4 ? 2 * u : 4 * u;
      CHECK(value(both[k] >> 16 * e & 0xffff) == std::nearbyint(exact / step) * step);
    }
  }
}

}  // namespace nprf::test::cuda_device_mma
