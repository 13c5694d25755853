// SPDX-License-Identifier: MIT
#include "nprf/core/fitted_tails.hpp"

#include <cmath>
#include <limits>

#include "nprf/core/lag_bias.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::core_fitted_tails {

namespace {

constexpr double most = 1e-5, minus_infinity = -std::numeric_limits<double>::infinity();

// b of the lags -n..n
template <class T = double>
LagBias<T> table(Index n, auto&& b) {
  LagBias<T> bias{-n, Vector<T>(2 * n + 1)};
  for (Index lag = -n; lag <= n; ++lag) bias.table[n + lag] = static_cast<T>(b(static_cast<double>(lag)));
  return bias;
}

template <class T>
FittedTails fit(const LagBias<T>& bias, double within = most) {
  const LagRange all{bias.first, bias.last()};
  std::vector<double> log_weights(static_cast<std::size_t>(all.size()), minus_infinity);
  if (bias.max(all) > minus_infinity) bias.fill_differences(all, bias.largest(all), log_weights.data());
  return fitted_tails<T>(log_weights, within);
}

// the largest distance of the lines from the biases whose weights do not underflow
template <class T>
double deviation(const LagBias<T>& bias, const Tails& tails) {
  const Index last = bias.table.size() - 1;
  const double underflow = bias.table.maxCoeff() + std::log(std::numeric_limits<T>::min());
  double worst = 0;
  const auto compare = [&](double b, double line) {
    if (b >= underflow) worst = std::max(worst, std::abs(b - line));
  };
  for (Index k = 1; k <= tails.before; ++k)
    compare(bias.table[tails.before - k], bias.table[tails.before] + static_cast<double>(k) * tails.slope_before);
  for (Index k = 1; k <= tails.after; ++k)
    compare(bias.table[last - tails.after + k],
            bias.table[last - tails.after] + static_cast<double>(k) * tails.slope_after);
  return worst;
}

}  // namespace

TEMPLATE_TEST_CASE("tables of ALiBi and of clipped biases are fitted exactly up to the last lag", "[core]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const FittedTails alibi = fit(table<T>(100, [](double lag) { return -0.25 * std::abs(lag); }));
  CHECK((alibi.tails.before == 100 && alibi.tails.after == 100));
  CHECK((alibi.tails.slope_before == -0.25 && alibi.tails.slope_after == -0.25 && alibi.deviation == 0));
  const FittedTails clipped = fit(table<T>(100, [](double lag) { return std::abs(lag) < 7 ? std::cos(lag) : 0.5; }));
  CHECK((clipped.tails.before == 93 && clipped.tails.after == 93));
  CHECK((clipped.tails.slope_before == 0 && clipped.tails.slope_after == 0 && clipped.deviation == 0));
  const FittedTails ramp = fit(table<T>(100, [](double lag) { return lag / 8; }));
  CHECK((ramp.tails.before == 200 && ramp.tails.after == 0 && ramp.tails.slope_before == -0.125));
}

TEMPLATE_TEST_CASE("no bias of a tail deviates from the line by more than the deviation, which is within the limit",
                   "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 400;
  const Vector<double> noise = normal_vector<double>(2 * n + 1, 3);
  for (const double slope : {0.0, 0.013, 0.3, 5.0})
    for (const double size : {1e-7, 1e-6, 3e-6, 1e-4}) {
      INFO("slope " << slope << ", noise " << size);
      const LagBias<T> bias = table<T>(n, [&](double lag) {
        return (std::abs(lag) < 20 ? noise[static_cast<Index>(lag) + n] : 0) - slope * std::abs(lag) +
               size * noise[static_cast<Index>(lag) + n];
      });
      const FittedTails found = fit(bias);
      CHECK(found.deviation <= most);
      // 1e-12 for the rounding of the lines
      CHECK(deviation(bias, found.tails) <= found.deviation + 1e-12);
      CHECK((found.tails.slope_before <= 0 && found.tails.slope_after <= 0));
      // the rounding of a float table adds to the noise
      const double rounded = 400 * slope * std::numeric_limits<T>::epsilon();
      if (size <= 1e-6 && rounded < 1e-6) CHECK((found.tails.before > 370 && found.tails.after > 370));
      if (size == 1e-4 && slope < 0.1) CHECK(found.tails.before < 20);  // for steeper slopes most weights underflow
    }
}

TEST_CASE("a curved table has longer tails for a larger limit", "[core]") {
  // -log(1 + lag / 10) has the curvature 1 / (10 + lag)^2
  const LagBias<double> bias = table(3000, [](double lag) { return -std::log1p(std::abs(lag) / 10); });
  double before = 0;
  for (const double within : {1e-8, 1e-6, 1e-4, 1e-2}) {
    const FittedTails found = fit(bias, within);
    CHECK(found.deviation <= within);
    CHECK(deviation(bias, found.tails) <= within + 1e-12);
    CHECK(static_cast<double>(found.tails.after) > before);
    before = static_cast<double>(found.tails.after);
  }
}

TEST_CASE("a tail does not rise outwards, contains no -infinity, and restores no underflowed weight", "[core]") {
  CHECK(fit(table(50, [](double lag) { return 0.1 * std::abs(lag); })).tails.before <= 1);
  const auto window = [](double outside) {
    return table(50, [=](double lag) { return std::abs(lag) < 30 ? 1 - 0.1 * std::abs(lag) : outside; });
  };
  CHECK((fit(window(minus_infinity)).tails.before == 0 && fit(window(minus_infinity)).tails.after == 0));
  CHECK(fit(window(-2000)).tails.before == 0);
  // on a steep line the weights underflow on the line too
  const FittedTails steep = fit(table(50, [](double lag) { return -40 * std::abs(lag); }));
  CHECK((steep.tails.before == 50 && steep.tails.slope_before == -40));
  const FittedTails hidden =
      fit(table(50, [](double lag) { return std::abs(lag) < 30 ? -40 * std::abs(lag) : minus_infinity; }));
  CHECK((hidden.tails.before == 0 && hidden.tails.after == 0));
}

TEST_CASE("tables without linear ends have no tails", "[core]") {
  CHECK(fit(table(0, [](double) { return 1.0; })).tails.before == 0);
  CHECK(fit(table(5, [](double) { return minus_infinity; })).tails.before == 0);
  CHECK(fitted_tails<double>({}, most).tails.before == 0);
  const Vector<double> noise = normal_vector<double>(201, 3);
  const FittedTails random = fit(table(100, [&](double lag) { return noise[static_cast<Index>(lag) + 100]; }));
  CHECK((random.tails.before <= 2 && random.tails.after <= 2));
  const FittedTails flat = fit(table(40, [](double) { return 1.0; }));
  CHECK((flat.tails.before == 80 && flat.tails.after == 0));
}

}  // namespace nprf::test::core_fitted_tails
