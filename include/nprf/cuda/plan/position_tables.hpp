// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "nprf/core/index.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/cuda/device/host_memory.hpp"
#include "nprf/cuda/model.hpp"

namespace nprf::cuda {

/// The range of the lags of a position's table. Before and after it the bias is a straight line: constant, or with the
/// slope of a linear position.
inline LagRange table_range(const PositionModel& position) {
  const Index size = static_cast<Index>(position.index.size());
  return size == 0 ? LagRange{0, 0} : LagRange{position.first, position.first + size - 1};
}

/// The tables of a LagProblem, on the host.
class PositionTables : public HostMemory {
 public:
  /// The bias of each lag of a position, in the form that the CPU uses.
  LagBiasView<float> bias_of(const PositionModel& position) {
    const LagRange lags = table_range(position);
    float* table = take<float>(lags.size());
    table[0] = 0;
    for (std::size_t k = 0; k < position.index.size(); ++k)
      table[k] = position.parameters[static_cast<std::size_t>(position.index[k])];
    const float slope = position.linear ? -position.parameters[0] : 0.0f;
    return {lags.first, table, lags.size(), slope, slope};
  }
};

/// Sorts lags by their parameters, where index[lag] is one of the parameters 0 .. count - 1. The lags of parameter k
/// are order[start[k]], ..., order[start[k + 1] - 1].
inline void sort_lags(const std::vector<std::int32_t>& index, int count, std::vector<std::int32_t>& order,
                      std::vector<std::int32_t>& start) {
  start.assign(static_cast<std::size_t>(count) + 1, 0);
  for (const std::int32_t at : index) ++start[static_cast<std::size_t>(at) + 1];
  std::partial_sum(start.begin(), start.end(), start.begin());
  order.resize(index.size());
  std::vector<std::int32_t> next = start;
  for (std::size_t k = 0; k < index.size(); ++k)
    order[static_cast<std::size_t>(next[static_cast<std::size_t>(index[k])]++)] = static_cast<std::int32_t>(k);
}

}  // namespace nprf::cuda
