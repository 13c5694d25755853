// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/ptx/memory.hpp"
#include "cuda/ptx/module.hpp"

namespace nprf::ptx {

using Extent = std::array<unsigned, 3>;  // x, y, z

/// The launch of a kernel.
struct Launch {
  const Module& module;
  const Function& kernel;
  Extent blocks, threads;       // threads of a block
  std::uint32_t shared;         // bytes of a block
  const std::byte* parameters;  // in the layout of the kernel's parameters
  bool is_early = false;        // may run before kernels before have finished, until it waits for them

  unsigned threads_of_block() const { return threads[0] * threads[1] * threads[2]; }
};

/// What is undefined or wrong in a kernel, found in one of its instructions.
struct Finding {
  std::string what;  // the check, ": " and the details
  std::string kernel, instruction, source;
  Extent block;

  std::string text() const;
};

/// What a GPU leaves open.
struct Options {
  enum class Order { forward, backward, shuffled };
  Order warps = Order::forward;   // forward or backward: which warp of a block runs first until a barrier
  Order blocks = Order::forward;  // in which blocks run, one after another
  bool perturbs = false;          // approximate instructions are off by up to 2 units in the last place
  bool counts = false;            // bank conflicts and sectors, in Instruction::traffic
};

/// Runs kernels on the host and checks every access.
class Machine {
 public:
  Options options;
  GlobalMemory memory;

  /// Runs a kernel to its end. Returns the first finding of each check in each instruction, at most 20.
  std::vector<Finding> run(const Launch& launch);

  // used by blocks and warps

  void report(const Launch& launch, const Extent& block, const Instruction* instruction, const std::string& what);
  Clock clock;

 private:
  static constexpr std::size_t most_findings = 20;

  std::vector<Finding> m_findings;
  std::set<std::pair<const Instruction*, std::string>> m_known;
};

}  // namespace nprf::ptx
