// SPDX-License-Identifier: MIT
#include "nprf/core/workspace.hpp"

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_workspace {

static_assert(std::is_nothrow_move_constructible_v<Workspace>,
              "the workspaces of a team are in a vector that may grow");
static_assert(!std::is_copy_constructible_v<Workspace::Scope>);

namespace {

constexpr std::size_t line = 64;

std::size_t in_lines(std::size_t bytes) { return bytes == 0 ? line : (bytes + line - 1) / line * line; }

// sizes from 0 to several times the first block, unsorted
const std::vector<Index> sizes{1, 0, 70000, 64, 65, 300000, 7, 0, 131072, 1000, 2000000, 3, 65536, 65537};

// the results of a sequence of calls of take()
std::vector<std::byte*> take_all(Workspace& workspace) {
  std::vector<std::byte*> taken;
  for (const Index size : sizes) taken.push_back(workspace.take<std::byte>(size));
  return taken;
}

}  // namespace

TEMPLATE_TEST_CASE("scratch memory is aligned to 64 bytes and never null", "[core]", std::byte, float, double, Index,
                   std::complex<double>) {
  Workspace workspace;
  for (Index size = 0; size <= 200; ++size) {
    TestType* const memory = workspace.take<TestType>(size);
    REQUIRE(memory != nullptr);
    REQUIRE(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
  }
}

TEST_CASE("pieces of scratch memory do not overlap, within one block and across blocks", "[core]") {
  Workspace workspace;
  const std::vector<std::byte*> taken = take_all(workspace);
  for (std::size_t k = 0; k < taken.size(); ++k) std::fill_n(taken[k], sizes[k], static_cast<std::byte>(k + 1));
  for (std::size_t k = 0; k < taken.size(); ++k) {
    INFO("take " << k);
    CHECK(std::count(taken[k], taken[k] + sizes[k], static_cast<std::byte>(k + 1)) == sizes[k]);
  }
  for (std::size_t k = 0; k < taken.size(); ++k)
    for (std::size_t l = 0; l < k; ++l) CHECK(taken[k] != taken[l]);  // even if the size is 0
}

TEST_CASE("a scope releases at its end all memory taken after it, and no other", "[core]") {
  Workspace workspace;
  double* const kept = workspace.take<double>(10);
  kept[9] = 17;
  double* inner = nullptr;
  {
    const Workspace::Scope scope(workspace);
    inner = workspace.take<double>(100);
    CHECK(inner != kept);
    {
      const Workspace::Scope deeper(workspace);
      CHECK(workspace.take<double>(50000) != inner);
    }
    CHECK(workspace.take<double>(1) != inner);
  }
  CHECK(workspace.take<double>(100) == inner);
  CHECK(kept[9] == 17);
}

TEST_CASE("a call that takes the same sizes as an earlier one gets the same memory", "[core]") {
  Workspace workspace;
  std::vector<std::byte*> first, second;
  {
    const Workspace::Scope scope(workspace);
    first = take_all(workspace);
  }
  {
    const Workspace::Scope scope(workspace);
    workspace.take<std::byte>(5000000);  // another call between the two
    workspace.take<std::byte>(1);
  }
  {
    const Workspace::Scope scope(workspace);
    second = take_all(workspace);
  }
  CHECK(first == second);
}

TEST_CASE("a moved workspace keeps its memory", "[core]") {
  Workspace first;
  std::byte* memory = nullptr;
  {
    const Workspace::Scope scope(first);
    memory = first.take<std::byte>(1000);
  }
  Workspace second = std::move(first);
  CHECK(second.take<std::byte>(1000) == memory);
}

TEST_CASE("the peak is the largest number of bytes in use at once", "[core]") {
  Workspace workspace;
  CHECK(workspace.peak_bytes() == 0);
  workspace.take<std::byte>(0);
  CHECK(workspace.peak_bytes() == line);
  std::size_t all = line;
  {
    const Workspace::Scope scope(workspace);
    for (const Index size : sizes) {
      workspace.take<std::byte>(size);
      all += in_lines(static_cast<std::size_t>(size));
      CHECK(workspace.peak_bytes() == all);  // the unused end of a block does not count
    }
  }
  CHECK(workspace.peak_bytes() == all);
  workspace.take<double>(100);  // less than was released
  CHECK(workspace.peak_bytes() == all);

  workspace.reset_peak();
  const std::size_t held = line + in_lines(100 * sizeof(double));
  CHECK(workspace.peak_bytes() == held);
  workspace.take<float>(1);
  CHECK(workspace.peak_bytes() == held + line);
}

TEST_CASE("the peak of a scope is the largest number of bytes in use at once that it took", "[core]") {
  Workspace workspace;
  workspace.take<std::byte>(10 * line);
  {
    const Workspace::Scope scope(workspace);
    CHECK(scope.peak_bytes() == 0);
    workspace.take<std::byte>(3 * line);
    {
      const Workspace::Scope inner(workspace);
      CHECK(inner.peak_bytes() == 0);
      workspace.take<std::byte>(1);
      CHECK(inner.peak_bytes() == line);
      {
        const Workspace::Scope innermost(workspace);
        workspace.take<std::byte>(7 * line);
        CHECK(innermost.peak_bytes() == 7 * line);
      }
      CHECK(inner.peak_bytes() == 8 * line);
      workspace.take<std::byte>(line);
      CHECK(inner.peak_bytes() == 8 * line);
    }
    CHECK(scope.peak_bytes() == 11 * line);
  }
  {
    const Workspace::Scope smaller(workspace);
    workspace.take<std::byte>(line);
    CHECK(smaller.peak_bytes() == line);
  }
  CHECK(workspace.peak_bytes() == 21 * line);
}

TEST_CASE("reserved memory is contiguous, whatever was taken before", "[core]") {
  constexpr Index piece = 1 << 14, pieces = 64;
  for (const Index before : {0, 1, 60000, 200000}) {
    Workspace workspace;
    const Workspace::Scope scope(workspace);
    if (before > 0) workspace.take<std::byte>(before);
    workspace.reserve(pieces * piece);
    // pieces taken from the reserved block are in one block: adjacent, or with gaps for AddressSanitizer
    workspace.take<std::byte>(1 << 16);
    const Workspace::Scope again(workspace);
    std::byte *const first = workspace.take<std::byte>(piece), *last = workspace.take<std::byte>(piece);
    const auto step = last - first;
    CHECK((step == piece || step == piece + Index{line}));
    INFO(before << " bytes before");
    for (Index k = 6; k < pieces; ++k) {
      std::byte* const next = workspace.take<std::byte>(piece);
      CHECK(next == last + step);
      last = next;
    }
  }
  Workspace nothing;
  nothing.reserve(0);
  CHECK(nothing.take<std::byte>(0) != nullptr);
  CHECK(nothing.peak_bytes() == line);
}

#if NPRF_CHECK_SCRATCH_MEMORY
TEST_CASE("AddressSanitizer reports accesses to scratch memory that is not taken", "[core]") {
  Workspace workspace;
  const auto is_free = [](const std::byte* at) { return __asan_address_is_poisoned(at) != 0; };
  for (const Index size : {0, 1, 63, 64, 1000, 70000, 200000}) {
    std::byte *memory = nullptr, *later = nullptr;
    {
      const Workspace::Scope scope(workspace);
      memory = workspace.take<std::byte>(size);
      INFO(size << " bytes");
      CHECK(__asan_region_is_poisoned(memory, static_cast<std::size_t>(size)) == nullptr);
      CHECK((is_free(memory + size) && is_free(memory + in_lines(static_cast<std::size_t>(size)))));
      {
        const Workspace::Scope inner(workspace);
        later = workspace.take<std::byte>(100);
        CHECK_FALSE((is_free(later) || is_free(later + 99)));
      }
      CHECK(is_free(later));
      CHECK((size == 0 || !is_free(memory)));
    }
    CHECK((is_free(memory) && is_free(later)));
  }
}
#endif

TEMPLATE_TEST_CASE("a workspace gives matrices and vectors of any shape", "[core]", NPRF_TEST_SCALARS) {
  Workspace workspace;
  auto x = workspace.matrix<TestType>(3, 5), y = workspace.matrix<TestType>(3, 5);
  auto v = workspace.vector<TestType>(7);
  x.setConstant(1), y.setConstant(2), v.setConstant(3);
  CHECK(x.rows() == 3);
  CHECK(x.cols() == 5);
  CHECK(x.data() + 1 == &x(0, 1));  // a row is contiguous
  CHECK(v.size() == 7);
  CHECK(x.sum() == 15);
  CHECK(y.sum() == 30);
  CHECK(v.sum() == 21);
  for (const auto& [rows, cols] : std::vector<std::pair<Index, Index>>{{0, 5}, {5, 0}, {0, 0}}) {
    const auto none = workspace.matrix<TestType>(rows, cols);
    CHECK(none.rows() == rows);
    CHECK(none.cols() == cols);
    CHECK(none.data() != nullptr);
  }
  CHECK(workspace.vector<TestType>(0).data() != nullptr);
}

TEST_CASE("a workspace rejects a size that overflows and is then unchanged", "[core]") {
  constexpr Index most = std::numeric_limits<Index>::max();
  Workspace workspace;
  std::byte* next = nullptr;
  {
    const Workspace::Scope scope(workspace);
    next = workspace.take<std::byte>(1);
  }
  const std::size_t peak = workspace.peak_bytes();
  CHECK_THROWS_AS(workspace.take<std::byte>(-1), std::length_error);
  CHECK_THROWS_AS(workspace.take<double>(std::numeric_limits<Index>::min()), std::length_error);
  CHECK_THROWS_AS(workspace.take<std::byte>(most), std::length_error);  // rounded up to whole lines
  CHECK_THROWS_AS(workspace.take<double>(most), std::length_error);
  CHECK_THROWS_AS(workspace.take<double>(most / 4), std::length_error);
  CHECK_THROWS_AS(workspace.take<double>(most / 4 + 1), std::length_error);
  CHECK_THROWS_AS(workspace.take<std::complex<double>>(most / 8 + 1), std::length_error);
  CHECK_THROWS_AS(workspace.matrix<float>(most / 2, 3), std::length_error);
  CHECK_THROWS_AS(workspace.matrix<double>(Index{1} << 32, Index{1} << 32), std::length_error);  // 0 modulo 2^64
  CHECK_THROWS_AS(workspace.vector<float>(most / 2 + 1), std::length_error);
  CHECK(workspace.peak_bytes() == peak);
  CHECK(workspace.take<std::byte>(1) == next);
}

TEST_CASE("merge_blocks merges all blocks, so that calls of growing sizes do not accumulate memory", "[core]") {
  Workspace workspace;
  std::size_t largest = 0;
  for (std::size_t size = 70000; size < 1000000; size += 1111) {
    {
      const Workspace::Scope scope(workspace);
      workspace.take<std::byte>(static_cast<Index>(size));
      workspace.reserve(size);
      largest = in_lines(2 * size);
    }
    workspace.merge_blocks();
    CHECK(workspace.allocated_bytes() >= size);
    CHECK(workspace.allocated_bytes() <= 4 * largest);
  }
  // while memory is in use, merge_blocks does nothing
  std::byte* taken = workspace.take<std::byte>(10);
  *taken = std::byte{7};
  workspace.reserve(10 * workspace.allocated_bytes());
  workspace.merge_blocks();
  CHECK(*taken == std::byte{7});
}

}  // namespace nprf::test::core_workspace
