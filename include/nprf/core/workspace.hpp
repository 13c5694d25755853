// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

#include "nprf/config.hpp"
#include "nprf/core/buffer.hpp"
#include "nprf/core/types.hpp"

#if NPRF_CHECK_SCRATCH_MEMORY
#include <sanitizer/asan_interface.h>
#endif

namespace nprf {

/// A stack of scratch memory. Released memory is kept for later calls: a call that takes the same sizes as an earlier
/// call allocates nothing. Not thread-safe.
///
/// With NPRF_CHECK_SCRATCH_MEMORY, AddressSanitizer reports reads and writes of memory that is not taken, as it does
/// for memory that is not allocated: beside each array that was taken, and in the array after the end of its scope.
///
///     const Workspace::Scope scope(workspace);        // its destructor releases all memory taken after this line
///     auto z = workspace.matrix<float>(rows, cols);   // a map of uninitialised scalars
class Workspace {
 public:
  class Scope {
   public:
    explicit Scope(Workspace& workspace)
        : m_workspace(workspace), m_mark(workspace.m_mark), m_outer_peak(workspace.m_peak) {
      workspace.m_peak = m_mark.taken;
    }
    ~Scope() {
      m_workspace.forbid_since(m_mark);
      m_workspace.m_mark = m_mark;
      m_workspace.m_peak = std::max(m_workspace.m_peak, m_outer_peak);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    /// The largest number of bytes that were taken in this scope and in use at once.
    std::size_t peak_bytes() const { return m_workspace.m_peak - m_mark.taken; }

   private:
    friend class Workspace;
    Workspace& m_workspace;
    struct Mark {
      std::size_t block = 0, used = 0, taken = 0;
    } m_mark;
    std::size_t m_outer_peak;
  };

  /// Returns `size` uninitialised objects, aligned to 64 bytes; never null. Throws std::bad_alloc, or std::length_error
  /// if the size is negative or overflows.
  template <class T>
  T* take(Index size) {
    if (size < 0 || static_cast<std::size_t>(size) > (std::numeric_limits<std::size_t>::max() - alignment) / sizeof(T))
      throw std::length_error("nprf: a workspace's size overflows");
    return reinterpret_cast<T*>(take_bytes(static_cast<std::size_t>(size) * sizeof(T)));
  }

  template <Real T>
  MatrixMap<T> matrix(Index rows, Index cols) {
    if (cols > 0 && rows > std::numeric_limits<Index>::max() / cols)
      throw std::length_error("nprf: a workspace's size overflows");
    return MatrixMap<T>(take<T>(rows * cols), rows, cols);
  }

  template <Real T>
  VectorMap<T> vector(Index size) {
    return VectorMap<T>(take<T>(size), size);
  }

  /// Allocates memory so that the next calls of take() allocate nothing, if their sizes in bytes, each rounded up to a
  /// multiple of 64, add up to at most `size`.
  void reserve(std::size_t size) {
    size += size / alignment * gap;
    for (std::size_t block = m_mark.block, used = m_mark.used; block < m_blocks.size(); ++block, used = 0)
      if (m_blocks[block].size - used >= size) return;
    add_block(block_size_for(size));
  }

  /// Replaces all blocks by one of their total size, so that calls of different sizes do not accumulate blocks. Does
  /// nothing while memory is in use.
  void merge_blocks() noexcept {
    if (m_blocks.size() <= 1 || m_mark.taken > 0) return;
    const std::size_t size = m_allocated;
    m_blocks.clear();
    m_mark = {};
    m_allocated = 0;
    try {
      add_block(size);
    } catch (const std::bad_alloc&) {
      // the next call allocates again
    }
  }

  /// The size of all blocks in bytes.
  std::size_t allocated_bytes() const { return m_allocated; }

  /// The largest number of bytes in use at once since reset_peak() or since the innermost open scope began.
  std::size_t peak_bytes() const { return m_peak; }
  void reset_peak() { m_peak = m_mark.taken; }

 private:
  static constexpr std::size_t alignment = 64, smallest_block = std::size_t{1} << 16,
                               largest_step = std::size_t{1} << 26;

  struct Block {
    Buffer<std::byte> memory;
    std::size_t size;
  };

  std::byte* take_bytes(std::size_t size) {
    const std::size_t lines = std::max(alignment, (size + alignment - 1) / alignment * alignment);
    Scope::Mark at = m_mark;
    while (at.block < m_blocks.size() && m_blocks[at.block].size - at.used < lines + gap) ++at.block, at.used = 0;
    if (at.block == m_blocks.size()) add_block(block_size_for(lines + gap));
    std::byte* memory = m_blocks[at.block].memory.data() + at.used;
    m_mark = {at.block, at.used + lines + gap, at.taken + lines};
    m_peak = std::max(m_peak, m_mark.taken);
    allow(memory, size);
    return memory;
  }

  // a new block is as large as all blocks before it together, within two limits and at least `size`, so that blocks are
  // few
  std::size_t block_size_for(std::size_t size) const {
    return std::max(size, std::clamp(m_allocated, smallest_block, largest_step));
  }

  void add_block(std::size_t size) {
    m_blocks.push_back({Buffer<std::byte>(static_cast<Index>(size)), size});
    m_allocated += size;
    forbid(m_blocks.back().memory.data(), size);
  }

#if NPRF_CHECK_SCRATCH_MEMORY
  static constexpr std::size_t gap = alignment;  // bytes after each array
  static void allow(const std::byte* memory, std::size_t size) { ASAN_UNPOISON_MEMORY_REGION(memory, size); }
  static void forbid(const std::byte* memory, std::size_t size) { ASAN_POISON_MEMORY_REGION(memory, size); }
#else
  static constexpr std::size_t gap = 0;
  static void allow(const std::byte*, std::size_t) {}
  static void forbid(const std::byte*, std::size_t) {}
#endif

  // forbids all memory that was taken since `then`
  void forbid_since(const Scope::Mark& then) const {
    for (std::size_t block = then.block; gap > 0 && block <= m_mark.block && block < m_blocks.size(); ++block) {
      const std::size_t begin = block == then.block ? then.used : 0,
                        end = block == m_mark.block ? m_mark.used : m_blocks[block].size;
      forbid(m_blocks[block].memory.data() + begin, end - begin);
    }
  }

  std::vector<Block> m_blocks;
  Scope::Mark m_mark;
  std::size_t m_allocated = 0;
  std::size_t m_peak = 0;  // the maximum of m_mark.taken since the innermost scope began
};

}  // namespace nprf
