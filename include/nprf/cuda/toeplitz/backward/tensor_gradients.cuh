// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "nprf/cuda/device/device_matrix.hpp"
#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/runtime.hpp"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/device/storage.cuh"
#include "nprf/cuda/toeplitz/product.cuh"

namespace nprf::cuda {

/// Transposes and rounds matrices of float by channel, [z, channels, stride], to matrices of T by token, [z, n, row],
/// as tensor cores read them. Rows are zero from `channels` on. If `scales` is null, the matrices are features, and are
/// multiplied by feature_scale<T>. Otherwise, if T is half, each row is divided by a power of two, scales[z, token],
/// that takes the largest finite entry of the row to [2^14, 2^15); if T is bfloat16, it is 1.
template <MmaFactor T>
struct FactorRowsTask {
  const float* x;
  int channels, stride, n, row;
  T* rows;
  float* scales;  // [z, n]; null: features
};

struct FactorRowsShape {
  static constexpr int tokens = 32, channels = 32, groups = 8, threads = tokens * groups, stride = tokens + 1;
  static constexpr std::size_t shared = sizeof(float) * (channels * stride + threads);
};

/// blockIdx.x: tile of tokens, blockIdx.y: z, threadIdx.x: token of the tile and group of channels.
template <MmaFactor T>
__global__ void __launch_bounds__(FactorRowsShape::threads) factor_rows_kernel(FactorRowsTask<T> task) {
  start_kernel();
  using Shape = FactorRowsShape;
  float *tile = shared_memory<float>(),
        *maxima = tile + Shape::channels * Shape::stride;  // tile (channels,tokens), maxima (threads)
  const int t = static_cast<int>(threadIdx.x) % Shape::tokens, g = static_cast<int>(threadIdx.x) / Shape::tokens;
  const int t0 = static_cast<int>(blockIdx.x) * Shape::tokens, z = static_cast<int>(blockIdx.y);
  const float* x = task.x + static_cast<std::ptrdiff_t>(z) * task.channels * task.stride;
  const auto at = [&](int channel) {
    return channel < task.channels && t0 + t < task.n ? x[static_cast<std::ptrdiff_t>(channel) * task.stride + t0 + t]
                                                      : 0.0f;
  };
  float scale = feature_scale<T>;
  if (task.scales) {
    float largest = 0;
    for (int k = g; k < task.channels; k += Shape::groups) {
      const float size = fabsf(at(k));
      if (size <= largest_float) largest = fmaxf(largest, size);
    }
    maxima[threadIdx.x] = largest;
    __syncthreads();
    for (int k = 0; k < Shape::groups; ++k) largest = fmaxf(largest, maxima[k * Shape::tokens + t]);
    scale = std::is_same_v<T, __half> ? scale_to_half(largest) : 1.0f;
    if (g == 0 && t0 + t < task.n) task.scales[static_cast<std::ptrdiff_t>(z) * task.n + t0 + t] = 1 / scale;
  }
  for (int k0 = 0; k0 < task.row; k0 += Shape::channels) {
    __syncthreads();
    for (int k = g; k < Shape::channels; k += Shape::groups) tile[k * Shape::stride + t] = scale * at(k0 + k);
    __syncthreads();
    // a warp writes the channels of a token
    for (int token = g; token < Shape::tokens && t0 + token < task.n; token += Shape::groups)
      if (k0 + t < task.row)
        store(task.rows + (static_cast<std::ptrdiff_t>(z) * task.n + t0 + token) * task.row + k0 + t,
              tile[t * Shape::stride + token]);
  }
}

template <MmaFactor T>
void queue_factor_rows(const FactorRowsTask<T>& task, int z, cudaStream_t stream) {
  if (task.n == 0 || z == 0) return;
  launch("gradients: rows of factors", factor_rows_kernel<T>,
         dim3{blocks_of<FactorRowsShape::tokens>(task.n), static_cast<unsigned>(z), 1},
         dim3{FactorRowsShape::threads, 1, 1}, FactorRowsShape::shared, stream, task);
}

/// Computes the gradients dA, dB and dU of Y = ((A B^T) o C) U from G = dL/dY (plan/backward.cuh) on tensor cores, by a
/// tiled engine. The factors A, B, G and U are rounded to T. If T is half, rows of G and U are divided by powers of two
/// (OperandScales). Let u be as in TensorTile. The error of a sum is at most 4 u times the sum of the magnitudes of
/// what is added up, in tails 5 u: the two factors of a weight, the weight, and the third factor are rounded. Of the
/// factors, U is exact if it is stored as T.
template <Storage T>
class TensorGradients {
 public:
  /// `forward` is the shape of the forward product; dA, dB and dU are the same products in float. The device must have
  /// instructions for T, which is not float.
  TensorGradients(const Device& device, const ProductShape& forward, const Product<float>& dA, const Product<float>& dB,
                  const Product<float>& dU)
      : m_forward(forward),
        m_dA(device, dA.engine(), dA.shape(), dA.weights(), 0, type),
        m_dB(device, dB.engine(), dB.shape(), dB.weights(), 0, type),
        m_dU(device, dU.engine(), dU.shape(), dU.weights(), 0, type) {}

  /// Must be called after the weights have changed.
  void queue_weights(cudaStream_t stream) const {
    for (const Product<T>* each : {&m_dA, &m_dB, &m_dU}) each->queue_weights(stream);
  }

  /// Scratch memory of a call for the rounded factors. The Arrays of dA, dB and dU may share memory.
  struct Rows {
    T *A, *B, *G, *U;                  // [z, n_q, ..] [z / group_of_B, n_k, ..] [z, n_q, ..] [z, n_k, ..]
    float *scales_of_G, *scales_of_U;  // [z, n_q] [z, n_k] if T is half; else null
  };
  using Arrays = typename Product<T>::Arrays;
  Rows take_rows(Scratch& scratch) const {
    const auto& [z, heads, n_q, n_k, r, p, group_of_A, group_of_B] = m_forward;
    Rows rows{};
    rows.A = scratch.take<T>(z, n_q, features());
    rows.B = scratch.take<T>(z / group_of_B, n_k, features());
    rows.G = scratch.take<T>(z, n_q, columns());
    rows.U = scratch.take<T>(z, n_k, columns());
    if (!has_scales) return rows;
    rows.scales_of_G = scratch.take<float>(z, n_q);
    rows.scales_of_U = scratch.take<float>(z, n_k);
    return rows;
  }
  Arrays take_dA(Scratch& scratch) const { return m_dA.take(scratch); }
  Arrays take_dB(Scratch& scratch) const { return m_dB.take(scratch); }
  Arrays take_dU(Scratch& scratch) const { return m_dU.take(scratch); }

  /// Queues the rounding of A [z, r, n_q] and B [z / group_of_B, r, n_k], both by channel, to rows.A and rows.B, in the
  /// layout that the forward product reads.
  void queue_features(const float* A, const float* B, const Rows& rows, cudaStream_t stream) const {
    const auto& [z, heads, n_q, n_k, r, p, group_of_A, group_of_B] = m_forward;
    queue_factor_rows(FactorRowsTask<T>{A, r, n_q, n_q, features(), rows.A, nullptr}, z, stream);
    queue_factor_rows(FactorRowsTask<T>{B, r, n_k, n_k, features(), rows.B, nullptr}, z / group_of_B, stream);
  }
  /// Queues the rounding of G [z, p + 1, n_q] and U [z, p + 1, n_k], both by channel, to rows.G and rows.U.
  void queue_columns(const float* G, const float* U, const Rows& rows, cudaStream_t stream) const {
    const auto& [z, heads, n_q, n_k, r, p, group_of_A, group_of_B] = m_forward;
    queue_factor_rows(FactorRowsTask<T>{G, p + 1, n_q, n_q, columns(), rows.G, rows.scales_of_G}, z, stream);
    queue_factor_rows(FactorRowsTask<T>{U, p + 1, n_k, n_k, columns(), rows.U, rows.scales_of_U}, z, stream);
  }

  /// Queue the computation of arrays.sums: dA [z, n_q, r], dB [z, n_k, r] or dU [z, n_k, p], which has no column of
  /// ones.
  void queue_dA(const Rows& x, const Arrays& arrays, cudaStream_t stream) const {
    m_dA.queue(x.G, x.U, values(x.B, m_forward.n_k, m_forward.r, features(), m_forward.group_of_B), arrays, stream,
               {x.scales_of_G, x.scales_of_U, 1 / feature_scale<T>});
  }
  void queue_dB(const Rows& x, const Arrays& arrays, cudaStream_t stream) const {
    m_dB.queue(x.U, x.G, values(x.A, m_forward.n_q, m_forward.r, features()), arrays, stream,
               {x.scales_of_U, x.scales_of_G, 1 / feature_scale<T>});
  }
  void queue_dU(const Rows& x, const Arrays& arrays, cudaStream_t stream) const {
    OperandScales scales = OperandScales::of_features<T>();
    scales.keys = x.scales_of_G;
    m_dU.queue(x.B, x.A, values(x.G, m_forward.n_q, m_forward.p, columns()), arrays, stream, scales);
  }

 private:
  static constexpr bool has_scales = std::is_same_v<T, __half>;
  static constexpr FeatureType type = has_scales ? FeatureType::in_half : FeatureType::in_bfloat16;

  // scalars of a row of r features, and of a row of p + 1 columns, with padding
  int features() const { return m_dU.stride(0); }
  int columns() const { return m_dA.stride(0); }

  // the first `channels` columns of `rows`, where `group` consecutive heads share a matrix
  Columns<T> values(const T* rows, int n, int channels, int stride, int group = 1) const {
    const int heads = m_forward.heads / group;
    DeviceMatrixView<const T> x(rows, m_forward.z / m_forward.heads, heads, n, channels);
    x.token_stride = stride;
    x.head_stride = static_cast<std::ptrdiff_t>(n) * stride;
    x.batch_stride = heads * x.head_stride;
    return {Operand<T>(x).shared_by(group), nullptr, nullptr, 0};
  }

  ProductShape m_forward;
  Product<T> m_dA, m_dB, m_dU;
};

}  // namespace nprf::cuda
