// SPDX-License-Identifier: MIT
#include "nprf/decoder/online_convolution.hpp"

#include <algorithm>

#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
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
  StepBias<T> bias{RelativePosition<T>(random_table<T>(300, 3)).bias().view(), 0, 0, false};
  WindowModel<T> model{WindowPlan::fixed(M), FarSignals<T>({r, d_v, 0}, false), bias};
  Matrix<T> B = normal<T>(n, r, 1).array().exp(), v = normal<T>(n, d_v, 2);
  TokenRing<T> ring{{r, d_v, 0}, n};
  Workspace scratch;
};

}  // namespace

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

}  // namespace nprf::test::decoder_online_convolution
