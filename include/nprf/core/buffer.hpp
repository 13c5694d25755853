// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "nprf/core/types.hpp"

namespace nprf {

/// Uninitialised scalars, aligned to 64 bytes. Throws std::bad_alloc, or std::length_error if the size overflows.
template <class T>
class Buffer {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(Index size) : m_data(static_cast<T*>(::operator new(bytes(size), alignment))) {}

  T* data() { return m_data.get(); }
  const T* data() const { return m_data.get(); }

 private:
  static constexpr std::align_val_t alignment{64};

  static std::size_t bytes(Index size) {
    if (size < 0 || static_cast<std::size_t>(size) > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw std::length_error("nprf: a buffer's size overflows");
    return static_cast<std::size_t>(size) * sizeof(T);
  }

  struct Free {
    void operator()(T* data) const { ::operator delete(data, alignment); }
  };
  std::unique_ptr<T, Free> m_data;
};

}  // namespace nprf
