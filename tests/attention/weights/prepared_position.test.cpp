// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/prepared_position.hpp"

#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_weights_prepared_position {

TEST_CASE("with padding at the end alone there are no arrays, so that keys are read in place", "[attention]") {
  const RelativePosition<double> position(random_table<double>(4, 3));
  Workspace workspace;
  const PreparedPosition<double> weights(position, {}, {5, 6, 4, 2}, 0, Pass::forward, Team(workspace));
  const bool prefix[] = {true, true, true, false, false, false}, gap[] = {true, false, true, false, false, false};
  const Placement first = weights.keys(prefix, 6, workspace), some = weights.keys(gap, 6, workspace);
  CHECK((first.count() == 3 && first.token_indices == nullptr && first.slots.at == nullptr));
  CHECK((some.count() == 2 && some.slots[1] == 2 && some.token_index(1) == 2));
}

}  // namespace nprf::test::attention_weights_prepared_position
