// SPDX-License-Identifier: MIT

// Results are bitwise equal for any thread count.

#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/toeplitz/plan/choose.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_threads {

namespace {

constexpr Index d = 4, m = 16, d_v = 16;

template <class F, class P>
void check(const Attention<F, P>& attention, Index n_q, Index n_k, const CallOptions& call) {
  using T = typename F::Scalar;
  const Tokens<T> x = random_tokens<T>(n_q, n_k, d, d_v);
  const Matrix<T> dy = normal<T>(n_q, d_v, 77);
  Passes<T> first;
  for (const Index threads : NPRF_TEST_SANITIZED ? std::vector<Index>{1, 3} : std::vector<Index>{1, 2, 3, 4}) {
    const Threads restore(threads);
    CHECK(num_threads() == threads);
    const Passes<T> now = both_passes(attention, x, dy, call);
    if (threads == 1) first = now;
    INFO(std::string(name(attention.options().engine))
         << (attention.options().direction == Direction::causal ? " causal, " : ", ") << threads << " threads, n_q "
         << n_q << " n_k " << n_k << (call.cumulative_lengths.empty() ? "" : ", packed"));
    CHECK(now.y.allFinite());
    CHECK(same_bits(now.y, first.y));
    CHECK(same_bits(now.g, first.g));
    // also without saved data
    CHECK(same_bits(attention(x.q, x.k, x.v, call), first.y));
  }
}

// whether a call of n tokens is large enough to use four threads
bool busy(Index n_q, Index n_k) {
  return toeplitz::worthwhile_threads(toeplitz::dense_cost<float>({n_q, n_k, m, d_v + 1})) >= 4;
}

template <class Body>
void for_each_kind(Body&& body) {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      body(AttentionOptions{.direction = direction, .engine = engine});
}

}  // namespace

TEST_CASE("results are bitwise equal for any thread count", "[attention][threads]") {
  {
    const Threads four(4);
    REQUIRE(busy(1500, 1500));
    REQUIRE(busy(1200, 1200));
    REQUIRE(!busy(50, 50));
  }
  for_each_kind([](const AttentionOptions& options) {
    // 1500 tokens are 12 tiles, more than the 8 blocks into which gradients are divided
    for (const auto& [n_q, n_k] :
         NPRF_TEST_SANITIZED ? std::vector<std::pair<Index, Index>>{{50, 50}, {400, 1500}}
                             : std::vector<std::pair<Index, Index>>{{1, 1}, {50, 50}, {1500, 1500}, {400, 1500}}) {
      const Attention attention(orf<float>(d, m, 7), RelativePosition<float>(random_table<float>(900, 3)), options);
      Mask mask = (normal_vector<double>(n_k, 90).array() > -0.5).eval();
      check(attention, n_q, n_k, {});
      check(attention, n_q, n_k, {.key_mask = view(mask), .offset = 20});
    }
  });
}

TEST_CASE("results of packed sequences are bitwise equal for any thread count", "[attention][threads]") {
  const std::vector<Index> lengths{0, 600, 600, 601, 1280, 1290, 1300, 1600};
  for_each_kind([&](const AttentionOptions& options) {
    const Attention attention(orf<float>(d, m, 7), RelativePosition<float>(random_table<float>(50, 3)), options);
    check(attention, 1600, 1600, {.cumulative_lengths = lengths});
  });
}

TEST_CASE("results of a grid are bitwise equal for any thread count", "[attention][threads]") {
  for_each_kind([](const AttentionOptions& options) {
    const Index H = 31, W = 40, E = 2, n = E + H * W;
    const Attention attention(
        orf<float>(d, m, 7),
        GridPosition<float>(H, W, normal<float>(2 * H - 1, 2 * W - 1, 3), normal<float>(E, E + 2, 4)), options);
    if (!NPRF_TEST_SANITIZED) check(attention, n, n, {});
    Mask mask = (normal_vector<double>(n, 90).array() > -0.5).eval();
    mask[0] = false;
    check(attention, n, n, {.key_mask = view(mask)});
  });
}

TEST_CASE("results of rows that are recomputed in double are bitwise equal for any thread count",
          "[attention][threads]") {
  const Attention attention(orf<float>(d, m, 7), RelativePosition<float>(Vector<float>::LinSpaced(2401, 600, -600)),
                            {.direction = Direction::causal, .engine = Engine::direct});
  const Tokens<float> x = random_tokens<float>(1200, 1200, d, d_v);
  Report report;
  attention(x.q, x.k, x.v, {.report = &report});
  REQUIRE(report.repaired_rows > 100);
  check(attention, 1200, 1200, {});
}

}  // namespace nprf::test::attention_threads
