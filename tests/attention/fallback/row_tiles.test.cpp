// SPDX-License-Identifier: MIT
#include "nprf/attention/fallback/row_tiles.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "nprf/attention/fallback/row_recompute.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/position/position.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_fallback_row_tiles {

namespace {

constexpr Index n_q = 150, n_k = 200, r = 5, p = 11;

// weights that grow by e^20 a lag, and log-scales of keys with a standard deviation of 100; or `steepness` times that
template <class T>
struct Fixture {
  double steepness;
  Workspace workspace;
  Team team{workspace};
  Matrix<T> A = normal<T>(n_q, r, 1).cwiseAbs(), B = normal<T>(n_k, r, 2).cwiseAbs(), v = normal<T>(n_k, p, 3);
  Vector<double> exponents = 100 * steepness * normal_vector<double>(n_k, 4);
  RelativePosition<T> position{table()};
  PreparedPosition<T> weights;
  Placement keys;

  explicit Fixture(Direction direction, double steep = 1)
      : steepness(steep),
        weights(position, {.direction = direction}, {n_q, n_k, r, p}, 0, Pass::forward, team),
        keys(weights.keys({}, n_k, workspace)) {}

  Vector<T> table() const {
    Vector<T> b = random_table<T>(n_k, 5);
    for (Index l = 0; l < b.size(); ++l) b[l] += static_cast<T>(20 * steepness) * static_cast<T>(l);
    return b;
  }

  RowBiases<T> biases(const RowSubset& rows) const { return {weights.problem(), keys, exponents.data(), rows, team}; }
};

}  // namespace

TEST_CASE("tiles of no features and of no values", "[attention]") {
  const Fixture<float> f(Direction::causal);
  const std::vector<Index> some{3, 7, 140};
  const RowSubset rows(some, f.team);
  const RowBiases<float> biases = f.biases(rows);
  const RowTiles<float> tiles(biases, f.team);
  const Matrix<float> none(n_k, 0);
  Matrix<float> Y = Matrix<float>::Ones(3, p), dA(3, 0), dB(n_k, 0), dU = Matrix<float>::Zero(n_k, p);
  std::vector<float> sums(3, 1);
  tiles.contract(f.A.topLeftCorner(3, 0), none, f.v, Y, sums.data());
  CHECK((Y.isZero(0) && sums == std::vector<float>(3)));
  tiles.gradients(f.A.topLeftCorner(3, 0), none, f.v, Matrix<float>::Ones(3, p), {dA, dB, dU, {}});
  CHECK(dU.isZero(0));

  Matrix<float> no_values(3, 0);
  tiles.contract(f.A.topRows(3), f.B, none, no_values, sums.data());
  CHECK(std::all_of(sums.begin(), sums.end(), [](float sum) { return sum > 0; }));
  dA = Matrix<float>::Ones(3, r), dB = Matrix<float>::Zero(n_k, r), dU.resize(n_k, 0);
  tiles.gradients(f.A.topRows(3), f.B, none, no_values, {dA, dB, dU, {}});
  CHECK((dA.isZero(0) && dB.isZero(0)));
}

TEMPLATE_TEST_CASE("rows by tiles are rows one by one", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const Fixture<T> f(direction);
    std::vector<Index> some;
    for (Index i = 0; i < n_q; i += 1 + i % 3) some.push_back(i);
    const RowSubset rows(some, f.team);
    const RowBiases<T> biases = f.biases(rows);
    const RowTiles<T> tiles(biases, f.team);
    Matrix<T> N(rows.count(), p);
    Vector<T> D(rows.count());
    const Matrix<T> A = rows.of<T>(f.A);
    tiles.contract(A, f.B, f.v, N, D.data());
    Workspace workspace;
    for (Index k = 0; k < rows.count(); ++k) {
      Matrix<T> y(1, p);
      auto b = workspace.vector<double>(n_k);
      biases.set(k, 0, n_k, b.data());
      DoubleRow<T>(row_of(A, k), f.B, f.v, b).forward(writable_row(y, 0), workspace);
      CHECK(worst_ratio(N.row(k) / D[k], y.row(0), 50 * epsilon<T> * f.v.cwiseAbs().maxCoeff()) <= 1);
    }
  }
}

TEMPLATE_TEST_CASE("no bit of a row depends on the other rows, nor on keys that it does not attend to", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Fixture<T> f(Direction::causal);
  const auto row = [&](const std::vector<Index>& some, Index i) {
    const RowSubset rows(some, f.team);
    Matrix<T> N(rows.count(), p);
    Vector<T> D(rows.count());
    RowTiles<T>(f.biases(rows), f.team).contract(rows.of<T>(f.A), f.B, f.v, N, D.data());
    const Index k = std::find(some.begin(), some.end(), i) - some.begin();
    Matrix<T> both(1, p + 1);
    both << N.row(k), D[k];
    return both;
  };
  const std::vector<Index> all = all_rows(n_q);
  const Matrix<T> expected = row(all, 77);
  CHECK(same_bits(row({77}, 77), expected));
  CHECK(same_bits(row({3, 70, 77, 149}, 77), expected));
  f.B.bottomRows(n_k - 78).setConstant(T(1e10));
  f.v.bottomRows(n_k - 78).setConstant(T(1e30));
  f.exponents.tail(n_k - 78).setConstant(1e5);
  CHECK(same_bits(row(all, 77), expected));
  CHECK_FALSE(same_bits(row({78}, 78), expected));
}

TEMPLATE_TEST_CASE("rows over many keys: errors do not grow, and no bit depends on the others", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index many = 50 * chunk_keys + 77, offset = 2 * chunk_keys - 1;
  Workspace workspace;
  const Team team(workspace);
  const NoPosition<T> position;
  const PreparedPosition<T> weights(position, {.direction = Direction::causal}, {many - offset, many, 1, 1}, offset,
                                    Pass::forward, team);
  const Placement keys = weights.keys({}, many, workspace);
  const Matrix<T> B = Matrix<T>::Ones(many, 1), v = Matrix<T>::Constant(many, 1, T(0.1));
  // the rows attend to 2 chunks, one key more, and so on
  const auto contract = [&](const std::vector<Index>& some) {
    const RowSubset rows(some, team);
    Matrix<T> both(rows.count(), 2), N(rows.count(), 1);
    Vector<T> D(rows.count());
    RowTiles<T>(RowBiases<T>(weights.problem(), keys, nullptr, rows, team), team)
        .contract(Matrix<T>::Ones(rows.count(), 1), B, v, N, D.data());
    both << N, D;
    return both;
  };
  const std::vector<Index> some{0, 1, 2, 5000, many - offset - 1};
  const Matrix<T> got = contract(some);
  for (Index k = 0; k < got.rows(); ++k) {
    const std::vector<Index> alone{some[static_cast<std::size_t>(k)]};
    const double seen = static_cast<double>(alone.front() + offset + 1);
    CHECK(same_bits<T>(got.row(k), contract(alone)));
    CHECK(got(k, 1) == static_cast<T>(seen));
    CHECK(std::abs(static_cast<double>(got(k, 0)) / (seen * static_cast<double>(T(0.1))) - 1) <=
          epsilon<T> / 2 * (64 + static_cast<double>(chunk_keys) / 64 + 2));
  }
}

TEST_CASE("gradients by tiles are those of rows one by one", "[attention]") {
  const Fixture<double> f(Direction::bidirectional, 0.02);
  std::vector<Index> some;
  for (Index i = 0; i < n_q; i += 1 + i % 3) some.push_back(i);
  const RowSubset rows(some, f.team);
  const RowBiases<double> biases = f.biases(rows);
  const RowTiles<double> tiles(biases, f.team);
  const Matrix<double> A = rows.of<double>(f.A), dy = normal<double>(rows.count(), p, 6);
  Matrix<double> N(rows.count(), p), U(n_k, p + 1), G(rows.count(), p + 1);
  Vector<double> D(rows.count());
  tiles.contract(A, f.B, f.v, N, D.data());
  U << f.v, Vector<double>::Ones(n_k);

  Matrix<double> dA(rows.count(), r), dB = Matrix<double>::Zero(n_k, r), dU = Matrix<double>::Zero(n_k, p + 1);
  Matrix<double> dA_one = Matrix<double>::Zero(rows.count(), r), dB_one = dB, dU_one = dU;
  std::vector<double> db(static_cast<std::size_t>(f.weights.problem().lags.size()), 0), db_one = db;
  Workspace workspace;
  for (Index k = 0; k < rows.count(); ++k) {
    const Index i = some[static_cast<std::size_t>(k)];
    const Matrix<double> y = N.row(k) / D[k];
    G.row(k) << dy.row(k) / D[k], -dy.row(k).dot(y.row(0)) / D[k];
    auto db_row = workspace.vector<double>(n_k), b = workspace.vector<double>(n_k);
    biases.set(k, 0, n_k, b.data());
    DoubleRow<double>(row_of(A, k), f.B, f.v, b)
        .backward(row_of(y, 0), row_of(dy, k), {1, writable_row(dA_one, k), dB_one, dU_one, db_row.data()}, workspace);
    for (Index j = 0; j < n_k; ++j) db_one[static_cast<std::size_t>(j - i + n_q - 1)] += db_row[j];
  }
  tiles.gradients(A, f.B, U, G, {dA, dB, dU, {db, {}}});
  const auto same = [](const Matrix<double>& got, const Matrix<double>& expected) {
    return worst_ratio(got, expected, 1e-12 * expected.cwiseAbs().maxCoeff()) <= 1;
  };
  CHECK(same(dA, dA_one));
  CHECK(same(dB, dB_one));
  CHECK(same(dU.leftCols(p), dU_one.leftCols(p)));
  CHECK(same(Eigen::Map<Vector<double>>(db.data(), static_cast<Index>(db.size())),
             Eigen::Map<Vector<double>>(db_one.data(), static_cast<Index>(db.size()))));
}

}  // namespace nprf::test::attention_fallback_row_tiles
