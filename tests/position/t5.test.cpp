// SPDX-License-Identifier: MIT
#include "nprf/position/t5.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "nprf/position/position.hpp"
#include "position/check_gradient.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::position_t5 {

static_assert(Position<T5Position<float>> && Position<T5Position<double>>);
static_assert(LearnedPosition<T5Position<float>> && LearnedPosition<T5Position<double>>);
static_assert(!PlacedPosition<T5Position<float>>);

namespace {

// The distances at which the buckets of one direction start. For all of these settings the fp32 arithmetic of the
// published code (Raffel et al. 2020) agrees with exact arithmetic: a bucket starts at the smallest l with
// (l / exact)^(nb - exact) >= (D / exact)^(bucket - exact).
struct Setting {
  Index num_buckets;
  Direction direction;
  Index max_distance;
  std::vector<Index> starts;
};

const std::vector<Setting>& settings() {
  constexpr Direction causal = Direction::causal, both = Direction::bidirectional;
  static const std::vector<Setting> all{
      {32, causal, 128, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                         16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113}},
      {32, both, 128, {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91}},
      {16, causal, 64, {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 14, 18, 23, 30, 39, 50}},
      {16, both, 64, {0, 1, 2, 3, 4, 8, 16, 32}},
      {64, causal, 256, {0,  1,  2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,
                         16, 17, 18,  19,  20,  21,  22,  23,  24,  25,  26,  27,  28,  29,  30,  31,
                         32, 35, 37,  39,  42,  45,  48,  51,  54,  58,  62,  66,  70,  75,  80,  85,
                         91, 97, 104, 110, 118, 126, 134, 143, 153, 163, 174, 185, 198, 211, 225, 240}},
      {64, both, 256, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,  12,  13,  14,  15,
                       16, 20, 23, 27, 32, 39, 46, 54, 64, 77, 91, 108, 128, 153, 182, 216}},
      {8, causal, 32, {0, 1, 2, 3, 4, 7, 12, 20}},
      {8, both, 32, {0, 1, 2, 8}},
      {12, causal, 100, {0, 1, 2, 3, 4, 5, 6, 10, 16, 25, 40, 63}},
      {12, both, 100, {0, 1, 2, 3, 10, 32}},
      {7, causal, 20, {0, 1, 2, 3, 5, 8, 13}},
      {2, causal, 2, {0, 1}},
      {4, both, 3, {0, 1}},
      // more buckets than distances: some are empty
      {32, causal, 20, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                        16, 17, 17, 17, 17, 18, 18, 18, 18, 19, 19, 19, 19, 20, 20, 20}},
      {64, both, 20, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                      16, 17, 17, 17, 17, 18, 18, 18, 18, 19, 19, 19, 19, 20, 20, 20}}};
  return all;
}

Index bucket_by_table(Index lag, const Setting& setting) {
  const bool both = setting.direction == Direction::bidirectional;
  const Index distance = both ? std::max(lag, -lag) : std::max<Index>(-lag, 0);
  const Index above = both && lag > 0 ? setting.num_buckets / 2 : 0;
  return above + (std::upper_bound(setting.starts.begin(), setting.starts.end(), distance) - setting.starts.begin()) -
         1;
}

template <class T>
Vector<T> weights(Index n) {
  Vector<T> w(n);
  for (Index b = 0; b < n; ++b) w[b] = static_cast<T>(10 * b - 7);
  return w;
}

}  // namespace

TEST_CASE("t5: every lag has the bucket of the published code", "[position]") {
  for (const Setting& setting : settings())
    for (Index lag = -2000; lag <= 2000; ++lag) {
      INFO(setting.num_buckets << " buckets to " << setting.max_distance << ", causal "
                               << (setting.direction == Direction::causal) << ", lag " << lag);
      REQUIRE(t5_bucket(lag, setting.num_buckets, setting.direction, setting.max_distance) ==
              bucket_by_table(lag, setting));
    }
}

TEMPLATE_TEST_CASE("t5: the bias of a lag is the weight of its bucket", "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Setting& setting : settings()) {
    const Vector<T> w = weights<T>(setting.num_buckets);
    const T5Position<T> position(w, setting.direction, setting.max_distance);
    CHECK(position.num_buckets() == setting.num_buckets);
    CHECK(position.direction() == setting.direction);
    CHECK(position.bucket_weights() == w);
    for (Index lag = -2000; lag <= 2000; ++lag) {
      INFO(setting.num_buckets << " buckets to " << setting.max_distance << ", lag " << lag);
      REQUIRE(position.bucket(lag) == bucket_by_table(lag, setting));
      REQUIRE(position.bias()[lag] == static_cast<double>(w[bucket_by_table(lag, setting)]));
    }
    for (const Index lag : {-5000000, 5000000})
      CHECK(position.bias()[lag] == static_cast<double>(w[bucket_by_table(lag, setting)]));
  }
}

TEST_CASE("t5: a position rejects invalid numbers of buckets, distances and directions", "[position]") {
  const auto make = [](Index n, Direction direction, Index max_distance) {
    return [=] { T5Position<float>(Vector<float>::Zero(n), direction, max_distance); };
  };
  constexpr Direction causal = Direction::causal, both = Direction::bidirectional;
  check_invalid(make(0, both, 128), {"bucket_weights: expected an even number of scalars, at least 4", "got 0"});
  check_invalid(make(2, both, 128), {"bucket_weights", "at least 4", "got 2"});
  check_invalid(make(31, both, 128), {"bucket_weights", "even", "got 31"});
  check_invalid(make(1, causal, 128), {"bucket_weights: expected at least 2", "got 1"});
  check_invalid(make(0, causal, 128), {"bucket_weights", "got 0"});
  check_invalid(make(32, causal, 16), {"max_distance: expected more than 16", "got 16"});
  check_invalid(make(32, both, 8), {"max_distance: expected more than 8", "got 8"});
  check_invalid(make(32, causal, -5), {"max_distance", "got -5"});
  check_invalid(make(32, causal, (Index{1} << 24) + 1), {"max_distance", "2^24", "got 16777217"});
  check_invalid(make(32, static_cast<Direction>(2), 128), {"direction: expected bidirectional or causal", "2"});
  CHECK_NOTHROW(make(32, causal, 17)());
  CHECK_NOTHROW(make(32, both, 9)());
  CHECK_NOTHROW(make(4, both, 2)());
  CHECK_NOTHROW(make(2, causal, 2)());
}

TEMPLATE_TEST_CASE("t5: the weight -infinity is accepted, NaN and +infinity are rejected with their index",
                   "[position]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Vector<T> w = weights<T>(32);
  w[31] = -std::numeric_limits<T>::infinity();
  const T5Position<T> position(w, Direction::causal);
  CHECK(position.bias()[-113] == -std::numeric_limits<double>::infinity());
  CHECK(position.bias()[-112] > -1000);
  for (const T wrong : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
    w[17] = wrong;
    check_invalid([&] { T5Position<T>(w, Direction::causal); }, {"bucket_weights[17]", "finite number or -infinity"});
  }
}

TEST_CASE("t5: the table of the bias ends where the last bucket starts", "[position]") {
  const Vector<double> w = Vector<double>::LinSpaced(32, 0, 1);
  CHECK(t5_position(w, Direction::causal).bias().first == -113);
  CHECK(t5_position(w, Direction::bidirectional).bias().first == -91);
  CHECK(t5_position(w, Direction::bidirectional).bias().last() == 91);
}

TEST_CASE("t5: the gradient is the transpose of the map from the bucket weights to the bias", "[position]") {
  const Vector<double> weights = Vector<double>::LinSpaced(16, -2, 3);
  check_gradient(t5_position<double>(weights, Direction::bidirectional, 20), weights);
}

TEST_CASE("t5: with_weights is a new position with these weights", "[position]") {
  for (const Setting& setting : settings()) {
    const Vector<double> w = weights<double>(setting.num_buckets), other = w.reverse();
    const T5Position<double> built(other, setting.direction, setting.max_distance);
    const T5Position<double> changed =
        T5Position<double>(w, setting.direction, setting.max_distance).with_weights(other);
    CHECK(changed.bucket_weights() == other);
    CHECK(changed.direction() == setting.direction);
    CHECK(changed.bias().first == built.bias().first);
    CHECK(changed.bias().table == built.bias().table);
    check_gradient(changed, other);
  }
  const T5Position<float> position(weights<float>(32), Direction::causal);
  check_invalid([&] { position.with_weights(weights<float>(31)); }, {"bucket_weights: expected 32 scalars", "got 31"});
  Vector<float> wrong = weights<float>(32);
  wrong[5] = std::numeric_limits<float>::infinity();
  check_invalid([&] { position.with_weights(wrong); }, {"bucket_weights[5]: expected a finite number"});
}

TEST_CASE("t5: t5_bucket rejects too few buckets and too small distances", "[position]") {
  check_invalid([] { t5_bucket(1, 2, Direction::bidirectional, 128); }, {"num_buckets: expected at least 4", "2"});
  check_invalid([] { t5_bucket(1, 1, Direction::causal, 128); }, {"num_buckets: expected at least 2", "1"});
  check_invalid([] { t5_bucket(500, 32, Direction::bidirectional, 8); }, {"max_distance: expected more than 8", "8"});
}

}  // namespace nprf::test::position_t5
