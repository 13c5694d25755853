// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

namespace nprf::cuda {

/// Allocates arrays one after another from a block of memory, each aligned to 256 bytes. Without memory it only counts
/// the bytes.
class Scratch {
 public:
  explicit Scratch(void* memory = nullptr) : m_memory(static_cast<std::byte*>(memory)) {}

  /// An array whose size is the product of `sizes`; null without memory.
  template <class T, class... Sizes>
  T* take(Sizes... sizes) {
    const std::size_t count = (std::size_t{1} * ... * static_cast<std::size_t>(sizes));
    std::byte* at = m_memory ? m_memory + m_bytes : nullptr;
    m_bytes += (count * sizeof(T) + alignment - 1) / alignment * alignment;
    return reinterpret_cast<T*>(at);
  }

  /// Calls each function with an allocator that starts at the same place. Arrays of different functions share memory,
  /// so they must not be in use at the same time.
  template <class... Takes>
  void overlap(Takes&&... takes) {
    std::size_t most = m_bytes;
    const auto call = [&](auto& take) {
      Scratch copy = *this;
      take(copy);
      most = std::max(most, copy.m_bytes);
    };
    (call(takes), ...);
    m_bytes = most;
  }

  std::size_t bytes() const { return m_bytes; }

  static constexpr std::size_t alignment = 256;

 private:
  std::byte* m_memory;
  std::size_t m_bytes = 0;
};

}  // namespace nprf::cuda
