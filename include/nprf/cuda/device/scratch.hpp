// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

namespace nprf::cuda {

/// Arrays one behind the other in a piece of memory, each aligned to 256 bytes; without memory it counts the bytes.
class Scratch {
 public:
  explicit Scratch(void* memory = nullptr) : m_memory(static_cast<std::byte*>(memory)) {}

  /// An array of the product of some sizes.
  template <class T, class... Sizes>
  T* take(Sizes... sizes) {
    const std::size_t count = (std::size_t{1} * ... * static_cast<std::size_t>(sizes));
    std::byte* at = m_memory ? m_memory + m_bytes : nullptr;
    m_bytes += (count * sizeof(T) + alignment - 1) / alignment * alignment;
    return reinterpret_cast<T*>(at);
  }

  /// Arrays that are not in use at one time: each function takes its own, from the same place on.
  template <class... Takes>
  void overlap(Takes&&... takes) {
    std::size_t most = m_bytes;
    const auto one = [&](auto& take) {
      Scratch own = *this;
      take(own);
      most = std::max(most, own.m_bytes);
    };
    (one(takes), ...);
    m_bytes = most;
  }

  std::size_t bytes() const { return m_bytes; }

  static constexpr std::size_t alignment = 256;

 private:
  std::byte* m_memory;
  std::size_t m_bytes = 0;
};

}  // namespace nprf::cuda
