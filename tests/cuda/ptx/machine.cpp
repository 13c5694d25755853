// SPDX-License-Identifier: MIT
#include "cuda/ptx/machine.hpp"

#include <numeric>

#include "cuda/ptx/block.hpp"

namespace nprf::ptx {

std::string Finding::text() const {
  const auto number = [](unsigned x) { return std::to_string(x); };
  return what + "; kernel " + kernel + ", block " + number(block[0]) + "," + number(block[1]) + "," + number(block[2]) +
         (instruction.empty() ? "" : ", instruction " + instruction) + (source.empty() ? "" : ", " + source);
}

void Machine::report(const Launch& launch, const Extent& block, const Instruction* x, const std::string& what) {
  if (m_findings.size() == most_findings || !m_known.insert({x, what.substr(0, what.find(':'))}).second) return;
  Finding finding{what, launch.kernel.name, {}, {}, block};
  if (x) {
    finding.instruction = std::string(x->text);
    finding.source = launch.module.source_of(*x);
  }
  m_findings.push_back(std::move(finding));
}

namespace {

// 0..n-1, each once, each time the same
std::uint64_t in_order(Options::Order order, std::uint64_t k, std::uint64_t n) {
  if (order == Options::Order::forward) return k;
  if (order == Options::Order::backward) return n - 1 - k;
  std::uint64_t step = 7919 % n;
  while (std::gcd(step, n) != 1) ++step;
  return (k * step + n / 3) % n;
}

}  // namespace

std::vector<Finding> Machine::run(const Launch& launch) {
  m_findings.clear();
  m_known.clear();
  clock.start_launch();
  if (launch.threads_of_block() > launch.kernel.max_threads) {
    report(launch, {}, nullptr, "more threads than the kernel was compiled for");
    return m_findings;
  }
  Block block(*this, launch);
  const std::uint64_t x = launch.blocks[0], y = launch.blocks[1], all = x * y * launch.blocks[2];
  for (std::uint64_t k = 0; k < all; ++k) {
    const std::uint64_t at = in_order(options.blocks, k, all);
    clock.start_block();
    block.run({static_cast<unsigned>(at % x), static_cast<unsigned>(at / x % y), static_cast<unsigned>(at / x / y)});
  }
  return m_findings;
}

}  // namespace nprf::ptx
