// SPDX-License-Identifier: MIT
#include "nprf/attention/weights/salient_keys.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_weights_salient_keys {

namespace {

std::vector<Index> chosen(Index sinks, Index salient, const std::vector<double>& scores) {
  Workspace workspace;
  const auto indices = most_salient<double>(sinks, salient, scores, workspace);
  return {indices.begin(), indices.end()};
}
std::vector<Index> first_chosen(Index sinks, Index salient, const std::vector<double>& scores, double threshold) {
  Workspace workspace;
  const auto indices = first_salient<double>(sinks, salient, scores, threshold, workspace);
  return {indices.begin(), indices.end()};
}

}  // namespace

TEMPLATE_TEST_CASE("the score of a key is the mean of q.k and half of its variance", "[attention]", float, double) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  constexpr Index n_k = 300, d = 37;
  for (const Index n_q : {0, 1, 2, 200}) {
    const Matrix<T> q = normal<T>(n_q, d, 1), k = normal<T>(n_k, d, 2);
    const Vector<T> scale = normal<T>(1, n_k, 3).row(0);
    auto counted = workspace.matrix<T>(n_q, d);
    counted = q;
    Vector<T> scores(n_k);
    SalientScores<T>(counted, team).set(k, {scale.data(), static_cast<std::size_t>(n_k)}, scores.data());
    double error = 0;
    for (Index j = 0; j < n_k; ++j) {
      double mean = 0, variance = 0;
      const auto product = [&](Index i) { return static_cast<double>(scale[j] * q.row(i).dot(k.row(j))); };
      for (Index i = 0; i < n_q; ++i) mean += product(i) / static_cast<double>(n_q);
      for (Index i = 0; i < n_q; ++i) variance += std::pow(product(i) - mean, 2) / static_cast<double>(n_q);
      error = std::max(error, std::abs(static_cast<double>(scores[j]) - (mean + variance / 2)));
    }
    CHECK(error <= 1e4 * static_cast<double>(std::numeric_limits<T>::epsilon()));
  }
}

TEMPLATE_TEST_CASE("equal keys have equal scores, beside whichever others", "[attention]", float, double) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  constexpr Index n_k = 300;
  for (const Index d : {3, 37, 64, 200}) {
    auto q = workspace.matrix<T>(50, d);
    q = normal<T>(50, d, 1);
    const Matrix<T> k = normal<T>(1, d, 2).replicate(n_k, 1);
    const Vector<T> scale = Vector<T>::Ones(n_k);
    Vector<T> scores(n_k);
    const SalientScores<T> of_queries(q, team);
    of_queries.set(k, {scale.data(), static_cast<std::size_t>(n_k)}, scores.data());
    CHECK((scores.array() == scores[0]).all());
    T alone;
    of_queries.set(k.topRows(1), {scale.data(), 1}, &alone);
    CHECK(alone == scores[0]);
  }
}

TEST_CASE("salient are the sinks and the keys of the largest finite scores, of equal ones the first", "[attention]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  CHECK(chosen(0, 2, {1, 3, 2, 0}) == std::vector<Index>{1, 2});
  CHECK(chosen(2, 1, {-1, -3, -2, -9}) == std::vector<Index>{0, 1, 2});
  CHECK(chosen(1, 0, {1, 3}) == std::vector<Index>{0});
  CHECK(chosen(0, 3, {5, 7, 5, 7, 5, 1}) == std::vector<Index>{0, 1, 3});
  CHECK(chosen(1, 9, {nan, inf, 2, -inf, 4}) == std::vector<Index>{0, 2, 4});
  CHECK(chosen(5, 5, {1, 2}) == std::vector<Index>{0, 1});
  CHECK(chosen(0, 4, {}).empty());
}

TEST_CASE("by a rule the first keys of scores above a threshold are salient", "[attention]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  CHECK(first_chosen(0, 2, {1, 3, 2, 4}, 1) == std::vector<Index>{1, 2});
  CHECK(first_chosen(2, 1, {-1, -3, -2, 9}, -3) == std::vector<Index>{0, 1, 2});
  CHECK(first_chosen(1, 9, {nan, inf, 2, -inf, 4, nan}, -5) == std::vector<Index>{0, 2, 4});
  CHECK(first_chosen(1, 0, {1, 3}, 0) == std::vector<Index>{0});
  CHECK(first_chosen(5, 5, {1, 2}, 0) == std::vector<Index>{0, 1});
  CHECK(first_chosen(0, 4, {1, 2}, 2).empty());
}

}  // namespace nprf::test::attention_weights_salient_keys
