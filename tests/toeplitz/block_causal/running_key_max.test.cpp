// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/running_key_max.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_block_causal_running_key_max {

using toeplitz::CausalAxis;
using toeplitz::CausalLevels;
using toeplitz::ratio;
using toeplitz::RunningKeyMax;

namespace {

constexpr double none = -std::numeric_limits<double>::infinity();
constexpr Index block = 128;

// calls use(log_scales) for up to n keys: of all kinds
template <class Use>
void for_each_exponents(Index n, Use&& use) {
  Vector<double> e = 300 * normal_vector<double>(n, 1);
  use(e);
  for (Index j = 0; j < n; ++j)
    if (j % 3 == 0 || j / 200 % 2 == 0) e[j] = none;  // -infinity for the first block and others
  use(e);
  use(Vector<double>(Vector<double>::Constant(n, none)));
  use(Vector<double>(Vector<double>::Constant(n, -1e6)));
}

// use(levels, keys) of no level, of one and of two, for keys with and without gaps, and weights up to lags on either
// side of 0
template <class T, class Use>
void for_each_axis(Use&& use) {
  for (const Index n : {1, 127, 128, 129, 257, 1009, 5000})
    for (const Index last : {0, 60, -130}) {
      if (last <= -n || last >= n) continue;
      LagWeights<T> c = random_weights<T>(n, n, 2);
      c.values.tail(n - 1 - last).setZero();
      Workspace workspace;
      const CausalAxis axis(c.support(), {n, n, 1, 1});
      const CausalLevels<T> levels(c.view(), axis, Team(workspace));
      const std::vector<Index> some = random_slots(n, 0.5, 3);
      INFO(n << " slots, last lag " << last);
      use(levels, Slots{n});
      use(levels, Slots{static_cast<Index>(some.size()), 0, some.data()});
    }
}

}  // namespace

TEST_CASE("a ratio is 1 if both log-scales are -infinity, and 0 if only the first is", "[toeplitz]") {
  CHECK(ratio(3, 3) == 1);
  CHECK(ratio(1.25, -0.5) == std::exp(1.75));
  CHECK(ratio(none, none) == 1);
  CHECK(ratio(none, -700) == 0);
  CHECK(ratio(-1e300, 1e300) == 0);
}

TEMPLATE_TEST_CASE("without log-scales all factors are 1", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Matrix<T> nothing(0, 0);
  const MatrixView<T> no = nothing;
  for_each_axis<T>([&](const CausalLevels<T>& levels, const Slots& keys) {
    Workspace workspace;
    const RunningKeyMax<T> got({no, no, no, keys, keys}, levels, Team(workspace));
    const Index n = levels.axis().length();
    CHECK(got.log_scales() == nullptr);
    const auto ones = [n](const T* x) { return std::all_of(x, x + n, [](T each) { return each == 1; }); };
    CHECK(ones(got.keys()));
    for (Index level = 0; level < levels.count(); ++level) CHECK(ones(got.rows(level)));
    for (Index first = 0; first < n; first += block) CHECK((got.largest(first / block) == 0 && got.before(first) == 0));
  });
}

TEMPLATE_TEST_CASE("factors are relative to the largest log-scale of a block, or of all keys so far", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Matrix<T> nothing(0, 0);
  const MatrixView<T> no = nothing;
  std::vector<Workspace> workspaces(2);
  for_each_axis<T>([&](const CausalLevels<T>& levels, const Slots& keys) {
    const Index n = levels.axis().length();
    for_each_exponents(n, [&](const Vector<double>& e) {
      const Team team(workspaces);
      const Workspace::Scope scope(team.workspace());
      const RunningKeyMax<T> got({no, no, no, keys, keys, e.data()}, levels, team);
      Vector<double> at = Vector<double>::Constant(n, none), so_far(n + 1);  // by place; of the places before it
      for (Index j = 0; j < keys.count; ++j) at[levels.axis().keys.first + keys[j]] = e[j];
      so_far[0] = none;
      for (Index i = 0; i < n; ++i) so_far[i + 1] = std::max(so_far[i], at[i]);
      const auto largest = [&](Index first, Index count) {
        return at.segment(first, std::min(count, n - first)).maxCoeff();
      };
      CHECK(std::equal(at.begin(), at.end(), got.log_scales()));
      bool blocks = true, factors = true;
      for (Index first = 0; first < n; first += block) {
        blocks = blocks && got.largest(first / block) == largest(first, block) && got.before(first) == so_far[first];
        for (Index count = block; first + count <= n; count += block)
          blocks = blocks && got.largest(first, count) == largest(first, count);
      }
      CHECK(blocks);
      for (Index i = 0; i < n; ++i) {
        factors = factors && got.keys()[i] == static_cast<T>(ratio(at[i], largest(i / block * block, block)));
        for (Index level = 0; level < levels.count(); ++level) {
          const Index size = levels[level].size;
          factors = factors && got.rows(level)[i] == static_cast<T>(ratio(so_far[i / size * size], so_far[i + 1]));
        }
      }
      CHECK(factors);
    });
  });
}

}  // namespace nprf::test::toeplitz_block_causal_running_key_max
