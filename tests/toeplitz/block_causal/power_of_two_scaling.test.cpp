// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/block_causal/power_of_two_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/product.hpp"
#include "support/random.hpp"

namespace nprf::test::toeplitz_block_causal_power_of_two_scaling {

using toeplitz::BlockMaxima;

namespace {

template <class T>
constexpr Index W = fft::lane_count<T>;

constexpr double none = -std::numeric_limits<double>::infinity();

}  // namespace

TEMPLATE_TEST_CASE("the maxima of a source block are those of its keys, at each level, ignoring NaN", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 4100, r = 2 * W<T> + 3, p = W<T> + 2;
  LagWeights<T> c = random_weights<T>(n, n, 4);
  c.values.tail(n - 1 + 7).setZero();  // the last lag is -7: keys are moved by 7 places
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  const toeplitz::CausalAxis axis(c.support(), {n, n, r, p});
  const toeplitz::CausalLevels<T> levels(c.view(), axis, 128, team);
  REQUIRE(levels.count() == 2);
  Matrix<T> B = normal<T>(axis.keys.end, r, 1), U = normal<T>(axis.keys.end, p, 2);
  B.topRows(7).setZero(), U.topRows(7).setZero();
  B.middleRows(1024, 300).setZero(), U.middleRows(1024, 300).setZero();
  B(50, 1) = U(60, 0) = std::numeric_limits<T>::quiet_NaN();
  B(400, 2) = -std::numeric_limits<T>::infinity();
  const MatrixView<T> b = B, u = U;
  for (const double spread : {0.0, 20.0}) {
    Vector<double> e = spread * normal_vector<double>(axis.keys.end, 3);
    if (spread > 0) e.head(7).setConstant(none);
    const double* given = spread > 0 ? e.data() + 7 : nullptr;
    const toeplitz::RunningKeyMax<T> exponents({b, b, u, Slots{n}, Slots{n}, given}, levels, team);
    const toeplitz::LevelMaxima<T> sources(b, u, exponents, levels, team);
    for (Index level = 0; level < levels.count(); ++level)
      for (Index k = 0; k * levels[level].size < axis.length(); ++k) {
        const Index first = k * levels[level].size, end = std::min(first + levels[level].size, axis.keys.end);
        const double top = e.segment(first, end - first).maxCoeff();
        // and zeros for features beyond r, values beyond p
        Vector<double> b_top = Vector<double>::Zero(r + 2 * W<T>), u_top = Vector<double>::Zero(p + W<T>);
        for (Index j = first; j < end; ++j) {  // a NaN is ignored
          for (Index f = 0; f < r; ++f)
            b_top[f] = std::max(b_top[f], std::exp(e[j] - top) * std::abs(static_cast<double>(B(j, f))));
          for (Index f = 0; f < p; ++f) u_top[f] = std::max(u_top[f], std::abs(static_cast<double>(U(j, f))));
        }
        const auto near = [](T x, double y) {
          return static_cast<double>(x) == y || std::abs(static_cast<double>(x) - y) <= 4 * epsilon<T> * y;
        };
        const auto is = [&](const BlockMaxima<T>& got, Index l, Index feature, double value) {
          return got.log_scale == top && near(got.b[l], b_top[feature]) && static_cast<double>(got.u[l]) == value;
        };
        bool right = true;
        for (Index l = 0; l < W<T>; ++l) {
          for (Index f = 0; f < r; ++f)
            right = right && is(sources.feature(level, k, f, 1, 3), l, f, l < 3 ? u_top[1 + l] : 0);
          for (Index f = 0; f < r; f += W<T>)
            right = right && is(sources.column(level, k, toeplitz::FeatureLanes<T>(b, f), 2), l, f + l, u_top[2]);
        }
        INFO("level " << level << ", block " << k << ", exponents spread over " << spread);
        CHECK(right);
      }
  }
}

}  // namespace nprf::test::toeplitz_block_causal_power_of_two_scaling
