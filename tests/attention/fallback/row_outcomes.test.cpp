// SPDX-License-Identifier: MIT
#include "nprf/attention/fallback/row_outcomes.hpp"

#include <vector>

#include "support/catch.hpp"

namespace nprf::test::attention_fallback_row_outcomes {

TEST_CASE("row outcomes: rows by their state, and the largest numbers of all rows", "[attention]") {
  Workspace scratch;
  const RowOutcomes rows(5, scratch);
  rows[0] = {RowState::normalized, 1, 8, 2};
  rows[1] = {RowState::to_recompute};
  rows[2] = {RowState::indefinite, 5, 3, 7};
  rows[3] = {RowState::to_recompute};
  rows[4] = {RowState::non_finite};

  CHECK(rows.count(RowState::to_recompute) == 2);
  CHECK(rows.count(RowState::empty) == 0);
  const auto found = rows.rows_of(RowState::to_recompute, scratch);
  CHECK(std::vector<Index>(found.begin(), found.end()) == std::vector<Index>{1, 3});
  CHECK(rows.rows_of(RowState::empty, scratch).empty());

  CHECK(rows.largest(&RowOutcome::fft_error) == 5);
  CHECK(rows.largest(&RowOutcome::other_error) == 8);
  CHECK(rows.largest(&RowOutcome::condition) == 7);
  CHECK(rows.largest(&RowOutcome::error) == 9);
  CHECK(RowOutcomes(0, scratch).largest(&RowOutcome::error) == 0);
}

TEST_CASE("row outcomes: rows of zeros and of NaN have no numbers that depend on keys", "[attention]") {
  for (const RowState state : {RowState::normalized, RowState::indefinite, RowState::to_recompute})
    CHECK(RowOutcome{state}.has_numbers());
  for (const RowState state : {RowState::empty, RowState::non_finite}) CHECK(!RowOutcome{state}.has_numbers());
}

}  // namespace nprf::test::attention_fallback_row_outcomes
