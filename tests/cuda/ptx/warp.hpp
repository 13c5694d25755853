// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/ptx/machine.hpp"
#include "cuda/ptx/module.hpp"

namespace nprf::ptx {

class Block;

/// Calls f(lane) for each of some lanes.
template <class F>
void for_lanes(Lanes lanes, F&& f) {
  if (lanes == all_lanes) {
    for (int lane = 0; lane < warp_size; ++lane) f(lane);
  } else {
    for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
  }
}

constexpr Lanes lane_bit(int lane) { return Lanes{1} << lane; }

/// 32 threads. Each has its own place in the code; those that are at the same place run together. Where they diverge,
/// those that are furthest behind run first, and so all meet where their paths do.
class Warp {
 public:
  Warp(Block& block, int index);

  /// All lanes are at the kernel's start.
  void start();
  /// Runs until no lane can run: all have ended, or wait at a barrier of the block.
  void run();

  bool has_ended() const { return m_alive == 0; }
  /// The barrier of the block at which all lanes wait; null if they do not.
  const Instruction* barrier() const { return m_barrier; }
  /// Whether lanes have ended, others not.
  bool has_ended_in_part() const { return m_alive != 0 && m_alive != m_existing; }
  /// Whether the predicate of any lane at the barrier is true.
  bool any_predicate() const { return m_any; }
  /// Passes the barrier, whose result, if it has one, is that of the block.
  void pass_barrier(bool any_of_block);

  // for the functions that execute instructions

  template <class T>
  T get(Operand x, int lane) const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    T value;
    std::memcpy(&value, m_registers + x.at + static_cast<std::size_t>(lane) * (sizeof(T) == 8 ? 8 : 4), sizeof(T));
    return value;
  }
  template <class T>
  void put(Operand x, int lane, T value) {
    using Slot = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    Slot slot = 0;
    std::memcpy(&slot, &value, sizeof(T));
    std::memcpy(m_registers + x.at + static_cast<std::size_t>(lane) * sizeof(Slot), &slot, sizeof(Slot));
  }
  /// A register of 4 or 8 bytes, extended with zeros.
  std::uint64_t get_wide(Operand x, int lane) const {
    return x.width == 8 ? get<std::uint64_t>(x, lane) : get<std::uint32_t>(x, lane);
  }
  /// An integer or bits to a register that may be wider: extended with its sign, or with zeros if it has none.
  template <class T>
  void put_extended(Operand x, int lane, T value) {
    if constexpr (std::is_integral_v<T> && sizeof(T) < 8) {
      using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
      if (x.width == 8) return put<Wide>(x, lane, value);
      using Word = std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>;
      put<Word>(x, lane, static_cast<Word>(value));
    } else {
      put<T>(x, lane, value);
    }
  }

  /// The sum of a register and an offset.
  std::uint64_t address(const Instruction& x, Operand base, int lane) const {
    const std::uint64_t sum = get_wide(base, lane) + static_cast<std::uint64_t>(x.offset);
    return base.width == 4 ? sum & 0xffffffffu : sum;
  }
  enum class Kind { read, write, atomic };
  /// The memory of an access, which is checked; other memory, which is nobody's, if it is out of bounds.
  std::byte* memory(const Instruction& x, Space space, std::uint64_t address, std::size_t bytes, int lane, Kind kind);
  std::byte* memory(const Instruction& x, std::uint64_t address, std::size_t bytes, int lane, Kind kind) {
    return memory(x, x.is_of_kernel_parameters ? Space::parameter : x.space, address, bytes, lane, kind);
  }
  /// Adds an access of these lanes to the traffic, if that is counted.
  void count(Traffic& sum, Space space, const std::array<std::uint64_t, warp_size>& addresses, Lanes lanes,
             std::size_t bytes) const;
  void count(const Instruction& x, const std::array<std::uint64_t, warp_size>& addresses, Lanes lanes,
             std::size_t bytes) const {
    if (!x.is_of_kernel_parameters) count(x.traffic, x.space, addresses, lanes, bytes);
  }

  /// 16 bytes that a lane copies to shared memory, until it waits for them.
  struct Copy {
    const Instruction* instruction;
    int lane;
    std::uint64_t to;
    std::array<std::byte, 16> bytes;
  };
  std::vector<Copy>& copies() { return m_copies; }

  /// These lanes have waited for the kernels before.
  void wait_for_kernels(Lanes lanes) { m_has_waited |= lanes; }

  void report(const Instruction& x, const std::string& what) const;
  const Options& options() const;

 private:
  struct Frame {
    const Call* call;
    const Function* function;
    int next;
  };
  struct Group {
    Lanes lanes = 0;
    const Function* function = nullptr;
    int at = 0;
    int others = 0;  // where the first other lane of the function is
  };

  int thread(int lane) const { return m_index * warp_size + lane; }
  std::byte* local(int lane) { return m_local.data() + static_cast<std::size_t>(lane) * m_local_bytes; }
  void use_registers(const Function& f);
  void set_specials(const Function& f, std::byte* registers) const;
  std::uint32_t special(const SpecialRegister& x, int lane) const;
  Group next_group() const;
  void run_group(Group g);
  Lanes guarded(const Instruction& x, Lanes lanes) const;
  void place(Lanes lanes, int at) {
    for_lanes(lanes, [&](int lane) { m_next[static_cast<std::size_t>(lane)] = at; });
  }
  bool transfer(Group& g, const Instruction& x, Lanes lanes);
  bool arrive(Group& g, const Instruction& x, Lanes lanes);
  Lanes needed(const Instruction& x, Lanes lanes) const;
  void wait_for_block(const Instruction& x);
  void call(const Group& g, const Instruction& x, Lanes lanes);
  void leave(Lanes lanes);
  void end(Lanes lanes);

  Block& m_block;
  int m_index;
  Lanes m_existing, m_alive = 0, m_waiting = 0, m_has_waited = 0;
  std::array<int, warp_size> m_next{};
  std::array<const Function*, warp_size> m_function{};
  std::array<std::vector<Frame>, warp_size> m_stack;
  const Instruction* m_barrier = nullptr;
  bool m_any = false;
  std::uint16_t m_syncs = 0;
  std::byte* m_registers = nullptr;                     // of the function that runs
  std::vector<std::vector<std::byte>> m_all_registers;  // of each function of the module that has run
  std::size_t m_local_bytes;
  std::vector<std::byte> m_local;
  std::vector<Copy> m_copies;
};

}  // namespace nprf::ptx
