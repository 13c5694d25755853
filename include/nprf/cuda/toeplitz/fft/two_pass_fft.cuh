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
#include "nprf/cuda/toeplitz/fft/shared_memory_fft.cuh"
#include "nprf/cuda/toeplitz/fft/two_pass_kernel.cuh"

namespace nprf::cuda {

/// The kernels for up to N = folds * L1 * L2 tokens, by FFTs in two passes (TwoPassTask).
struct TwoPassVariant {
  int L1, L2, folds;
  int tile, column_threads, row_threads;
  std::size_t column_shared, row_shared, inverse_shared;
  void (*columns)(TwoPassTask);
  void (*rows)(TwoPassTask);
  void (*inverse)(TwoPassTask);
  void (*weights)(TwoPassSpectrumTask);
  void (*weight_rows)(TwoPassSpectrumTask);

  template <class Columns, class Rows, int folds_>
  static TwoPassVariant of() {
    return {Columns::L,
            Rows::L,
            folds_,
            Columns::columns,
            Columns::threads,
            Rows::threads,
            sizeof(float2) * fft::ColumnTransform<Columns>::shared,
            sizeof(float2) * fft::BlockTransform<Rows>::shared,
            two_pass_inverse_bytes<Columns, folds_>,
            two_pass_columns_kernel<Columns, Rows::L, folds_>,
            two_pass_rows_kernel<Rows>,
            two_pass_inverse_kernel<Columns, Rows::L, folds_>,
            two_pass_weights_kernel<Columns, Rows::L, folds_>,
            two_pass_weight_rows_kernel<Rows>};
  }

  int N() const { return folds * L1 * L2; }
};

using Points512 = fft::Shape<512, 32, 4, 8>;

/// Sorted by N. With folds = 3 and columns of 256 points a thread has many values, so that a block has half as many
/// columns.
inline const auto& two_pass_variants() {
  using V = TwoPassVariant;
  using Columns16 = fft::ColumnShape<4, 16>;
  using Columns64 = fft::ColumnShape<8, 16>;
  using Columns256 = fft::ColumnShape<16, 16>;
  using Narrow256 = fft::ColumnShape<16, 8>;
  static const V all[] = {
      V::of<Columns16, Points1024, 1>(),   // 16 thousand tokens
      V::of<Columns16, Points512, 3>(),    // 24
      V::of<Columns64, Points512, 1>(),    // 32
      V::of<Columns16, Points1024, 3>(),   // 48
      V::of<Columns64, Points1024, 1>(),   // 64
      V::of<Columns64, Points512, 3>(),    // 96
      V::of<Columns256, Points512, 1>(),   // 128
      V::of<Columns64, Points1024, 3>(),   // 192
      V::of<Columns256, Points1024, 1>(),  // 256
      V::of<Narrow256, Points512, 3>(),    // 384
      V::of<Columns256, Points2048, 1>(),  // 512
      V::of<Narrow256, Points1024, 3>(),   // 768
      V::of<Columns256, Points4096, 1>(),  // 1024
  };
  return all;
}

/// Computes the products of z matrices by FFTs in two passes.
class TwoPassFft {
 public:
  /// The kernels with the smallest N >= n; null if there are none.
  static const TwoPassVariant* variant_for(int n) {
    for (const TwoPassVariant& variant : two_pass_variants())
      if (variant.N() >= n) return &variant;
    return nullptr;
  }

  /// For z matrices of p columns and r features. `most_bytes` limits the slab, which holds at least one pair of columns
  /// for one feature. Throws BackendError if the table of L1 L2 roots cannot be allocated.
  TwoPassFft(const TwoPassVariant& variant, const Device& device, int r, int p, int z, std::size_t most_bytes)
      : m_variant(&variant),
        m_pairs_of_z(column_pairs(p)),
        m_all_pairs(z * m_pairs_of_z),
        m_roots(sizeof(float2) * static_cast<std::size_t>(variant.L1) * static_cast<std::size_t>(variant.L2)) {
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, variant.inverse, variant.column_threads,
                                                        variant.inverse_shared),
          "querying the occupancy of a kernel");
    const std::size_t fit = most_bytes / (sizeof(float2) * static_cast<std::size_t>(2 * length()));
    choose_slab(r, device.multiprocessors * std::max(blocks, 1),
                static_cast<int>(std::clamp<std::size_t>(fit, 1, most_blocks / residues())));
  }

  /// N, the number of tokens in a row of features, with zero padding.
  int length() const { return m_variant->N(); }

  struct Arrays {
    float2 *U, *slab, *Y;  // as in TwoPassTask
  };
  Arrays take(Scratch& scratch) const {
    const std::size_t points = static_cast<std::size_t>(m_pairs) * static_cast<std::size_t>(length());
    float2* U = scratch.take<float2>(points * residues());
    float2* slab = scratch.take<float2>(2 * points * static_cast<std::size_t>(m_features));
    return {U, slab, scratch.take<float2>(points)};
  }

  /// Queues the computation of the spectrum [position, 2 N] of the weights.
  void queue_spectrum(const DeviceWeights& c, int positions, float2* spectrum, cudaStream_t stream) const {
    const TwoPassVariant& v = *m_variant;
    const TwoPassSpectrumTask task{c, v.L2, static_cast<int>(residues()), roots(), spectrum};
    const unsigned all = static_cast<unsigned>(positions), L1 = static_cast<unsigned>(v.L1);
    launch("FFT in two passes: roots", two_pass_roots_kernel<threads>, dim3{blocks_of<threads>(v.L2), L1, 1},
           dim3{threads, 1, 1}, 0, stream, task);
    launch("FFT in two passes: columns of weights", v.weights, dim3{tiles(), residues(), all}, columns_block(),
           v.column_shared, stream, task);
    launch("FFT in two passes: rows of weights", v.weight_rows, dim3{L1, residues(), all}, rows_block(), v.row_shared,
           stream, task);
  }

  /// Queues the computation of the numerators `out` [z, n_q, p] and the denominators `sums` [z, n_q] of z matrices,
  /// from features [z / group, r, N].
  template <Storage S>
  void queue(const TileTask<S>& x, const Spectra& spectra, float* out, float* sums, const Arrays& arrays,
             cudaStream_t stream) const {
    if (x.A.tokens == 0) return;
    const TwoPassVariant& v = *m_variant;
    const unsigned pairs = static_cast<unsigned>(m_pairs), slots = pairs * residues(), L1 = static_cast<unsigned>(v.L1);
    TwoPassTask task{.A = x.A.data,
                     .B = x.B.data,
                     .spectrum = spectra.values,
                     .stride = spectra.stride,
                     .roots = roots(),
                     .heads = x.A.heads,
                     .r = x.A.channels,
                     .n_q = x.A.tokens,
                     .p = x.U.V.channels,
                     .residues = static_cast<int>(residues()),
                     .pairs_of_z = m_pairs_of_z,
                     .all_pairs = m_all_pairs,
                     .first_pair = 0,
                     .first_feature = 0,
                     .features = m_features,
                     .U = arrays.U,
                     .slab = arrays.slab,
                     .Y = arrays.Y,
                     .out = out,
                     .sums = sums,
                     .group_of_A = x.A.group,
                     .group_of_B = x.B.group};
    for (; task.first_pair < m_all_pairs; task.first_pair += m_pairs) {
      task.first_feature = 0;
      queue_twiddles(TwiddleTask<S>{x.U, length(), task.residues, m_pairs_of_z, m_all_pairs, task.first_pair, m_pairs,
                                    arrays.U, 1},
                     stream);
      do {
        launch("FFT in two passes: columns", v.columns, dim3{tiles(), slots, 1}, columns_block(), v.column_shared,
               stream, task);
        launch("FFT in two passes: rows", v.rows, dim3{L1, slots, 1}, rows_block(), v.row_shared, stream, task);
        launch("FFT in two passes: inverse", v.inverse, dim3{tiles(), pairs, 1}, columns_block(), v.inverse_shared,
               stream, task);
        task.first_feature += m_features;
      } while (task.first_feature < task.r);
    }
  }

 private:
  static constexpr int threads = 256, most_blocks = 65535;

  unsigned residues() const { return static_cast<unsigned>(2 * m_variant->folds); }
  unsigned tiles() const { return static_cast<unsigned>(m_variant->L2 / m_variant->tile); }
  dim3 columns_block() const { return {static_cast<unsigned>(m_variant->column_threads), 1, 1}; }
  dim3 rows_block() const { return {static_cast<unsigned>(m_variant->row_threads), 1, 1}; }
  float2* roots() const { return static_cast<float2*>(m_roots.data()); }

  // chooses the numbers of pairs and of features of a slab, whose product is at most `fit`, such that the time is
  // least. The time is that of the last pass, whose blocks run in rounds: a round takes as long as the slab has
  // features, plus one for U and Y
  void choose_slab(int r, int concurrent_blocks, int fit) {
    const auto parts = [](long long all, long long each) { return (all + each - 1) / each; };
    const int all = std::max(m_all_pairs, 1);
    long long best = std::numeric_limits<long long>::max();
    for (int features = 1; features <= std::clamp(r, 1, fit); ++features) {
      const long long slabs = parts(all, fit / features), pairs = parts(all, slabs);
      const long long time = slabs * parts(r, features) * parts(pairs * tiles(), concurrent_blocks) * (features + 1);
      if (time >= best) continue;
      best = time;
      m_features = features;
      m_pairs = static_cast<int>(pairs);
    }
  }

  const TwoPassVariant* m_variant;
  int m_pairs_of_z, m_all_pairs, m_pairs = 1, m_features = 1;
  DeviceMemory m_roots;  // (L1,L2)
};

}  // namespace nprf::cuda
