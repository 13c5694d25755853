// SPDX-License-Identifier: MIT
#include "nprf/reference/kernelized_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::reference_kernelized_attention {

using reference::kernelized_attention;

namespace {

using Row = Vector<long double>;
constexpr Index d = 3;

// the features of the papers with all their factors; x is normalised
struct Formula {
  Matrix<double> w;  // (m,d)

  Row prf(const Row& x) const {
    Row phi(w.rows());
    for (Index r = 0; r < w.rows(); ++r) phi[r] = std::exp(dot(r, x) - x.squaredNorm() / 2);
    return phi / std::sqrt(static_cast<long double>(w.rows()));
  }
  Row trf(const Row& x) const {
    Row phi(2 * w.rows());
    for (Index r = 0; r < w.rows(); ++r) {
      phi[r] = std::sin(dot(r, x)) * std::exp(x.squaredNorm() / 2);
      phi[w.rows() + r] = std::cos(dot(r, x)) * std::exp(x.squaredNorm() / 2);
    }
    return phi / std::sqrt(static_cast<long double>(w.rows()));
  }
  Row hyperbolic(const Row& x) const {
    Row phi(2 * w.rows());
    phi << prf(x), prf(-x);
    return phi / std::sqrt(2.L);
  }
  static Row elu(const Row& x) {
    return x.unaryExpr([](long double t) { return t > 0 ? t + 1 : std::exp(t); });
  }

 private:
  long double dot(Index r, const Row& x) const {
    long double sum = 0;
    for (Index c = 0; c < x.size(); ++c) sum += static_cast<long double>(w(r, c)) * x[c];
    return sum;
  }
};

struct Setting {
  Index n_q, n_k, offset;
  Direction direction;
  double radius;  // 0: Normalization::none()
};

// y and, for each row, the condition number sum |w| / |sum w|
template <class Phi>
std::pair<Matrix<double>, Vector<double>> by_hand(const Phi& phi, bool estimates_exp, const Vector<double>& b,
                                                  const Setting& s, const Matrix<double>& q, const Matrix<double>& k,
                                                  const Matrix<double>& v) {
  const auto normalised = [&](const Matrix<double>& x, Index i) -> Row {
    const Row row = x.row(i).transpose().cast<long double>();
    if (s.radius > 0) return row * (s.radius / row.norm());
    return estimates_exp ? Row(row / std::pow(static_cast<long double>(d), 0.25L)) : row;
  };
  const Index R = b.size() / 2;
  Matrix<double> y = Matrix<double>::Zero(s.n_q, v.cols());
  Vector<double> condition = Vector<double>::Ones(s.n_q);
  for (Index i = 0; i < s.n_q; ++i) {
    const Row a = phi(normalised(q, i));
    Row numerator = Row::Zero(v.cols());
    long double denominator = 0, size = 0;
    for (Index j = 0; j < s.n_k; ++j) {
      const Index lag = j - (i + s.offset);
      if (s.direction == Direction::causal && lag > 0) continue;
      const Row w_j = a.cwiseProduct(phi(normalised(k, j))) *
                      std::exp(static_cast<long double>(b[std::min(std::max(lag, -R), R) + R]));
      const long double w = w_j.sum();
      size += w_j.cwiseAbs().sum();
      denominator += w;
      for (Index p = 0; p < v.cols(); ++p) numerator[p] += w * v(j, p);
    }
    if (size == 0) continue;
    y.row(i) = (numerator / denominator).cast<double>().transpose();
    condition[i] = static_cast<double>(size / std::abs(denominator));
  }
  return {y, condition};
}

template <class F, class Phi>
void check(const F& features, const Phi& phi) {
  Vector<double> b = normal_vector<double>(7, 5);
  b[5] = -std::numeric_limits<double>::infinity();
  for (const Setting& s : std::vector<Setting>{{1, 1, 0, Direction::bidirectional, 1},
                                               {9, 9, 0, Direction::bidirectional, 1},
                                               {9, 9, 0, Direction::causal, 1},
                                               {9, 9, 0, Direction::causal, 0},
                                               {12, 7, 0, Direction::bidirectional, 1.75},
                                               {7, 12, 0, Direction::causal, 0},
                                               {7, 12, 4, Direction::causal, 1},
                                               {7, 12, 5, Direction::bidirectional, 0},
                                               {12, 7, -5, Direction::causal, 1},
                                               {12, 7, -5, Direction::bidirectional, 1}}) {
    INFO("n_q " << s.n_q << " n_k " << s.n_k << " offset " << s.offset << " radius " << s.radius
                << (s.direction == Direction::causal ? " causal" : ""));
    const auto q = normal<double>(s.n_q, d, 1), k = normal<double>(s.n_k, d, 2), v = normal<double>(s.n_k, 2, 3);
    const Attention attention(features, RelativePosition<double>(b),
                              {.direction = s.direction,
                               .normalization = s.radius > 0 ? Normalization::unit(s.radius) : Normalization::none()});
    const Matrix<double> y = kernelized_attention(attention, q, k, v, s.offset);
    const auto [expected, condition] = by_hand(phi, estimates_exp<F>(), b, s, q, k, v);
    // the error of a feature is some eps times its exponent |w.x|, which is at most 10; values are below 4
    const Matrix<double> tolerance = 4 * 8 * epsilon<double> * condition.replicate(1, 2);
    CHECK(worst_ratio(y, expected, tolerance) <= 1);
    CHECK(y.allFinite());
  }
}

}  // namespace

TEST_CASE("the reference attention equals the formula of the paper for every feature map", "[reference]") {
  const Formula formula{normal<double>(4, d, 9)};
  check(PositiveFeatures<double>(formula.w), [&](const Row& x) { return formula.prf(x); });
  check(TrigonometricFeatures<double>(formula.w), [&](const Row& x) { return formula.trf(x); });
  check(HyperbolicFeatures<double>(formula.w), [&](const Row& x) { return formula.hyperbolic(x); });
  check(EluFeatures<double>(d), [&](const Row& x) { return Formula::elu(x); });
}

TEST_CASE("the weights of the reference attention neither overflow nor underflow for large biases", "[reference]") {
  // biases of +-40000, whose exp overflows or underflows; differences within a row do not
  const Index n = 40;
  Vector<double> b(2 * n + 1);
  for (Index l = 0; l < b.size(); ++l) b[l] = static_cast<double>(n - l) * 1000;
  const auto q = normal<double>(n, d, 1), k = normal<double>(n, d, 2), v = normal<double>(n, 2, 3);
  const Attention attention(orf<double>(d, 4, 7), RelativePosition<double>(b));
  // each row depends only on its first key: the relative weight of the next one is e^-1000
  const Matrix<double> y = kernelized_attention(attention, q, k, v);
  CHECK(worst_ratio(y, v.row(0).replicate(n, 1), 4 * epsilon<double>) <= 1);
}

TEST_CASE("rows of the reference attention that attend to no key are zero", "[reference]") {
  const auto q = normal<float>(6, d, 1), k = normal<float>(4, d, 2), v = normal<float>(4, 2, 3);
  const Attention causal(orf<float>(d, 4, 7), NoPosition<float>(), {.direction = Direction::causal});
  const Matrix<float> y = kernelized_attention(causal, q, k, v, -3);
  CHECK(y.topRows(3).isZero(0));
  CHECK(worst_ratio(y.row(3), v.row(0), 4 * epsilon<float>) <= 1);
  CHECK(kernelized_attention(causal, q, Matrix<float>(0, d), Matrix<float>(0, 2)).isZero(0));
  CHECK(kernelized_attention(causal, Matrix<float>(0, d), k, v).rows() == 0);
  CHECK(kernelized_attention(causal, q, k, Matrix<float>(4, 0)).cols() == 0);
}

TEST_CASE("the reference attention gives no weight to keys that attends() excludes", "[reference]") {
  const auto q = normal<double>(6, d, 1), k = normal<double>(9, d, 2), v = normal<double>(9, 2, 3);
  const RelativePosition<double> position(normal_vector<double>(5, 4));
  const auto attends = [](Index i, Index j) { return (i + j) % 3 != 0 && i != 4; };
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const Attention attention(orf<double>(d, 4, 7), position, {.direction = direction});
    const Matrix<double> y = kernelized_attention(attention, q, k, v, 1, attends);
    const Matrix<double> A = attention.query_features(q), B = attention.key_features(k);
    for (Index i = 0; i < 6; ++i) {
      Eigen::RowVectorXd numerator = Eigen::RowVectorXd::Zero(2);
      double denominator = 0;
      for (Index j = 0; j < (direction == Direction::causal ? std::min<Index>(i + 2, 9) : 9); ++j) {
        if ((i + j) % 3 == 0) continue;
        const double w = A.row(i).dot(B.row(j)) * std::exp(position.bias()[j - i - 1]);
        numerator += w * v.row(j);
        denominator += w;
      }
      INFO("row " << i);
      if (i == 4)
        CHECK(y.row(i).isZero(0));
      else
        CHECK(worst_ratio(y.row(i), numerator / denominator, 32 * epsilon<double>) <= 1);
    }
    CHECK(kernelized_attention(attention, q, k, v, 1, [](Index, Index) { return false; }).isZero(0));
    CHECK(same_bits(kernelized_attention(attention, q, k, v, 1, [](Index, Index) { return true; }),
                    kernelized_attention(attention, q, k, v, 1)));
  }
}

TEST_CASE("the reference attention uses the biases of a grid", "[reference]") {
  const Index H = 3, W = 4, E = 2, n = E + H * W;
  const auto q = normal<double>(n, d, 1), k = normal<double>(n, d, 2), v = normal<double>(n, 2, 3);
  Matrix<double> b = normal<double>(5, 7, 4), extra = normal<double>(E, E + 2, 5);
  b(1, 1) = extra(1, 0) = -std::numeric_limits<double>::infinity();
  const Attention attention(orf<double>(d, 4, 7), GridPosition<double>(H, W, b, extra));
  const Matrix<double> y = kernelized_attention(attention, q, k, v);
  const Matrix<double> A = attention.query_features(q), B = attention.key_features(k);
  Matrix<double> C(n, n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) {
      if (i < E)
        C(i, j) = j < E ? extra(i, 2 + j) : extra(i, 0);
      else if (j < E)
        C(i, j) = extra(j, 1);
      else
        C(i, j) = b((j - E) / W - (i - E) / W + H - 1, (j - E) % W - (i - E) % W + W - 1);
    }
  Matrix<double> P = (A * B.transpose()).cwiseProduct(C.array().exp().matrix());
  for (Index i = 0; i < n; ++i) P.row(i) /= P.row(i).sum();
  CHECK(worst_ratio(y, P * v, 64 * epsilon<double>) <= 1);
}

TEST_CASE("the reference attention rejects wrong shapes", "[reference]") {
  const Attention attention(orf<float>(d, 4, 7), NoPosition<float>());
  const auto q = normal<float>(6, d, 1), v = normal<float>(4, 2, 3);
  check_invalid([&] { kernelized_attention(attention, q, normal<float>(4, 2, 1), v); }, {"keys", "3 columns", "got 2"});
  check_invalid([&] { kernelized_attention(attention, q, normal<float>(5, d, 1), v); }, {"values", "5 rows", "got 4"});
}

TEST_CASE("the reference attention rejects other numbers of tokens than a grid's, and offsets", "[reference]") {
  const Attention attention(orf<float>(d, 4, 7), GridPosition<float>(2, 2, Matrix<float>::Zero(3, 3)));
  const auto x = normal<float>(4, d, 1), longer = normal<float>(5, d, 2);
  check_invalid([&] { kernelized_attention(attention, x, longer, longer); }, {"keys: expected 4 rows", "got 5"});
  check_invalid([&] { kernelized_attention(attention, longer, x, x); }, {"queries: expected 4 rows", "got 5"});
  check_invalid([&] { kernelized_attention(attention, x, x, x, 1); }, {"offset: expected 0", "got 1"});
}

// The mean squared error of an estimate from m random vectors is proportional to 1/m: with 16 times as many, the root
// mean square error falls by a factor of 4.
TEST_CASE("the error of kernelized attention relative to softmax falls as 1 / sqrt(m)", "[reference][monte_carlo]") {
  const Index n = 24, dim = 8;
  const auto q = normal<double>(n, dim, 1), k = normal<double>(n, dim, 2), v = normal<double>(n, 4, 3);
  const RelativePosition<double> position(normal_vector<double>(21, 4));
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const Matrix<double> exact =
        reference::softmax_attention<double>(q, k, v, position, direction, Normalization::unit(1));
    const auto mean_error = [&](auto&& make, Index m) {
      double square = 0;
      constexpr int draws = 48;
      for (std::uint64_t seed = 1; seed <= draws; ++seed) {
        const Attention attention(make(m, seed), position, {.direction = direction});
        square += (kernelized_attention(attention, q, k, v) - exact).squaredNorm() / draws;
      }
      return std::sqrt(square / exact.squaredNorm());
    };
    const auto check_convergence = [&](const char* map, auto&& make) {
      const double few = mean_error(make, 64), many = mean_error(make, 1024);
      INFO(map << ": " << few << " with 64 vectors, " << many << " with 1024");
      // with 48 draws the standard error of each is about 10 %; a biased map would not reach the factor
      CHECK(few / many > 2.8);
      CHECK(few / many < 5.7);
      CHECK(many < 0.1);
    };
    check_convergence("prf", [&](Index m, std::uint64_t seed) { return prf<double>(dim, m, seed); });
    check_convergence("orf", [&](Index m, std::uint64_t seed) { return orf<double>(dim, m, seed); });
    check_convergence("trf", [&](Index m, std::uint64_t seed) { return trf<double>(dim, m, seed); });
    check_convergence("hyperbolic", [&](Index m, std::uint64_t seed) {
      return HyperbolicFeatures<double>(FeatureOptions{.input_dim = dim, .num_features = m, .seed = seed});
    });
  }
}

}  // namespace nprf::test::reference_kernelized_attention
