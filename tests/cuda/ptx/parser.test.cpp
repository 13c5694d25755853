// SPDX-License-Identifier: MIT
#include <stdexcept>
#include <string>

#include "cuda/ptx/kernel_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_ptx_parser {

namespace {

std::string refusal(const std::string& text) {
  try {
    ptx::parse(text);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("what the interpreter does not support is refused, with its line", "[ptx]") {
  const auto of = [](std::string_view body) { return refusal(KernelCase{.body = body}.text()); };
  CHECK(of("add.s32 %r5, %r6, 1;") == "no error");
  CHECK(of("wgmma.fence.sync.aligned;") == "PTX, line 19: unknown operation in wgmma.fence.sync.aligned;");
  CHECK(of("add.s32 %r5, %r99, 1;").find("unknown operand %r99") != std::string::npos);
  CHECK(of("bra nowhere;").find("unknown label nowhere") != std::string::npos);
  CHECK(of("setp.lt.and.s32 %p1, 1, 2, %p2;").find("unknown operation") != std::string::npos);
  CHECK(of("add.ftz.f32 %f5, %f6, %f7;").find("unknown operation") != std::string::npos);
  CHECK(of("bar.sync 1;").find("only barrier 0 is known") != std::string::npos);
  CHECK(of("bar.sync 0, 32;").find("only barriers of all threads are known") != std::string::npos);
  CHECK(refusal(".version 9.0\n.global x;").starts_with("PTX, line 2: unknown directive .global"));
  CHECK(refusal(".shared .b8 x[8];").find("only dynamic shared memory is known, got x") != std::string::npos);
  CHECK(refusal(".entry kernel() { ret;").find("the text ends too early") != std::string::npos);
}

TEST_CASE("names that a block in braces declares again are its own", "[ptx]") {
  const auto words =
      KernelCase{.body = "mov.u32 %r5, 1; { .reg .b32 %r<9>; mov.u32 %r5, 2; } st.global.u32 [%d1], %r5;"}.run().words;
  CHECK(words[0] == 1);
}

TEST_CASE("comments are skipped, and lines of the source are reported", "[ptx]") {
  const std::string text =
      "// a comment; with a semicolon\n.file 1 \"kernel.cu\" /* and\n another */\n.entry kernel()\n{\n"
      "  .loc 1 77 3\n  trap; // ends\n}\n";
  const ptx::Module module = ptx::parse(text);
  ptx::Machine machine;
  const auto findings = machine.run({module, *module.find("kernel"), {1, 1, 1}, {1, 1, 1}, 0, nullptr});
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].text() == "a trap; kernel kernel, block 0,0,0, instruction trap;, kernel.cu:77");
}

}  // namespace nprf::test::cuda_ptx_parser
