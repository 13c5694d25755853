// SPDX-License-Identifier: MIT
//
// The accesses of warps to memory: their checks and their traffic.
#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "cuda/ptx/block.hpp"
#include "cuda/ptx/warp.hpp"

namespace nprf::ptx {

namespace {

std::string described(const char* space, std::uint64_t address, std::size_t bytes, int thread) {
  char text[120];
  std::snprintf(text, sizeof(text), ": %zu bytes at %s%llx, thread %d", bytes, space,
                static_cast<unsigned long long>(address), thread);
  return text;
}

Space space_of(Space space, std::uint64_t& address) {
  if (space != Space::generic) return space;
  for (const auto& [window, of_window] :
       {std::pair{shared_window, Space::shared}, {local_window, Space::local}, {parameter_window, Space::parameter}})
    if (window.contains(address)) {
      address -= window.first;
      return of_window;
    }
  return Space::global;
}

}  // namespace

std::byte* Warp::memory(const Instruction& x, Space of_address, std::uint64_t address, std::size_t bytes, int lane,
                        Kind kind) {
  static std::array<std::byte, 64> nobodys;
  const Space space = space_of(of_address, address);
  const auto refuse = [&](const char* what, const char* of_space) {
    report(x, what + described(of_space, address, bytes, thread(lane)));
    return nobodys.data();
  };
  const Access access{static_cast<std::uint16_t>(thread(lane)), m_syncs, kind == Kind::atomic};
  const auto note = [&](Shadow& shadow, std::size_t first, bool is_of_block) {
    const Clock& clock = m_block.machine.clock;
    const Shadow::Hazard found = kind == Kind::read ? shadow.read(first, bytes, access, clock, is_of_block)
                                                    : shadow.write(first, bytes, access, clock, is_of_block);
    if (found.what) report(x, found.text(access));
  };
  if (address % bytes != 0) return refuse("misaligned access", "");
  switch (space) {
    case Space::shared:
      if (address + bytes > m_block.shared.size()) return refuse("access beyond shared memory", "byte 0x");
      note(m_block.shared_shadow, address, true);
      return m_block.shared.data() + address;
    case Space::local:
      if (address + bytes > m_local_bytes) return refuse("access beyond local memory", "byte 0x");
      return local(lane) + address;
    case Space::parameter:
      if (address + bytes > m_block.launch.kernel.parameter_bytes || kind != Kind::read)
        return refuse("access beyond the kernel's parameters", "byte 0x");
      return const_cast<std::byte*>(m_block.launch.parameters) + address;
    default: break;
  }
  GlobalMemory::Allocation* allocation = m_block.machine.memory.find(address, bytes);
  if (!allocation) return refuse("access beyond any array in global memory", "0x");
  if ((m_has_waited & lane_bit(lane)) == 0) return refuse("access before the wait for earlier kernels", "0x");
  note(*allocation->shadow, address - allocation->first, false);
  return reinterpret_cast<std::byte*>(address);
}

namespace {

using Addresses = std::array<std::uint64_t, warp_size>;

// Shared memory has 32 banks of 4 bytes. Lanes that move more than 4 bytes are served in groups, which move 128 bytes.
// A group takes as many passes as the bank with most of its distinct words.
Traffic shared_traffic(const Addresses& addresses, Lanes lanes, std::size_t bytes) {
  const int group = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  Traffic traffic{1, 0, 0};
  for (int first = 0; first < warp_size; first += group) {
    std::array<std::vector<std::uint64_t>, 32> banks;
    std::size_t most = 0;
    for (int lane = first; lane < first + group; ++lane)
      for (std::uint64_t word = addresses[static_cast<std::size_t>(lane)] / 4,
                         end = word + std::max<std::size_t>(1, bytes / 4);
           word < end && (lanes & lane_bit(lane)) != 0; ++word) {
        auto& words = banks[word % 32];
        if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
        most = std::max(most, words.size());
      }
    traffic.moved += most;
    traffic.least += most > 0;
  }
  return traffic;
}

// Global memory moves sectors of 32 bytes; at least as many as the distinct bytes fill.
Traffic global_traffic(const Addresses& addresses, Lanes lanes, std::size_t bytes) {
  std::vector<std::uint64_t> sectors, distinct;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t first = addresses[static_cast<std::size_t>(lane)];
    distinct.push_back(first);
    for (std::uint64_t s = first / 32; s <= (first + bytes - 1) / 32; ++s) sectors.push_back(s);
  });
  const auto count = [](std::vector<std::uint64_t>& x) {
    std::sort(x.begin(), x.end());
    return static_cast<std::uint64_t>(std::unique(x.begin(), x.end()) - x.begin());
  };
  return {1, count(sectors), (count(distinct) * bytes + 31) / 32};
}

}  // namespace

void Warp::count(Traffic& sum, Space space, const Addresses& addresses, Lanes lanes, std::size_t bytes) const {
  if (!options().counts) return;
  if (space == Space::shared) sum += shared_traffic(addresses, lanes, bytes);
  if (space == Space::global) sum += global_traffic(addresses, lanes, bytes);
}

}  // namespace nprf::ptx
