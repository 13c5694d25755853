// SPDX-License-Identifier: MIT
#include "nprf/attention/batch/find_segments.hpp"

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_batch_find_segments {

namespace {

using Lengths = std::vector<Index>;

std::vector<Segment> segments(const CallOptions& call, Index batch, Index n_q, Index n_k) {
  std::vector<Segment> found{{7, 7, 7, 7}};  // of an earlier call
  find_segments(call, batch, n_q, n_k, found);
  return found;
}

void check_segment(const Segment& x, Index q_begin, Index n_q, Index k_begin, Index n_k) {
  CHECK(x.q_begin == q_begin);
  CHECK(x.n_q == n_q);
  CHECK(x.k_begin == k_begin);
  CHECK(x.n_k == n_k);
}

}  // namespace

TEST_CASE("an array that is not packed is one sequence", "[attention]") {
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{5, 8}, {0, 8}, {5, 0}, {0, 0}}) {
    const std::vector<Segment> found = segments({}, 3, n_q, n_k);
    REQUIRE(found.size() == 1);
    check_segment(found[0], 0, n_q, 0, n_k);
  }
}

TEST_CASE("if lengths are those of queries too, each sequence of the batch is one of its length", "[attention]") {
  std::vector<Segment> found;
  const Lengths lengths{4, 0, 9, 4};
  const CallOptions call{.lengths = lengths};
  CHECK(differ_by_sequence(call, nprf::Lengths::of_queries_and_keys));
  CHECK_FALSE(differ_by_sequence(call, nprf::Lengths::of_keys));
  CHECK_FALSE(differ_by_sequence({}, nprf::Lengths::of_queries_and_keys));
  find_segments(call, 4, 9, 9, found, nprf::Lengths::of_queries_and_keys);
  REQUIRE(found.size() == 4);
  for (std::size_t b = 0; b < 4; ++b) check_segment(found[b], 0, lengths[b], 0, lengths[b]);
  find_segments({}, 4, 9, 9, found, nprf::Lengths::of_queries_and_keys);
  REQUIRE(found.size() == 1);
  check_segment(found[0], 0, 9, 0, 9);
}

TEST_CASE("packed sequences are the ranges between cumulative lengths, without empty ones", "[attention]") {
  const Lengths q{0, 4, 4, 9}, k{0, 1, 7, 7};
  const std::vector<Segment> self = segments({.cumulative_lengths = q}, 2, 9, 9);
  REQUIRE(self.size() == 2);
  check_segment(self[0], 0, 4, 0, 4);
  check_segment(self[1], 4, 5, 4, 5);
  const std::vector<Segment> cross = segments({.cumulative_lengths = q, .key_cumulative_lengths = k}, 2, 9, 7);
  REQUIRE(cross.size() == 3);
  check_segment(cross[0], 0, 4, 0, 1);
  check_segment(cross[1], 4, 0, 1, 6);
  check_segment(cross[2], 4, 5, 7, 0);
  CHECK(segments({.cumulative_lengths = Lengths{0}}, 1, 0, 0).empty());
}

TEST_CASE("masks and lengths are for the whole batch", "[attention]") {
  const bool mask[24] = {};
  CHECK(segments({.key_mask = mask}, 4, 5, 6).size() == 1);
  check_invalid([&] { segments({.key_mask = mask}, 3, 5, 6); }, {"key_mask: expected 18 entries", "batch", "got 24"});
  const Lengths lengths{6, 0, 3};
  CHECK(segments({.lengths = lengths}, 3, 5, 6).size() == 1);
  check_invalid([&] { segments({.lengths = lengths}, 2, 5, 6); }, {"lengths: expected 2 entries", "got 3"});
  check_invalid([&] { segments({.lengths = lengths}, 3, 9, 5); }, {"lengths[0]: expected 0 to 5", "got 6"});
  check_invalid([&] { segments({.lengths = Lengths{6, 2, -1}}, 3, 9, 6); }, {"lengths[2]: expected 0 to 6", "got -1"});
}

TEST_CASE("cumulative lengths start at 0, do not decrease, and end at the number of tokens", "[attention]") {
  const auto packed = [](const Lengths& q, const Lengths& k) {
    segments({.cumulative_lengths = q, .key_cumulative_lengths = k}, 1, 9, 6);
  };
  const Lengths good{0, 4, 9}, good_keys{0, 4, 6};
  CHECK_NOTHROW(packed(good, good_keys));
  check_invalid([&] { packed({1, 4, 9}, good_keys); }, {"cumulative_lengths[0]: expected 0", "got 1"});
  check_invalid([&] { packed({0, 11, 9}, good_keys); }, {"cumulative_lengths[2]: expected at least 11", "got 9"});
  check_invalid([&] { packed({0, 4, 8}, good_keys); }, {"cumulative_lengths: expected to end at 9", "got 8"});
  check_invalid([&] { packed(good, {-1, 4, 6}); }, {"key_cumulative_lengths[0]: expected 0", "got -1"});
  check_invalid([&] { packed(good, {0, 7, 6}); }, {"key_cumulative_lengths[2]: expected at least 7", "got 6"});
  check_invalid([&] { packed(good, {0, 4, 7}); }, {"key_cumulative_lengths: expected to end at 6", "got 7"});
  check_invalid([&] { packed(good, {0, 6}); }, {"key_cumulative_lengths: expected 3 entries", "got 2"});
  check_invalid([&] { packed({}, good_keys); }, {"key_cumulative_lengths: expected none", "got 3"});
  // without lengths of the keys, those of the queries must fit the keys too
  check_invalid([&] { packed(good, {}); }, {"cumulative_lengths: expected to end at 6", "got 9"});
  check_invalid([&] { segments({.lengths = Lengths{6}, .cumulative_lengths = good}, 1, 9, 9); },
                {"lengths: expected none for packed sequences", "got 1"});
}

TEST_CASE("an offset beyond 2^40 is rejected", "[attention]") {
  constexpr Index farthest = Index{1} << 40;
  CHECK_NOTHROW(segments({.offset = farthest}, 1, 2, 2));
  CHECK_NOTHROW(segments({.offset = -farthest}, 1, 2, 2));
  for (const Index offset : {farthest + 1, -farthest - 1})
    check_invalid([&] { segments({.offset = offset}, 1, 2, 2); },
                  {"offset: expected -2^40 to 2^40", "got " + std::to_string(offset)});
}

}  // namespace nprf::test::attention_batch_find_segments
