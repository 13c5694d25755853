// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/position/lag_weights.cuh"

namespace nprf::cuda {

/// Which keys a query sees: those at lags whose bias is not -infinity, but for padding.
struct Visibility {
  DeviceBias b;      // of lags j - i from -(n_q - 1) on
  const bool* mask;  // [sequence, n_k], or null: false is padding
  int heads, n_q, n_k;

  /// Whether query i of matrix z sees any. O(n_k) where it sees none, and up to the first one.
  __device__ __forceinline__ bool sees_any(int z, int i) const {
    const bool* has = mask ? mask + static_cast<std::ptrdiff_t>(z / heads) * n_k : nullptr;
    for (int j = 0; j < n_k; ++j)
      if (!(has && !has[j]) && b(z % heads, j - i + n_q - 1) > -1.0 / 0.0) return true;
    return false;
  }

  /// Whether any query of matrix z sees key j, which is no padding. O(n_q) where none does, and up to the first one.
  __device__ __forceinline__ bool is_seen(int z, int j) const {
    for (int i = 0; i < n_q; ++i)
      if (b(z % heads, j - i + n_q - 1) > -1.0 / 0.0) return true;
    return false;
  }
};

}  // namespace nprf::cuda
