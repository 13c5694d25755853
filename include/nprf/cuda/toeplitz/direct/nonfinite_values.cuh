// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/row_loader.cuh"
#include "nprf/cuda/device/storage.cuh"

/// NaNs and infinities in a tile (rows,MmaTileShape::channels) of shared memory.
namespace nprf::cuda {

template <MmaFactor T>
__device__ __forceinline__ bool is_nonfinite(T x) {
  return !(fabsf(to_float(x)) <= largest_float);
}

/// Whether this thread's part of the tile has a NaN or an infinity.
template <MmaFactor T>
__device__ __forceinline__ bool has_nonfinite_scalar(const T* tile, int rows) {
  bool found = false;
  for (int e = static_cast<int>(threadIdx.x); e < rows * MmaTileShape::channels; e += static_cast<int>(blockDim.x))
    found |= is_nonfinite(tile[e / MmaTileShape::channels * MmaTileShape::stride + e % MmaTileShape::channels]);
  return found;
}

/// Replaces the NaNs and infinities in this thread's part of the tile by zeros.
template <MmaFactor T>
__device__ __forceinline__ void clear_nonfinite_scalars(T* tile, int rows) {
  for (int e = static_cast<int>(threadIdx.x); e < rows * MmaTileShape::channels; e += static_cast<int>(blockDim.x)) {
    T& x = tile[e / MmaTileShape::channels * MmaTileShape::stride + e % MmaTileShape::channels];
    if (is_nonfinite(x)) store(&x, 0.0f);
  }
}

}  // namespace nprf::cuda
