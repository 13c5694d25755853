// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/direct/tiled_product.hpp"

#include <algorithm>
#include <cmath>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_direct_tile_weights {

namespace {

// weights of any values, or their products with the scores, which are replaced by 3, and the terms of dB by a factor
class HeldWeights final : public toeplitz::TileWeights<double> {
 public:
  HeldWeights(const Matrix<double>& c, bool by_scores) : m_c(c), m_by_scores(by_scores) {}

  void set(const toeplitz::PairBlock& of, toeplitz::WeightBlock<double>& c) const override {
    for (Index k = 0; k < Block<double>::rows; ++k) {
      double* row = c.own_row(k);
      for (Index j = 0; j < of.packs * Pack<double>::size; ++j)
        row[j] = k < of.rows && j < of.count ? m_c(of.i + k, of.j0 + j) : 0;
    }
  }
  toeplitz::RowRange keys(Index, Index, Index) const override { return {0, m_c.cols()}; }

  void replace_scores(const toeplitz::PairBlock& of, double* S, Index stride,
                      toeplitz::WeightBlock<double>& c) const override {
    for (Index k = 0; m_by_scores && k < of.rows; ++k) {
      double* row = c.own_row(k);
      for (Index j = 0; j < of.count; ++j) row[j] *= S[k * stride + j], S[k * stride + j] = 3;
    }
  }
  void multiply_by_factors(const toeplitz::PairBlock& of, double* P, Index stride) const override {
    for (Index k = 0; m_by_scores && k < of.rows; ++k)
      for (Index j = 0; j < of.count; ++j) P[k * stride + j] *= factor;
  }

  static constexpr double factor = 0.25;

 private:
  const Matrix<double>& m_c;
  bool m_by_scores;
};

}  // namespace

TEST_CASE("rows of a block are its own, or where they were computed before", "[toeplitz]") {
  Workspace scratch;
  toeplitz::WeightBlock<double> block(16, scratch);
  const double elsewhere[16] = {5};
  double *first = block.own_row(0), *second = block.own_row(1);
  CHECK(second - first >= 16);
  CHECK((block.row(0) == first && block.row(1) == second));
  block.refer(0, elsewhere);
  CHECK((block.row(0) == elsewhere && block.row(1) == second));
  CHECK(block.own_row(0) == first);
}

TEST_CASE("a tiled product and its gradients have any weights, and weights may depend on the scores", "[toeplitz]") {
  constexpr Index n_q = 40, n_k = 110, r = 3, p = 5;
  const Matrix<double> A = normal<double>(n_q, r, 1), B = normal<double>(n_k, r, 2), U = normal<double>(n_k, p, 3),
                       C = normal<double>(n_q, n_k, 4), G = normal<double>(n_q, p, 5);
  Workspace workspace;
  const Team team(workspace);
  const auto x = toeplitz::Factors<double>::without_gaps(A, B, U);
  const Matrix<double> S = A * B.transpose(), P = G * U.transpose();
  for (const bool by_scores : {false, true}) {
    const HeldWeights weights(C, by_scores);
    const toeplitz::TiledProduct<double> product(x, weights);
    const Matrix<double> W = by_scores ? Matrix<double>(C.cwiseProduct(S)) : C,
                         scores = by_scores ? Matrix<double>::Constant(n_q, n_k, 3) : S;
    const double factor = by_scores ? HeldWeights::factor : 1;
    Matrix<double> dA = Matrix<double>::Zero(n_q, r), dB = Matrix<double>::Zero(n_k, r),
                   dU = Matrix<double>::Zero(n_k, p);
    toeplitz::GradientRefs<double> out{dA, dB, dU, Eigen::Map<Vector<double>>(nullptr, 0)};
    double sum = 0;  // of dC o C, as the rows of pairs have it
    product.add_gradients(G, out, 0, team, [&](const toeplitz::PairRow<double>& pairs, double*) {
      for (Index j = 0; j < pairs.count; ++j) sum += pairs.S[j] * pairs.P[j] * pairs.C[j];
    });
    const Matrix<double> terms = P.cwiseProduct(W);
    const auto near = [&](const Matrix<double>& got, const Matrix<double>& expected, Index count) {
      return (got - expected).norm() <= static_cast<double>(4 * count) * epsilon<double> * expected.norm();
    };
    CHECK(near(dA, terms * B, n_k));
    CHECK(near(dB, factor * terms.transpose() * A, n_q));
    CHECK(near(dU, scores.cwiseProduct(W).transpose() * G, n_q));
    const double size = scores.cwiseProduct(terms).cwiseAbs().sum();
    CHECK(std::abs(sum - scores.cwiseProduct(terms).sum()) <= static_cast<double>(n_q * n_k) * epsilon<double> * size);
    if (by_scores) continue;  // forward tiles do not replace scores
    Matrix<double> Y(n_q, p);
    product.contract(Y, team, nullptr);
    CHECK(near(Y, S.cwiseProduct(C) * U, n_k));
  }
}

TEST_CASE("weights one by one fill a block, with zeros after its last key", "[toeplitz]") {
  constexpr Index pack = Pack<double>::size;
  const Matrix<double> c = normal<double>(20, 60, 1);
  const toeplitz::EachWeight weights([&](Index i, Index j) { return double(c(i, j)); },
                                     [](Index i0, Index rows) {
                                       return toeplitz::RowRange{i0, rows};
                                     });
  CHECK((weights.keys(3, 9, 64).begin == 3 && weights.keys(3, 9, 64).end == 9));
  Workspace scratch;
  toeplitz::WeightBlock<double> block(4 * pack, scratch);
  for (const Index rows : {Block<double>::rows, Index{2}})
    for (const Index count : {Index{1}, pack, pack + 1}) {
      const Index i0 = 5, j0 = 7, packs = packs_for<double>(count);
      weights.set({i0, rows, j0, count, packs}, block);
      for (Index k = 0; k < Block<double>::rows; ++k)
        for (Index j = 0; j < packs * pack; ++j)
          CHECK(block.row(k)[j] == (j < count ? c(i0 + std::min(k, rows - 1), j0 + j) : 0));
    }
}

}  // namespace nprf::test::toeplitz_direct_tile_weights
