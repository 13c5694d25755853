// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/config.hpp"
#include "nprf/core/index.hpp"
#include "nprf/core/lag_range.hpp"

namespace nprf {

/// The lags of the near field. Its pairs are those of tokens that are less than `width` apart: along the sequence, or
/// on a grid in each of the two dimensions. Attention computes the weights of these pairs exactly. Lags are differences
/// of slots, and include the offset of the queries.
struct NearLags {
  Index width = 0;   // 0: none
  Index pitch = 0;   // of a grid: the difference of the slots of one cell and of the one below it; 0: no grid
  Index offset = 0;  // the lag of a token to itself

  NPRF_HOST_DEVICE bool contains(Index lag) const {
    Index distance = magnitude(lag - offset);
    if (pitch == 0) return distance < width;
    // the nearest multiple of the pitch
    const Index rows = (distance + pitch / 2) / pitch;
    distance = magnitude(distance - rows * pitch);
    return rows < width && distance < width;
  }

  /// The range from the first near lag to the last. On a grid it may contain other lags, too.
  NPRF_HOST_DEVICE LagRange range() const {
    if (width == 0) return {0, -1};
    const Index most = (width - 1) * (pitch + 1);
    return {offset - most, offset + most};
  }

 private:
  NPRF_HOST_DEVICE static Index magnitude(Index x) { return x < 0 ? -x : x; }
};

}  // namespace nprf
