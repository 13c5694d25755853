// SPDX-License-Identifier: MIT
#include "cuda/ptx/warp.hpp"

#include "cuda/ptx/kernel_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_ptx_warp {

TEST_CASE("lanes that diverge take their own paths, and meet again", "[ptx]") {
  // odd threads count up to themselves; then all lanes take part in a shuffle
  constexpr auto body = R"(
  and.b32 %r5, %r0, 1;
  setp.eq.s32 %p1, %r5, 0;
  mov.u32 %r6, 0;
  @%p1 bra joined;
again:
  add.s32 %r6, %r6, 1;
  setp.lt.u32 %p2, %r6, %r0;
  @%p2 bra again;
joined:
  shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1;
  st.global.u32 [%d1], %r7;)";
  check_clean({.body = body});
  const auto words = KernelCase{.body = body}.run().words;
  for (std::uint32_t k = 0; k < 32; ++k) CHECK(words[k] == (k % 2 == 0 ? k + 1 : 0));
}

TEST_CASE("functions are called by some lanes, with arguments and a result", "[ptx]") {
  const std::string text = R"(
.version 9.0
.target sm_90
.address_size 64
.func (.param .b32 result) triple(.param .b32 x)
{
  .reg .b32 %r<3>;
  .reg .pred %p1;
  ld.param.u32 %r1, [x];
  setp.eq.u32 %p1, %r1, 3;
  mul.lo.u32 %r2, %r1, 3;
  @%p1 bra other;
  st.param.b32 [result], %r2;
  ret;
other:
  st.param.b32 [result], 1000;
  ret;
}
.entry kernel(.param .u64 array)
{
  .reg .b32 %r<5>;
  .reg .b64 %rd<5>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [array];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd1, %rd1, %rd2;
  setp.eq.u32 %p1, %r1, 2;
  mov.u32 %r2, 7;
  @%p1 bra done;
  {
    .param .b32 param0;
    .param .b32 retval0;
    st.param.b32 [param0], %r1;
    call.uni (retval0), triple, (param0);
    ld.param.b32 %r2, [retval0];
  }
done:
  st.global.u32 [%rd1], %r2;
  ret;
}
)";
  const ptx::Module module = ptx::parse(text);
  std::vector<std::uint32_t> array(32);
  std::uint32_t* data = array.data();
  ptx::Machine machine;
  machine.memory.add(data, 32 * sizeof(std::uint32_t));
  const auto* parameters = reinterpret_cast<const std::byte*>(&data);
  CHECK(machine.run({module, *module.find("kernel"), {1, 1, 1}, {32, 1, 1}, 0, parameters}).empty());
  for (std::uint32_t k = 0; k < 32; ++k) CHECK(array[k] == (k == 2 ? 7 : k == 3 ? 1000 : 3 * k));
}

TEST_CASE("a barrier of a block that not all of its threads reach is found", "[ptx]") {
  check_clean({.body = "bar.sync 0;", .threads = 70});
  check_finding({.body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra end; bar.sync 0; end:", .threads = 64},
                "a barrier of a block of which threads have ended", "bar.sync");
  check_finding({.body = "setp.lt.u32 %p1, %r0, 8; @%p1 bra end; bar.sync 0; end:", .threads = 64},
                "a barrier of a block of which threads have ended", "bar.sync");
}

TEST_CASE("threads that wait at different barriers are found", "[ptx]") {
  // the first warp goes on to the other barrier
  constexpr auto at_two = "setp.lt.u32 %p1, %r0, 32; @%p1 bra other; bar.sync 0; bra end; other: bar.sync 0; end:";
  const auto findings = KernelCase{.body = at_two, .threads = 64}.run().findings;
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].starts_with("warps of a block wait at different barriers"));
  check_finding({.body = "setp.lt.u32 %p1, %r0, 16; @%p1 bra other; bar.sync 0; bra end; other: bar.sync 0; end:"},
                "lanes wait for others that do not come", "bar.sync");
}

TEST_CASE("a barrier with a predicate tells all threads whether any has it", "[ptx]") {
  for (const auto& [lane, expected] : {std::pair{40, 1u}, {99, 0u}}) {
    const std::string body = "setp.eq.u32 %p1, %r0, " + std::to_string(lane) +
                             "; bar.red.or.pred %p2, 0, %p1; selp.u32 %r5, 1, 0, %p2; st.global.u32 [%d1], %r5;";
    CHECK(KernelCase{.body = body, .threads = 64}.run().words[5] == expected);
  }
}

TEST_CASE("instructions of a warp whose mask does not fit its lanes are found", "[ptx]") {
  constexpr auto shuffle = "shfl.sync.bfly.b32 %r5, %r0, 1, 31, -1;";
  check_clean({.body = shuffle});
  check_finding({.body = shuffle, .threads = 16}, "the mask names lanes that have ended or never were", "shfl.sync");
  check_finding({.body = "setp.lt.u32 %p1, %r0, 8; @%p1 bra end; shfl.sync.bfly.b32 %r5, %r0, 1, 31, -1; end:"},
                "the mask names lanes that have ended or never were", "shfl.sync");
  check_finding({.body = "bar.warp.sync 0xffff;"}, "a lane that its own mask of members leaves out", "bar.warp.sync");
  check_finding({.body = "or.b32 %r5, %r0, 0xffff; or.b32 %r5, %r5, 0xffff0000; setp.eq.u32 %p1, %r0, 3;\n"
                         "selp.b32 %r5, 0xff, %r5, %p1; bar.warp.sync %r5;"},
                "lanes that run together name different members", "bar.warp.sync");
  check_clean({.body = "setp.lt.u32 %p1, %r0, 8; @%p1 bar.warp.sync 0xff; bar.warp.sync -1;"});
  check_finding({.body = "setp.lt.u32 %p1, %r0, 8; @%p1 bar.warp.sync 0xf;"},
                "a lane that its own mask of members leaves out", "@%p1 bar.warp.sync");
  check_finding({.body = "setp.lt.u32 %p1, %r0, 8; @%p1 bar.sync 0;"},
                "an instruction of a whole warp, with a predicate that differs between lanes", "@%p1 bar.sync");
  // half of the warp shuffles, the other half waits elsewhere
  check_finding({.body = "setp.lt.u32 %p1, %r0, 16; @%p1 bra other; shfl.sync.bfly.b32 %r5, %r0, 1, 31, -1; bra end;\n"
                         "other: bar.warp.sync -1; end:"},
                "lanes wait for others that do not come", "bar.warp.sync");
}

TEST_CASE("a trap is found", "[ptx]") {
  check_clean({.body = "setp.eq.u32 %p1, %r0, 99; @%p1 trap;"});
  check_finding({.body = "setp.eq.u32 %p1, %r0, 9; @%p1 trap;"}, "a trap", "@%p1 trap");
}

}  // namespace nprf::test::cuda_ptx_warp
