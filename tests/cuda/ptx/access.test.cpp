// SPDX-License-Identifier: MIT
#include "cuda/ptx/kernel_case.hpp"
#include "support/catch.hpp"

/// Bank conflicts and sectors.
namespace nprf::test::cuda_ptx_access {

namespace {

// passes over the banks, of a store to the address in %r5
void check_passes(const std::string& address, const std::string& store, std::uint64_t moved, std::uint64_t least,
                  unsigned threads = 32) {
  const std::string body = address + "; " + store;
  const KernelCase x{.body = body, .threads = threads, .shared = 32 * 1024};
  const ptx::Traffic traffic = x.traffic_of(store.substr(0, store.find(' ')));
  INFO(body);
  CHECK(traffic.accesses == (threads + 31) / 32);
  CHECK(traffic.moved == moved);
  CHECK(traffic.least == least);
}

}  // namespace

TEST_CASE("bank conflicts are counted", "[ptx]") {
  const std::string word = "st.shared.u32 [%r5], %r0;", load = "ld.shared.u32 %r6, [%r5];";
  check_passes("mad.lo.u32 %r5, %r0, 4, %r3", word, 1, 1);
  check_passes("mad.lo.u32 %r5, %r0, 4, %r3", word, 2, 2, 64);
  check_passes("mad.lo.u32 %r5, %r0, 8, %r3", word, 2, 1);
  check_passes("mad.lo.u32 %r5, %r0, 128, %r3", word, 32, 1);
  check_passes("mad.lo.u32 %r5, %r0, 132, %r3", word, 1, 1);
  check_passes("mad.lo.u32 %r5, %r0, 128, %r3", word, 5, 1, 5);
  check_passes("mov.u32 %r5, %r3", load, 1, 1);  // one word for all
}

TEST_CASE("wide accesses to shared memory are counted in groups of lanes", "[ptx]") {
  const std::string pair = "st.shared.v2.u32 [%r5], {%r0, %r0};",
                    four = "st.shared.v4.u32 [%r5], {%r0, %r0, %r0, %r0};";
  check_passes("mad.lo.u32 %r5, %r0, 8, %r3", pair, 2, 2);
  check_passes("mad.lo.u32 %r5, %r0, 16, %r3", pair, 4, 2);
  check_passes("mad.lo.u32 %r5, %r0, 16, %r3", four, 4, 4);
  check_passes("mad.lo.u32 %r5, %r0, 32, %r3", four, 8, 4);
  check_passes("mad.lo.u32 %r5, %r0, 8, %r3", pair, 1, 1, 16);
  check_passes("mad.lo.u32 %r5, %r0, 16, %r3; st.shared.v4.u32 [%r5], {%r0, %r0, %r0, %r0}; bar.sync 0",
               "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r6, %r7, %r8, %r9}, [%r5];", 4, 4);
  check_passes("mad.lo.u32 %r5, %r0, 32, %r3; st.shared.v4.u32 [%r5], {%r0, %r0, %r0, %r0}; bar.sync 0",
               "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r6, %r7, %r8, %r9}, [%r5];", 8, 4);
}

TEST_CASE("sectors of global memory are counted", "[ptx]") {
  const auto sectors = [](const std::string& offset, const std::string& load) {
    const std::string body = offset +
                             "; cvt.u64.u32 %d2, %r5; add.s64 %d2, %d0, %d2; and.b64 %d3, %d0, 31;\n"
                             "sub.s64 %d2, %d2, %d3; add.s64 %d2, %d2, 32; " +
                             load;
    const ptx::Traffic traffic = KernelCase{.body = body, .size = 4096}.traffic_of(load.substr(0, load.find(' ')));
    return std::pair{traffic.moved, traffic.least};
  };
  using Pair = std::pair<std::uint64_t, std::uint64_t>;
  CHECK(sectors("mul.lo.u32 %r5, %r0, 4", "ld.global.u32 %r6, [%d2];") == Pair{4, 4});
  CHECK(sectors("mad.lo.u32 %r5, %r0, 4, 4", "ld.global.u32 %r6, [%d2];") == Pair{5, 4});
  CHECK(sectors("mul.lo.u32 %r5, %r0, 16", "ld.global.u32 %r6, [%d2];") == Pair{16, 4});
  CHECK(sectors("mul.lo.u32 %r5, %r0, 256", "ld.global.u32 %r6, [%d2];") == Pair{32, 4});
  CHECK(sectors("mul.lo.u32 %r5, %r0, 16", "ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%d2];") == Pair{16, 16});
  CHECK(sectors("mov.u32 %r5, 0", "ld.global.u32 %r6, [%d2];") == Pair{1, 1});
}

}  // namespace nprf::test::cuda_ptx_access
