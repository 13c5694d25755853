// SPDX-License-Identifier: MIT
#include "nprf/reference/softmax_attention.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::reference_softmax_attention {

using reference::softmax_attention;

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// radius 0 means Normalization::none()
Normalization normalization(double radius) { return radius > 0 ? Normalization::unit(radius) : Normalization::none(); }

struct Exact {
  Matrix<double> y, tolerance;
};

// The formula as two plain loops in long double. A logit is a sum of d products of rounded factors plus a bias. Its
// error is at most eps (d/2 + 4) |q||k| + eps |b|. This is the relative error of a weight, and the error of y is at
// most twice as much times the weighted mean of |v|.
template <Real T, Position P>
Exact two_loops(const Tokens<T>& x, const P& position, Direction direction, double radius,
                std::span<const bool> key_mask = {}, Index offset = 0) {
  using Row = Vector<long double>;
  const Index n_q = x.q.rows(), n_k = x.k.rows(), d = x.q.cols(), d_v = x.v.cols();
  const auto normalised = [&](const Matrix<T>& m, Index i) -> Row {
    const Row row = m.row(i).transpose().template cast<long double>();
    if (radius > 0) return row.norm() > 0 ? Row(row * (radius / row.norm())) : row;
    return row / std::pow(static_cast<long double>(d), 0.25L);
  };
  Exact exact{Matrix<double>::Zero(n_q, d_v), Matrix<double>::Zero(n_q, d_v)};
  for (Index i = 0; i < n_q; ++i) {
    const Row q = normalised(x.q, i);
    Vector<long double> s = Vector<long double>::Constant(n_k, minus_infinity);
    long double row_max = minus_infinity, logit_error = 0;
    for (Index j = 0; j < n_k; ++j) {
      const double b = bias_between(position, i, j, offset);
      if ((direction == Direction::causal && j > i + offset) || b == minus_infinity) continue;
      if (!key_mask.empty() && !key_mask[static_cast<std::size_t>(j)]) continue;
      const Row k = normalised(x.k, j);
      s[j] = b;
      for (Index c = 0; c < d; ++c) s[j] += q[c] * k[c];
      row_max = std::max(row_max, s[j]);
      logit_error = std::max(logit_error, (static_cast<long double>(d) / 2 + 4) * q.norm() * k.norm() +
                                              static_cast<long double>(std::abs(b)));
    }
    if (row_max == minus_infinity) continue;
    Row numerator = Row::Zero(d_v), size = Row::Zero(d_v);
    long double denominator = 0;
    for (Index j = 0; j < n_k; ++j) {
      const long double w = std::exp(s[j] - row_max);
      denominator += w;
      for (Index p = 0; p < d_v; ++p) {
        numerator[p] += w * x.v(j, p);
        size[p] += w * std::abs(static_cast<long double>(x.v(j, p)));
      }
    }
    const double growth = 2 * epsilon<T> * static_cast<double>(logit_error) + direct_growth<T>(0, n_k);
    for (Index p = 0; p < d_v; ++p) {
      exact.y(i, p) = static_cast<double>(numerator[p] / denominator);
      exact.tolerance(i, p) = 2 * growth * static_cast<double>(size[p] / denominator);
    }
  }
  return exact;
}

template <Real T>
HeldPosition<T> position(int kind) {
  switch (kind) {
    case 0: return {NoPosition<T>().bias()};
    case 1: return {RelativePosition<T>(random_table<T>(3, 21)).bias()};
    case 2: return {RelativePosition<T>(random_table<T>(300, 22)).bias()};
    case 3: return {t5_position<T>(normal_vector<T>(8, 23), Direction::bidirectional, 20).bias()};
    case 4: return {AlibiPosition<T>(T(0.0625)).bias()};
    default: break;
  }
  Vector<T> b = random_table<T>(6, 25);  // a window from 5 tokens before the query on, with two masked lags
  b[0] = b[3] = b[8] = static_cast<T>(minus_infinity);
  return {RelativePosition<T>(b).bias()};
}

template <Position P>
void check(Index n_q, Index n_k, Index d, Index d_v, const P& p, Direction direction, double radius,
           double length = 1) {
  using T = typename P::Scalar;
  Tokens<T> x = random_tokens<T>(n_q, n_k, d, d_v);
  x.q *= T(length);
  x.k *= T(length);
  const Exact exact = two_loops(x, p, direction, radius);
  const Matrix<T> y = softmax_attention<T>(x.q, x.k, x.v, p, direction, normalization(radius));
  INFO("n_q " << n_q << " n_k " << n_k << " d " << d << " d_v " << d_v << " radius " << radius << " length " << length
              << (direction == Direction::causal ? " causal" : "") << (sizeof(T) == 4 ? " float" : ""));
  CHECK(worst_ratio(y, exact.y, exact.tolerance) <= 1);
}

}  // namespace

TEST_CASE("softmax attention equals its formula", "[reference]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (int kind = 0; kind < 6; ++kind)
      for (const double radius : {1., 0., 3.}) {
        INFO("position " << kind);
        for (const Index n : {1, 2, 3, 17}) {
          check(n, n, 4, 3, position<double>(kind), direction, radius);
          check(n, n, 4, 3, position<float>(kind), direction, radius);
        }
        check(5, 11, 1, 1, position<double>(kind), direction, radius);
        check(11, 5, 7, 2, position<double>(kind), direction, radius);
      }
}

TEST_CASE("softmax attention equals its formula for sizes around those of its tiles", "[reference]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{127, 127},
                                                                       {128, 128},
                                                                       {129, 129},
                                                                       {255, 255},
                                                                       {256, 256},
                                                                       {257, 257},
                                                                       {3, 513},
                                                                       {300, 2},
                                                                       {129, 257},
                                                                       {257, 129}})
      for (const int kind : {2, 5}) {
        INFO("position " << kind);
        check(n_q, n_k, 4, 2, position<double>(kind), direction, 1);
        check(n_q, n_k, 4, 2, position<float>(kind), direction, 0);
      }
}

namespace {

// N(0,1) biases; with holes every third scalar of the table and every fourth bias of the extra tokens is -infinity
template <Real T>
GridPosition<T> grid(Index H, Index W, Index E, bool holes = false) {
  Matrix<T> b = normal<T>(2 * H - 1, 2 * W - 1, 40), extra = normal<T>(E, E + 2, 41);
  for (Index l = 1; holes && l < b.size(); l += 3) b.data()[l] = static_cast<T>(minus_infinity);
  for (Index l = 1; holes && l < extra.size(); l += 4) extra.data()[l] = static_cast<T>(minus_infinity);
  return {H, W, b, extra};
}

}  // namespace

TEST_CASE("softmax attention of queries with an offset equals its formula", "[reference]") {
  for (const int kind : {0, 1, 2, 4, 5})
    for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{1, 300}, {140, 270}, {270, 140}})
      for (const Index offset : {n_k - n_q, Index(3), Index(-130), Index(1000)})
        for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
          INFO("position " << kind << ", " << n_q << " queries from " << offset << " on, " << n_k << " keys");
          const Tokens<double> x = random_tokens<double>(n_q, n_k, 6, 3);
          const HeldPosition<double> p = position<double>(kind);
          const Exact exact = two_loops(x, p, direction, 1, {}, offset);
          const Matrix<double> y =
              softmax_attention<double>(x.q, x.k, x.v, p, direction, Normalization::unit(1), nullptr, {}, offset);
          CHECK(((y - exact.y).array().abs() <= exact.tolerance.array()).all());
        }
}

TEST_CASE("softmax attention over a grid equals its formula", "[reference]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    // sizes around those of a tile, 128 queries and 256 keys
    for (const auto& [H, W] :
         std::vector<std::pair<Index, Index>>{{1, 1}, {1, 6}, {6, 1}, {5, 7}, {1, 125}, {8, 16}, {16, 16}, {11, 25}})
      for (const Index E : {0, 1, 3})
        for (const bool holes : {false, true}) {
          const Index n = E + H * W;
          INFO(H << " x " << W << ", " << E << " extra tokens" << (holes ? ", holes" : ""));
          check(n, n, 4, 3, grid<double>(H, W, E, holes), direction, 1);
          if (H * W < 200) check(n, n, 4, 3, grid<float>(H, W, E, holes), direction, 0);
        }
}

TEST_CASE("softmax attention over a grid equals its formula with more extra tokens than a tile has keys",
          "[reference]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    check(310, 310, 3, 2, grid<double>(2, 5, 300, true), direction, 1);
}

TEST_CASE("a constant added to all biases of a grid changes no bit of softmax attention", "[reference]") {
  const Index H = 6, W = 7, E = 2, n = E + H * W;
  const Tokens<float> x = random_tokens<float>(n, n, 4, 2);
  const auto run = [&](float constant) {
    const Matrix<float> b = Matrix<float>::Constant(2 * H - 1, 2 * W - 1, constant);
    const Matrix<float> extra = Matrix<float>::Constant(E, E + 2, constant);
    return softmax_attention<float>(x.q, x.k, x.v, GridPosition<float>(H, W, b, extra), Direction::causal,
                                    Normalization::unit(1));
  };
  CHECK(same_bits<float>(run(1e6f), run(0)));
}

TEST_CASE("softmax attention rows are zero if the grid masks all their keys", "[reference]") {
  const Index H = 3, W = 4, E = 2, n = E + H * W;
  const Tokens<double> x = random_tokens<double>(n, n, 4, 2);
  const Matrix<double> masked = Matrix<double>::Constant(5, 7, minus_infinity);
  Matrix<double> extra = Matrix<double>::Constant(E, E + 2, minus_infinity);
  const auto run = [&] {
    return softmax_attention<double>(x.q, x.k, x.v, GridPosition<double>(H, W, masked, extra), Direction::bidirectional,
                                     Normalization::unit(1));
  };
  CHECK(all_zero(run()));
  extra(1, 1) = -3;  // all cells attend only to extra token 1
  const Matrix<double> y = run();
  CHECK(all_zero(y.topRows(E)));
  CHECK(worst_ratio(y.bottomRows(H * W), x.v.row(1).replicate(H * W, 1), 4 * epsilon<double>) <= 1);
}

TEST_CASE("softmax attention over a grid rejects other numbers of tokens, and an offset", "[reference]") {
  const auto run = [](Index n_q, Index n_k, Index offset = 0) {
    const Tokens<double> x = random_tokens<double>(n_q, n_k, 4, 2);
    softmax_attention<double>(x.q, x.k, x.v, grid<double>(3, 4, 2), Direction::causal, Normalization::none(), nullptr,
                              {}, offset);
  };
  CHECK_NOTHROW(run(14, 14));
  check_invalid([&] { run(13, 13); }, {"expected 14 rows", "position's tokens", "got 13"});
  check_invalid([&] { run(14, 12); }, {"expected 14 rows", "12"});
  check_invalid([&] { run(14, 14, 1); }, {"offset: expected 0", "got 1"});
}

TEST_CASE("softmax attention equals its formula for logits whose exp overflows", "[reference]") {
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    // |q.k| / sqrt(d) is in the hundreds; its exp overflows in float, and above 709 in double
    check(130, 300, 8, 2, position<float>(1), direction, 0, 30);
    check(130, 300, 8, 2, position<double>(1), direction, 0, 60);
    check(130, 300, 8, 2, position<float>(0), direction, 30);
  }
}

TEST_CASE("softmax attention equals its formula for steep linear biases", "[reference]") {
  for (const double slope : {-3., 3.})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      check(400, 400, 4, 2, HeldPosition<float>{AlibiPosition<float>(static_cast<float>(slope)).bias()}, direction, 1);
      check(400, 400, 4, 2, HeldPosition<double>{AlibiPosition<double>(slope).bias()}, direction, 1);
    }
}

TEST_CASE("softmax attention equals its formula if the first tiles of a row are all -infinity", "[reference]") {
  // queries attend only to keys at least 300 tokens ahead, or at least 300 tokens back
  for (const bool ahead : {true, false}) {
    LagBias<double> b{ahead ? 299 : -300, Vector<double>::Zero(2), 0, 0};
    b.table[ahead ? 0 : 1] = minus_infinity;
    const HeldPosition<double> p{b};
    check(600, 600, 3, 2, p, Direction::bidirectional, 1);
    check(600, 600, 3, 2, p, Direction::causal, 1);
    const Tokens<double> x = random_tokens<double>(600, 600, 3, 2);
    const Matrix<double> y =
        softmax_attention<double>(x.q, x.k, x.v, p, Direction::bidirectional, Normalization::unit(1));
    CHECK((ahead ? y.bottomRows(300) : y.topRows(300)).isZero(0));
    CHECK(!(ahead ? y.topRows(300) : y.bottomRows(300)).isZero(0));
  }
}

TEST_CASE("softmax attention of values 1 is 1, and a constant added to the bias does not change it", "[reference]") {
  Tokens<double> x = random_tokens<double>(140, 140, 4, 2);
  const Vector<double> b = random_table<double>(10, 3);
  const auto run = [&](const Vector<double>& bias) {
    return softmax_attention<double>(x.q, x.k, x.v, RelativePosition<double>(bias), Direction::causal,
                                     Normalization::unit(1));
  };
  const Matrix<double> y = run(b), shifted = run((b.array() + 100).matrix());
  CHECK(worst_ratio(shifted, y, 4 * 100 * epsilon<double>) <= 1);  // a logit near 100 is rounded to 100 eps
  x.v.setOnes();
  CHECK(worst_ratio(run(b), x.v, direct_growth<double>(0, 140)) <= 1);
}

TEST_CASE("softmax attention accepts column-major and empty matrices", "[reference]") {
  const Tokens<float> x = random_tokens<float>(20, 30, 4, 3);
  const Eigen::MatrixXf q = x.q, k = x.k, v = x.v;
  const NoPosition<float> none;
  const auto run = [&](const MatrixView<float>& a, const MatrixView<float>& b, const MatrixView<float>& c) {
    return softmax_attention<float>(a, b, c, none, Direction::bidirectional, Normalization::unit(1));
  };
  CHECK(same_bits(softmax_attention<float>(q, k, v, none, Direction::bidirectional, Normalization::unit(1)),
                  run(x.q, x.k, x.v)));
  CHECK(run(x.q, Matrix<float>(0, 4), Matrix<float>(0, 3)).isZero(0));
  CHECK(run(x.q, Matrix<float>(0, 4), Matrix<float>(0, 3)).rows() == 20);
  CHECK(run(Matrix<float>(0, 4), x.k, x.v).rows() == 0);
  CHECK(run(x.q, x.k, Matrix<float>(30, 0)).cols() == 0);
}

TEST_CASE("softmax attention rejects wrong shapes and directions", "[reference]") {
  const auto run = [](Index d_q, Index d_k, Index n_v) {
    softmax_attention<double>(normal<double>(5, d_q, 1), normal<double>(6, d_k, 2), normal<double>(n_v, 2, 3),
                              NoPosition<double>(), Direction::causal, Normalization::none());
  };
  check_invalid([&] { run(3, 4, 6); }, {"keys", "3 columns", "got 4"});
  check_invalid([&] { run(3, 3, 7); }, {"values", "6 rows", "got 7"});
  const Matrix<double> x = normal<double>(5, 3, 1);
  check_invalid(
      [&] {
        softmax_attention<double>(x, x, x, NoPosition<double>(), static_cast<Direction>(2), Normalization::none());
      },
      {"direction", "got number 2"});
  const auto both = t5_position(normal_vector<double>(8, 1), Direction::bidirectional);
  check_invalid([&] { softmax_attention<double>(x, x, x, both, Direction::causal, Normalization::none()); },
                {"position: expected one for causal attention, got one that was built for bidirectional"});
}

TEST_CASE("a NaN in a query makes only that row of softmax attention NaN", "[reference]") {
  Matrix<float> q = normal<float>(200, 4, 1), k = normal<float>(300, 4, 2), v = normal<float>(300, 2, 3);
  q(150, 2) = std::numeric_limits<float>::quiet_NaN();
  const Matrix<float> y = reference::softmax_attention<float>(q, k, v, NoPosition<float>(), Direction::bidirectional,
                                                              Normalization::unit(1));
  for (Index i = 0; i < 200; ++i) CHECK(y.row(i).array().isNaN().all() == (i == 150));
}

TEST_CASE("neither a constant bias nor the values of masked keys change a bit of softmax attention", "[reference]") {
  const Matrix<float> q = normal<float>(200, 4, 1), k = normal<float>(200, 4, 2);
  Matrix<float> v = normal<float>(200, 2, 3);
  const auto run = [&](float constant) {
    return reference::softmax_attention<float>(q, k, v, RelativePosition<float>(Vector<float>::Constant(1, constant)),
                                               Direction::causal, Normalization::unit(1));
  };
  const Matrix<float> y = run(0);
  CHECK(same_bits<float>(run(1e6f), y));
  v.bottomRows(100).setConstant(std::numeric_limits<float>::max() / 4);
  CHECK(same_bits<float>(run(0).topRows(100), y.topRows(100)));
}

TEST_CASE("softmax attention with padding equals its formula, and does not depend on the padding", "[reference]") {
  const Index n_q = 600, n_k = 600, d = 5;  // several tiles
  const Tokens<double> x = random_tokens<double>(n_q, n_k, d, 3);
  const std::unique_ptr<bool[]> kept(new bool[static_cast<std::size_t>(n_k)]);
  const std::span<bool> mask(kept.get(), static_cast<std::size_t>(n_k));
  for (const Index first : {Index(0), Index(300), n_k})  // the whole first tile of keys is padding, or all keys are
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      CAPTURE(first, direction == Direction::causal);
      Tokens<double> hidden = x;
      for (Index j = 0; j < n_k; ++j) {
        mask[static_cast<std::size_t>(j)] = j >= first && j % 3 == 0;
        if (mask[static_cast<std::size_t>(j)]) continue;
        hidden.k.row(j).setConstant(std::numeric_limits<double>::quiet_NaN());
        hidden.v.row(j).setConstant(std::numeric_limits<double>::infinity());
      }
      const AlibiPosition<double> position(0.0625);
      const Exact exact = two_loops(x, position, direction, 1, mask);
      const Matrix<double> y = softmax_attention<double>(hidden.q, hidden.k, hidden.v, position, direction,
                                                         Normalization::unit(1), nullptr, mask);
      CHECK(worst_ratio(y, exact.y, exact.tolerance) <= 1);
    }
  check_invalid(
      [&] {
        softmax_attention<double>(x.q, x.k, x.v, NoPosition<double>(), Direction::bidirectional, Normalization::unit(1),
                                  nullptr, mask.first(5));
      },
      {"key_mask", "600", "got 5"});
}

TEST_CASE("a row of softmax attention whose only keys so far are padding is zero beside a later NaN", "[reference]") {
  Matrix<float> q = normal<float>(3, 4, 1), k = normal<float>(3, 4, 2), v = normal<float>(3, 2, 3);
  k.row(1).setConstant(std::numeric_limits<float>::quiet_NaN());
  const bool mask[] = {false, true, true};
  const Matrix<float> y = reference::softmax_attention<float>(q, k, v, NoPosition<float>(), Direction::causal,
                                                              Normalization::unit(1), nullptr, mask);
  CHECK(y.row(0).isZero(0));
  CHECK(y.row(1).array().isNaN().all());
}

TEST_CASE("a NaN in a key that a row of softmax attention does not attend to has no effect", "[reference]") {
  std::mt19937 random(5);
  for (const Index n : {4, 19, 300})
    for (const double length : {1.0, 40.0})
      for (const Direction direction : {Direction::bidirectional, Direction::causal})
        for (int round = 0; round < 20; ++round) {
          CAPTURE(n, length, direction == Direction::causal, round);
          Tokens<float> x = random_tokens<float>(n, n, 4, 2, static_cast<std::uint64_t>(round));
          x.q *= static_cast<float>(length), x.k *= static_cast<float>(length);
          Vector<float> b(2 * n - 1);
          for (Index l = 0; l < b.size(); ++l) b[l] = random() % 2 ? static_cast<float>(minus_infinity) : 0;
          const RelativePosition<float> position(b);
          const auto y_of = [&] {
            return softmax_attention<float>(x.q, x.k, x.v, position, direction, Normalization::none());
          };
          const Matrix<float> without = y_of();
          std::vector<bool> is_nan(static_cast<std::size_t>(n));
          for (int i = 0; i < 3; ++i) is_nan[random() % static_cast<unsigned>(n)] = true;
          for (Index j = 0; j < n; ++j)
            if (is_nan[static_cast<std::size_t>(j)]) x.k.row(j).setConstant(std::numeric_limits<float>::quiet_NaN());
          const Matrix<float> y = y_of();
          Index wrong = 0;
          for (Index i = 0; i < n; ++i) {
            bool attends = false;
            for (Index j = 0; j < n; ++j)
              attends = attends || (is_nan[static_cast<std::size_t>(j)] && b[j - i + n - 1] == 0 &&
                                    (direction == Direction::bidirectional || j <= i));
            wrong += attends ? !y.row(i).array().isNaN().all() : !same_bits<float>(y.row(i), without.row(i));
          }
          CHECK(wrong == 0);
        }
}

TEST_CASE("rows of softmax attention that attend to no key are zero, even if all keys are NaN", "[reference]") {
  const Matrix<float> q = normal<float>(3, 4, 1), v = normal<float>(3, 2, 3);
  const Matrix<float> k = Matrix<float>::Constant(3, 4, std::numeric_limits<float>::quiet_NaN());
  const RelativePosition<float> masks_all(Vector<float>::Constant(1, -std::numeric_limits<float>::infinity()));
  CHECK(reference::softmax_attention<float>(q, k, v, masks_all, Direction::bidirectional, Normalization::unit(1))
            .isZero(0));
}

}  // namespace nprf::test::reference_softmax_attention
