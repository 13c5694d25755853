// SPDX-License-Identifier: MIT
#include "cuda/ptx/memory.hpp"

#include "cuda/ptx/kernel_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_ptx_memory {

TEST_CASE("accesses beyond an array in global memory are found", "[ptx]") {
  check_clean({.body = "ld.global.u32 %r5, [%d0+252];"});
  check_finding({.body = "ld.global.u32 %r5, [%d0+256];"}, "access beyond any array in global memory", "ld.global.u32");
  check_finding({.body = "ld.global.u32 %r5, [%d0+-4];"}, "access beyond any array in global memory", "ld.global.u32");
  check_clean({.body = "ld.global.v2.u32 {%r5, %r6}, [%d0+248];"});
  check_finding({.body = "st.global.u32 [%d1+132], %r0;"}, "access beyond any array in global memory: 4 bytes",
                "st.global.u32");
  check_finding({.body = "mov.u64 %d2, 64; ld.u32 %r5, [%d2];"}, "access beyond any array", "ld.u32");
}

TEST_CASE("accesses beyond shared memory are found, also by generic addresses", "[ptx]") {
  check_clean({.body = "st.shared.u32 [%r4], %r0;", .shared = 128});
  check_finding({.body = "st.shared.u32 [%r4], %r0;", .shared = 124},
                "access beyond shared memory: 4 bytes at byte 0x7c", "st.shared.u32");
  check_finding({.body = "st.shared.u32 [%r4], %r0;"}, "access beyond shared memory", "st.shared.u32");
  constexpr auto generic = "cvt.u64.u32 %d2, %r4; cvta.shared.u64 %d2, %d2; st.u32 [%d2], %r0;";
  check_clean({.body = generic, .shared = 128});
  check_finding({.body = generic, .shared = 124}, "access beyond shared memory", "st.u32");
}

TEST_CASE("accesses beyond local memory and beyond parameters are found", "[ptx]") {
  check_clean({.body = ".local .align 4 .b8 own[8]; mov.u64 %d2, own; st.local.u32 [%d2+4], %r0;"});
  check_finding({.body = ".local .align 4 .b8 own[8]; mov.u64 %d2, own; st.local.u32 [%d2+8], %r0;"},
                "access beyond local memory", "st.local.u32");
  check_clean({.body = "ld.param.u32 %r5, [array+4];"});
  check_finding({.body = "ld.param.u32 %r5, [array+8];"}, "access beyond the kernel's parameters", "ld.param.u32");
}

TEST_CASE("misaligned accesses are found", "[ptx]") {
  check_clean({.body = "ld.global.v2.u32 {%r5, %r6}, [%d0+8];"});
  check_finding({.body = "ld.global.v2.u32 {%r5, %r6}, [%d0+4];"}, "misaligned access: 8 bytes", "ld.global.v2.u32");
  check_finding({.body = "ld.global.u16 %h1, [%d0+1];"}, "misaligned access: 2 bytes", "ld.global.u16");
  check_clean({.body = "st.shared.v4.u32 [%r3+16], {%r1, %r1, %r1, %r1};", .threads = 1, .shared = 32});
  check_finding({.body = "st.shared.v4.u32 [%r3+8], {%r1, %r1, %r1, %r1};", .threads = 1, .shared = 32},
                "misaligned access: 16 bytes", "st.shared.v4.u32");
}

TEST_CASE("reads of shared memory that the block has not written are found", "[ptx]") {
  check_clean({.body = "st.shared.u32 [%r4], %r0; ld.shared.u32 %r5, [%r4];", .blocks = 2, .shared = 128});
  check_finding({.body = "ld.shared.u32 %r5, [%r4];", .shared = 128}, "read of uninitialised shared memory",
                "ld.shared.u32");
  // half of a word
  check_finding({.body = "st.shared.u16 [%r4], %h1; ld.shared.u32 %r5, [%r4];", .shared = 128},
                "read of uninitialised shared memory", "ld.shared.u32");
  // written by the block before
  check_finding({.body = "setp.ne.u32 %p1, %r2, 0; @%p1 bra second; st.shared.u32 [%r4], %r0;\n"
                         "second: ld.shared.u32 %r5, [%r4];",
                 .blocks = 2,
                 .shared = 128},
                "read of uninitialised shared memory", "ld.shared.u32");
}

// a body, with shared memory for a word of each of 128 threads
constexpr KernelCase exchange(std::string_view body, unsigned threads) {
  return {.body = body, .threads = threads, .shared = 512};
}

TEST_CASE("reads that no barrier orders after a write of another thread are found", "[ptx]") {
  constexpr auto by_barrier = "st.shared.u32 [%r4], %r0; bar.sync 0; xor.b32 %r5, %r4, 64; ld.shared.u32 %r5, [%r5];",
                 by_warp =
                     "st.shared.u32 [%r4], %r0; bar.warp.sync -1; xor.b32 %r5, %r4, 64; ld.shared.u32 %r5, [%r5];",
                 by_nothing = "st.shared.u32 [%r4], %r0; xor.b32 %r5, %r4, 64; ld.shared.u32 %r5, [%r5];",
                 across_warps =
                     "st.shared.u32 [%r4], %r0; bar.warp.sync -1; xor.b32 %r5, %r4, 128; ld.shared.u32 %r5, [%r5];";
  check_clean(exchange(by_barrier, 64));
  check_clean(exchange(by_warp, 64));
  check_finding(exchange(by_nothing, 32), "race, read after write", "ld.shared.u32");
  // the first warp reads what the second has not written yet, and then races with its writes
  const auto findings = exchange(across_warps, 64).run().findings;
  REQUIRE(findings.size() == 3);
  CHECK(findings[0].starts_with("read of uninitialised shared memory"));
  CHECK(findings[1].starts_with("race, write after read"));
  CHECK(findings[2].starts_with("race, read after write"));
}

TEST_CASE("writes that no barrier orders after another thread's access are found", "[ptx]") {
  // the second write is of the neighbour's word
  check_clean(exchange("st.shared.u32 [%r4], %r0; bar.sync 0; xor.b32 %r5, %r4, 4; st.shared.u32 [%r5], %r0;", 64));
  check_finding(exchange("st.shared.u32 [%r4], %r0; xor.b32 %r5, %r4, 4; st.shared.u16 [%r5], %h1;", 32),
                "race, write after write", "st.shared.u16");
  check_clean(
      exchange("st.shared.u32 [%r4], %r0; ld.shared.u32 %r6, [%r4]; bar.warp.sync -1; xor.b32 %r5, %r4, 4;\n"
               "st.shared.u16 [%r5], %h1;",
               32));
  check_finding(exchange("st.shared.u32 [%r4], %r0; bar.warp.sync -1; ld.shared.u32 %r6, [%r4]; xor.b32 %r5, %r4, 4;\n"
                         "st.shared.u16 [%r5], %h1;",
                         32),
                "race, write after read", "st.shared.u16");
  // one thread writes what several have read
  check_finding(exchange("st.shared.u32 [%r4], %r0; bar.sync 0; ld.shared.u32 %r6, [%r3]; setp.eq.u32 %p1, %r0, 0;\n"
                         "@%p1 st.shared.u16 [%r3], %h1;",
                         32),
                "race, write after read", "@%p1 st.shared.u16");
}

TEST_CASE("races in global memory are found, within a block and between blocks", "[ptx]") {
  constexpr auto own_word =
      "mad.lo.s32 %r5, %r2, 32, %r0; mul.wide.u32 %d2, %r5, 4; add.s64 %d2, %d0, %d2;\n"
      "st.global.u32 [%d2], %r5; ld.global.u32 %r6, [%d2];";
  check_clean({.body = own_word, .blocks = 2});
  check_finding({.body = "st.global.u32 [%d1], %r2;", .blocks = 2},
                "race, write after write: byte 2, thread 0 and another block", "st.global.u32");
  check_finding(
      {.body = "setp.eq.u32 %p1, %r2, 0; @%p1 st.global.u32 [%d1], %r0; @!%p1 ld.global.u32 %r5, [%d1];", .blocks = 2},
      "race, read after write", "@!%p1 ld.global.u32");
  check_finding(
      {.body = "setp.eq.u32 %p1, %r2, 2; @!%p1 ld.global.u32 %r5, [%d1]; @%p1 st.global.u32 [%d1], %r0;", .blocks = 3},
      "race, write after read", "@%p1 st.global.u32");
  // the writer has read, too
  check_finding(
      {.body = "setp.eq.u32 %p1, %r2, 1; ld.global.u32 %r5, [%d1]; @%p1 st.global.u32 [%d1], %r0;", .blocks = 2},
      "race, write after read: byte 2, thread 0 and another block", "@%p1 st.global.u32");
  check_clean({.body = "xor.b32 %r5, %r1, 4; cvt.u64.u32 %d2, %r5; add.s64 %d2, %d0, %d2; st.global.u32 [%d1], %r0;\n"
                       "bar.sync 0; ld.global.u32 %r6, [%d2];"});
  check_finding({.body = "xor.b32 %r5, %r1, 4; cvt.u64.u32 %d2, %r5; add.s64 %d2, %d0, %d2; st.global.u32 [%d1], %r0;\n"
                         "ld.global.u32 %r6, [%d2];"},
                "race, read after write", "ld.global.u32");
}

TEST_CASE("threads may write neighbouring bytes, but not the same one", "[ptx]") {
  constexpr auto address = "cvt.u64.u32 %d2, %r0; add.s64 %d2, %d0, %d2;";
  const std::string own = std::string(address) + "st.global.u8 [%d2], %h1; ld.global.u8 %h2, [%d2];";
  check_clean({.body = own, .threads = 64});
  check_clean({.body = own + "bar.sync 0; ld.global.u8 %h2, [%d2+1]; bar.sync 0; st.global.u8 [%d2], %h1;"});
  check_finding({.body = own + "ld.global.u16 %h2, [%d0];", .threads = 2}, "race, read after write", "ld.global.u16");
  check_finding({.body = own + "st.global.u8 [%d0+1], %h1;", .blocks = 2, .threads = 1}, "race, write after read",
                "st.global.u8 [%d2]");
  check_finding({.body = "ld.global.u8 %h2, [%d0]; setp.eq.u32 %p1, %r0, 1; @%p1 st.global.u8 [%d0], %h1;"},
                "race, write after read", "@%p1 st.global.u8");
  check_clean({.body = "ld.global.u8 %h2, [%d0]; setp.eq.u32 %p1, %r0, 1; @%p1 st.global.u8 [%d0+1], %h1;"});
}

TEST_CASE("atomic operations do not race with each other, but with other accesses", "[ptx]") {
  constexpr auto add = "atom.global.add.u32 %r5, [%d0], 1;";
  check_clean({.body = add, .blocks = 3, .threads = 64});
  CHECK(KernelCase{.body = add, .blocks = 3, .threads = 64}.run().words[0] == 3 * 64);
  check_finding({.body = "atom.global.add.u32 %r5, [%d0], 1; bar.sync 0; ld.global.u32 %r6, [%d0];", .blocks = 2},
                "race, write after read", "atom.global.add.u32");
  check_finding({.body = "st.global.u32 [%d1], %r0; setp.eq.u32 %p1, %r0, 1; @%p1 atom.global.add.u32 %r5, [%d0], 1;",
                 .threads = 2},
                "race, write after write", "@%p1 atom.global.add.u32");
}

TEST_CASE("a kernel that may run early must wait for earlier kernels before it accesses global memory or ends",
          "[ptx]") {
  constexpr auto what = "access before the wait for earlier kernels";
  const auto early = [](std::string_view body) { return KernelCase{.body = body, .shared = 128, .is_early = true}; };
  check_clean({.body = "st.global.u32 [%d1], %r0;"});
  check_clean(early("griddepcontrol.wait; st.global.u32 [%d1], %r0;"));
  check_clean(early("st.shared.u32 [%r4], %r0; griddepcontrol.launch_dependents; griddepcontrol.wait;"));
  check_finding(early("ld.global.u32 %r5, [%d1]; griddepcontrol.wait;"), what, "ld.global.u32");
  check_finding(early("griddepcontrol.launch_dependents; st.global.u32 [%d1], %r0; griddepcontrol.wait;"), what,
                "st.global.u32");
  constexpr auto some_wait = "setp.eq.u32 %p1, %r0, 1; @%p1 griddepcontrol.wait; ";
  check_finding(early(some_wait + std::string("st.global.u32 [%d1], %r0; griddepcontrol.wait;")), what,
                "st.global.u32");
  check_finding(early(some_wait), "the end without a wait for earlier kernels", "ret");
}

}  // namespace nprf::test::cuda_ptx_memory
