// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/banded/tail_states.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"

namespace nprf::test::toeplitz_banded_compensated_scan {

using toeplitz::CompensatedScan;
using toeplitz::Windows;

TEST_CASE("windows have each tile once, as many as fit into the cache", "[toeplitz]") {
  for (const Index tiles : {0, 1, 16, 17, 500})
    for (const Index scalars : {1, 2080, 100000}) {
      const Windows windows = Windows::of(tiles, scalars);
      Index next = 0;
      for (Index window = 0; window < windows.count(); ++window) {
        CHECK(windows.begin(window) == next);
        CHECK(windows.end(window) > windows.begin(window));
        CHECK(windows.end(window) - windows.begin(window) <= windows.size);
        next = windows.end(window);
      }
      CHECK(next == tiles);
    }
}

TEST_CASE("errors of a decay near 1 do not grow over very many tiles", "[toeplitz]") {
  // exp(slope) rounded to float would be off by 3e-8 in each of 20000 steps
  const Index tiles = 20000;
  const double slope = -1e-4 / 3;
  Workspace workspace;
  const Team team(workspace);
  const Windows windows = Windows::of(tiles, 1);
  CompensatedScan<float> sums(CompensatedScan<float>::From::first, windows, 1, 1, slope, workspace);
  const auto add = [](Index I, MatrixMap<float> S, Workspace&) { S(0, 0) += I == 0 ? 1.0f : 0.0f; };
  for (Index window = 0; window < windows.count(); ++window)
    sums.fill(window, team, add, [](Index I) { return I > 0 ? 1 : 0; });
  const double expected = std::exp(slope * static_cast<double>(tiles - 1));
  CHECK(std::abs(static_cast<double>(sums.at(tiles - 1)(0, 0)) / expected - 1) <= epsilon<float> * std::sqrt(20000.0));
}

TEST_CASE("the compensation decays with its sum", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const std::vector<float> terms{1.0f / 3, 0.7f, 0};
  const std::vector<Index> steps{0, 4, 400};
  CompensatedScan<float> sums(CompensatedScan<float>::From::first, {3, 3}, 1, 1, -0.1, workspace);
  sums.fill(
      0, team, [&](Index I, MatrixMap<float> S, Workspace&) { S(0, 0) += terms[static_cast<std::size_t>(I)]; },
      [&](Index I) { return steps[static_cast<std::size_t>(I)]; });
  const double expected = std::exp(-40.0) * (std::exp(-0.4) * static_cast<double>(terms[0]) + 0.7);
  CHECK(std::abs(static_cast<double>(sums.at(2)(0, 0)) / expected - 1) <= 4 * epsilon<float>);
}

TEST_CASE("errors of equal terms do not grow over very many tiles", "[toeplitz]") {
  using From = CompensatedScan<float>::From;
  const Index tiles = 300000;
  const Windows windows = Windows::of(tiles, 3000);
  for (const double slope : {0.0, -1e-6})
    for (const From from : {From::first, From::last}) {
      Workspace workspace;
      const Team team(workspace);
      CompensatedScan<float> sums(from, windows, 1, 1, slope, workspace);
      const auto add = [](Index, MatrixMap<float> S, Workspace&) { S(0, 0) += 0.7f; };
      const auto distance = [](Index) { return 1; };
      sums.prepare(team, add, distance);
      double worst = 0;
      for (Index window = 0; window < windows.count(); ++window) {
        sums.fill(window, team, add, distance);
        for (Index I = windows.begin(window); I < windows.end(window); ++I) {
          const double count = static_cast<double>(from == From::first ? I + 1 : tiles - I);
          const double terms = slope == 0 ? count : std::expm1(slope * count) / std::expm1(slope);
          worst = std::max(worst, std::abs(static_cast<double>(sums.at(I)(0, 0)) / (0.7f * terms) - 1));
        }
      }
      INFO("slope " << slope << (from == From::first ? " from the first" : " from the last"));
      CHECK(worst <= 2 * epsilon<float>);
    }
}

}  // namespace nprf::test::toeplitz_banded_compensated_scan
