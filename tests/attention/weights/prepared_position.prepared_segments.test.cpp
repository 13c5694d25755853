// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/prepared_position.hpp"

#include <vector>

#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_weights_prepared_segments {

TEST_CASE("sequences of equal sizes share a prepared position, and others have their own", "[attention]") {
  const RelativePosition<double> position(random_table<double>(20, 3));
  const AttentionOptions options{.direction = Direction::causal};
  const std::vector<Segment> segments{{0, 5, 0, 5},   {5, 3, 5, 3},   {8, 5, 8, 5},  {13, 5, 13, 3},
                                      {18, 3, 16, 3}, {21, 3, 19, 5}, {24, 0, 24, 0}};
  const Index offset = 2;
  Workspace workspace;
  const Team team(workspace);
  PreparedSegments<double> weights;
  for (int round = 0; round < 2; ++round) {
    weights.build(position, options, segments, 4, 3, {offset}, team);
    CHECK(&weights[0] == &weights[2]);
    CHECK(&weights[1] == &weights[4]);
    for (const auto& [s, t] : std::vector<std::pair<std::size_t, std::size_t>>{{0, 1}, {0, 3}, {1, 3}, {3, 5}, {1, 5}})
      CHECK(&weights[s] != &weights[t]);
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const PreparedPosition<double> alone(position, options, {segments[s].n_q, segments[s].n_k, 4, 3}, offset,
                                           Pass::forward, team);
      const LagProblem<double>&expected = alone.problem(), &got = weights[s].problem();
      INFO("sequence " << s);
      CHECK((got.lags.first == expected.lags.first && got.lags.last == expected.lags.last));
      for (Index lag = got.lags.first; lag <= got.lags.last; ++lag) CHECK(got.weights[lag] == expected.weights[lag]);
    }
    CHECK((weights.distances().first == -4 - offset && weights.distances().last == 4 - offset));
  }
  // build() replaces those of an earlier call
  weights.build(position, options, std::vector<Segment>{{0, 9, 0, 9}}, 4, 3, {offset}, team);
  CHECK(weights.distances().first == -8 - offset);
}

}  // namespace nprf::test::attention_weights_prepared_segments
