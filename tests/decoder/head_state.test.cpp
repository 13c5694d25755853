// SPDX-License-Identifier: MIT
#include "nprf/decoder/head_state.hpp"

#include "decoder/tokens.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::decoder_head_state {

TEST_CASE("head state: what can be taken back", "[decoder]") {
  using T = float;
  constexpr Index d = 4, d_v = 3, n = 60, reach = 12;
  const auto map = orf<T>(d, 6, 1);
  Vector<T> table = random_table<T>(reach, 3);
  for (const bool is_window : {false, true})
    for (const Index rollback : {0, 5}) {
      if (is_window) table[0] = -std::numeric_limits<T>::infinity();
      const RelativePosition<T> position(table);
      const AttentionOptions options{.direction = Direction::causal};
      const StepModel<T> model(FeatureMapView<T>(map), PositionView<T>(position), options, rollback);
      HeadState<T> state(model, d_v);
      const Matrix<T> k = normal<T>(n, d, 1), v = normal<T>(n, d_v, 2);
      Workspace scratch;
      for (Index j = 0; j < n; ++j) {
        state.reserve(model, j + 1);
        append(state, model, k.row(j).data(), v.row(j).data(), scratch);
        CHECK(state.tokens() == j + 1);
        CHECK_FALSE(state.can_roll_back(model, j + 2));
        // all tokens while none has left the ring
        const Index most = j + 1 <= model.pending() ? j + 1 : rollback;
        CHECK(state.can_roll_back(model, most));
        if (most < j + 1) CHECK_FALSE(state.can_roll_back(model, most + 1));
      }
      state.roll_back(rollback);
      CHECK(state.tokens() == n - rollback);
      CHECK_FALSE(state.can_roll_back(model, 1));
      state.clear();
      CHECK(state.tokens() == 0);
      CHECK(state.can_roll_back(model, 0));
    }
}

TEST_CASE("head state: its memory does not grow with the tokens", "[decoder]") {
  using T = float;
  constexpr Index d = 4, d_v = 3;
  const auto map = orf<T>(d, 6, 1);
  const RelativePosition<T> position(random_table<T>(12, 3));
  const AttentionOptions options{.direction = Direction::causal};
  const StepModel<T> model(FeatureMapView<T>(map), PositionView<T>(position), options, 0);
  HeadState<T> state(model, d_v);
  state.reserve(model, 100);
  const std::size_t bytes = state.bytes();
  state.reserve(model, 100000);
  CHECK(state.bytes() == bytes);
}

}  // namespace nprf::test::decoder_head_state
