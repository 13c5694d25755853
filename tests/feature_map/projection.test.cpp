// SPDX-License-Identifier: MIT
#include "nprf/feature_map/projection.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "feature_map/statistics.hpp"
#include "nprf/feature_map/projection_definition.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::feature_map_projection {

namespace {

constexpr double epsilon = std::numeric_limits<double>::epsilon();
constexpr Projection all_projections[] = {Projection::gaussian, Projection::orthogonal, Projection::sphere,
                                          Projection::simplex, Projection::sphere_simplex};

Matrix<double> draw(Index m, Index d, Projection projection, std::uint64_t seed = 1) {
  return draw_projection<double>({.input_dim = d, .num_features = m, .projection = projection, .seed = seed});
}

// E|w| for w ~ N(0, I_d)
double chi_mean(Index d) {
  const double half = static_cast<double>(d) / 2;
  return std::sqrt(2.0) * std::exp(std::lgamma(half + 0.5) - std::lgamma(half));
}

std::vector<double> values(const Matrix<double>& x) { return {x.data(), x.data() + x.size()}; }

// The mean of entry^2 is 1; the mean of entry^4, `fourth`, is 3 for Gaussian rows and 3d/(d+2) on the sphere.
void check_moments(const Matrix<double>& w, double fourth) {
  const Matrix<double> square = w.array().square();
  CHECK(Statistics(values(w)).mean_sigmas(0) <= five_sigma);
  CHECK(Statistics(values(square)).mean_sigmas(1) <= five_sigma);
  CHECK(Statistics(values(square.array().square())).mean_sigmas(fourth) <= five_sigma);
}

}  // namespace

TEST_CASE("a projection has m rows of d finite scalars", "[feature_map]") {
  for (const Projection projection : all_projections)
    for (const Index d : {1, 2, 7, 16})
      for (const Index m : {1, 2, 6, 7, 8, 16, 17, 33}) {
        const Matrix<double> w = draw(m, d, projection);
        CHECK(w.rows() == m);
        CHECK(w.cols() == d);
        CHECK(w.allFinite());
        CHECK(w == draw(m, d, projection));
        // on the sphere of one dimension all entries are 1 or -1
        if (d == 1 && (projection == Projection::sphere || projection == Projection::sphere_simplex)) continue;
        CHECK(w != draw(m, d, projection, 2));
        CHECK(w != draw(m, d, projection, 1 + (std::uint64_t{1} << 32)));
      }
}

TEST_CASE("another seed changes the direction of every row of a projection", "[feature_map]") {
  for (const Projection projection : all_projections) {
    const Matrix<double> w = draw(8, 4, projection, 1), other = draw(8, 4, projection, 2);
    for (Index r = 0; r < 8; ++r)
      CHECK((w.row(r).normalized() - other.row(r).normalized()).cwiseAbs().maxCoeff() > 1e-3);
  }
}

TEST_CASE("the default projection is orthogonal with seed 0", "[feature_map]") {
  CHECK(draw_projection<double>({.input_dim = 5, .num_features = 9}) == draw(9, 5, Projection::orthogonal, 0));
}

TEST_CASE("a projection rejects sizes below 1", "[feature_map]") {
  for (const Projection projection : all_projections)
    for (const Index wrong : {0, -1}) {
      const std::string got = "got " + std::to_string(wrong);
      check_invalid([&] { draw(4, wrong, projection); }, {"input_dim: expected at least 1", got});
      check_invalid([&] { draw(wrong, 4, projection); }, {"num_features: expected at least 1", got});
    }
}

TEST_CASE("draw_projection rejects a kind that is not an enumerator", "[feature_map]") {
  check_invalid([&] { draw(4, 4, static_cast<Projection>(5)); },
                {"projection: expected gaussian, orthogonal, sphere, simplex or sphere_simplex, got number 5"});
}

TEST_CASE("a projection rejects sizes whose product overflows", "[feature_map]") {
  constexpr Index most = std::numeric_limits<Index>::max();
  for (const Projection projection : all_projections) {
    check_invalid([&] { draw(most / 8 + 1, 1, projection); }, {"num_features: expected at most", "an input_dim of 1"});
    check_invalid([&] { draw(1, most, projection); }, {"num_features: expected at most 0"});
    check_invalid([&] { draw(Index{1} << 32, Index{1} << 32, projection); }, {"num_features: expected at most"});
  }
}

TEST_CASE("the rows of each block are orthogonal, including an incomplete last block", "[feature_map]") {
  for (const Index d : {1, 2, 8, 31, 64})
    for (const Index m : {Index{1}, d - 1, d, d + 1, 2 * d, 3 * d - 1}) {
      if (m < 1) continue;
      const Matrix<double> w = draw(m, d, Projection::orthogonal);
      for (Index r = 0; r < m; r += d) {
        const Matrix<double> block = w.middleRows(r, std::min(d, m - r)).rowwise().normalized();
        const Matrix<double> identity = Matrix<double>::Identity(block.rows(), block.rows());
        // the deviation from orthogonality grows at most linearly in d
        INFO("d " << d << " m " << m << " block at " << r);
        CHECK((block * block.transpose() - identity).cwiseAbs().maxCoeff() <= epsilon * static_cast<double>(d + 4));
      }
      // blocks are independent: rows of different blocks are not orthogonal
      if (m > d && d > 1) CHECK(std::abs(w.row(0).normalized().dot(w.row(d).normalized())) > 1e-6);
    }
}

TEST_CASE("the rows of each block point to the corners of a regular simplex", "[feature_map]") {
  const auto check = [](Projection projection, Index m, Index d) {
    const Matrix<double> w = draw(m, d, projection);
    for (Index r = 0; r < m; r += d) {
      const Matrix<double> block = w.middleRows(r, std::min(d, m - r)).rowwise().normalized();
      const Index rows = block.rows();
      const double cosine = rows > 1 ? -1 / static_cast<double>(rows - 1) : 0;
      const Matrix<double> expected =
          Matrix<double>::Constant(rows, rows, cosine) + (1 - cosine) * Matrix<double>::Identity(rows, rows);
      INFO("d " << d << " m " << m << " block at " << r);
      // orthogonality to (d + 4) eps, and the subtraction of the mean, which is 1 / sqrt(rows) of a row
      const double rounding = epsilon * static_cast<double>(d + 4);
      CHECK((block * block.transpose() - expected).cwiseAbs().maxCoeff() <= 4 * rounding);
      if (projection == Projection::sphere_simplex && rows > 1)  // of one length, so that their sum is 0
        CHECK(w.middleRows(r, rows).colwise().sum().norm() <=
              4 * rounding * static_cast<double>(rows) * std::sqrt(static_cast<double>(d)));
    }
    if (m > d && d > 2) {  // blocks are rotated independently
      const double cosine = w.row(0).normalized().dot(w.row(d).normalized());
      CHECK(std::abs(cosine + 1 / static_cast<double>(d - 1)) > 1e-6);
    }
  };
  for (const Index d : {1, 2, 8, 31, 64})
    for (const Index m : {Index{1}, d - 1, d, d + 1, 2 * d, 3 * d - 1})
      for (const Projection projection : {Projection::simplex, Projection::sphere_simplex})
        if (m >= 1) check(projection, m, d);
}

TEST_CASE("rows on the sphere have norm sqrt(d)", "[feature_map]") {
  for (const Projection projection : {Projection::sphere, Projection::sphere_simplex})
    for (const Index d : {1, 2, 8, 64}) {
      const Matrix<double> w = draw(50, d, projection);
      const double worst = (w.rowwise().squaredNorm().array() / static_cast<double>(d) - 1).abs().maxCoeff();
      // |w|^2 is a sum of d terms; corners of a simplex have norm 1 up to the rounding of a row and of its mean
      CHECK(worst <= (projection == Projection::sphere ? 1 : 4) * epsilon * static_cast<double>(d + 8));
    }
}

TEST_CASE("the norms of Gaussian, orthogonal and simplex rows are independent and chi(d) distributed",
          "[feature_map]") {
  for (const Projection projection : {Projection::gaussian, Projection::orthogonal, Projection::simplex})
    for (const Index d : {1, 3, 16}) {
      std::vector<double> norms, products;
      for (std::uint64_t seed = 0; seed < 400; ++seed) {
        const Matrix<double> w = draw(48, d, projection, seed);
        for (Index r = 0; r < w.rows(); ++r) norms.push_back(w.row(r).norm());
        for (Index r = 0; r + 1 < w.rows(); r += 2)  // disjoint pairs, so that the products are independent
          products.push_back((w.row(r).norm() - chi_mean(d)) * (w.row(r + 1).norm() - chi_mean(d)));
      }
      const Statistics norm(norms);
      INFO("d " << d);
      CHECK(norm.mean_sigmas(chi_mean(d)) <= five_sigma);
      CHECK(norm.variance_sigmas(static_cast<double>(d) - chi_mean(d) * chi_mean(d)) <= five_sigma);
      CHECK(Statistics(products).mean_sigmas(0) <= five_sigma);  // independent, also within a block
    }
}

TEST_CASE("entries of Gaussian rows and of rows on the sphere have the moments of their distributions",
          "[feature_map]") {
  check_moments(draw(20000, 5, Projection::gaussian), 3);
  check_moments(draw(20000, 5, Projection::sphere), 3 * 5.0 / 7.0);
  check_moments(draw(20000, 2, Projection::sphere), 3 * 2.0 / 4.0);
}

TEST_CASE("entries of simplex rows have the moments of a normal distribution", "[feature_map]") {
  for (const Index d : {1, 2, 5}) check_moments(draw(4000 * d, d, Projection::simplex), 3);
}

TEST_CASE("entries of simplex rows on the sphere have the moments of rows on the sphere", "[feature_map]") {
  for (const Index d : {2, 5})
    check_moments(draw(4000 * d, d, Projection::sphere_simplex),
                  3 * static_cast<double>(d) / static_cast<double>(d + 2));
}

TEST_CASE("every entry of an orthogonal block has mean zero, as in a Haar distributed matrix", "[feature_map]") {
  // without the signs of R's diagonal the diagonal of Q has another mean
  for (const Index d : {1, 2, 5}) {
    const Index blocks = 5000;
    const Matrix<double> w = draw(blocks * d, d, Projection::orthogonal);
    check_moments(w, 3);
    for (Index i = 0; i < d; ++i)
      for (Index j = 0; j < d; ++j) {
        std::vector<double> entry, square;
        for (Index block = 0; block < blocks; ++block) {
          entry.push_back(w(block * d + i, j) / w.row(block * d + i).norm());
          square.push_back(w(block * d + i, j) * w(block * d + i, j));
        }
        INFO("d " << d << " entry " << i << ' ' << j);
        if (d > 1) CHECK(Statistics(square).mean_sigmas(1) <= five_sigma);
        CHECK(Statistics(entry).mean_sigmas(0) <= five_sigma);
      }
  }
}

TEST_CASE("the trace of an orthogonal matrix has mean 0 and variance 1", "[feature_map]") {
  std::vector<double> trace;
  NormalDeviates normal(4);
  for (int draws = 0; draws < 4000; ++draws) trace.push_back(detail::haar_orthogonal(normal.matrix(6, 6)).trace());
  CHECK(Statistics(trace).mean_sigmas(0) <= five_sigma);
  CHECK(Statistics(trace).variance_sigmas(1) <= five_sigma);
}

}  // namespace nprf::test::feature_map_projection
