// SPDX-License-Identifier: MIT
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "cuda/ptx/kernel_case.hpp"
#include "support/catch.hpp"

/// What instructions of a single lane compute.
namespace nprf::test::cuda_ptx_arithmetic {

namespace {

// %r5 after the instructions
std::uint32_t word(const std::string& body) {
  const std::string all = body + "; st.global.u32 [%d1], %r5;";
  INFO(body);
  const auto result = KernelCase{.body = all}.run();
  CHECK(result.findings.empty());
  return result.words[0];
}
// %d5 after the instructions
std::uint64_t longer(const std::string& body) {
  const std::string all = body + "; st.global.u64 [%d0], %d5;";
  INFO(body);
  const auto words = KernelCase{.body = all, .threads = 1}.run().words;
  return std::uint64_t{words[1]} << 32 | words[0];
}
// %f5, for %f6 = a, %f7 = b, %f8 = c
float number(const std::string& instruction, float a = 0, float b = 0, float c = 0, bool perturbs = false) {
  const auto bits = [](float x) { return std::to_string(std::bit_cast<std::uint32_t>(x)); };
  const std::string body = "mov.b32 %f6, " + bits(a) + "; mov.b32 %f7, " + bits(b) + "; mov.b32 %f8, " + bits(c) +
                           ";\n" + instruction + "; st.global.f32 [%d1], %f5;";
  INFO(instruction);
  return KernelCase{.body = body, .threads = 1, .options = {.perturbs = perturbs}}.run().as_float(0);
}

constexpr std::uint32_t minus(std::uint32_t x) { return ~x + 1; }

}  // namespace

TEST_CASE("integers are added, multiplied and divided", "[ptx]") {
  CHECK(word("sub.s32 %r5, 3, 5") == minus(2));
  CHECK(word("mul.lo.s32 %r5, -3, 5") == minus(15));
  CHECK(word("mul.hi.s32 %r5, -3, 5") == ~0u);
  CHECK(word("mul.hi.u32 %r5, 0xffffffff, 0xffffffff") == 0xfffffffe);
  CHECK(word("mad.lo.s32 %r5, -3, 5, 20") == 5);
  CHECK(word("div.s32 %r5, -7, 2") == minus(3));
  CHECK(word("rem.s32 %r5, -7, 2") == minus(1));
  CHECK(word("div.u32 %r5, 0xfffffff9, 2") == 0x7ffffffc);
  CHECK(word("div.s32 %r5, 0x80000000, -1") == 0x80000000);
  CHECK(word("min.s32 %r5, -7, 2") == minus(7));
  CHECK(word("min.u32 %r5, -7, 2") == 2);
  CHECK(word("max.s32 %r5, -7, 2") == 2);
  CHECK(word("abs.s32 %r5, -7") == 7);
  CHECK(word("neg.s32 %r5, 7") == minus(7));
  CHECK(longer("mul.wide.s32 %d5, -3, 5") == ~std::uint64_t{14});
  CHECK(longer("mul.wide.u32 %d5, 0xffffffff, 0xffffffff") == 0xfffffffe00000001u);
  CHECK(longer("rem.s64 %d5, -7, 4") == ~std::uint64_t{2});
}

TEST_CASE("bits are shifted, combined and moved", "[ptx]") {
  CHECK(word("shl.b32 %r5, 3, 4") == 48);
  CHECK(word("shl.b32 %r5, 3, 32") == 0);
  CHECK(word("shr.u32 %r5, 0x80000000, 31") == 1);
  CHECK(word("shr.s32 %r5, 0x80000000, 40") == ~0u);
  CHECK(word("shr.u32 %r5, 0x80000000, 40") == 0);
  CHECK(word("and.b32 %r5, 12, 10") == 8);
  CHECK(word("or.b32 %r5, 12, 10") == 14);
  CHECK(word("xor.b32 %r5, 12, 10") == 6);
  CHECK(word("not.b32 %r5, 12") == ~12u);
  CHECK(word("bfi.b32 %r5, 0xab, 0x12345678, 8, 4") == 0x12345b78);
  CHECK(longer("bfi.b64 %d5, 0xab, 0, 40, 8") == std::uint64_t{0xab} << 40);
  CHECK(word("prmt.b32 %r5, 0x33221100, 0x77665544, 0x7041") == 0x77004411);
  CHECK(longer("mov.b64 %d5, {%r0, 7}") == std::uint64_t{7} << 32);
  CHECK(word("mov.u64 %d5, 0x700000003; mov.b64 {%r6, %r5}, %d5") == 7);
  CHECK(word("mov.b32 %r6, 0x70003; mov.b32 {%h1, %h2}, %r6; mov.b32 %r5, {%h2, %h1}") == 0x30007);
}

TEST_CASE("comparisons treat signs and NaN as PTX defines", "[ptx]") {
  const auto holds = [](const std::string& comparison) {
    return word("setp." + comparison + "; selp.u32 %r5, 1, 0, %p1") == 1;
  };
  const std::string nan = "0f7FC00000", one = "0f3F800000";
  CHECK(holds("lt.s32 %p1, -1, 1"));
  CHECK(!holds("lt.u32 %p1, -1, 1"));
  CHECK(!holds("lt.f32 %p1, " + nan + ", " + one));
  CHECK(holds("ltu.f32 %p1, " + nan + ", " + one));
  CHECK(!holds("ne.f32 %p1, " + nan + ", " + one));
  CHECK(holds("neu.f32 %p1, " + nan + ", " + one));
  CHECK(holds("nan.f32 %p1, " + nan + ", " + one));
  CHECK(!holds("num.f32 %p1, " + nan + ", " + one));
}

TEST_CASE("floats are rounded in the mode of the instruction", "[ptx]") {
  const float tiny = 0x1p-30f, inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  CHECK(number("add.f32 %f5, %f6, %f7", 1, tiny) == 1);
  CHECK(number("add.rp.f32 %f5, %f6, %f7", 1, tiny) == 1 + 0x1p-23f);
  CHECK(number("add.rm.f32 %f5, %f6, %f7", 1, -tiny) == 1 - 0x1p-24f);
  CHECK(number("fma.rz.f32 %f5, %f6, %f7, %f8", 1, 1, -tiny) == 1 - 0x1p-24f);
  CHECK(number("fma.rn.f32 %f5, %f6, %f7, %f8", 1 + 0x1p-23f, 1 - 0x1p-23f, -1) == -0x1p-46f);
  CHECK(number("mul.rn.f32 %f5, %f6, %f7", 3, -5) == -15);
  CHECK(number("div.rn.f32 %f5, %f6, %f7", 1, 3) == 1.0f / 3);
  CHECK(number("sqrt.rn.f32 %f5, %f6", 2) == std::sqrt(2.0f));
  CHECK(number("max.f32 %f5, %f6, %f7", nan, 2) == 2);
  CHECK(number("min.f32 %f5, %f6, %f7", -inf, 2) == -inf);
  CHECK(!std::signbit(number("max.f32 %f5, %f6, %f7", -0.0f, 0.0f)));
  CHECK(number("neg.f32 %f5, %f6", 2) == -2);
  CHECK(number("abs.f32 %f5, %f6", -2) == 2);
  CHECK(number("add.f32 %f5, %f6, %f7", 0x1p-127f, 0) == 0x1p-127f);
  CHECK(longer("add.f64 %d5, 0d3FF0000000000000, 0d4000000000000000") == 0x4008000000000000u);
}

TEST_CASE("conversions round, clamp and extend", "[ptx]") {
  const auto to_s32 = [](const std::string& mode, float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return static_cast<int>(word("mov.b32 %f6, " + std::to_string(bits) + "; cvt." + mode + ".s32.f32 %r5, %f6"));
  };
  CHECK(to_s32("rni", 2.5f) == 2);
  CHECK(to_s32("rzi", -2.7f) == -2);
  CHECK(to_s32("rmi", -2.2f) == -3);
  CHECK(to_s32("rpi", 2.2f) == 3);
  CHECK(to_s32("rzi", 1e20f) == std::numeric_limits<int>::max());
  CHECK(to_s32("rzi", std::nanf("")) == 0);
  CHECK(longer("cvt.s64.s32 %d5, -5") == ~std::uint64_t{4});
  CHECK(longer("cvt.u64.u32 %d5, -5") == 0xfffffffbu);
  CHECK(word("mov.u64 %d5, 0x100000007; cvt.u32.u64 %r5, %d5") == 7);
  CHECK(word("mov.u32 %r6, 0x1ff; cvt.s32.s8 %r5, %r6") == ~0u);
  CHECK(word("mov.u32 %r6, 0x1ff; cvt.u32.u8 %r5, %r6") == 255);
  CHECK(number("mov.u32 %r6, -3; cvt.rn.f32.s32 %f5, %r6") == -3);
  CHECK(number("mov.u32 %r6, 0x1000001; cvt.rn.f32.u32 %f5, %r6") == 0x1p24f);
  CHECK(number("cvt.rni.f32.f32 %f5, %f6", 3.5f) == 4);
  CHECK(number("cvt.sat.f32.f32 %f5, %f6", -3.5f) == 0);
  CHECK(number("cvt.rn.f16.f32 %h1, %f6; cvt.f32.f16 %f5, %h1", 1 + 0x1p-11f) == 1);
  CHECK(number("cvt.rn.bf16.f32 %h1, %f6; cvt.f32.bf16 %f5, %h1", 1 + 3 * 0x1p-8f) == 1 + 0x1p-6f);
  CHECK(number("mov.u64 %g1, 0x3ff0000010000001; cvt.rn.f32.f64 %f5, %g1") == 1 + 0x1p-23f);
  CHECK(word("mov.b32 %f6, 0f3F800000; mov.b32 %f7, 0f40000000; cvt.rn.bf16x2.f32 %r5, %f6, %f7") == 0x3f804000);
  CHECK(word("mov.b32 %f6, 0f3F800000; mov.b32 %f7, 0f40000000; cvt.rn.f16x2.f32 %r5, %f6, %f7") == 0x3c004000);
}

TEST_CASE("2^x is correct to 2 units, and off by some if it is perturbed", "[ptx]") {
  int different = 0;
  for (int k = 0; k < 40; ++k) {
    const float x = -5.3f + 0.26f * static_cast<float>(k), y = static_cast<float>(std::exp2(static_cast<double>(x)));
    INFO("x " << x);
    CHECK(number("ex2.approx.f32 %f5, %f6", x) == y);
    const float perturbed = number("ex2.approx.f32 %f5, %f6", x, 0, 0, true);
    CHECK(std::fabs(perturbed - y) <= 2 * (std::nextafter(y, 1e30f) - y));
    different += perturbed != y;
  }
  CHECK(different > 10);
  CHECK(number("ex2.approx.ftz.f32 %f5, %f6", -130) == 0);
  CHECK(number("ex2.approx.f32 %f5, %f6", -130) == 0x1p-130f);
}

}  // namespace nprf::test::cuda_ptx_arithmetic
