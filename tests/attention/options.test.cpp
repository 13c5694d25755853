// SPDX-License-Identifier: MIT
#include "nprf/attention/options.hpp"

#include <cmath>

#include "support/catch.hpp"

namespace nprf::test::attention_options {

TEST_CASE("the defaults are bidirectional attention over rows of norm 1", "[attention]") {
  const AttentionOptions options;
  CHECK(options.direction == Direction::bidirectional);
  CHECK(options.normalization.is_unit());
  CHECK(options.normalization.radius() == 1);
  CHECK(options.engine == Engine::automatic);
}

TEST_CASE("options are designated initialisers in the order of their declaration", "[attention]") {
  const AttentionOptions options{
      .direction = Direction::causal, .normalization = Normalization::none(), .engine = Engine::direct};
  CHECK(options.direction == Direction::causal);
  CHECK(!options.normalization.is_unit());
  CHECK(options.engine == Engine::direct);

  Report report;
  const CallOptions call{.offset = 3, .report = &report};
  CHECK(call.offset == 3);
  CHECK(call.report == &report);
}

TEST_CASE("the default options of a call are offset 0 and no report", "[attention]") {
  CHECK(CallOptions{}.offset == 0);
  CHECK(CallOptions{}.report == nullptr);
}

TEST_CASE("a default report has no engine and zero counts", "[attention]") {
  const Report report;
  CHECK(report.engine == Engine::automatic);
  CHECK(report.repaired_rows == 0);
  CHECK(report.indefinite_rows == 0);
  CHECK(report.empty_rows == 0);
  CHECK(report.error_bound == 0);
  CHECK(report.failing_rows == 0);
  CHECK(report.workspace_bytes == 0);
}

TEST_CASE("a report adds the rows of a part, and has the larger bound", "[attention]") {
  Report sum{.engine = Engine::direct, .repaired_rows = 1, .error_bound = 0.5};
  sum.add_rows({.engine = Engine::banded,
                .repaired_rows = 2,
                .indefinite_rows = 3,
                .empty_rows = 4,
                .failing_rows = 5,
                .error_bound = 0.25});
  CHECK(sum.engine == Engine::direct);
  CHECK(sum.repaired_rows == 3);
  CHECK(sum.indefinite_rows == 3);
  CHECK(sum.empty_rows == 4);
  CHECK(sum.failing_rows == 5);
  CHECK(sum.error_bound == 0.5);
}

}  // namespace nprf::test::attention_options
