// SPDX-License-Identifier: MIT
#include "nprf/feature_map/feature_map_view.hpp"

#include <limits>
#include <type_traits>

#include "nprf/core/pack.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::feature_map_feature_map_view {

namespace {

constexpr Index n = 150, d = 3;

// a user's own map that returns matrices
struct Powers {
  using Scalar = double;
  Index input_dim() const { return d; }
  int output_dim() const { return 2 * d; }
  Matrix<double> queries(const MatrixView<double>& x) const {
    Matrix<double> phi(x.rows(), 2 * d);
    phi << x.array().square(), x.array().square().square();
    return phi;
  }
  Matrix<double> keys(const MatrixView<double>& x) const { return 3 * queries(x); }
  Matrix<double> backward(const MatrixView<double>& x, const MatrixView<double>& phi,
                          const MatrixView<double>& dphi) const {
    return x + phi.leftCols(d) + dphi.rightCols(d);
  }
};

// a map that writes its queries into the caller's storage and returns its keys
struct InPlaceQueries : Powers {
  static constexpr bool estimates_exp = false;
  static constexpr bool is_positive = true;
  using Powers::queries;
  void queries(const MatrixView<double>& x, RowScale<double> scale, MatrixRef<double> phi, const Team&) const {
    phi.setConstant(x(0, 0) * scale[0]);
  }
};

// one column too many
struct Wide : Powers {
  Matrix<double> queries(const MatrixView<double>& x) const { return Matrix<double>::Zero(x.rows(), 2 * d + 1); }
};
// one row too few
struct Short : Powers {
  Matrix<double> keys(const MatrixView<double>& x) const { return Matrix<double>::Zero(x.rows() - 1, 2 * d); }
};
struct WrongShape : Powers {
  Matrix<double> backward(const MatrixView<double>& x, const MatrixView<double>&, const MatrixView<double>&) const {
    return x.transpose();
  }
};

struct Data {
  Matrix<double> x = normal<double>(n, d, 1), xs = x;
  Vector<double> scale = normal_vector<double>(n, 2).cwiseAbs();
  Workspace workspace;
  Team team{workspace};

  Data() { xs = scale.asDiagonal() * x; }
  RowScale<double> factors() const { return {scale.data(), static_cast<std::size_t>(scale.size())}; }
};

static_assert(std::is_trivially_copyable_v<FeatureMapView<float>>);
static_assert(std::is_convertible_v<const Powers&, FeatureMapView<double>>);
static_assert(!std::is_convertible_v<const Powers&, FeatureMapView<float>>, "another scalar");
static_assert(!std::is_constructible_v<FeatureMapView<double>, int>);

}  // namespace

TEMPLATE_TEST_CASE("a view of a feature map gives the results of the map", "[feature_map]", PositiveFeatures<double>,
                   HyperbolicFeatures<double>, TrigonometricFeatures<double>, EluFeatures<double>) {
  const auto map = [] {
    if constexpr (std::is_same_v<TestType, EluFeatures<double>>)
      return TestType(d);
    else
      return TestType({.input_dim = d, .num_features = 5, .seed = 7});
  }();
  const FeatureMapView<double> view = map;
  CHECK(view.input_dim() == map.input_dim());
  CHECK(view.output_dim() == map.output_dim());
  CHECK(view.estimates_exp() == estimates_exp<TestType>());
  CHECK(view.is_positive() == is_positive<TestType>());

  // the compiler may use fused multiply-adds in other places
  const auto error = [](const Matrix<double>& got, const Matrix<double>& same) {
    return worst_ratio(got, same, 64 * epsilon<double> * same.cwiseAbs().maxCoeff());
  };
  const Data data;
  const Index r = map.output_dim();
  Matrix<double> phi(n, r), expected(n, r), dx(n, d), expected_dx(n, d);
  view.queries(data.x, data.factors(), phi, data.team);
  map.queries(data.x, data.factors(), expected, data.team);
  CHECK(error(phi, expected) <= 1);
  view.keys(data.x, data.factors(), phi, data.team);
  map.keys(data.x, data.factors(), expected, data.team);
  CHECK(error(phi, expected) <= 1);
  REQUIRE(view.has_log_factors() == !std::is_same_v<TestType, EluFeatures<double>>);
  if constexpr (!std::is_same_v<TestType, EluFeatures<double>>) {
    Vector<double> log_factor(n), expected_log_factor;
    view.with_log_factors(data.x, data.factors(), phi, log_factor.data(), data.team);
    CHECK(error(phi, map.queries(data.x, data.factors(), &expected_log_factor)) <= 1);
    CHECK(error(log_factor, expected_log_factor) <= 1);
  }
  const Matrix<double> dphi = normal<double>(n, r, 3);
  view.backward(data.xs, phi, dphi, dx, data.team);
  map.backward(data.xs, phi, dphi, expected_dx, data.team);
  CHECK(error(dx, expected_dx) <= 1);
}

TEST_CASE("a view passes scaled rows to a map that returns matrices", "[feature_map]") {
  const Powers map;
  const FeatureMapView<double> view = map;
  CHECK(view.input_dim() == d);
  CHECK(view.output_dim() == 2 * d);
  CHECK(view.estimates_exp());
  CHECK(!view.is_positive());
  CHECK(!view.has_log_factors());

  const Data data;
  Matrix<double> all = Matrix<double>::Constant(n + 2, 2 * d + 3, 5);
  auto phi = all.block(1, 2, n, 2 * d);
  view.queries(data.x, data.factors(), phi, data.team);
  CHECK(same_bits<double>(phi, map.queries(data.xs)));
  view.keys(data.x, data.factors(), phi, data.team);
  CHECK(same_bits<double>(phi, map.keys(data.xs)));
  view.keys(data.x, {}, phi, data.team);
  CHECK(same_bits<double>(phi, map.keys(data.x)));
  const Matrix<double> dphi = normal<double>(n, 2 * d, 3);
  Matrix<double> dx(n, d);
  view.backward(data.xs, phi, dphi, dx, data.team);
  CHECK(same_bits(dx, map.backward(data.xs, phi, dphi)));
  phi.setConstant(5);
  CHECK((all.array() == 5).all());
}

TEST_CASE("a map may write queries in place and return keys", "[feature_map]") {
  const InPlaceQueries map;
  const FeatureMapView<double> view = map;
  CHECK(!view.estimates_exp());
  CHECK(view.is_positive());
  const Data data;
  Matrix<double> phi(n, 2 * d);
  view.queries(data.x, data.factors(), phi, data.team);
  CHECK((phi.array() == data.x(0, 0) * data.scale[0]).all());
  view.keys(data.x, data.factors(), phi, data.team);
  CHECK(same_bits(phi, map.keys(data.xs)));
}

TEST_CASE("features of a row that is not finite are NaN, also those that do not depend on it", "[feature_map]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  Data data;
  data.x(3, 1) = nan, data.x(140, 2) = infinity, data.x(149, 0) = -infinity;
  const auto check = [&](const auto& map) {
    const FeatureMapView<double> view = map;
    Matrix<double> phi(n, map.output_dim());
    Vector<double> log_factors(n);
    const auto check_rows = [&](const auto& features) {
      phi.setZero();
      features();
      Index wrong = 0;
      for (Index i = 0; i < n; ++i)
        wrong += all_finite(data.x.row(i).data(), d) ? !phi.row(i).allFinite() : !phi.row(i).array().isNaN().all();
      CHECK(wrong == 0);
    };
    check_rows([&] { view.queries(data.x, data.factors(), phi, data.team); });
    check_rows([&] { view.keys(data.x, data.factors(), phi, data.team); });
    if (!view.has_log_factors()) return;
    check_rows([&] { view.with_log_factors(data.x, data.factors(), phi, log_factors.data(), data.team); });
    check_rows([&] { view.keys_with_log_factors(data.x, data.factors(), phi, log_factors.data(), data.team); });
  };
  check(Powers());
  check(EluFeatures<double>(d));
  check(orf<double>(d, 5, 7));
  check(QuadraticFeatures<double>(d, {}));  // one feature, a constant
}

TEST_CASE("a view of a feature map releases its scratch memory", "[feature_map]") {
  Data data;
  const Powers map;
  Matrix<double> phi(n, 2 * d);
  const auto next = [&] {
    const Workspace::Scope scope(data.workspace);
    return data.workspace.take<double>(1);
  };
  const double* before = next();
  FeatureMapView<double>(map).queries(data.x, data.factors(), phi, data.team);
  CHECK(next() == before);
}

TEST_CASE("a view rejects matrices of wrong shapes returned by a map", "[feature_map]") {
  const Data data;
  Matrix<double> phi(n, 2 * d), dx(n, d);
  const Wide wide;
  const Short short_of_one;
  const WrongShape wrong_shape;
  check_invalid([&] { FeatureMapView<double>(wide).queries(data.x, data.factors(), phi, data.team); },
                {"feature map: expected to return 150 x 6", "got 150 x 7"});
  check_invalid([&] { FeatureMapView<double>(short_of_one).keys(data.x, data.factors(), phi, data.team); },
                {"feature map: expected to return 150 x 6", "got 149 x 6"});
  check_invalid([&] { FeatureMapView<double>(wrong_shape).backward(data.x, phi, phi, dx, data.team); },
                {"feature map: expected to return 150 x 3", "got 3 x 150"});
}

}  // namespace nprf::test::feature_map_feature_map_view
