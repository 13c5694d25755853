// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/fft/complex.cuh"
#include "nprf/cuda/toeplitz/direct/fp32_tile.cuh"
#include "nprf/cuda/toeplitz/fft/shared_memory_kernel.cuh"

namespace nprf::cuda {

/// The kernels for up to N = folds * L tokens, by FFTs of length L in shared memory; a signal is divided into `folds`
/// pieces (SharedMemoryTask). `shared` and `spectrum_shared` are the bytes of shared memory of the two kernels.
struct SharedMemoryVariant {
  int L, folds, threads;
  std::size_t shared, spectrum_shared;
  void (*kernel)(SharedMemoryTask);
  void (*spectrum)(SharedMemorySpectrumTask);

  template <class Shape, int folds_, FftMemory columns, FftMemory sums>
  static SharedMemoryVariant of() {
    return {Shape::L,
            folds_,
            Shape::threads,
            shared_memory_bytes<Shape, folds_, columns, sums>(),
            sizeof(float2) * fft::BlockTransform<Shape>::shared,
            shared_memory_kernel<Shape, folds_, columns, sums>,
            shared_memory_spectrum_kernel<Shape, folds_>};
  }

  int N() const { return folds * L; }
};

using Points1024 = fft::Shape<1024, 64, 4, 16>;
using Points2048 = fft::Shape<2048, 128, 8, 16>;
using Points4096 = fft::Shape<4096, 256, 16, 16>;
using Points8192 = fft::Shape<8192, 256, 32, 16>;

/// Sorted by N; for equal N the kernel that needs more shared memory comes first. 8192 points fit Volta, 16384 fit
/// Hopper.
inline const auto& shared_memory_variants() {
  using V = SharedMemoryVariant;
  static const V all[] = {
      V::of<Points1024, 1, FftMemory::in_shared_memory, FftMemory::in_registers>(),
      V::of<Points2048, 1, FftMemory::in_shared_memory, FftMemory::in_registers>(),
      V::of<Points1024, 3, FftMemory::in_global_memory, FftMemory::in_registers>(),
      V::of<Points4096, 1, FftMemory::in_shared_memory, FftMemory::in_registers>(),
      V::of<Points2048, 3, FftMemory::in_global_memory, FftMemory::in_registers>(),
      V::of<Points8192, 1, FftMemory::in_shared_memory, FftMemory::in_registers>(),
      V::of<Points8192, 1, FftMemory::in_global_memory, FftMemory::in_registers>(),
      V::of<Points4096, 3, FftMemory::in_global_memory, FftMemory::in_registers>(),
      V::of<Points8192, 2, FftMemory::in_global_memory, FftMemory::in_shared_memory>(),
  };
  return all;
}

/// Computes the products of z matrices by FFTs in shared memory.
class SharedMemoryFft {
 public:
  /// The kernel with the smallest N >= n that fits the device; null if there is none.
  static const SharedMemoryVariant* variant_for(const Device& device, int n) {
    for (const SharedMemoryVariant& variant : shared_memory_variants())
      if (variant.N() >= n && variant.shared <= device.shared_bytes) return &variant;
    return nullptr;
  }

  /// Throws InvalidArgument if no kernel has room for the tokens.
  SharedMemoryFft(const Device& device, int n_q, int n_k, int r, int p, int z)
      : m_variant(variant_for(device, std::max(n_q, n_k))), m_pairs(column_pairs(p)), m_z(z) {
    require(m_variant != nullptr, "n_q and n_k: expected at most 16384 (12288 on older devices) in shared memory, got ",
            n_q, " and ", n_k);
    allow_shared(m_variant->kernel, m_variant->shared);
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, m_variant->kernel, m_variant->threads,
                                                        m_variant->shared),
          "querying the occupancy of a kernel");
    choose_groups(r, device.multiprocessors * std::max(blocks, 1));
  }

  /// N, the number of tokens in a row of features, with zero padding.
  int length() const { return m_variant->N(); }

  struct Arrays {
    float2 *U, *Y;  // as in SharedMemoryTask
  };
  Arrays take(Scratch& scratch) const {
    const std::size_t columns = static_cast<std::size_t>(m_z) *
                                static_cast<std::size_t>(2 * m_variant->folds * m_pairs) *
                                static_cast<std::size_t>(length());
    float2* U = scratch.take<float2>(columns);
    return {U, scratch.take<float2>(columns * static_cast<std::size_t>(m_groups))};
  }

  /// Queues the computation of the spectrum [position, 2 N] of the weights.
  void queue_spectrum(const DeviceWeights& c, int positions, float2* spectrum, cudaStream_t stream) const {
    launch("FFT in shared memory: spectrum", m_variant->spectrum,
           dim3{static_cast<unsigned>(2 * m_variant->folds), static_cast<unsigned>(positions), 1},
           dim3{static_cast<unsigned>(m_variant->threads), 1, 1}, m_variant->spectrum_shared, stream,
           SharedMemorySpectrumTask{c, spectrum});
  }

  /// Queues the computation of the numerators `out` [z, n_q, p] and the denominators `sums` [z, n_q] of z matrices,
  /// from features [z / group, r, N].
  template <Storage S>
  void queue(const TileTask<S>& x, const Spectra& spectra, float* out, float* sums, const Arrays& arrays,
             cudaStream_t stream) const {
    if (x.A.tokens == 0 || m_z == 0) return;
    const int residues = 2 * m_variant->folds;
    const unsigned pairs = static_cast<unsigned>(m_pairs), all = static_cast<unsigned>(m_z);
    constexpr int threads = 256;
    const dim3 block{threads, 1, 1};
    queue_twiddles(TwiddleTask<S>{x.U, length(), residues, m_pairs, m_z * m_pairs, 0, m_z * m_pairs, arrays.U, m_pairs},
                   stream);
    launch("FFT in shared memory", m_variant->kernel, dim3{pairs, static_cast<unsigned>(residues * m_groups), all},
           dim3{static_cast<unsigned>(m_variant->threads), 1, 1}, m_variant->shared, stream,
           SharedMemoryTask{x.A.data, x.B.data, arrays.U, spectra.values, spectra.stride, x.A.heads, x.A.channels,
                            m_pairs, m_groups, m_features, arrays.Y, x.A.group, x.B.group});
    launch("FFT in shared memory: sums", collect_kernel<threads>, dim3{blocks_of<threads>(x.A.tokens), pairs, all},
           block, 0, stream,
           CollectTask{arrays.Y, length(), residues, m_pairs, m_groups, x.A.tokens, x.U.V.channels, out, sums});
  }

 private:
  // chooses the number of groups of features with the least time: the number of rounds in which the blocks run, times
  // the number of features of a block
  void choose_groups(int r, int concurrent_blocks) {
    constexpr int most = 32;
    long long best = std::numeric_limits<long long>::max();
    for (int groups = 1; groups <= std::min(r, most); ++groups) {
      const int features = (r + groups - 1) / groups;
      const long long all = static_cast<long long>(m_pairs) * 2 * m_variant->folds * groups * std::max(m_z, 1);
      const long long time = (all + concurrent_blocks - 1) / concurrent_blocks * features;
      if (time >= best) continue;
      best = time;
      m_groups = groups;
      m_features = features;
    }
  }

  const SharedMemoryVariant* m_variant = nullptr;
  int m_pairs = 1, m_z = 0, m_groups = 1, m_features = 1;
};

}  // namespace nprf::cuda
