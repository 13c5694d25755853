// SPDX-License-Identifier: MIT
#include <string>

#include "cuda/ptx/kernel_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_ptx_copy_instructions {

// four threads copy 16 bytes each of the first 16 words, then run the rest and store what they read
KernelCase copies(const std::string& rest, const std::string& bytes = "16", unsigned threads = 4) {
  static std::string body;
  body = "shl.b32 %r5, %r0, 4; cvt.u64.u32 %d2, %r5; add.s64 %d2, %d0, %d2; add.s32 %r5, %r3, %r5; mov.u32 %r6, " +
         bytes + "; cp.async.cg.shared.global [%r5], [%d2], 16, %r6;" + rest;
  return {.body = body, .threads = threads, .shared = 16 * threads};
}
constexpr auto store_first = "ld.shared.u32 %r7, [%r5]; st.global.u32 [%d1+128], %r7;",
               store_other = "xor.b32 %r5, %r5, 16; ld.shared.u32 %r7, [%r5]; st.global.u32 [%d1+128], %r7;",
               waits = "cp.async.wait_all;";

TEST_CASE("a copy has its bytes once it has been waited for", "[ptx]") {
  const KernelCase::Result all = copies(std::string(waits) + store_first).run();
  CHECK(all.findings.empty());
  for (std::size_t t = 0; t < 4; ++t) CHECK(all.words[32 + t] == 4 * t);
  const KernelCase::Result none = copies(std::string(waits) + store_first, "0").run();
  CHECK(none.findings.empty());
  for (std::size_t t = 0; t < 4; ++t) CHECK(none.words[32 + t] == 0);
  CHECK(copies(store_first).run().words[33] != 4);  // too early
  const KernelCase further{.body =
                               "cp.async.cg.shared.global [%r3+16], [%d0], 16, 16; cp.async.wait_all;\n"
                               "ld.shared.u32 %r5, [%r3+20]; st.global.u32 [%d0+128], %r5;",
                           .threads = 1,
                           .shared = 32};
  CHECK(further.run().words[32] == 1);
}

TEST_CASE("other threads need a barrier after the wait", "[ptx]") {
  const KernelCase::Result right = copies(std::string(waits) + "bar.sync 0;" + store_other).run();
  CHECK(right.findings.empty());
  for (std::size_t t = 0; t < 4; ++t) CHECK(right.words[32 + t] == 4 * (t ^ 1));
  CHECK_FALSE(copies(std::string(waits) + store_other).run().findings.empty());
  CHECK_FALSE(copies("bar.sync 0;" + std::string(store_other) + waits).run().findings.empty());
}

TEST_CASE("a copy beyond an array or shared memory is found; one of no bytes reads nothing", "[ptx]") {
  check_finding(copies(waits, "16", 17), "access beyond any array in global memory", "cp.async");
  check_clean(copies(waits, "0", 17));
  KernelCase small = copies(waits);
  small.shared = 48;
  CHECK_FALSE(small.run().findings.empty());
}

TEST_CASE("of a copy, the sectors that it reads and the passes of its writes are counted", "[ptx]") {
  const auto copy = copies(waits).counted("cp.async.cg");
  CHECK(copy.traffic.least == 2);
  CHECK(copy.written.least == 1);
  CHECK(copy.written.moved == 1);
  // each of four lanes to the same banks
  const KernelCase conflicts{.body =
                                 "shl.b32 %r5, %r0, 7; add.s32 %r5, %r3, %r5;\n"
                                 "cp.async.cg.shared.global [%r5], [%d0], 16, 16; cp.async.wait_all;",
                             .threads = 4,
                             .shared = 512};
  const auto found = conflicts.counted("cp.async.cg");
  CHECK(found.traffic.least == 1);
  CHECK(found.written.least == 1);
  CHECK(found.written.moved == 4);
  const auto nothing = copies(waits, "0").counted("cp.async.cg");  // zeros, which it does not read
  CHECK(nothing.traffic.least == 0);
  CHECK(nothing.written.least == 1);
}

}  // namespace nprf::test::cuda_ptx_copy_instructions
