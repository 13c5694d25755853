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
  CHECK(report.workspace_bytes == 0);
}

}  // namespace nprf::test::attention_options
