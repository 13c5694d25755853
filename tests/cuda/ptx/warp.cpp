// SPDX-License-Identifier: MIT
#include "cuda/ptx/warp.hpp"

#include <algorithm>
#include <limits>

#include "cuda/ptx/block.hpp"

namespace nprf::ptx {

Warp::Warp(Block& block, int index)
    : m_block(block),
      m_index(index),
      m_existing(all_lanes),
      m_all_registers(block.launch.module.functions.size()),
      m_local_bytes(block.launch.module.local_bytes),
      m_local(m_local_bytes * warp_size) {
  const int lanes = static_cast<int>(block.launch.threads_of_block()) - index * warp_size;
  if (lanes < warp_size) m_existing = lane_bit(lanes) - 1;
}

void Warp::start() {
  m_alive = m_existing;
  m_waiting = 0;
  m_has_waited = m_block.launch.is_early ? 0 : all_lanes;
  m_barrier = nullptr;
  m_syncs = 0;
  m_copies.clear();
  m_next.fill(0);
  m_function.fill(&m_block.launch.kernel);
  for (auto& stack : m_stack) stack.clear();
  for (std::size_t k = 0; k < m_all_registers.size(); ++k)
    if (!m_all_registers[k].empty()) set_specials(*m_block.launch.module.functions[k], m_all_registers[k].data());
}

const Options& Warp::options() const { return m_block.machine.options; }

void Warp::report(const Instruction& x, const std::string& what) const { m_block.report(&x, what); }

// ---- registers

void Warp::use_registers(const Function& f) {
  std::vector<std::byte>& registers = m_all_registers[static_cast<std::size_t>(f.index)];
  if (registers.empty()) {
    registers = f.registers;
    set_specials(f, registers.data());
  }
  m_registers = registers.data();
}

void Warp::set_specials(const Function& f, std::byte* registers) const {
  for (const SpecialRegister& x : f.specials)
    for (int lane = 0; lane < warp_size; ++lane) {
      const std::uint32_t value = special(x, lane);
      std::memcpy(registers + x.place.at + static_cast<std::size_t>(lane) * sizeof(value), &value, sizeof(value));
    }
}

std::uint32_t Warp::special(const SpecialRegister& x, int lane) const {
  const auto axis = static_cast<std::size_t>(x.axis);
  const Extent& threads = m_block.launch.threads;
  const auto number = static_cast<unsigned>(thread(lane));
  switch (x.which) {
    case Special::thread:
      return x.axis == 0   ? number % threads[0]
             : x.axis == 1 ? number / threads[0] % threads[1]
                           : number / threads[0] / threads[1];
    case Special::threads: return threads[axis];
    case Special::block: return m_block.index[axis];
    case Special::blocks: return m_block.launch.blocks[axis];
  }
  return 0;
}

// ---- running

void Warp::run() {
  m_barrier = nullptr;
  while (m_alive != 0 && !m_barrier) {
    const Group g = next_group();
    if (g.lanes == 0) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(m_waiting));
      report(m_function[lane]->code[static_cast<std::size_t>(m_next[lane])], "lanes wait for others that do not come");
      end(m_alive);
      return;
    }
    run_group(g);
  }
}

// of the lanes that are in the innermost call: those that are furthest behind
Warp::Group Warp::next_group() const {
  const Lanes ready = m_alive & ~m_waiting;
  Group g;
  g.others = std::numeric_limits<int>::max();
  std::size_t depth = 0;
  for_lanes(ready, [&](int lane) { depth = std::max(depth, m_stack[static_cast<std::size_t>(lane)].size()); });
  for_lanes(ready, [&](int lane_) {
    const auto lane = static_cast<std::size_t>(lane_);
    if (m_stack[lane].size() != depth) return;
    if (!g.function) g.function = m_function[lane], g.at = m_next[lane];
    if (m_function[lane] != g.function) return;
    const int next = m_next[lane];
    if (next < g.at) {
      g.others = g.at;
      g.at = next;
      g.lanes = 0;
    } else if (next > g.at) {
      g.others = std::min(g.others, next);
    }
    if (next == g.at) g.lanes |= lane_bit(lane_);
  });
  return g;
}

Lanes Warp::guarded(const Instruction& x, Lanes lanes) const {
  Lanes chosen = 0;
  for_lanes(lanes, [&](int lane) {
    if ((get<std::uint32_t>(x.guard, lane) != 0) != x.guard_is_negated) chosen |= lane_bit(lane);
  });
  return chosen;
}

void Warp::run_group(Group g) {
  use_registers(*g.function);
  const Instruction* code = g.function->code.data();
  while (g.at < g.others) {
    const Instruction& x = code[g.at];
    const Lanes lanes = x.is_guarded ? guarded(x, g.lanes) : g.lanes;
    ++x.executed;
    if (x.control == Control::none) {
      if (lanes != 0 && x.execute) x.execute(*this, x, lanes);
      ++g.at;
    } else if (!transfer(g, x, lanes)) {
      return;
    }
  }
  place(g.lanes, g.at);
}

// Whether the group stays together, at its new place; otherwise all its lanes have been placed.
bool Warp::transfer(Group& g, const Instruction& x, Lanes lanes) {
  if (lanes == 0) {
    ++g.at;
    return true;
  }
  switch (x.control) {
    case Control::block_barrier:
    case Control::warp_barrier:
    case Control::members:
    case Control::whole_warp: return arrive(g, x, lanes);
    case Control::branch:
      if (lanes == g.lanes) {
        g.at = x.target;
        return true;
      }
      place(lanes, x.target);
      break;
    case Control::call: call(g, x, lanes); break;
    case Control::leave: leave(lanes); break;
    case Control::trap: report(x, "a trap"); [[fallthrough]];
    default:
      if ((lanes & ~m_has_waited) != 0) report(x, "the end without a wait for earlier kernels");
      end(lanes);
  }
  place(g.lanes & ~lanes, g.at + 1);
  return false;
}

void Warp::call(const Group& g, const Instruction& x, Lanes lanes) {
  const Call& call = *x.call;
  const Function& callee = *m_block.launch.module.functions[static_cast<std::size_t>(call.function)];
  for_lanes(lanes, [&](int lane) {
    for (std::size_t k = 0; k < call.arguments.size() && k < callee.parameters.size(); ++k)
      std::memcpy(local(lane) + callee.parameters[k].at, local(lane) + call.arguments[k].at, callee.parameters[k].size);
    m_stack[static_cast<std::size_t>(lane)].push_back({&call, g.function, g.at + 1});
    m_function[static_cast<std::size_t>(lane)] = &callee;
  });
  place(lanes, 0);
}

void Warp::leave(Lanes lanes) {
  for_lanes(lanes, [&](int lane_) {
    const auto lane = static_cast<std::size_t>(lane_);
    const Frame frame = m_stack[lane].back();
    m_stack[lane].pop_back();
    const Function::Parameter& result = m_function[lane]->result;
    if (frame.call->result.size > 0)
      std::memcpy(local(lane_) + frame.call->result.at, local(lane_) + result.at, frame.call->result.size);
    m_function[lane] = frame.function;
    m_next[lane] = frame.next;
  });
}

// those that wait for lanes that have ended try again
void Warp::end(Lanes lanes) {
  m_alive &= ~lanes;
  m_waiting = 0;
}

// ---- barriers and other instructions of several lanes together

bool Warp::arrive(Group& g, const Instruction& x, Lanes lanes) {
  const Lanes skipping = g.lanes & ~lanes;
  if (skipping != 0 && (x.control == Control::block_barrier || x.control == Control::whole_warp)) {
    report(x, "an instruction of a whole warp, with a predicate that differs between lanes");
  } else if (skipping != 0) {
    place(skipping, g.at + 1);
    g.lanes = lanes;
    g.others = std::min(g.others, g.at + 1);
  }
  for_lanes(m_waiting, [&](int lane_) {
    const auto lane = static_cast<std::size_t>(lane_);
    if (m_function[lane] == g.function && m_next[lane] == g.at) g.lanes |= lane_bit(lane_);
  });
  m_waiting &= ~g.lanes;
  if ((needed(x, g.lanes) & ~g.lanes) != 0) {
    place(g.lanes, g.at);
    m_waiting |= g.lanes;
    return false;
  }
  if (x.control == Control::block_barrier) {
    wait_for_block(x);
    place(g.lanes, g.at + 1);
    return false;
  }
  if (x.control == Control::warp_barrier)
    ++m_syncs;
  else
    x.execute(*this, x, g.lanes);
  ++g.at;
  return true;
}

// the lanes without which the instruction waits
Lanes Warp::needed(const Instruction& x, Lanes lanes) const {
  if (x.control == Control::block_barrier) return m_alive;
  if (x.control == Control::whole_warp) {
    if (m_alive != all_lanes) report(x, "an instruction of all 32 lanes, of which some have ended or never were");
    return m_alive;
  }
  const Operand members = x.operands[x.count - 1];
  const Lanes mask = get<Lanes>(members, std::countr_zero(lanes));
  for_lanes(lanes, [&](int lane) {
    if (get<Lanes>(members, lane) != mask) report(x, "lanes that run together name different members");
  });
  if ((lanes & ~mask) != 0) report(x, "a lane that its own mask of members leaves out");
  if ((mask & ~m_alive) != 0) report(x, "the mask names lanes that have ended or never were");
  return mask & m_alive;
}

void Warp::wait_for_block(const Instruction& x) {
  m_barrier = &x;
  m_any = false;
  if (!x.has_vote) return;
  for_lanes(m_alive, [&](int lane) {
    const bool predicate = (get<std::uint32_t>(x.operands[1], lane) != 0) != x.predicate_is_negated;
    m_any = m_any || predicate;
  });
}

void Warp::pass_barrier(bool any_of_block) {
  m_syncs = 0;
  if (!m_barrier->has_vote) return;
  const auto lane = static_cast<std::size_t>(std::countr_zero(m_alive));
  use_registers(*m_function[lane]);
  for_lanes(m_alive, [&](int k) { put<std::uint32_t>(m_barrier->operands[0], k, any_of_block); });
}

}  // namespace nprf::ptx
