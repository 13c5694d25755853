// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

/// The memories of the interpreter, and their checks.
namespace nprf::ptx {

/// Addresses of shared, local and parameter memory as generic ones; all others are global and the host's own.
struct Window {
  std::uint64_t first;
  static constexpr std::uint64_t size = 0x10000000;

  bool contains(std::uint64_t address) const { return address - first < size; }
};
constexpr Window shared_window{0x7e0000000000}, local_window{0x7d0000000000}, parameter_window{0x7c0000000000};

/// The time of a launch: a number that grows at each launch, block and barrier of a block. Blocks run one after
/// another, so that two accesses are of the same block if both are later than its start.
struct Clock {
  std::uint32_t now = 1, launch_start = 1, block_start = 1;

  void start_launch() { launch_start = block_start = ++now; }
  void start_block() { block_start = ++now; }
  void pass_barrier() { ++now; }
};

/// Who accesses memory, and when: accesses of a warp are ordered by the barriers of the warp that it passed before,
/// those of different warps by the barriers of the block, and those of different blocks by nothing.
struct Access {
  std::uint16_t thread = 0;  // in its block
  std::uint16_t syncs = 0;   // barriers of the warp since the last of the block
  bool is_atomic = false;
};

/// The last accesses of each two bytes of a memory.
class Shadow {
 public:
  explicit Shadow(std::size_t bytes);

  /// What is wrong with an access.
  struct Hazard {
    const char* what = nullptr;  // null: nothing
    std::size_t byte = 0;        // of the memory
    std::uint16_t last = 0;      // the last thread, with flags
    bool is_of_other_block = false;

    std::string text(const Access& by) const;
  };
  /// Notes an access. Memory of a block is not initialised by other blocks, and not shared with them.
  Hazard read(std::size_t first, std::size_t bytes, const Access& by, const Clock& clock, bool is_of_block);
  Hazard write(std::size_t first, std::size_t bytes, const Access& by, const Clock& clock, bool is_of_block);

 private:
  static constexpr std::size_t cell_bytes = 2;
  static constexpr std::uint16_t thread_mask = 0x3ff, several_threads = 0x400, several_warps = 0x800,
                                 several_blocks = 0x1000, atomic = 0x2000;
  // an access to one byte of a cell; neither: to both. Of accesses to different bytes only the last one is kept
  static constexpr std::uint16_t only_first = 0x4000, only_second = 0x8000;

  struct Record {
    std::uint32_t time;    // 0: never
    std::uint16_t thread;  // with flags
    std::uint16_t syncs;

    int number() const { return thread & thread_mask; }
  };
  struct Cell {
    Record write, read;
  };
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  static std::uint16_t byte_of(std::size_t first, std::size_t bytes) {
    return bytes > 1 ? std::uint16_t{0} : first % cell_bytes == 0 ? only_first : only_second;
  }
  static bool are_disjoint(const Record& last, std::uint16_t byte) {
    return ((last.thread | byte) & (only_first | only_second)) == (only_first | only_second);
  }
  static void note_read(Record& last, const Access& by, const Clock& clock, std::uint16_t byte);
  static bool is_of_warp(const Record& last, const Access& by);
  static bool is_ordered_after(const Record& last, const Access& by, const Clock& clock, bool is_of_block);
  static Hazard hazard(const char* what, std::size_t cell, const Record& last, const Clock& clock) {
    return {what, cell * cell_bytes, last.thread, last.time < clock.block_start};
  }

  std::unique_ptr<Cell[], Free> m_cells;  // zero pages that are not used take no memory
};

/// The arrays in global memory.
class GlobalMemory {
 public:
  struct Allocation {
    std::uint64_t first = 0;
    std::size_t size = 0;
    std::unique_ptr<Shadow> shadow;
  };

  void add(const void* first, std::size_t size);
  void remove(const void* first);
  /// The allocation that contains these bytes; null if none does.
  Allocation* find(std::uint64_t address, std::size_t bytes);

 private:
  std::map<std::uint64_t, Allocation> m_allocations;
  Allocation* m_last = nullptr;
};

}  // namespace nprf::ptx
