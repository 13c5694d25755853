// SPDX-License-Identifier: MIT
#include "nprf/attention/gradient_units.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_gradient_units {

namespace {

constexpr Index n_q = 6, n_k = 6, r = 3, d_v = 2;

// causal attention with made-up rows
template <class T>
struct Rows {
  Rows() {
    saved.A = normal<T>(n_q, r, 1).cwiseAbs();
    saved.y = normal<T>(n_q, d_v, 2);
    saved.v = normal<T>(n_k, d_v, 3);
    saved.denominator = normal_vector<T>(n_q, 4).cwiseAbs();
    find_largest();
  }

  void find_largest() {
    saved.largest_values.resize(n_q);
    for (Index i = 0; i < n_q; ++i) saved.largest_values[i] = saved.v.topRows(i + 1).cwiseAbs().maxCoeff();
  }

  GradientUnits<T> units() {
    values = saved.v;
    return {saved, dy_view, weights, weights.queries(), values, workspace};
  }

  Workspace workspace;
  const Team team{workspace};
  const RelativePosition<T> position{random_table<T>(n_q, 5)};
  const HeadWeights<T> weights{position, {.direction = Direction::causal}, {n_q, n_k, r, d_v + 1}, 0, Pass::backward,
                               team};
  SavedSequence<T> saved;
  Matrix<T> dy = normal<T>(n_q, d_v, 6), values;
  const MatrixView<T> dy_view{dy};
};

// A' and G of a row are A and [dy -dy.y] / D, all but for the units: in long double
template <class T>
double scaling_error(Rows<T>& x, const GradientUnits<T>& units, Index i, SummedBy by = SummedBy::transforms) {
  Matrix<T> A(1, r), G(1, d_v + 1);
  const auto row = units.scale(i, by, A.row(0), G.row(0));
  using Exact = long double;
  const Exact f = std::ldexp(Exact(1), row.factor), D = x.saved.denominator[i];
  Exact worst = 0, dy_y = 0;
  const auto compare = [&](Exact got, Exact expected) {
    const Exact off = std::abs(got - expected) / std::max(std::abs(expected), Exact(1e-3L));
    if (!(off <= worst)) worst = off;
  };
  for (Index k = 0; k < r; ++k) compare(A(0, k) / f, x.saved.A(i, k));
  for (Index p = 0; p < d_v; ++p) dy_y += Exact(x.dy(i, p)) * x.saved.y(i, p);
  const Exact of_dy = units.of_dy();
  for (Index p = 0; p < d_v; ++p) compare(G(0, p) * f * D * of_dy / x.dy(i, p), 1);
  compare(G(0, d_v) * f * D * of_dy * units.of_values() / -dy_y, 1);
  compare(row.sum / (D * f), 1);
  const T most = by == SummedBy::transforms ? T(1) : std::sqrt(std::numeric_limits<T>::max());
  CHECK((G.cwiseAbs().maxCoeff() <= most && (G.cwiseAbs().maxCoeff() >= T(0.5))));
  // s_i f D is |dy_i|_1 times the largest value
  const Exact size = x.dy.row(i).template cast<Exact>().cwiseAbs().sum() * x.saved.largest_values[i];
  CHECK(row.size >= std::abs(G(0, d_v)));
  if (row.size > std::abs(G(0, d_v))) compare(row.size * f * D * of_dy * units.of_values() / size, 1);
  return static_cast<double>(worst);
}

}  // namespace

TEMPLATE_TEST_CASE("rows of dy of any size have factors of their own, and nothing is lost", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const T tiny = sizeof(T) == 4 ? T(1e-30) : T(1e-290), huge = sizeof(T) == 4 ? T(1e30) : T(1e290);
  for (const T of_dy : {T(1), tiny, huge})
    for (const T of_values : {T(1), tiny, huge}) {
      Rows<T> x;
      x.dy.row(2) *= T(1e-3);
      x.dy *= of_dy;
      x.saved.v *= of_values, x.saved.y *= of_values;
      x.find_largest();
      const GradientUnits<T> units = x.units();
      CHECK((x.values.cwiseAbs().maxCoeff() <= 1 && x.values.cwiseAbs().maxCoeff() >= T(0.5)));
      CHECK(x.values * units.of_values() == x.saved.v);
      CHECK(units.exponent() == std::ilogb(units.of_values()) + std::ilogb(units.of_dy()));
      // products and sums of a few numbers that cancel to a hundredth at worst
      for (Index i = 0; i < n_q; ++i) CHECK(scaling_error(x, units, i) <= 400 * epsilon<T>);
    }
}

TEMPLATE_TEST_CASE("a row that is summed by tiles has a factor of at most 1, though its weights are small",
                   "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Rows<T> x;
  const T small = sizeof(T) == 4 ? T(1e-15) : T(1e-150);
  x.saved.denominator *= small;
  const GradientUnits<T> units = x.units();
  Matrix<T> A(1, r), G(1, d_v + 1);
  for (Index i = 0; i < n_q; ++i) {
    CHECK(units.scale(i, SummedBy::transforms, A.row(0), G.row(0)).factor > 0);
    CHECK(units.scale(i, SummedBy::tiles, A.row(0), G.row(0)).factor == 0);
    CHECK(scaling_error(x, units, i, SummedBy::tiles) <= 400 * epsilon<T>);
  }
  // D of the features that make it small, far from the gradient's overflow
  x.saved.denominator *= small;
  x.saved.A *= small;
  for (Index i = 0; i < n_q; ++i) CHECK(scaling_error(x, x.units(), i, SummedBy::tiles) <= 400 * epsilon<T>);
}

TEMPLATE_TEST_CASE("units are of what counts: of rows with a gradient and what these attend to", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const T huge = sizeof(T) == 4 ? T(1e30) : T(1e290);
  Rows<T> x;
  // the last key is seen by the last row alone, which has no gradient; the first row sees nothing; one is not finite
  x.saved.v.row(n_k - 1) *= huge;
  x.dy.row(n_q - 1).setZero();
  x.saved.denominator[0] = 0;
  x.dy.row(0) *= huge;
  x.saved.denominator[1] = std::numeric_limits<T>::quiet_NaN();
  x.dy.row(1) *= huge;
  x.find_largest();
  const GradientUnits<T> units = x.units();
  CHECK(units.of_values() == unit_of_all(x.saved.v.topRows(n_k - 1)));
  CHECK(units.of_dy() == unit_of_all(x.dy.middleRows(2, n_q - 3)));
  CHECK(x.values.row(n_k - 1).isZero(0));
  CHECK(x.values.topRows(n_k - 1) * units.of_values() == x.saved.v.topRows(n_k - 1));
  // computed one by one, the first row counts again
  x.saved.repaired = {0};
  CHECK(x.units().of_dy() == unit_of_all(x.dy.row(0)));
  Matrix<T> A(1, r), G(1, d_v + 1);
  CHECK(x.units().scale(0, SummedBy::transforms, A.row(0), G.row(0)).factor == 0);
  CHECK(A.row(0) == x.saved.A.row(0));
  CHECK(G.isZero(0));
  x.saved.repaired = {};
  // entries that are not finite leave the others what they are, in their units
  Matrix<T> A_clean(1, r), G_clean(1, d_v + 1);
  const auto clean = x.units().scale(2, SummedBy::transforms, A_clean.row(0), G_clean.row(0));
  x.saved.y(2, 1) = std::numeric_limits<T>::quiet_NaN();
  x.dy(3, 1) = std::numeric_limits<T>::infinity();
  const auto of_y = x.units().scale(2, SummedBy::transforms, A.row(0), G.row(0));
  CHECK(std::isnan(G(0, d_v)));
  const T ratio = std::ldexp(T(1), of_y.factor - clean.factor);
  CHECK((A / ratio == A_clean && G.leftCols(d_v) * ratio == G_clean.leftCols(d_v)));
  CHECK((std::isfinite(of_y.size) && of_y.size > 0));
  const auto of_dy = x.units().scale(3, SummedBy::transforms, A.row(0), G.row(0));
  CHECK((std::isfinite(G(0, 0)) && std::isinf(G(0, 1)) && !std::isfinite(G(0, d_v))));
  CHECK((std::isfinite(of_dy.size) && of_dy.size > 0 && A.allFinite() && !A.isZero(0)));
  x.dy(3, 0) = 1000;
  CHECK(x.units().of_dy() >= 1000);
  // and values that no other row attends to have no part in what rows are measured by
  x.dy.row(n_q - 1).setOnes();
  x.saved.y(n_q - 1, 0) = std::numeric_limits<T>::quiet_NaN();
  CHECK(x.units().of_values() == units.of_values());
  CHECK(x.units().scale(n_q - 1, SummedBy::transforms, A.row(0), G.row(0)).size <= 2 * d_v);
  // without gradients all is one
  x.dy.setZero();
  CHECK(x.units().of_dy() == 1);
}

}  // namespace nprf::test::attention_gradient_units
