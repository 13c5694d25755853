// SPDX-License-Identifier: MIT
//
// Loads, stores and atomic operations.
#include <algorithm>
#include <cstdint>
#include <functional>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/warp.hpp"

namespace nprf::ptx {

namespace memory_operations {

template <class T>
void load(Warp& warp, const Instruction& x, Lanes lanes) {
  const std::size_t bytes = sizeof(T) * x.vector;
  const Operand base = x.operands[x.destinations];
  std::array<std::uint64_t, warp_size> addresses{};
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = addresses[static_cast<std::size_t>(lane)] = warp.address(x, base, lane);
    const std::byte* from = warp.memory(x, address, bytes, lane, Warp::Kind::read);
    for (std::size_t k = 0; k < x.vector; ++k) {
      T value;
      std::memcpy(&value, from + k * sizeof(T), sizeof(T));
      warp.put_extended(x.operands[k], lane, value);
    }
  });
  warp.count(x, addresses, lanes, bytes);
}

template <class T>
void store(Warp& warp, const Instruction& x, Lanes lanes) {
  const std::size_t bytes = sizeof(T) * x.vector;
  std::array<std::uint64_t, warp_size> addresses{};
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = addresses[static_cast<std::size_t>(lane)] = warp.address(x, x.operands[0], lane);
    std::byte* to = warp.memory(x, address, bytes, lane, Warp::Kind::write);
    for (std::size_t k = 0; k < x.vector; ++k) {
      const T value = static_cast<T>(warp.get_wide(x.operands[1 + k], lane));
      std::memcpy(to + k * sizeof(T), &value, sizeof(T));
    }
  });
  warp.count(x, addresses, lanes, bytes);
}

template <class T, class Operation>
void atomic(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address = warp.address(x, x.operands[1], lane);
    std::byte* at = warp.memory(x, address, sizeof(T), lane, Warp::Kind::atomic);
    T old;
    std::memcpy(&old, at, sizeof(T));
    const T value = Operation()(old, warp.get<T>(x.operands[2], lane));
    std::memcpy(at, &value, sizeof(T));
    warp.put<T>(x.operands[0], lane, old);
  });
}

struct Max {
  template <class T>
  T operator()(T old, T a) const {
    return std::max(old, a);
  }
};

}  // namespace memory_operations

Execute select_memory(Instruction& x, const Opcode& opcode) {
  using namespace memory_operations;
  const bool is_load = opcode.base() == "ld";
  if (!is_load && opcode.base() != "st") return nullptr;
  if (is_load && x.type == Type::s8) return load<std::int8_t>;
  if (is_load && x.type == Type::s16) return load<std::int16_t>;
  if (is_load && x.type == Type::s32) return load<std::int32_t>;
  switch (bytes_of(x.type)) {
    case 1: return is_load ? load<std::uint8_t> : store<std::uint8_t>;
    case 2: return is_load ? load<std::uint16_t> : store<std::uint16_t>;
    case 4: return is_load ? load<std::uint32_t> : store<std::uint32_t>;
    default: return is_load ? load<std::uint64_t> : store<std::uint64_t>;
  }
}

Execute select_atomic(Instruction& x, const Opcode& opcode) {
  using namespace memory_operations;
  if (opcode.base() != "atom") return nullptr;
  if (opcode.has("add") && x.type == Type::u32) return atomic<std::uint32_t, std::plus<>>;
  if (opcode.has("max") && x.type == Type::s32) return atomic<std::int32_t, Max>;
  return nullptr;
}

}  // namespace nprf::ptx
