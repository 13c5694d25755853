// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "nprf/cuda/device/device_code.hpp"

namespace nprf::cuda {

/// How many of the first `count` entries of an ascending list are less than x: std::lower_bound, which not every
/// compiler of these headers has on the device. O(log count).
__device__ __forceinline__ int count_below(const int* list, int count, int x) {
  int first = 0;
  while (first < count) {
    const int middle = (first + count) / 2;
    if (list[middle] < x)
      first = middle + 1;
    else
      count = middle;
  }
  return first;
}

/// The slots of tokens. In a sequence token i has slot i. In a grid the first `outside` tokens have no slot, and lags
/// are differences of the slots of the others. Pairs of a query and a key, of which at least one has no slot, have
/// entries of their own, the border (core/slots.hpp). In its row e, column 0 is for query e and every key with a
/// slot, column 1 for every query with a slot and key e, and column 2 + f for query e and key f, both without a slot.
struct TokenPlaces {
  const std::int32_t* slots = nullptr;   // [cells], ascending; null: a sequence
  const std::int32_t* tokens = nullptr;  // [end]: token outside + tokens[s] is in slot s; -1: no token is
  int outside = 0, cells = 0, end = 0;   // end: the last slot + 1

  __host__ __device__ bool is_grid() const { return slots != nullptr; }
  /// The number of slots of n tokens.
  int slot_count(int n) const { return is_grid() ? end : n; }
  __host__ __device__ int border_size() const { return outside * (outside + 2); }
  __device__ __forceinline__ bool is_border(int query, int key) const { return query < outside || key < outside; }
  /// The border entry of a query and a key, of which at least one has no slot.
  __device__ __forceinline__ int border_entry(int query, int key) const {
    if (query >= outside) return key * (outside + 2) + 1;
    return query * (outside + 2) + (key < outside ? 2 + key : 0);
  }
  /// The token in a slot; -1 if there is none.
  __device__ __forceinline__ int token_in(int slot) const {
    if (!is_grid()) return slot;
    const int cell = slot >= 0 && slot < end ? tokens[slot] : -1;
    return cell < 0 ? -1 : outside + cell;
  }
  /// The slot of a token; -1 if it has none.
  __device__ __forceinline__ int slot_of(int token) const {
    if (!is_grid()) return token;
    return token < outside ? -1 : slots[token - outside];
  }
  /// The first token whose slot is not below `slot`.
  __device__ __forceinline__ int first_from(int slot) const {
    return is_grid() ? outside + count_below(slots, cells, slot) : slot;
  }
  /// The lag of a query and a key of a grid, both with a slot.
  __device__ __forceinline__ int lag(int query, int key) const { return slots[key - outside] - slots[query - outside]; }
};

/// A query and a key; {-1,-1} for none.
struct TokenPair {
  int query, key;
};

/// The pairs of tokens of a grid that share one bias: those of a lag (entries 0 to lags - 1, from the lag first_lag
/// on), or those of an entry of the border (from entry `lags` on).
struct PairsOfEntry {
  TokenPlaces places;
  int first_lag, lags, entry;

  /// At least as many as there are pairs; operator[] gives them for k = 0 .. count() - 1.
  __device__ __forceinline__ int count() const {
    return entry < lags || (entry - lags) % (places.outside + 2) < 2 ? places.cells : 1;
  }
  /// The k-th pair, or none.
  __device__ __forceinline__ TokenPair operator[](int k) const {
    const int outside = places.outside;
    if (entry >= lags) {
      const int row = (entry - lags) / (outside + 2), column = (entry - lags) % (outside + 2);
      if (column == 0) return {row, outside + k};
      if (column == 1) return {outside + k, row};
      return {row, column - 2};
    }
    const int key = places.token_in(places.slots[k] + first_lag + entry);
    return key < 0 ? TokenPair{-1, -1} : TokenPair{outside + k, key};
  }
};

}  // namespace nprf::cuda
