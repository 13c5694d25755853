// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/async_copy.cuh"
#include "nprf/cuda/toeplitz/direct/mma_tile.cuh"

namespace nprf::cuda {

/// A TensorTile for up to 64 features, without a key mask. Values have the type of the features, and all rows are
/// aligned to 16 bytes. While a tile of keys is multiplied, the next one is copied to a second part of shared memory.
/// So no registers hold the next tile, and each tile needs one barrier.
template <class Feature, MmaShape shape = MmaShape::native>
class StreamedTile : public TensorTile<Feature, Feature, shape, 2, 2> {
  using Base = TensorTile<Feature, Feature, shape, 2, 2>;

 public:
  static constexpr bool compiled = Base::compiled && has_async_copies;
  static constexpr int blocks = Base::in_half ? 2 : 3;  // rows in half have scales, which need more registers
  using Base::queries, Base::keys, Base::columns, Base::threads;

  // not an inherited constructor, which clang does not inline
  __device__ __forceinline__ StreamedTile(const TileTask<Feature, Feature>& task, int z, int i0, int p0)
      : Base(task, z, i0, p0) {}

  /// Whether this tile can compute the task.
  static bool supports(const TileTask<Feature, Feature>& task) {
    return task.A.channels <= k_tile && task.A.has_aligned_rows && task.B.has_aligned_rows && !task.U.mask &&
           task.U.V.has_aligned_rows && task.U.V.channels > 0;
  }

  /// Adds the contributions of the key tiles first to end - 1.
  __device__ __forceinline__ void add_keys(int first, int end) {
    if (first >= end) return;
    if constexpr (Base::in_half) this->fit_rows_to_sums();
    this->load_queries(0);
    const std::ptrdiff_t j0 = first * keys + own_row();
    const Feature *of_keys = this->m_B + j0 * m_task.B.token_stride + own_channel(),
                  *of_values = this->m_U.data + j0 * this->m_U.token_stride + this->m_p0 + own_channel();
    const auto start = [&](int J, int stage) {  // starts to copy key tile J, fetches its weights
      Feature* to = Base::b_of(stage) + own_row() * stride + own_channel();
      copy<0>(to, of_keys, m_task.B.token_stride, J, own_channel() < m_task.B.channels);
      copy<keys>(to, of_values, this->m_U.token_stride, J, this->m_p0 + own_channel() < this->m_U.p);
      of_keys += keys * m_task.B.token_stride, of_values += keys * this->m_U.token_stride;
      this->fetch_weights(J * keys);
    };
    m_stage = 0;
    start(first, 0);
    for (int J = first; J < end; ++J) {
      wait_for_copies();
      const bool has_zero_weight = __syncthreads_or(this->put_weights());
      if (J + 1 < end) start(J + 1, 1 - m_stage);
      typename Base::Scores s = {};
#pragma unroll 1
      for (int k = 0; k < m_task.B.channels; k += 16) this->add_scores(s, k);
      this->add_weighted_values(s, has_zero_weight);
      m_stage = 1 - m_stage;
    }
  }

 private:
  using Base::k_tile, Base::stride, Base::m_task, Base::m_stage;
  static constexpr int threads_per_row = k_tile / 8, rows_at_once = threads / threads_per_row;

  // the first row of a tile that this thread copies, and the first of the 8 channels that it copies of each row
  __device__ __forceinline__ static int own_row() { return static_cast<int>(threadIdx.x) / threads_per_row; }
  __device__ __forceinline__ static int own_channel() { return static_cast<int>(threadIdx.x) % threads_per_row * 8; }

  // starts to copy this thread's rows of key tile J from `from` to the address that is `row` rows after `to`; writes
  // zeros beyond the last key and channel
  template <int row>
  __device__ __forceinline__ void copy(Feature* to, const Feature* from, std::ptrdiff_t token_stride, int J,
                                       bool has_channel) const {
    const int inside = m_task.B.tokens - J * keys;
    if (inside >= keys)
      copy_rows<row, row + keys>(to, from, token_stride, [=](int) { return has_channel; });
    else
      copy_rows<row, row + keys>(to, from, token_stride,
                                 [=](int t) { return has_channel && own_row() + t - row < inside; });
  }
  template <int first, int end, class IsInside>
  __device__ __forceinline__ static void copy_rows(Feature* to, const Feature* from, std::ptrdiff_t token_stride,
                                                   IsInside&& is_inside) {
    start_copy<static_cast<int>(sizeof(Feature)) * first * stride>(to, from, is_inside(first));
    if constexpr (first + rows_at_once < end)
      copy_rows<first + rows_at_once, end>(to, from + rows_at_once * token_stride, token_stride, is_inside);
  }
};

}  // namespace nprf::cuda
