// SPDX-License-Identifier: MIT
#include "cuda/ptx/machine.hpp"

#include <set>

#include "cuda/ptx/kernel_case.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_ptx_machine {

namespace {

using Order = ptx::Options::Order;

// the words where the first thread of each block, or each warp, notes when it ran
std::vector<std::uint32_t> turns(const KernelCase& x, std::size_t count) {
  const auto words = x.run().words;
  return {words.begin() + 1, words.begin() + 1 + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

TEST_CASE("blocks run in the order that is asked for, each once", "[ptx]") {
  constexpr auto body =
      "atom.global.add.u32 %r5, [%d0], 1; mul.wide.u32 %d2, %r2, 4; add.s64 %d2, %d0, %d2;\n"
      "st.global.u32 [%d2+4], %r5;";
  const auto run = [&](Order order) {
    return turns({.body = body, .blocks = 20, .threads = 1, .options = {.blocks = order}}, 20);
  };
  const auto forward = run(Order::forward), backward = run(Order::backward), shuffled = run(Order::shuffled);
  for (std::uint32_t k = 0; k < 20; ++k) {
    CHECK(forward[k] == k);
    CHECK(backward[k] == 19 - k);
  }
  CHECK(std::set(shuffled.begin(), shuffled.end()).size() == 20);
  CHECK(shuffled != forward);
  CHECK(shuffled != backward);
}

TEST_CASE("warps run in the order that is asked for", "[ptx]") {
  constexpr auto body =
      "and.b32 %r6, %r0, 31; setp.ne.u32 %p1, %r6, 0; @%p1 bra end; shr.u32 %r7, %r0, 5;\n"
      "mul.wide.u32 %d2, %r7, 4; add.s64 %d2, %d0, %d2; atom.global.add.u32 %r5, [%d0], 1;\n"
      "st.global.u32 [%d2+4], %r5; end:";
  const auto run = [&](Order order) { return turns({.body = body, .threads = 96, .options = {.warps = order}}, 3); };
  CHECK(run(Order::forward) == std::vector<std::uint32_t>{0, 1, 2});
  CHECK(run(Order::backward) == std::vector<std::uint32_t>{2, 1, 0});
}

TEST_CASE("a launch of more threads than the kernel was compiled for is found", "[ptx]") {
  const ptx::Module module = ptx::parse(".entry kernel() .maxntid 64, 1, 1 { ret; }");
  const auto run = [&](unsigned threads) {
    return ptx::Machine().run({module, *module.find("kernel"), {1, 1, 1}, {threads, 1, 1}, 0, nullptr});
  };
  CHECK(run(64).empty());
  REQUIRE(run(65).size() == 1);
  CHECK(run(65)[0].what == "more threads than the kernel was compiled for");
}

TEST_CASE("special registers have the place of each thread", "[ptx]") {
  const ptx::Module module = ptx::parse(R"(.entry kernel(.param .u64 array)
{
  .reg .b32 %r<9>;
  .reg .b64 %d<3>;
  ld.param.u64 %d0, [array];
  mov.u32 %r0, %ctaid.y;
  mad.lo.u32 %r0, %r0, 3, %ctaid.x;
  mad.lo.u32 %r0, %r0, %ntid.z, %tid.z;
  mad.lo.u32 %r0, %r0, %ntid.y, %tid.y;
  mad.lo.u32 %r0, %r0, %ntid.x, %tid.x;
  mul.wide.u32 %d1, %r0, 4;
  add.s64 %d1, %d0, %d1;
  mul.lo.u32 %r1, %nctaid.x, 100;
  st.global.u32 [%d1], %r1;
  ret;
})");
  std::vector<std::uint32_t> words(2 * 3 * 40);
  std::uint32_t* data = words.data();
  ptx::Machine machine;
  machine.memory.add(data, words.size() * sizeof(std::uint32_t));
  CHECK(
      machine.run({module, *module.find("kernel"), {3, 2, 1}, {5, 4, 2}, 0, reinterpret_cast<const std::byte*>(&data)})
          .empty());
  for (std::size_t k = 0; k < words.size(); ++k) CHECK(words[k] == 300);
}

}  // namespace nprf::test::cuda_ptx_machine
