// SPDX-License-Identifier: MIT
#include "nprf/decoder/model.hpp"

#include <limits>
#include <vector>

#include "decoder/tokens.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_model {

namespace {

using T = float;

// refers to all of them
template <class F, class P>
StepModel<T> model_of(const F& map, const P& position, const AttentionOptions& options, Index rollback,
                      Index most_tokens = StepBias<T>::unlimited) {
  return {FeatureMapView<T>(map), PositionView<T>(position), options, rollback, most_tokens};
}

}  // namespace

TEST_CASE("decoder model: how long tokens are in the ring, and what of them", "[decoder]") {
  const auto map = orf<T>(6, 10, 1);
  const TaylorFeatures<T> series({.input_dim = 6});
  const RelativePosition<T> table(random_table<T>(20, 1));
  const AttentionOptions far{.direction = Direction::causal}, near{.direction = Direction::causal, .near = 25};
  CHECK(model_of(map, NoPosition<T>(), far, 0).pending() == 0);
  CHECK(model_of(map, NoPosition<T>(), far, 4).pending() == 4);
  CHECK(model_of(map, table, far, 4).pending() == 24);
  CHECK(model_of(map, table, near, 4).pending() == 29);
  CHECK(model_of(map, table, far, 4).shape(3).d == 0);
  CHECK(model_of(map, table, near, 4).shape(3).d == 6);
  CHECK(model_of(series, table, far, 4).shape(3).d == 6);
  CHECK(model_of(map, table, far, 4).shape(3).r == 10);
}

TEST_CASE("decoder model: when older tokens are summed by chunks", "[decoder]") {
  constexpr Index n = 500;
  const auto map = orf<T>(6, 10, 1);
  const TaylorFeatures<T> series({.input_dim = 6});
  const AttentionOptions causal{.direction = Direction::causal};
  const auto has_chunks = [&](const auto& features, const Vector<T>& table, Index most_tokens) {
    const RelativePosition<T> position(table);
    StepModel<T> model = model_of(features, position, causal, 4, most_tokens);
    model.set_chunks(8);
    return model.chunks.any();
  };
  const Vector<T> table = waving_table<T>(n);
  Vector<T> masked = table, steep = 50 * table, kink = table;
  masked[30] = -std::numeric_limits<T>::infinity();
  kink.head(n / 4).array() += T(0.01);  // a step at an age
  CHECK(has_chunks(map, table, n));
  CHECK(has_chunks(map, table, 449));        // the last block is cut
  CHECK_FALSE(has_chunks(map, table, 200));  // too few tokens to pay
  CHECK_FALSE(has_chunks(map, table, StepBias<T>::unlimited));
  CHECK_FALSE(has_chunks(map, random_table<T>(n, 1), n));
  CHECK_FALSE(has_chunks(map, kink, n));
  CHECK_FALSE(has_chunks(map, masked, n));    // a query does not attend to all keys
  CHECK_FALSE(has_chunks(map, steep, n));     // weights underflow
  CHECK_FALSE(has_chunks(series, table, n));  // scores can be negative
}

TEST_CASE("decoder model: error bounds grow with norms and numbers of keys", "[decoder]") {
  const auto map = orf<T>(6, 10, 1);
  const AttentionOptions far{.direction = Direction::causal}, near{.direction = Direction::causal, .near = 25};
  const StepModel<T> x = model_of(map, NoPosition<T>(), far, 0), y = model_of(map, NoPosition<T>(), near, 0);
  CHECK(x.error_of_row({1, 0, 1}, 100, 16) > 0);
  CHECK(x.error_of_row({1, 0, 1}, 100, 16) < 1e-5);
  CHECK(x.error_of_row({2, 0, 1}, 100, 16) > x.error_of_row({1, 0, 1}, 100, 16));
  CHECK(x.error_of_row({1, 0, 2}, 100, 16) > x.error_of_row({1, 0, 1}, 100, 16));
  CHECK(x.error_of_row({1, 0, 1}, 1000, 160) > x.error_of_row({1, 0, 1}, 100, 16));
  CHECK(y.error_of_row({1, 0, 1}, 100, 16) > x.error_of_row({1, 0, 1}, 100, 16));
  CHECK(y.error_of_softmax_row({2, 0, 1}, 100) > y.error_of_softmax_row({1, 0, 1}, 100));
}

TEST_CASE("decoder model: one model, or one for each head", "[decoder]") {
  const auto map = orf<T>(6, 10, 1);
  const AttentionOptions causal{.direction = Direction::causal};
  const DecoderModelOf one(MultiHeadAttention(map, AlibiPosition<T>(0.1f), causal));
  CHECK(one.heads().count() == 1);
  CHECK(step_models(one, 2).size() == 1);
  const std::vector<AlibiPosition<T>> slopes{AlibiPosition<T>(0.1f), AlibiPosition<T>(0.2f)};
  const DecoderModelOf two(MultiHeadAttention(map, slopes, causal));
  const std::vector<StepModel<T>> models = step_models(two, 2);
  CHECK(models.size() == 2);
  CHECK(models[1].bias.slope() == static_cast<double>(-0.2f));
  const DecoderModelOf grid(MultiHeadAttention(map, GridPosition<T>(3, 4, Matrix<T>::Zero(5, 7)), causal));
  check_invalid([&] { (void)step_models(grid, 0); }, {"position", "grid"});
}

}  // namespace nprf::test::decoder_model
