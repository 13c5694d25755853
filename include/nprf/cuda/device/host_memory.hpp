// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "nprf/core/index.hpp"

namespace nprf::cuda {

/// Memory on the host for tables that are built there; all of it is freed together.
class HostMemory {
 public:
  /// Takes memory for `count` uninitialised objects. The result is never null.
  template <class U>
  U* take(Index count) {
    const std::size_t bytes = sizeof(U) * static_cast<std::size_t>(std::max<Index>(count, 1));
    m_memory.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));  // aligned as by operator new
    return reinterpret_cast<U*>(m_memory.back().get());
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> m_memory;
};

}  // namespace nprf::cuda
