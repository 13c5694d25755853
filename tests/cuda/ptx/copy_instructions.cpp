// SPDX-License-Identifier: MIT
//
// Asynchronous copies from global to shared memory.
#include <cstdint>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/warp.hpp"

namespace nprf::ptx {

namespace copy_operations {

// Copies write at any time until they are waited for: both times are checked, and the memory has other bytes between.
void start(Warp& warp, const Instruction& x, Lanes lanes) {
  std::array<std::uint64_t, warp_size> read{}, written{};
  Lanes reading = 0;
  for_lanes(lanes, [&](int lane) {
    Warp::Copy copy{&x, lane, warp.address(x, x.operands[1], lane), {}};
    const std::uint64_t from = warp.get_wide(x.operands[0], lane);
    const std::size_t bytes = warp.get<std::uint32_t>(x.operands[2], lane);
    if (bytes > copy.bytes.size()) return warp.report(x, "a copy of more bytes than it has room for");
    if (bytes > 0) {
      std::memcpy(copy.bytes.data(), warp.memory(x, Space::global, from, copy.bytes.size(), lane, Warp::Kind::read),
                  bytes);
      read[static_cast<std::size_t>(lane)] = from;
      reading |= lane_bit(lane);
    }
    std::memset(warp.memory(x, Space::shared, copy.to, copy.bytes.size(), lane, Warp::Kind::write), 0xff,
                copy.bytes.size());
    written[static_cast<std::size_t>(lane)] = copy.to;
    warp.copies().push_back(copy);
  });
  warp.count(x.traffic, Space::global, read, reading, 16);
  warp.count(x.written, Space::shared, written, lanes, 16);
}

void wait(Warp& warp, const Instruction&, Lanes lanes) {
  std::erase_if(warp.copies(), [&](const Warp::Copy& copy) {
    if ((lanes & lane_bit(copy.lane)) == 0) return false;
    std::byte* to =
        warp.memory(*copy.instruction, Space::shared, copy.to, copy.bytes.size(), copy.lane, Warp::Kind::write);
    std::memcpy(to, copy.bytes.data(), copy.bytes.size());
    return true;
  });
}

}  // namespace copy_operations

Execute select_copy(Instruction& x, const Opcode& opcode) {
  if (opcode.base() != "cp" || !opcode.has("async")) return nullptr;
  x.space = Space::global;  // which it reads
  x.is_copy = true;
  if (opcode.has("wait_all")) return copy_operations::wait;
  return opcode.has("shared") && opcode.has("global") ? copy_operations::start : nullptr;
}

}  // namespace nprf::ptx
