// SPDX-License-Identifier: MIT
#include "nprf/decoder/online_convolution.hpp"

#include <algorithm>

#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

namespace nprf::test::decoder_online_convolution {

namespace {

using T = float;
constexpr Index r = 5, d_v = 3, M = 16, n = 200, rollback = 6;

// a ring of tokens, and the windows of M queries over them
struct Case {
  Case() {
    model.reserve(bias, n);
    ring.reserve(n);
    for (Index j = 0; j < n; ++j)
      ring.put(j, {B.row(j).data(), 1, v.row(j).data(), 0.0, T(1), v.row(j).cwiseAbs().maxCoeff(), true, true},
               B.row(j).data());
  }

  void advance(OnlineConvolution<T>& online, Index tokens) {
    online.reserve(model, tokens);
    online.advance(model, ring, tokens, rollback, scratch);
  }
  // the sums of the last of `tokens` queries, for features 1
  Matrix<T> sums(const OnlineConvolution<T>& online, Index tokens) const {
    Matrix<T> N = Matrix<T>::Zero(1, padded_to_lanes(d_v));
    const Vector<T> A = Vector<T>::Ones(padded_to_lanes(r));
    const FarWindow<T>* window = online.window(model, tokens);
    if (window) window->add_product(model.signals, tokens - 1, A.data(), T(1), N.data());
    return N;
  }
  // the same, computed at once
  Matrix<T> expected(Index tokens) {
    OnlineConvolution<T> at_once;
    advance(at_once, tokens);
    return sums(at_once, tokens);
  }

  StepBias<T> bias{RelativePosition<T>(random_table<T>(300, 3)).bias().view(), 0, 0, false};
  WindowModel<T> model{WindowPlan::fixed(M), FarSignals<T>({r, d_v, 0}, false), bias};
  Matrix<T> B = normal<T>(n, r, 1).array().exp(), v = normal<T>(n, d_v, 2);
  TokenRing<T> ring{{r, d_v, 0}, n};
  Workspace scratch;
};

}  // namespace

TEST_CASE("online convolution: step by step as at once", "[decoder]") {
  Case x;
  OnlineConvolution<T> online;
  for (Index tokens = 1; tokens <= n; ++tokens) {
    x.advance(online, tokens);
    CHECK((online.window(x.model, tokens) != nullptr) == (tokens > 2 * M));
    CHECK(same_bits(x.sums(online, tokens), x.expected(tokens)));
  }
  CHECK_FALSE(x.expected(n).isZero(0));
}

TEST_CASE("online convolution: steps share the work of a window evenly", "[decoder]") {
  Case x;
  OnlineConvolution<T> online;
  Index before = 0, most = 0;
  for (Index tokens = 1; tokens <= n; ++tokens) {
    x.advance(online, tokens);
    most = std::max(most, online.units_done() - before);
    before = online.units_done();
  }
  const Index units = FarWindow<T>::units(x.model.signals, 4);  // of the last window, of 168 tokens
  CHECK(most <= units / (M - rollback) + 1);
}

TEST_CASE("online convolution: tokens that are taken back", "[decoder]") {
  Case x;
  for (Index tokens = 20; tokens <= n; tokens += 3)
    for (const Index taken_back : {1, 6, 20, 100}) {
      if (taken_back >= tokens) continue;
      OnlineConvolution<T> online;
      for (Index t = 1; t <= tokens; ++t) x.advance(online, t);
      const Index left = tokens - taken_back;
      const Matrix<T> old_B = x.B;
      online.roll_back(left);
      // other tokens follow
      const Matrix<T> other = old_B.array() * T(1.5);
      for (Index j = left; j < n; ++j)
        x.ring.put(j, {other.row(j).data(), 1, x.v.row(j).data(), 0.0, T(1), T(4), true, true}, other.row(j).data());
      bool same = true;
      for (Index t = left + 1; t <= std::min(left + 2 * M, n); ++t) {
        x.advance(online, t);
        same = same && same_bits(x.sums(online, t), x.expected(t));
      }
      CHECK(same);
      x = Case();
    }
}

}  // namespace nprf::test::decoder_online_convolution
