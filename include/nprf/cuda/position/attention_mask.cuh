// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/position/lag_weights.cuh"

namespace nprf::cuda {

/// Which keys a query attends to: those that are not padding, at lags whose bias is not -infinity.
struct AttentionMask {
  DeviceBias b;
  const bool* key_mask;  // [sequence, n_k]: false is padding; null: no padding
  int heads, n_q, n_k;

  /// Whether query i of matrix z attends to any key. The search stops at the first one; O(n_k) if there is none.
  __device__ __forceinline__ bool attends_any(int z, int i) const {
    const bool* own_mask = key_mask ? key_mask + static_cast<std::ptrdiff_t>(z / heads) * n_k : nullptr;
    for (int j = 0; j < n_k; ++j)
      if (!(own_mask && !own_mask[j]) && b.between(z % heads, i, j) > minus_infinity) return true;
    return false;
  }

  /// Whether any query of matrix z attends to key j, which must not be padding. The search stops at the first one;
  /// O(n_q) if there is none.
  __device__ __forceinline__ bool is_attended(int z, int j) const {
    for (int i = 0; i < n_q; ++i)
      if (b.between(z % heads, i, j) > minus_infinity) return true;
    return false;
  }
};

}  // namespace nprf::cuda
