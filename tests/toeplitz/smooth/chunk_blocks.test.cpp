// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "toeplitz/smooth/smooth_tables.hpp"

namespace nprf::test::toeplitz_smooth_chunk_blocks {

using toeplitz::BlockKind;
using toeplitz::ChunkPolynomials;
using toeplitz::most_terms;
using toeplitz::smooth_chunk;

namespace {

constexpr Index N = smooth_chunk, lags = 2 * N - 1;

template <Real T>
using Block = toeplitz::ChunkBlock<T>;

template <Real T>
Vector<T> table(const std::function<double(double)>& weight, Index D) {
  Vector<T> c(lags);
  for (Index x = 0; x < lags; ++x) c[x] = static_cast<T>(weight(static_cast<double>(x - (N - 1) - D * N)));
  return c;
}

// sum_pq P_p(u) K[p,q] P_q(v) of all u and v in a block of chunks of `points`
template <Real T>
Matrix<double> expanded(const Block<T>& block, Index points) {
  Matrix<double> P(points, most_terms);
  for (Index s = 0; s < points; ++s) ChunkPolynomials{static_cast<double>(points)}.values(s, most_terms, &P(s, 0));
  const Eigen::Map<const Matrix<double>> K(block.K, most_terms, most_terms);
  return P * K * P.transpose();
}

// the largest error of a weight, relative to it
template <Real T>
double error(const Block<T>& block, Index points, const std::function<double(Index)>& weight) {
  const Matrix<double> all = expanded(block, points);
  double worst = 0;
  for (Index u = 0; u < points; ++u)
    for (Index v = 0; v < points; ++v) worst = std::max(worst, std::abs(all(u, v) / weight(v - u) - 1));
  return worst;
}

}  // namespace

TEMPLATE_TEST_CASE("the error of a block is that of its worst weight", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const SmoothTable& each : smooth_tables())
    for (const Index D : {-20, -3, 2, 7})
      for (const Index terms : {4, 6, 8}) {
        INFO(each.name << ", distance " << D << ", terms " << terms);
        const Vector<T> c = table<T>(each.weight, D);
        const Block<T> block = Block<T>::of_values(c.data(), terms, 1.0);
        const double expected = error<T>(block, N, [&](Index l) { return double(c[l + N - 1]); });
        CHECK(block.kind == BlockKind::smooth);
        CHECK(std::abs(block.error - expected) <= 1e-3 * expected + 300 * epsilon<T>);
        CHECK(block.least == c.minCoeff());
        // the tolerance decides
        CHECK(Block<T>::of_values(c.data(), terms, 1.01 * block.error).kind == BlockKind::smooth);
        CHECK(Block<T>::of_values(c.data(), terms, 0.99 * block.error).kind == BlockKind::rough);
      }
}

TEMPLATE_TEST_CASE("polynomials of a low degree are exact", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index terms : {4, 8}) {
    const auto power = [=](double l) { return 2 + std::pow(l / 300, static_cast<double>(terms - 1)); };
    const Vector<T> c = table<T>(power, 2);
    CHECK(Block<T>::of_values(c.data(), terms, 1.0).error <= 300 * epsilon<T>);
  }
}

TEMPLATE_TEST_CASE("a single weight that is off by more than the tolerance makes a block rough", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const double tolerance = 1e-4;
  const SmoothTable smooth = smooth_tables()[0];
  for (Index x = 0; x < lags; ++x)
    for (const double off : {-10 * tolerance, 10 * tolerance}) {
      Vector<T> c = table<T>(smooth.weight, 3);
      REQUIRE(Block<T>::of_values(c.data(), 6, tolerance).kind == BlockKind::smooth);
      c[x] *= static_cast<T>(1 + off);
      CHECK(Block<T>::of_values(c.data(), 6, tolerance).kind == BlockKind::rough);
    }
}

TEMPLATE_TEST_CASE("blocks with zeros, other signs or non-finite weights are not smooth", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  const auto kind = [](const Vector<T>& c) { return Block<T>::of_values(c.data(), 6, 1e-2).kind; };
  const Vector<T> c = Vector<T>::Ones(lags);
  CHECK(kind(c) == BlockKind::smooth);
  CHECK(kind(Vector<T>::Zero(lags)) == BlockKind::empty);
  for (const T odd : {T(0), T(-1), Limits::infinity(), Limits::quiet_NaN(), Limits::denorm_min()})
    for (const Index x : {Index{0}, N - 1, lags - 1}) {
      Vector<T> changed = c;
      changed[x] = odd;
      CHECK(kind(changed) == BlockKind::rough);
    }
  // weights whose inverses overflow
  CHECK(kind(Vector<T>::Constant(lags, Limits::denorm_min())) == BlockKind::rough);
}

TEMPLATE_TEST_CASE("a block of four smooth ones is smooth if its polynomials represent all", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index terms = 6, D = 3;
  const toeplitz::Halves halves(N, terms);
  for (const SmoothTable& each : smooth_tables()) {
    INFO(each.name);
    Block<T> inner[3];  // at the distances 2 D - 1, 2 D, 2 D + 1
    for (Index k = 0; k < 3; ++k)
      inner[k] = Block<T>::of_values(table<T>(each.weight, 2 * D - 1 + k).data(), terms, 1.0);
    const auto at = [&](Index a, Index b) { return inner + 1 + a - b; };
    const Block<T> block = Block<T>::of_halves(at, halves, 1.0);
    REQUIRE(block.kind == BlockKind::smooth);
    const double expected =
        error<T>(block, 2 * N, [&](Index l) { return double(T(each.weight(static_cast<double>(l - 2 * D * N)))); });
    CHECK(expected <= block.error + 300 * epsilon<T>);
    CHECK(block.error <= 8 * expected + 3000 * epsilon<T>);
    CHECK(Block<T>::of_halves(at, halves, 0.99 * block.error).kind == BlockKind::rough);

    // one that is missing or rough makes it rough
    CHECK(Block<T>::of_halves([&](Index a, Index b) { return a == 1 && b == 0 ? nullptr : at(a, b); }, halves, 1.0)
              .kind == BlockKind::rough);
    inner[0].kind = BlockKind::rough;
    CHECK(Block<T>::of_halves(at, halves, 1.0).kind == BlockKind::rough);
    for (Block<T>& one : inner) one.kind = BlockKind::empty;
    CHECK(Block<T>::of_halves(at, halves, 1.0).kind == BlockKind::empty);
  }
}

}  // namespace nprf::test::toeplitz_smooth_chunk_blocks
