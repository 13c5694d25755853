// SPDX-License-Identifier: MIT
#include "cuda/ptx/memory.hpp"

#include <new>
#include <utility>

#include "cuda/ptx/module.hpp"

namespace nprf::ptx {

namespace {

constexpr const char* uninitialised = "read of uninitialised shared memory";

}  // namespace

Shadow::Shadow(std::size_t bytes) : m_cells(static_cast<Cell*>(std::calloc(bytes / cell_bytes + 2, sizeof(Cell)))) {
  if (!m_cells) throw std::bad_alloc();
}

// whether only the warp of this access made the last one
bool Shadow::is_of_warp(const Record& last, const Access& by) {
  return last.number() / warp_size == by.thread / warp_size && !(last.thread & several_warps);
}

// whether the access happens after the last one, rather than at the same time
bool Shadow::is_ordered_after(const Record& last, const Access& by, const Clock& clock, bool is_of_block) {
  if (last.time < clock.launch_start) return true;
  if (last.time < clock.block_start) return is_of_block;
  if (last.time < clock.now) return true;
  return is_of_warp(last, by) &&
         (last.syncs != by.syncs || (last.number() == by.thread && !(last.thread & several_threads)));
}

std::string Shadow::Hazard::text(const Access& by) const {
  const std::string text =
      std::string(what) + ": byte " + std::to_string(byte) + ", thread " + std::to_string(by.thread);
  if (what == uninitialised) return text;
  if (is_of_other_block) return text + " and another block";
  if (last & (several_threads | several_warps)) return text + " and several other threads";
  return text + " and thread " + std::to_string(last & thread_mask);
}

// keeps what is needed to find a later conflict: which thread read, or that several did
void Shadow::note_read(Record& last, const Access& by, const Clock& clock, std::uint16_t byte) {
  if (are_disjoint(last, byte)) last = {};
  const bool by_other_block = last.time >= clock.launch_start && last.time < clock.block_start;
  std::uint16_t flags = last.time == clock.now ? byte & last.thread : byte;  // both bytes if either access was to both
  if (last.time >= clock.launch_start) flags |= last.thread & several_blocks;
  if (by_other_block) flags |= several_blocks;
  if (last.time == clock.now) {
    if (!is_of_warp(last, by))
      flags |= several_warps;
    else if (last.syncs == by.syncs && (last.number() != by.thread || last.thread & several_threads))
      flags |= several_threads;
  }
  last = {clock.now, static_cast<std::uint16_t>(by.thread | flags), by.syncs};
}

Shadow::Hazard Shadow::read(std::size_t first, std::size_t bytes, const Access& by, const Clock& clock,
                            bool is_of_block) {
  Hazard found;
  const std::uint16_t byte = byte_of(first, bytes);
  for (std::size_t k = first / cell_bytes; k <= (first + bytes - 1) / cell_bytes; ++k) {
    Cell& cell = m_cells[k];
    if (is_of_block && cell.write.time < clock.block_start)
      found = hazard(uninitialised, k, cell.write, clock);
    else if (!are_disjoint(cell.write, byte) && !is_ordered_after(cell.write, by, clock, is_of_block))
      found = hazard("race, read after write", k, cell.write, clock);
    note_read(cell.read, by, clock, byte);
  }
  return found;
}

Shadow::Hazard Shadow::write(std::size_t first, std::size_t bytes, const Access& by, const Clock& clock,
                             bool is_of_block) {
  Hazard found;
  const std::uint16_t byte = byte_of(first, bytes);
  for (std::size_t k = first / cell_bytes; k <= (first + bytes - 1) / cell_bytes; ++k) {
    Cell& cell = m_cells[k];
    const bool are_atomic = by.is_atomic && (cell.write.thread & atomic);
    const bool is_write_free = are_atomic || are_disjoint(cell.write, byte),
               is_read_free = are_disjoint(cell.read, byte);
    const bool was_read_by_others =
        !is_of_block && cell.read.time >= clock.block_start && cell.read.thread & several_blocks;
    if (!is_write_free && !is_ordered_after(cell.write, by, clock, is_of_block)) {
      found = hazard("race, write after write", k, cell.write, clock);
    } else if (!is_read_free && (was_read_by_others || !is_ordered_after(cell.read, by, clock, is_of_block))) {
      found = hazard("race, write after read", k, cell.read, clock);
      found.is_of_other_block = found.is_of_other_block || was_read_by_others;
    }
    cell.write = {clock.now, static_cast<std::uint16_t>(by.thread | byte | (by.is_atomic ? atomic : 0)), by.syncs};
  }
  return found;
}

void GlobalMemory::add(const void* first, std::size_t size) {
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  m_allocations[address] = {address, size, std::make_unique<Shadow>(size)};
  m_last = nullptr;
}

void GlobalMemory::remove(const void* first) {
  m_allocations.erase(reinterpret_cast<std::uintptr_t>(first));
  m_last = nullptr;
}

GlobalMemory::Allocation* GlobalMemory::find(std::uint64_t address, std::size_t bytes) {
  const auto contains = [&](const Allocation& x) { return address >= x.first && address + bytes <= x.first + x.size; };
  if (m_last && contains(*m_last)) return m_last;
  auto at = m_allocations.upper_bound(address);
  if (at == m_allocations.begin() || !contains((--at)->second)) return nullptr;
  return m_last = &at->second;
}

}  // namespace nprf::ptx
