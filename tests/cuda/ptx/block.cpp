// SPDX-License-Identifier: MIT
#include "cuda/ptx/block.hpp"

#include <algorithm>

namespace nprf::ptx {

Block::Block(Machine& machine_, const Launch& launch_)
    : machine(machine_), launch(launch_), shared(launch_.shared), shared_shadow(launch_.shared) {
  const int warps = static_cast<int>((launch.threads_of_block() + warp_size - 1) / warp_size);
  for (int k = 0; k < warps; ++k) m_warps.push_back(std::make_unique<Warp>(*this, k));
}

void Block::run(const Extent& index_) {
  index = index_;
  std::fill(shared.begin(), shared.end(), std::byte{0xff});
  for (const auto& warp : m_warps) warp->start();
  while (run_warps()) pass_barrier();
}

// runs each warp until it ends or waits; whether any waits
bool Block::run_warps() {
  bool any_waits = false;
  const std::size_t n = m_warps.size();
  for (std::size_t k = 0; k < n; ++k) {
    Warp& warp = *m_warps[machine.options.warps == Options::Order::forward ? k : n - 1 - k];
    if (!warp.has_ended()) warp.run();
    any_waits = any_waits || !warp.has_ended();
  }
  return any_waits;
}

void Block::pass_barrier() {
  const Instruction* barrier = nullptr;
  bool any = false, are_some_gone = false;
  for (const auto& warp : m_warps) {
    are_some_gone = are_some_gone || warp->has_ended() || warp->has_ended_in_part();
    if (warp->has_ended()) continue;
    if (barrier && barrier != warp->barrier()) report(warp->barrier(), "warps of a block wait at different barriers");
    barrier = warp->barrier();
    any = any || warp->any_predicate();
  }
  if (are_some_gone) report(barrier, "a barrier of a block of which threads have ended");
  machine.clock.pass_barrier();
  for (const auto& warp : m_warps)
    if (!warp->has_ended()) warp->pass_barrier(any);
}

}  // namespace nprf::ptx
