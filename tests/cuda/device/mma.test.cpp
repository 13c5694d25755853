// SPDX-License-Identifier: MIT
#include "nprf/cuda/device/mma.cuh"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tensor_cores.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/storage.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_device_mma {

namespace {

// passes each lane's registers from memory, unchanged
template <int warps>
__global__ void mma_kernel(const unsigned* a, const unsigned* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned left[4] = {a[4 * lane], a[4 * lane + 1], a[4 * lane + 2], a[4 * lane + 3]};
  const unsigned right[2] = {b[2 * lane], b[2 * lane + 1]};
  float sum[4] = {c[4 * lane], c[4 * lane + 1], c[4 * lane + 2], c[4 * lane + 3]};
  cuda::mma(sum, left, right);
  for (int e = 0; e < 4; ++e) c[4 * lane + e] = sum[e];
}

template <bool transposed>
__global__ void load_kernel(unsigned* x) {
  __nv_bfloat16* tile = cuda::shared_memory<__nv_bfloat16>();  // (32,8), filled with 0, 1, ..
  const int lane = static_cast<int>(threadIdx.x);
  for (int k = 0; k < 8; ++k) cuda::store(tile + 8 * lane + k, static_cast<float>(8 * lane + k));
  __syncthreads();
  unsigned loaded[4];
  cuda::load_matrices<transposed>(loaded, tile + 8 * lane);
  for (int i = 0; i < 4; ++i) x[4 * lane + i] = loaded[i];
}

template <int warps>
__global__ void pack_kernel(const float* x, unsigned* both) {
  const int lane = static_cast<int>(threadIdx.x);
  both[lane] = cuda::pack(x[2 * lane], x[2 * lane + 1]);
}

unsigned bits(float x) {
  const std::vector<__nv_bfloat16> rounded = stored<__nv_bfloat16>(Matrix<float>::Constant(1, 1, x));
  std::uint16_t half;
  std::memcpy(&half, rounded.data(), sizeof(half));
  return half;
}
unsigned word(float first, float second) { return bits(first) | bits(second) << 16; }

Matrix<float> integers(Index rows, Index columns, std::uint64_t seed) {
  return (10 * normal<float>(rows, columns, seed)).array().round();
}

}  // namespace

TEST_CASE("mma multiplies matrices in the register layout that PTX documents", "[cuda]") {
  if (!has_tensor_cores()) return;
  const Matrix<float> A = integers(16, 16, 1), B = integers(16, 8, 2), C = integers(16, 8, 3);
  std::vector<unsigned> a(4 * 32), b(2 * 32);
  std::vector<float> c(4 * 32);
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const Index g = static_cast<Index>(lane) / 4, t = static_cast<Index>(lane) % 4;
    a[4 * lane + 0] = word(A(g, 2 * t), A(g, 2 * t + 1));
    a[4 * lane + 1] = word(A(g + 8, 2 * t), A(g + 8, 2 * t + 1));
    a[4 * lane + 2] = word(A(g, 2 * t + 8), A(g, 2 * t + 9));
    a[4 * lane + 3] = word(A(g + 8, 2 * t + 8), A(g + 8, 2 * t + 9));
    b[2 * lane + 0] = word(B(2 * t, g), B(2 * t + 1, g));
    b[2 * lane + 1] = word(B(2 * t + 8, g), B(2 * t + 9, g));
    for (Index e = 0; e < 4; ++e) c[4 * lane + static_cast<std::size_t>(e)] = C(g + e / 2 * 8, 2 * t + e % 2);
  }
  const DeviceArray<unsigned> da(a), db(b);
  const DeviceArray<float> dc(c);
  cuda::launch("test", mma_kernel<1>, dim3{1, 1, 1}, dim3{32, 1, 1}, 0, nullptr, da.data(), db.data(), dc.data());
  c = dc.fetch();
  const Matrix<float> expected = C + A * B;
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (Index e = 0; e < 4; ++e) {
      const Index g = static_cast<Index>(lane) / 4, t = static_cast<Index>(lane) % 4;
      INFO("lane " << lane << ", register " << e);
      CHECK(c[4 * lane + static_cast<std::size_t>(e)] == expected(g + e / 2 * 8, 2 * t + e % 2));
    }
}

TEST_CASE("load_matrices fills registers in the layout that PTX documents", "[cuda]") {
  if (!has_tensor_cores()) return;
  const DeviceArray<unsigned> dx(4 * 32), dt(4 * 32);
  const std::size_t shared = sizeof(__nv_bfloat16) * 32 * 8;
  cuda::launch("test", load_kernel<false>, dim3{1, 1, 1}, dim3{32, 1, 1}, shared, nullptr, dx.data());
  cuda::launch("test", load_kernel<true>, dim3{1, 1, 1}, dim3{32, 1, 1}, shared, nullptr, dt.data());
  const std::vector<unsigned> x = dx.fetch(), transposed = dt.fetch();
  const auto entry = [](int matrix, int row, int column) { return static_cast<float>(64 * matrix + 8 * row + column); };
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      INFO("lane " << lane << ", register " << i);
      const std::size_t at = static_cast<std::size_t>(4 * lane + i);
      const int g = lane / 4, t = lane % 4;
      CHECK(x[at] == word(entry(i, g, 2 * t), entry(i, g, 2 * t + 1)));
      CHECK(transposed[at] == word(entry(i, 2 * t, g), entry(i, 2 * t + 1, g)));
    }
}

TEST_CASE("pack rounds two floats to the nearest bfloat16, ties to even", "[cuda]") {
  if (!has_tensor_cores()) return;
  std::vector<float> x(64);
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = (k % 2 == 0 ? 1 : -3) * (1 + static_cast<float>(k) * 0x1p-10f);
  const DeviceArray<float> dx(x);
  const DeviceArray<unsigned> dboth(32);
  cuda::launch("test", pack_kernel<1>, dim3{1, 1, 1}, dim3{32, 1, 1}, 0, nullptr, dx.data(), dboth.data());
  const std::vector<unsigned> both = dboth.fetch();
  for (std::size_t k = 0; k < 32; ++k) {
    const auto value = [&](unsigned half) {
      const std::uint32_t upper = half << 16;
      float y;
      std::memcpy(&y, &upper, sizeof(y));
      return y;
    };
    for (std::size_t e = 0; e < 2; ++e) {
      const float exact = x[2 * k + e], step = std::abs(exact) < 2 ? 0x1p-7f : std::abs(exact) < 4 ? 0x1p-6f : 0x1p-5f;
      CHECK(value(both[k] >> 16 * e & 0xffff) == std::nearbyint(exact / step) * step);
    }
  }
}

}  // namespace nprf::test::cuda_device_mma
