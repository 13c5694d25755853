// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "nprf/core/types.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace nprf {

/// An array of uninitialised objects, aligned to 64 bytes. The constructor throws std::bad_alloc, or std::length_error
/// if the size is negative or overflows.
template <class T>
class Buffer {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(Index size) : m_data(static_cast<T*>(::operator new(bytes(size), alignment))) {
    request_large_pages(m_data.get(), bytes(size));
  }

  T* data() { return m_data.get(); }
  const T* data() const { return m_data.get(); }

 private:
  static constexpr std::align_val_t alignment{64};

  static std::size_t bytes(Index size) {
    if (size < 0 || static_cast<std::size_t>(size) > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw std::length_error("nprf: a buffer's size overflows");
    return static_cast<std::size_t>(size) * sizeof(T);
  }

  // The first access to a page costs a page fault, and again after each time that memory is freed and allocated. With
  // large pages these are few.
  static void request_large_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t size) {
#ifdef MADV_HUGEPAGE
    constexpr std::uintptr_t page = std::uintptr_t{2} << 20;
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t begin = (at + page - 1) / page * page, end = (at + size) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
  }

  struct Free {
    void operator()(T* data) const { ::operator delete(data, alignment); }
  };
  std::unique_ptr<T, Free> m_data;
};

}  // namespace nprf
