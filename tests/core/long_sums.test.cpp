// SPDX-License-Identifier: MIT
#include "nprf/core/long_sums.hpp"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::core_long_sums {

namespace {

using Ranges = std::vector<std::pair<Index, Index>>;

// the ranges of keys for which `add` is called
Ranges ranges(Index origin, Index begin, Index end) {
  Ranges all;
  Workspace workspace;
  Matrix<float> Y = Matrix<float>::Zero(1, 1);
  add_in_chunks<float>(origin, begin, end, Y, nullptr, workspace,
                       [&](Index from, Index to, MatrixRef<float>, float*) { all.emplace_back(from, to); });
  return all;
}

// adds terms (n_k,2) one by one in each chunk to sums that start at `before`
template <class T>
Matrix<T> sum(const Matrix<T>& terms, T before) {
  Matrix<T> wide = Matrix<T>::Constant(2, 5, before), sums = Matrix<T>::Constant(1, 2, before), all(2, 2);
  auto Y = wide.middleCols(1, 1);
  Workspace workspace;
  add_in_chunks<T>(0, 0, terms.rows(), Y, sums.data(), workspace,
                   [&](Index from, Index to, MatrixRef<T> chunk, T* ones) {
                     for (Index j = from; j < to; ++j)
                       for (Index i = 0; i < 2; ++i) chunk(i, 0) += terms(j, i), ones[i] += 1;
                   });
  CHECK((wide.leftCols(1).array() == before).all());
  CHECK((wide.rightCols(3).array() == before).all());
  all << Y.transpose(), sums;
  return all;
}

}  // namespace

TEST_CASE("keys are divided into chunks that begin at the origin", "[core]") {
  const Index n = chunk_keys;
  CHECK(ranges(0, 0, 0).empty());
  CHECK(ranges(7, 9, 8).empty());
  CHECK(ranges(0, 5, n) == Ranges{{5, n}});
  CHECK(ranges(5, 5, n + 5) == Ranges{{5, n + 5}});
  CHECK(ranges(0, 0, n + 1) == Ranges{{0, n}, {n, n + 1}});
  CHECK(ranges(0, n - 1, 2 * n + 1) == Ranges{{n - 1, n}, {n, 2 * n}, {2 * n, 2 * n + 1}});
  CHECK(ranges(n - 1, n - 1, 2 * n + 1) == Ranges{{n - 1, 2 * n - 1}, {2 * n - 1, 2 * n + 1}});
  CHECK(longest_plain_sum(5) == 5);
  CHECK(longest_plain_sum(1000 * n) == n);
}

TEMPLATE_TEST_CASE("the error of a long sum does not grow with the number of chunks", "[core]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index chunks : {1, 2, 30, 300}) {
    const Index n = chunks * chunk_keys - 3;
    const Matrix<T> terms = Matrix<T>::Constant(n, 2, T(0.1)), got = sum<T>(terms, T(7));
    const long double exact = static_cast<long double>(T(0.1)) * static_cast<long double>(n) + 7;
    const double tolerance = epsilon<T> / 2 * (static_cast<double>(chunk_keys) + 2);
    CHECK(std::abs(static_cast<double>(got(0, 0) / exact - 1)) <= tolerance);
    CHECK(std::abs(static_cast<double>(got(0, 1) / exact - 1)) <= tolerance);
    CHECK(got(1, 0) == static_cast<T>(n + 7));
  }
}

TEMPLATE_TEST_CASE("compensation recovers the rounding error whether the sum or the term is larger", "[core]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const T tiny = std::numeric_limits<T>::epsilon() / 8;
  const std::vector<T> terms{1, tiny, -1, T(1e10), tiny, T(-1e10)};
  T total = 0, compensation = 0;
  for (const T each : terms) add_compensated(Index{1}, &each, &total, &compensation);
  add_compensation(Index{1}, &compensation, &total);
  CHECK(total == 2 * tiny);
}

TEST_CASE("chunks of zeros change no bit, and a sum that overflows is infinite", "[core]") {
  Matrix<double> terms = Matrix<double>::Zero(4 * chunk_keys, 2);
  terms.middleRows(chunk_keys, chunk_keys) = normal<double>(chunk_keys, 2, 3);
  Matrix<double> alone = terms.middleRows(chunk_keys, chunk_keys);
  CHECK(same_bits<double>(sum<double>(terms, 0).topRows(1), sum<double>(alone, 0).topRows(1)));
  terms.setConstant(1e305);
  CHECK(sum<double>(terms, 0)(0, 0) == std::numeric_limits<double>::infinity());
}

}  // namespace nprf::test::core_long_sums
