// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include "bench/cuda/clock.cuh"
#include "nprf/cuda/device/runtime.hpp"

/// The measured limits of a device, which bound the speed of every engine.
namespace nprf::bench {

/// Independent chains of multiply-adds: 2 chains rounds flops per thread.
template <int chains, int rounds>
__global__ void __launch_bounds__(256) multiply_adds_kernel(float* out, float a, float b) {
  float x[chains];
  for (int k = 0; k < chains; ++k) x[k] = static_cast<float>(threadIdx.x + k);
#pragma unroll 4
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int k = 0; k < chains; ++k) x[k] = fmaf(x[k], a, b);
  float sum = 0;
  for (int k = 0; k < chains; ++k) sum += x[k];
  if (sum == 1.5f) *out = sum;  // keeps the compiler from removing the computation
}

/// The same on tensor cores, with 16 x 16 x 16 products of bfloat16 and sums in float: 8192 chains rounds flops per
/// warp.
template <int chains, int rounds>
__global__ void __launch_bounds__(256) matrix_products_kernel(float* out) {
#if __CUDA_ARCH__ >= 800
  namespace wmma = nvcuda::wmma;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c[chains];
  const float value = 1e-3f * static_cast<float>(threadIdx.x);
  wmma::fill_fragment(a, __float2bfloat16(value));
  wmma::fill_fragment(b, __float2bfloat16(1 - value));
  for (int k = 0; k < chains; ++k) wmma::fill_fragment(c[k], 0.0f);
#pragma unroll 2
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int k = 0; k < chains; ++k) wmma::mma_sync(c[k], a, b, c[k]);
  float sum = 0;
  for (int k = 0; k < chains; ++k)
    for (int e = 0; e < c[k].num_elements; ++e) sum += c[k].x[e];
  if (sum == 1.5f) *out = sum;
#endif
}

struct Ceilings {
  double copy_bytes, multiply_adds, matrix_products;  // per second: bytes read and written, flops, flops
};

inline Ceilings measure_ceilings(const cuda::Device& device, const Clock& clock) {
  constexpr std::size_t bytes = std::size_t{2} << 30;
  constexpr int chains = 8, rounds = 4096, threads = 256;
  const int blocks = 8 * device.multiprocessors;
  Ceilings ceilings{};
  const cuda::DeviceMemory from(bytes), to(bytes);
  ceilings.copy_bytes = 2e3 * bytes / clock.milliseconds([&](cudaStream_t stream) {
    cuda::check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream), "copying");
  });
  auto* out = static_cast<float*>(to.data());
  const double lanes = static_cast<double>(blocks) * threads, flops = 1e3 * chains * rounds;
  ceilings.multiply_adds = 2 * flops * lanes / clock.milliseconds([&](cudaStream_t stream) {
    multiply_adds_kernel<chains, rounds><<<blocks, threads, 0, stream>>>(out, 0.999f, 0.5f);
  });
  if (device.capability >= 80)
    ceilings.matrix_products = 8192 * flops * lanes / 32 / clock.milliseconds([&](cudaStream_t stream) {
      matrix_products_kernel<chains, rounds><<<blocks, threads, 0, stream>>>(out);
    });
  return ceilings;
}

}  // namespace nprf::bench
