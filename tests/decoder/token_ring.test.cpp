// SPDX-License-Identifier: MIT
#include "nprf/decoder/token_ring.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::decoder_token_ring {

namespace {

template <Real T>
struct Tokens {
  Tokens(Index n, Index r, Index d_v, Index d)
      : B(normal<T>(n, r, 1)), v(normal<T>(n, d_v, 2)), k(normal<T>(n, d, 3)) {}

  void put(TokenRing<T>& ring, Index j) const {
    ring.put(j,
             {B.row(j).data(), 1, v.row(j).data(), static_cast<double>(j), B.row(j).norm(),
              v.row(j).cwiseAbs().maxCoeff(), j % 5 != 0, j % 7 != 0},
             k.row(j).data());
  }

  Matrix<T> B, v, k;
};

}  // namespace

TEMPLATE_TEST_CASE("token ring: scores and weighted values", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index n = 150, d = 3;
  for (const Index r : {1, 7, 33})
    for (const Index d_v : {1, 16, 70, 200})
      for (const Index tokens : {1, 16, 50, 400}) {
        const Tokens<T> x(n, r, d_v, d);
        TokenRing<T> ring({r, d_v, d}, tokens);
        CHECK(ring.capacity() >= tokens);
        CHECK(ring.capacity() < tokens + TokenRing<T>::tile);
        Vector<T> A = Vector<T>::Zero(padded_to_lanes(r));
        A.head(r) = normal<T>(1, r, 4).row(0);
        for (Index j = 0; j < n; ++j) {
          ring.reserve(j + 1);
          x.put(ring, j);
          if (j % 40 != 3) continue;
          const Index slots = ring.used_slots(j + 1), first = std::max<Index>(0, j + 1 - ring.capacity());
          Vector<T> scores(slots), weights = Vector<T>::Zero(slots), N = Vector<T>::Ones(padded_to_lanes(d_v));
          ring.scores(A.data(), slots, scores.data());
          Vector<double> expected = Vector<double>::Ones(d_v), sizes = expected;
          for (Index i = first; i <= j; ++i) {
            const Index s = ring.slot(i);
            const double tolerance = epsilon<T> * static_cast<double>(r) * A.norm() * x.B.row(i).norm();
            CHECK(std::abs(scores[s] - A.head(r).dot(x.B.row(i).transpose())) <= tolerance);
            if (i % 3 == 0) continue;
            weights[s] = scores[s];
            expected += static_cast<double>(scores[s]) * x.v.row(i).transpose().template cast<double>();
            sizes +=
                std::abs(static_cast<double>(scores[s])) * x.v.row(i).transpose().cwiseAbs().template cast<double>();
          }
          ring.add_values(weights.data(), slots, N.data());
          CHECK(worst_ratio(N.head(d_v), expected, epsilon<T> * static_cast<double>(j - first + 2) * sizes) <= 1);
        }
      }
}

TEST_CASE("token ring: a slot of weight 0 is not read", "[decoder]") {
  using T = float;
  TokenRing<T> ring({2, 3, 0}, 20);
  ring.reserve(2);
  const Vector<T> B = Vector<T>::Ones(2), v = Vector<T>::Constant(3, std::nanf(""));
  ring.put(0, {B.data(), 1, v.data(), 0, 1, 1, true, false}, v.data());
  Vector<T> weights = Vector<T>::Zero(16), N = Vector<T>::Zero(16);
  ring.add_values(weights.data(), 16, N.data());
  CHECK(N.isZero(0));
}

TEST_CASE("token ring: tokens are kept while it grows and wraps around", "[decoder]") {
  using T = float;
  constexpr Index n = 200, r = 5, d_v = 4, d = 3;
  const Tokens<T> x(n, r, d_v, d);
  TokenRing<T> ring({r, d_v, d}, 90);
  CHECK(ring.bytes() == 0);
  std::size_t growths = 0, bytes = 0;
  for (Index j = 0; j < n; ++j) {
    ring.reserve(j + 1);
    growths += ring.bytes() != bytes, bytes = ring.bytes();
    x.put(ring, j);
    for (Index i = std::max<Index>(0, j + 1 - ring.capacity()); i <= j; i += 11) {
      const StateToken<T> token = ring.token(i);
      const Index s = ring.slot(i);
      for (Index k = 0; k < r; ++k) REQUIRE(token.features[k * token.feature_step] == x.B(i, k));
      for (Index p = 0; p < d_v; ++p) REQUIRE(token.value[p] == x.v(i, p));
      for (Index l = 0; l < d; ++l) REQUIRE(ring.key(s)[l] == x.k(i, l));
      REQUIRE(token.log_scale == static_cast<double>(i));
      REQUIRE(ring.log_scales()[s] == static_cast<double>(i));
      REQUIRE(ring.scales()[s] == static_cast<T>(std::exp(static_cast<double>(i) - ring.scale_reference())));
      REQUIRE(token.has_finite_key == (i % 5 != 0));
      REQUIRE(ring.has_finite_value(s) == (i % 7 != 0));
    }
  }
  CHECK(growths == 4);  // 16, 32, 64 and 96 slots
}

TEST_CASE("token ring: the reference of scales follows the largest log-scale", "[decoder]") {
  TokenRing<double> ring({1, 1, 0}, 16);
  ring.reserve(16);
  const double one = 1;
  const auto put = [&](Index j, double log_scale) { ring.put(j, {&one, 1, &one, log_scale, 0, 1, true, true}, &one); };
  put(0, -std::numeric_limits<double>::infinity());  // a non-finite key
  CHECK(ring.scales()[0] == 0);
  put(1, -300);
  CHECK(ring.scale_reference() == -300);
  put(2, -298.5);
  put(3, -350);
  CHECK(ring.scale_reference() == -300);
  CHECK(ring.scales()[0] == 0);
  CHECK(ring.scales()[2] == std::exp(1.5));
  put(4, 200);
  CHECK(ring.scale_reference() == 200);
  CHECK(ring.scales()[4] == 1);
  CHECK(ring.scales()[2] == std::exp(-498.5));
  CHECK(ring.log_scale_spread() >= 550);
  ring.clear();
  put(5, 7);
  CHECK(ring.scale_reference() == 7);
  CHECK(ring.log_scale_spread() <= 2);
}

}  // namespace nprf::test::decoder_token_ring
