// SPDX-License-Identifier: MIT
#include "nprf/decoder/step_bias.hpp"

#include <cmath>
#include <limits>

#include "nprf/position/alibi.hpp"
#include "nprf/position/kerple.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::decoder_step_bias {

namespace {

using T = float;
constexpr double infinity = std::numeric_limits<double>::infinity();

// whether the biases are the position's, up to a constant and an error
template <class P>
bool agrees(const StepBias<T>& b, const P& position, Index ages, double error = 0) {
  Index from = 0;
  while (position.bias()[-from] == -infinity) ++from;
  for (Index age = 0; age < ages; ++age) {
    const double expected = position.bias().difference(-age, -from), got = b(age) - b(from);
    if (expected == -infinity ? got != -infinity : !(std::abs(got - expected) <= error + 1e-12 * std::abs(expected)))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("step bias: the reach of each position", "[decoder]") {
  const StepBias<T> none(NoPosition<T>().bias().view(), 0, 0, true),
      alibi(AlibiPosition<T>(0.3f).bias().view(), 0, 2, true);
  CHECK(none.reach() == 0);
  CHECK(none.slope() == 0);
  CHECK(agrees(none, NoPosition<T>(), 50));
  CHECK(alibi.reach() == 0);
  CHECK(alibi.slope() == static_cast<double>(-0.3f));
  CHECK(agrees(alibi, AlibiPosition<T>(0.3f), 50));

  const auto t5 = t5_position<T>(normal<T>(1, 16, 2).row(0), Direction::causal, 40);
  const StepBias<T> of_t5(t5.bias().view(), 0, 5, true);
  CHECK(of_t5.reach() > 16);
  CHECK(of_t5.reach() <= 40);
  CHECK(of_t5.has_tail());
  CHECK(agrees(of_t5, t5, 100));

  Vector<T> table = random_table<T>(20, 3);
  table.head(6).setConstant(table[0]);  // equal biases from 15 tokens on
  const RelativePosition<T> clipped(table);
  CHECK(StepBias<T>(clipped.bias().view(), 0, 0, true).reach() == 15);
  CHECK(StepBias<T>(clipped.bias().view(), 18, 0, true).reach() == 18);
  CHECK(agrees(StepBias<T>(clipped.bias().view(), 0, 0, true), clipped, 60));
  CHECK(agrees(StepBias<T>(clipped.bias().view(), 33, 7, true), clipped, 60));

  table.head(6).setConstant(-std::numeric_limits<T>::infinity());
  const RelativePosition<T> window(table);
  const StepBias<T> of_window(window.bias().view(), 0, 4, true);
  CHECK(of_window.reach() == 15);
  CHECK_FALSE(of_window.has_tail());
  CHECK(agrees(of_window, window, 60));
}

TEST_CASE("step bias: whether queries attend to all keys", "[decoder]") {
  Vector<T> table = random_table<T>(9, 3), hole = table, window = table;
  hole[5] = window[0] = -std::numeric_limits<T>::infinity();
  const auto attends_to_all = [](const Vector<T>& b) {
    return StepBias<T>(RelativePosition<T>(b).bias().view(), 12, 6, false).attends_to_all();
  };
  CHECK(attends_to_all(table));
  CHECK_FALSE(attends_to_all(hole));
  CHECK_FALSE(attends_to_all(window));
}

TEST_CASE("step bias: weights of the table, and their spread", "[decoder]") {
  StepBias<T> falling(AlibiPosition<T>(0.5f).bias().view(), 0, 9, true);
  const StepBias<T> rising(AlibiPosition<T>(-0.5f).bias().view(), 0, 9, true);
  falling.reserve(9);
  CHECK(falling.spread() == 4);  // at age 8
  CHECK(rising.spread() == infinity);
  for (Index age = 0; age < 9; ++age) CHECK(*falling.weights_from(age) == static_cast<T>(std::exp(falling(age))));
  CHECK(falling.weights_from(8) + 8 == falling.weights_from(0));
}

TEST_CASE("step bias: a constant costs no precision", "[decoder]") {
  const Vector<T> table = random_table<T>(9, 3);
  const StepBias<T> b(RelativePosition<T>(table).bias().view(), 0, 0, false),
      shifted(RelativePosition<T>(table.array() + T(4096)).bias().view(), 0, 0, false);
  for (Index age = 0; age < 20; ++age) CHECK(b(age) == shifted(age));
}

TEST_CASE("step bias: a line for the outer part of a table", "[decoder]") {
  Vector<T> falling(2 * 400 + 1);
  for (Index l = 0; l < falling.size(); ++l) falling[l] = T(-0.5) * static_cast<T>(std::abs(l - 400));
  for (Index l = -3; l <= 3; ++l) falling[400 + l] += T(l * l);
  const RelativePosition<T> position(falling);
  const StepBias<T> fitted(position.bias().view(), 0, 0, true, 401), exact(position.bias().view(), 0, 0, false);
  CHECK(fitted.reach() <= 5);
  CHECK(fitted.slope() == Approx(-0.5));
  CHECK(fitted.deviation() <= nprf::default_tolerance<T> / 4);
  CHECK(agrees(fitted, position, 401, fitted.deviation() + 1e-9));  // also where weights underflow
  CHECK(exact.reach() == 400);
  CHECK(agrees(exact, position, 500));
  // no line for lags beyond the table, whose bias is that of its end, whether their weights are normal or underflow
  CHECK(StepBias<T>(RelativePosition<T>(falling.segment(300, 201)).bias().view(), 0, 0, true).reach() == 100);
  CHECK(StepBias<T>(position.bias().view(), 0, 0, true).reach() == 400);
  // nor one that leaves biases whose weights underflow: these fall twice as fast from -125 on
  Vector<T> bent = falling;
  for (Index age = 251; age <= 400; ++age) bent[400 - age] = T(-0.5) * static_cast<T>(2 * age - 250);
  const RelativePosition<T> twice(bent);
  const StepBias<T> outer(twice.bias().view(), 0, 0, true, 401);
  CHECK(outer.slope() == Approx(-1));
  CHECK(agrees(outer, twice, 401, outer.deviation() + 1e-9));
}

TEST_CASE("step bias: a line for a table that sequences do not outgrow", "[decoder]") {
  constexpr Index lags = 8192;
  Vector<T> falling(2 * lags + 1);
  for (Index l = 0; l < falling.size(); ++l) falling[l] = T(-0.005) * static_cast<T>(std::abs(l - lags));
  for (Index l = -3; l <= 3; ++l) falling[lags + l] += T(l * l);
  const RelativePosition<T> position(falling);
  const auto with = [&](Index ages) { return StepBias<T>(position.bias().view(), 0, 0, true, ages); };
  // ages up to the end of the table, and up to others in it
  for (const Index ages : {lags + 1, lags, Index{1000}, Index{60}}) {
    const StepBias<T> b = with(ages);
    CHECK(b.reach() <= 5);
    CHECK(b.slope() == Approx(-0.005).epsilon(1e-3));
    CHECK(b.deviation() <= nprf::default_tolerance<T> / 4);
    CHECK(agrees(b, position, ages, b.deviation() + 1e-9));
  }
  // the next age has the last bias of the table
  for (const Index ages : {lags + 2, StepBias<T>::unlimited}) {
    const StepBias<T> b = with(ages);
    CHECK(b.reach() == lags);
    CHECK(b.deviation() == 0);
    CHECK(agrees(b, position, lags + 2));
  }
  // what is no line stays a table, of the ages that occur
  const RelativePosition<T> random(random_table<T>(50, 3));
  for (const Index ages : {1, 2, 30, 51}) {
    const StepBias<T> b(random.bias().view(), 0, 0, true, ages);
    CHECK(b.reach() == ages);
    CHECK_FALSE(b.has_tail());
    CHECK(b.attends_to_all());
    CHECK(agrees(b, random, ages));
  }
  // nor does what is too short for sums to save anything, though equal biases at the end of a longer table do
  const RelativePosition<T> equal(Vector<T>::Zero(2 * 50 + 1));
  const auto of_equal = [&](Index ages) { return StepBias<T>(equal.bias().view(), 0, 0, true, ages); };
  CHECK(of_equal(31).reach() == 31);
  CHECK_FALSE(of_equal(31).has_tail());
  CHECK(of_equal(32).reach() == 0);
  CHECK(of_equal(32).has_tail());
  CHECK(of_equal(52).reach() == 0);  // an age beyond the table
}

TEST_CASE("step bias: biases of ages that do not occur cost no precision", "[decoder]") {
  Vector<T> table = random_table<T>(50, 3);
  const RelativePosition<T> position(table);
  table[50 - 40] = 1e16f;
  const StepBias<T> b(RelativePosition<T>(table).bias().view(), 0, 0, true, 40);
  CHECK(agrees(b, position, 40));
}

TEST_CASE("step bias: queries that attend to no key", "[decoder]") {
  Vector<T> table = Vector<T>::Constant(2 * 6 + 1, -std::numeric_limits<T>::infinity());
  CHECK_FALSE(StepBias<T>(RelativePosition<T>(table).bias().view(), 0, 0, true).attends(100));
  table[6 - 4] = 1;
  const StepBias<T> b(RelativePosition<T>(table).bias().view(), 0, 0, true);
  CHECK(b.reach() == 5);
  CHECK_FALSE(b.attends(4));
  CHECK(b.attends(5));
  CHECK(b.attends(1000));
}

TEST_CASE("step bias: decays for a table that falls ever more slowly", "[decoder]") {
  const KerpleLogPosition<float> position(KerpleLog(1, 1), 4000);
  const auto with = [&](Index most_decays, Index ages) {
    return StepBias<float>(position.bias().view(), 0, 9, most_decays, ages);
  };
  const StepBias<float> decays = with(16, 4001);
  CHECK((decays.table() == 64 && decays.has_tail()));
  CHECK((decays.tail().size() > 2 && decays.tail().size() <= 16));
  CHECK((decays.deviation() > 0 && decays.deviation() <= nprf::default_tolerance<float> / 4));
  for (Index age = 0; age <= 4000; ++age)
    CHECK(std::abs(decays(age) - (position.bias()[-age] - position.bias()[0])) <= decays.deviation() + 1e-6);
  double sum = 0;
  for (std::size_t p = 0; p < decays.tail().size(); ++p) sum += std::exp(decays.of_decay(p, 1000));
  CHECK(std::abs(std::log(sum) - decays(1000)) < 1e-12);
  // as a table: for a line alone, for ages beyond the table, and for a short one
  CHECK(with(1, 4001).table() > 3000);
  CHECK(with(16, StepBias<float>::unlimited).table() == 4000);
  const StepBias<float> few = with(16, 300);
  CHECK((few.table() == 300 && !few.has_tail()));
}

}  // namespace nprf::test::decoder_step_bias
