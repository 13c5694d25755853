// SPDX-License-Identifier: MIT
#include "nprf/attention/scaling/gradient_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_scaling_gradient_scaling {

namespace {

using toeplitz::Rounding;

constexpr Index n_q = 6, n_k = 6, r = 3, d_v = 2;

// causal attention with random saved rows
template <class T>
struct Rows {
  Rows() {
    saved.A = normal<T>(n_q, r, 1).cwiseAbs();
    saved.A /= scale_above(saved.A.maxCoeff());
    saved.y = normal<T>(n_q, d_v, 2);
    saved.values.U = Matrix<T>::Ones(n_k, d_v + 1);
    v() = normal<T>(n_k, d_v, 3);
    v() /= scale_above(v().cwiseAbs().maxCoeff());
    saved.denominator = normal_vector<T>(n_q, 4).cwiseAbs();
    find_largest();
  }

  auto v() { return saved.values.U.leftCols(d_v); }

  void find_largest() {
    saved.values.largest_attended.resize(n_q);
    for (Index i = 0; i < n_q; ++i) saved.values.largest_attended[i] = v().topRows(i + 1).cwiseAbs().maxCoeff();
    saved.values.largest = v().cwiseAbs().maxCoeff();
  }

  GradientScaling<T> scaling(Rounding rounding = Rounding::global) {
    return {saved, dy_view, rounding, weights, weights.queries(), team};
  }

  Workspace workspace;
  const Team team{workspace};
  const RelativePosition<T> position{random_table<T>(n_q, 5)};
  const PreparedPosition<T> weights{
      position, {.direction = Direction::causal}, {n_q, n_k, r, d_v + 1}, 0, Pass::backward, team};
  SavedSequence<T> saved;
  Matrix<T> dy = normal<T>(n_q, d_v, 6);
  const MatrixView<T> dy_view{dy};
};

// the largest difference of A' and G, without their scales, from A and [dy -dy.y] / D in long double
template <class T>
double scaling_error(Rows<T>& x, Rounding rounding = Rounding::global) {
  const GradientScaling<T> scaling = x.scaling(rounding);
  const auto A = scaling.A(), G = scaling.G();
  using Exact = long double;
  Exact worst = 0;
  const auto compare = [&](Exact got, Exact expected) {
    const Exact off = std::abs(got - expected) / std::max(std::abs(expected), Exact(1e-3L));
    if (!(off <= worst)) worst = off;
  };
  const Exact of_dy = scaling.dy_scale(), of_values = scaling.value_scale();
  for (Index i = 0; i < n_q; ++i) {
    const Exact f = std::ldexp(Exact(1), scaling.exponents()[i]), D = x.saved.denominator[i];
    Exact dy_y = 0;
    for (Index k = 0; k < r; ++k) compare(A(i, k) / f, x.saved.A(i, k));
    for (Index p = 0; p < d_v; ++p) dy_y += Exact(x.dy(i, p)) * x.saved.y(i, p);
    for (Index p = 0; p < d_v; ++p) compare(G(i, p) * f * D * of_dy / x.dy(i, p), 1);
    compare(G(i, d_v) * f * D * of_dy * of_values / -dy_y, 1);
    compare(scaling.denominators()[i] / (D * f), 1);
    const T most = rounding == Rounding::global ? T(1) : std::sqrt(std::numeric_limits<T>::max());
    CHECK((G.row(i).cwiseAbs().maxCoeff() <= most && G.row(i).cwiseAbs().maxCoeff() >= T(0.5)));
    // s_i f D is |dy_i|_1 times the largest value
    const Exact size = x.dy.row(i).template cast<Exact>().cwiseAbs().sum() * x.saved.values.largest_attended[i];
    CHECK(scaling.sizes()[i] >= std::abs(G(i, d_v)));
    if (scaling.sizes()[i] > std::abs(G(i, d_v))) compare(scaling.sizes()[i] * f * D * of_dy * of_values / size, 1);
    CHECK(scaling.is_finite(i));
  }
  return static_cast<double>(worst);
}

// products and sums of a few numbers that cancel to a hundredth at worst
template <class T>
constexpr double growth = 400 * epsilon<T>;

}  // namespace

TEMPLATE_TEST_CASE("rows of dy of any magnitude are scaled without loss of precision", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const T tiny = sizeof(T) == 4 ? T(1e-30) : T(1e-290), huge = sizeof(T) == 4 ? T(1e30) : T(1e290);
  for (const T of_dy : {T(1), tiny, huge}) {
    Rows<T> x;
    x.dy.row(2) *= T(1e-3);
    x.dy *= of_dy;
    x.saved.values.exponent = 3;
    const GradientScaling<T> scaling = x.scaling();
    CHECK(scaling.U() == x.saved.values.U);
    CHECK(scaling.value_scale() == 1);
    CHECK(scaling.dy_scale() == scale_above(x.dy.cwiseAbs().maxCoeff()));
    CHECK(scaling.exponent() == std::ilogb(scaling.dy_scale()) + 3);
    CHECK(scaling_error(x) <= growth<T>);
  }
}

TEMPLATE_TEST_CASE("values that were saved without a scale are divided by one", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  Rows<T> x;
  x.v() *= T(1000), x.saved.y *= T(1000);
  x.find_largest();
  const GradientScaling<T> scaling = x.scaling();
  CHECK(scaling.value_scale() == scale_above(x.saved.values.largest));
  CHECK(scaling.U().leftCols(d_v) * scaling.value_scale() == x.v());
  CHECK(scaling.U().col(d_v).isOnes(0));
  CHECK(scaling_error(x) <= growth<T>);
}

TEMPLATE_TEST_CASE("with rounding per row A' is at most 1, even if weights are small", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  Rows<T> x;
  const T small = sizeof(T) == 4 ? T(1e-15) : T(1e-150);
  x.saved.denominator *= small;
  const GradientScaling<T> global = x.scaling(), per_row = x.scaling(Rounding::per_row);
  for (Index i = 0; i < n_q; ++i) CHECK((global.exponents()[i] > 0 && per_row.A().row(i).maxCoeff() <= 1));
  CHECK(scaling_error(x, Rounding::per_row) <= growth<T>);
  // the rounding of a recomputed row is per row, even if that of the others is global
  x.saved.recomputed_rows = {2};
  const GradientScaling<T> recomputed = x.scaling();
  for (Index i = 0; i < n_q; ++i)
    CHECK(recomputed.exponents()[i] == (i == 2 ? per_row.exponents()[i] : global.exponents()[i]));
  x.saved.recomputed_rows = {};
  // where features make D small, G is the same as with global rounding
  const T smaller = small / 1000;
  x.saved.A *= smaller;
  CHECK(x.scaling(Rounding::per_row).G() == x.scaling().G());
  // and where D is smaller than any sound one, G is far from overflow
  x.saved.A /= smaller;
  x.saved.denominator *= small;
  CHECK(scaling_error(x, Rounding::per_row) <= growth<T>);
}

TEMPLATE_TEST_CASE("scales depend only on rows with a finite gradient and on the values that they attend to",
                   "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const T huge = sizeof(T) == 4 ? T(1e30) : T(1e290), small = 1 / max_scale_ratio<T> / 16;
  Rows<T> x;
  // only the last row, which has no gradient, attends to the last key; the first row is empty; the second non-finite
  x.v().topRows(n_k - 1) *= small;
  x.saved.y *= small;
  x.dy.row(n_q - 1).setZero();
  x.saved.denominator[0] = 0;
  x.dy.row(0) *= huge;
  x.saved.denominator[1] = std::numeric_limits<T>::quiet_NaN();
  x.dy.row(1) *= huge;
  x.find_largest();
  const GradientScaling<T> scaling = x.scaling();
  CHECK(scaling.value_scale() == scale_above(x.v().topRows(n_k - 1).cwiseAbs().maxCoeff()));
  CHECK(scaling.exponent() == std::ilogb(scaling.dy_scale()) + std::ilogb(scaling.value_scale()));
  CHECK(scaling.dy_scale() == scale_above(x.dy.middleRows(2, n_q - 3).cwiseAbs().maxCoeff()));
  CHECK(scaling.U().row(n_k - 1).head(d_v).isZero(0));
  CHECK(scaling.U().topLeftCorner(n_k - 1, d_v) * scaling.value_scale() == x.v().topRows(n_k - 1));
  CHECK(scaling.U().col(d_v).isOnes(0));
  CHECK((scaling.is_finite(0) && !scaling.is_finite(1) && scaling.is_finite(2) && scaling.is_finite(n_q - 1)));
  CHECK((scaling.A().row(1).isZero(0) && scaling.A().row(n_q - 1).isZero(0)));
  // if it was recomputed in double, the first row has a gradient
  x.saved.recomputed_rows = {0};
  const GradientScaling<T> recomputed = x.scaling();
  CHECK(recomputed.dy_scale() == scale_above(x.dy.row(0).cwiseAbs().maxCoeff()));
  CHECK(recomputed.exponents()[0] == 0);
  CHECK(recomputed.A().row(0) == x.saved.A.row(0));
  CHECK(recomputed.G().row(0).isZero(0));
  x.saved.recomputed_rows = {};
  // non-finite entries change neither the other entries nor their scales
  x.saved.y(2, 1) = std::numeric_limits<T>::quiet_NaN();
  x.dy(3, 1) = std::numeric_limits<T>::infinity();
  const GradientScaling<T> non_finite = x.scaling();
  CHECK((!non_finite.is_finite(2) && !non_finite.is_finite(3) && non_finite.is_finite(4)));
  CHECK(std::isnan(non_finite.G()(2, d_v)));
  const T ratio = std::ldexp(T(1), non_finite.exponents()[2] - scaling.exponents()[2]);
  CHECK(non_finite.A().row(2) / ratio == scaling.A().row(2));
  CHECK(non_finite.G().row(2).head(d_v) * ratio == scaling.G().row(2).head(d_v));
  CHECK((std::isfinite(non_finite.G()(3, 0)) && std::isinf(non_finite.G()(3, 1)) &&
         !std::isfinite(non_finite.G()(3, d_v))));
  CHECK((non_finite.A().row(3).allFinite() && !non_finite.A().row(3).isZero(0)));
  for (const Index i : {2, 3}) CHECK((std::isfinite(non_finite.sizes()[i]) && non_finite.sizes()[i] > 0));
  x.dy(3, 0) = 1000;
  CHECK(x.scaling().dy_scale() >= 1000);
  // values that only a non-finite row attends to do not enter its size
  x.dy.row(n_q - 1).setOnes();
  x.saved.y(n_q - 1, 0) = std::numeric_limits<T>::quiet_NaN();
  CHECK(x.scaling().value_scale() == scaling.value_scale());
  CHECK(x.scaling().sizes()[n_q - 1] <= 2 * d_v);
  // without gradients the scale is 1
  x.dy.setZero();
  CHECK(x.scaling().dy_scale() == 1);
}

}  // namespace nprf::test::attention_scaling_gradient_scaling
