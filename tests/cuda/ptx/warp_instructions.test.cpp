// SPDX-License-Identifier: MIT
#include <cstddef>
#include <string>

#include "cuda/ptx/kernel_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_ptx_warp_instructions {

namespace {

std::vector<std::uint32_t> shuffled(const std::string& mode, const std::string& lane, const std::string& clamp) {
  const std::string body = "shfl.sync." + mode + ".b32 %r5|%p1, %r0, " + lane + ", " + clamp +
                           ", -1; selp.u32 %r6, 0, 100, %p1; add.s32 %r5, %r5, %r6; st.global.u32 [%d1], %r5;";
  check_clean({.body = body});
  return KernelCase{.body = body}.run().words;
}

}  // namespace

TEST_CASE("shuffles move values between lanes, within segments", "[ptx]") {
  const auto across = shuffled("bfly", "5", "31"), broadcast = shuffled("idx", "2", "0x181f"),
             half = shuffled("idx", "5", "3");
  for (std::uint32_t k = 0; k < 32; ++k) {
    INFO("lane " << k);
    CHECK(across[k] == (k ^ 5));
    CHECK(broadcast[k] == k / 8 * 8 + 2);
    CHECK(half[k] == 100 + k);  // 100 more: from no lane
  }
}

TEST_CASE("a shuffle from a lane that takes no part is found", "[ptx]") {
  constexpr auto half = "setp.ge.u32 %p1, %r0, 16; @%p1 bra end; shfl.sync.bfly.b32 %r5, %r0, 1, 31, 0xffff; end:",
                 beyond = "setp.ge.u32 %p1, %r0, 16; @%p1 bra end; shfl.sync.bfly.b32 %r5, %r0, 16, 31, 0xffff; end:";
  check_clean({.body = half});
  check_finding({.body = beyond}, "a shuffle reads from a lane that takes no part", "shfl.sync");
}

TEST_CASE("a ballot has the predicates of the lanes", "[ptx]") {
  constexpr auto body = "setp.lt.u32 %p1, %r0, 5; vote.sync.ballot.b32 %r5, %p1, -1; st.global.u32 [%d1], %r5;";
  CHECK(KernelCase{.body = body}.run().words[9] == 31);
}

TEST_CASE("mma and ldmatrix need all 32 lanes", "[ptx]") {
  constexpr auto multiply =
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r5, %r6, %r7, %r8}, {%r9, %r10},\n"
      "{%f1, %f2, %f3, %f4};";
  constexpr auto multiply_pairs =
      "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, {%r5, %r6},\n"
      "{%r7, %r8}, {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8};";
  constexpr auto load =
      "st.shared.v4.u32 [%r5], {%r0, %r0, %r0, %r0}; bar.sync 0;\n"
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r6, %r7, %r8, %r9}, [%r5];";
  const std::string load_all = std::string("mad.lo.u32 %r5, %r0, 16, %r3;\n") + load;
  check_clean({.body = multiply});
  check_clean({.body = load_all, .shared = 512});
  check_finding({.body = multiply, .threads = 16}, "an instruction of all 32 lanes", "mma.sync");
  check_finding({.body = multiply_pairs, .threads = 16}, "an instruction of all 32 lanes", "mma.sync");
  check_finding({.body = std::string("setp.ge.u32 %p1, %r0, 31; @%p1 bra end;\n") + multiply + " end:"},
                "an instruction of all 32 lanes", "mma.sync");
  // rows are 16 bytes
  check_finding({.body = "mad.lo.u32 %r5, %r0, 8, %r3; st.shared.v2.u32 [%r5], {%r0, %r0}; bar.sync 0;\n"
                         "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r6, %r7, %r8, %r9}, [%r5];",
                 .shared = 512},
                "misaligned access: 16 bytes", "ldmatrix");
}

TEST_CASE("mma of half multiplies the number of factors of its shape", "[ptx]") {
  // all factors are 1, and c is 0.5
  const auto sum = [](const std::string& instruction) {
    const std::string body =
        "mov.b32 %r5, 0x3c003c00; mov.b32 %f1, 0f3F000000;\n" + instruction + "; st.global.f32 [%d1], %f2;";
    check_clean({.body = body});
    const auto result = KernelCase{.body = body}.run();
    for (std::size_t lane = 1; lane < 32; ++lane) CHECK(result.words[lane] == result.words[0]);
    return result.as_float(0);
  };
  CHECK(
      sum("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r5, %r5, %r5, %r5}, {%r5, %r5},\n"
          "{%f1, %f1, %f1, %f1}") == 16.5f);
  CHECK(sum("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r5, %r5}, {%r5},\n"
            "{%f1, %f1, %f1, %f1}") == 8.5f);
  for (const std::string layouts : {"row.row", "row.col", "col.row", "col.col"})
    CHECK(sum("mma.sync.aligned.m8n8k4." + layouts +
              ".f32.f16.f16.f32 {%f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9}, {%r5, %r5}, {%r5, %r5},\n"
              "{%f1, %f1, %f1, %f1, %f1, %f1, %f1, %f1}") == 4.5f);
}

TEST_CASE("m8n8k4 multiplies by pairs of quads", "[ptx]") {
  // A is the number of the pair in row 0 and channel 0, B is 1 there: by rows and by columns the first lane has both
  const std::string body =
      "mov.b32 %f1, 0f00000000; mov.b32 %r5, 0; shr.u32 %r6, %r0, 2; cvt.rn.f32.u32 %f2, %r6; cvt.rn.f16.f32 %h1, "
      "%f2;\n"
      "mov.b16 %h2, 0; mov.b32 %r7, {%h1, %h2}; and.b32 %r8, %r0, 19; setp.eq.u32 %p1, %r8, 0;\n"
      "selp.b32 %r7, %r7, 0, %p1; selp.b32 %r8, 0x3c00, 0, %p1;\n"
      "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9}, {%r7, %r5},\n"
      "{%r8, %r5}, {%f1, %f1, %f1, %f1, %f1, %f1, %f1, %f1}; st.global.f32 [%d1], %f2;";
  check_clean({.body = body});
  const auto result = KernelCase{.body = body}.run();
  for (std::size_t lane = 0; lane < 32; ++lane) {
    INFO("lane " << lane);
    CHECK(result.as_float(lane) == (lane % 4 == 0 && lane < 16 ? static_cast<float>(lane / 4) : 0.0f));
  }
}

TEST_CASE("sums of mma are cut to 25 bits below the largest term", "[ptx]") {
  // A and B are 1 in their first column and row, c is given: 1 + c
  const auto sum = [](const std::string& c) {
    const std::string body =
        "mov.b32 %r5, 0; mov.b32 %r6, 0; and.b32 %r7, %r0, 3; setp.eq.u32 %p1, %r7, 0;\n"
        "selp.b32 %r8, 0x3f80, 0, %p1; mov.b32 %f1, " +
        c +
        ";\nmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4},\n"
        "{%r8, %r8, %r5, %r5}, {%r8, %r5}, {%f1, %f1, %f1, %f1}; st.global.f32 [%d1], %f1;";
    return KernelCase{.body = body}.run().as_float(0);
  };
  CHECK(sum("0f40000000") == 3.0f);
  CHECK(sum("0fBF800000") == 0.0f);
  CHECK(sum("0f34000000") == 1 + 0x1p-23f);
  CHECK(sum("0f33FFFFFF") == 1.0f);  // not rounded up
  CHECK(sum("0fB3800000") == 1 - 0x1p-24f);
  CHECK(sum("0fB2800000") == 1.0f);  // 2^-26 is cut off
}

}  // namespace nprf::test::cuda_ptx_warp_instructions
