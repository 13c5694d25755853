// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/ptx/machine.hpp"
#include "support/catch.hpp"

namespace nprf::test {

/// A kernel of a few lines of PTX, for tests of the interpreter. Its parameter is an array of words in global memory,
/// which are 0, 1, 2, .. before the launch. Registers: %d0 has the address of the array and %d1 that of the thread's
/// word; %r0 the thread, %r1 four times that, %r2 the block; %r3 the address of dynamic shared memory, and %r4 that of
/// the thread's word in it.
struct KernelCase {
  std::string_view body;
  unsigned blocks = 1, threads = 32;
  std::uint32_t shared = 0;  // bytes
  ptx::Options options = {};
  std::size_t size = 64;  // of the array
  bool is_early = false;  // Launch::is_early

  struct Result {
    std::vector<std::string> findings;
    std::vector<std::uint32_t> words;
    struct Instruction {
      std::string text;
      ptx::Traffic traffic, written;
    };
    std::vector<Instruction> instructions;

    float as_float(std::size_t k) const { return std::bit_cast<float>(words.at(k)); }
  };

  std::string text() const {
    return R"(.version 9.0
.target sm_90
.address_size 64
.extern .shared .align 128 .b8 dynamic[];
.visible .entry kernel(.param .u64 array)
{
  .reg .pred %p<9>;
  .reg .b16 %h<9>;
  .reg .b32 %r<32>, %f<32>;
  .reg .b64 %d<32>, %g<32>;
  ld.param.u64 %d0, [array];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %d1, %r0, 4;
  add.s64 %d1, %d0, %d1;
  shl.b32 %r1, %r0, 2;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, dynamic;
  add.s32 %r4, %r3, %r1;
)" + std::string(body) +
           "\n  ret;\n}\n";
  }

  Result run() const {
    const ptx::Module module = ptx::parse(text());
    std::vector<std::uint32_t> array(size);
    std::iota(array.begin(), array.end(), 0u);
    std::vector<std::byte> parameters(sizeof(void*));
    const std::uint32_t* data = array.data();
    std::memcpy(parameters.data(), &data, sizeof(data));
    ptx::Machine machine;
    machine.options = options;
    machine.memory.add(data, size * sizeof(std::uint32_t));
    const ptx::Function& kernel = *module.find("kernel");
    Result result;
    for (const ptx::Finding& x :
         machine.run({module, kernel, {blocks, 1, 1}, {threads, 1, 1}, shared, parameters.data(), is_early}))
      result.findings.push_back(x.text());
    result.words = array;
    for (const ptx::Instruction& x : kernel.code)
      result.instructions.push_back({std::string(x.text), x.traffic, x.written});
    return result;
  }

  /// The only instruction that starts so, with its traffic.
  Result::Instruction counted(std::string_view opcode) const {
    KernelCase counting = *this;
    counting.options.counts = true;
    Result::Instruction found;
    int count = 0;
    for (const Result::Instruction& x : counting.run().instructions)
      if (x.text.starts_with(opcode)) found = x, ++count;
    REQUIRE(count == 1);
    return found;
  }
  ptx::Traffic traffic_of(std::string_view opcode) const { return counted(opcode).traffic; }
};

inline void check_clean(const KernelCase& x) {
  INFO(x.body);
  CHECK(x.run().findings == std::vector<std::string>{});
}
/// The kernel's only finding starts so, and names an instruction that starts so.
inline void check_finding(const KernelCase& x, std::string_view what, std::string_view instruction) {
  const std::vector<std::string> findings = x.run().findings;
  INFO(x.body);
  REQUIRE(findings.size() == 1);
  INFO(findings[0]);
  CHECK(findings[0].starts_with(what));
  CHECK(findings[0].find("instruction " + std::string(instruction)) != std::string::npos);
}

}  // namespace nprf::test
