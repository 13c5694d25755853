// SPDX-License-Identifier: MIT

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

/// A NaN or an infinity touches the rows of its own formula, and no other, by every engine.
namespace nprf::test::attention_non_finite {

namespace {

constexpr Index d = 4, m = 6, d_v = 3;

template <class T>
constexpr T infinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T nan = std::numeric_limits<T>::quiet_NaN();

// y is finite where the twin is, and near what it is without the poison
template <class T, class A>
void check_touched(const A& attention, const Tokens<T>& poisoned, const Tokens<T>& clean) {
  const Matrix<T> y = attention(poisoned.q, poisoned.k, poisoned.v),
                  twin = reference::kernelized_attention(attention, poisoned.q, poisoned.k, poisoned.v);
  Index wrong = 0, touched = 0;
  double worst = 0;
  for (Index i = 0; i < y.rows(); ++i)
    for (Index p = 0; p < y.cols(); ++p) {
      wrong += std::isfinite(y(i, p)) != std::isfinite(twin(i, p));
      touched += !std::isfinite(y(i, p));
      if (std::isfinite(y(i, p)) && std::isfinite(twin(i, p)))
        worst = std::max(worst, static_cast<double>(std::abs(y(i, p) - twin(i, p))));
    }
  CHECK(wrong == 0);
  CHECK(touched > 0);
  CHECK(touched < y.size());
  CHECK(worst <= default_tolerance<T> * static_cast<double>(clean.v.cwiseAbs().maxCoeff()));
}

}  // namespace

TEMPLATE_TEST_CASE("a query, key or value that is not finite touches the rows of the formula", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 260;
  Vector<T> b = random_table<T>(n, 3);
  for (Index l = 0; l < b.size(); ++l)  // a window, so that not all rows see a key
    if (std::abs(l - (n - 1)) > 110) b[l] = -infinity<T>;
  const RelativePosition<T> position(b);
  const Tokens<T> clean = random_tokens<T>(n, n, d, d_v);
  for (const Engine engine : all_engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const T poison : {nan<T>, infinity<T>, -infinity<T>})
        for (const Index at : {Index{5}, Index{130}}) {
          INFO(name(engine) << (direction == Direction::causal ? ", causal" : "") << ", " << poison << " at " << at);
          const auto with = [&](const auto& features, Normalization normalization) {
            const Attention attention(features, position, {direction, normalization, engine});
            for (Matrix<T> Tokens<T>::*part : {&Tokens<T>::q, &Tokens<T>::k, &Tokens<T>::v}) {
              Tokens<T> x = clean;
              (x.*part)(at, 1) = poison;
              check_touched(attention, x, clean);
            }
          };
          with(orf<T>(d, m, 7), Normalization::unit());
          if (poison != -infinity<T>) with(orf<T>(d, m, 7), Normalization::none());
          if (std::isnan(poison)) with(EluFeatures<T>(d), Normalization::unit());
        }
}

TEST_CASE("infinities of a column keep their sign, and those of both signs are none", "[attention]") {
  const Index n = 40;
  Tokens<double> x = random_tokens<double>(n, n, d, d_v);
  const Attention attention(orf<double>(d, m, 7), RelativePosition<double>(random_table<double>(n, 3)),
                            {.direction = Direction::causal, .engine = Engine::lanes});
  const Matrix<double> clean = attention(x.q, x.k, x.v);
  x.v(10, 0) = infinity<double>;
  x.v(20, 0) = -infinity<double>;
  x.v(30, 1) = -infinity<double>;
  const Matrix<double> y = attention(x.q, x.k, x.v);
  for (Index i = 0; i < n; ++i) {
    CHECK((i < 10 ? std::isfinite(y(i, 0)) : i < 20 ? y(i, 0) == infinity<double> : std::isnan(y(i, 0))));
    CHECK((i < 30 ? std::isfinite(y(i, 1)) : y(i, 1) == -infinity<double>));
    CHECK(std::abs(y(i, 2) - clean(i, 2)) <= 1e-10);
  }
}

TEST_CASE("a grid's tokens that are not finite touch the rows that see them", "[attention]") {
  const Index height = 5, width = 6, E = 2, n = E + height * width;
  Matrix<double> b = normal<double>(2 * height - 1, 2 * width - 1, 5);
  b.row(0).setConstant(-infinity<double>);
  const GridPosition<double> grid(height, width, b, normal<double>(E, E + 2, 8));
  const Tokens<double> clean = random_tokens<double>(n, n, d, d_v);
  for (const Engine engine : {Engine::direct, Engine::grid, Engine::automatic})
    for (Matrix<double> Tokens<double>::*part : {&Tokens<double>::q, &Tokens<double>::k, &Tokens<double>::v}) {
      INFO(name(engine));
      Tokens<double> x = clean;
      (x.*part)(E + 1, 1) = nan<double>;
      check_touched(Attention(orf<double>(d, m, 7), grid, {.engine = engine}), x, clean);
    }
}

TEST_CASE("finite numbers can be asked for", "[attention]") {
  const Index n = 12;
  const Tokens<double> clean = random_tokens<double>(n, n, d, d_v);
  const Attention attention(orf<double>(d, m, 7), RelativePosition<double>(random_table<double>(n, 3)));
  Mask mask = Mask::Constant(n, true);
  mask[4] = false;
  const CallOptions call{.key_mask = view(mask), .check_finite = true};
  attention(clean.q, clean.k, clean.v, call);
  const std::array<const char*, 3> names{"queries", "keys", "values"};
  const std::array parts{&Tokens<double>::q, &Tokens<double>::k, &Tokens<double>::v};
  for (std::size_t part = 0; part < 3; ++part)
    for (const double poison : {nan<double>, infinity<double>}) {
      Tokens<double> x = clean;
      (x.*parts[part])(7, 2) = poison;
      attention(x.q, x.k, x.v);
      check_invalid([&] { attention(x.q, x.k, x.v, call); },
                    {names[part], "expected finite numbers", "in row 7, column 2"});
      // what padding holds is never read
      x = clean;
      (x.*parts[part])(4, 2) = poison;
      if (part > 0) attention(x.q, x.k, x.v, call);
    }
}

}  // namespace nprf::test::attention_non_finite
