// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "nprf/core/types.hpp"

namespace nprf::python {

/// The keys of a sequence that are not padding.
struct KeptKeys {
  std::span<const bool> mask;  // false is padding; empty: all true
  Index length;                // later keys are padding

  bool contains(Index j) const { return j < length && (mask.empty() || mask[static_cast<std::size_t>(j)]); }
};

/// A mask of n_k keys, false for padding; empty if there is none.
class KeyMask {
 public:
  KeyMask(const KeptKeys& kept, Index n_k) {
    if (kept.mask.empty() && kept.length >= n_k) return;
    m_size = static_cast<std::size_t>(n_k);
    m_values.reset(new bool[m_size]);
    for (Index j = 0; j < n_k; ++j) m_values[static_cast<std::size_t>(j)] = kept.contains(j);
  }

  std::span<const bool> span() const { return {m_values.get(), m_size}; }

 private:
  std::size_t m_size = 0;
  std::unique_ptr<bool[]> m_values;
};

}  // namespace nprf::python
