// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/ptx/machine.hpp"
#include "cuda/ptx/memory.hpp"
#include "cuda/ptx/warp.hpp"

namespace nprf::ptx {

/// The block that runs, its warps and its shared memory.
class Block {
 public:
  Block(Machine& machine, const Launch& launch);

  /// Runs the block of this index to its end.
  void run(const Extent& index);

  void report(const Instruction* x, const std::string& what) { machine.report(launch, index, x, what); }

  Machine& machine;
  const Launch& launch;
  Extent index{};
  std::vector<std::byte> shared;
  Shadow shared_shadow;

 private:
  bool run_warps();
  void pass_barrier();

  std::vector<std::unique_ptr<Warp>> m_warps;
};

}  // namespace nprf::ptx
