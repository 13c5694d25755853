// SPDX-License-Identifier: MIT
#include "nprf/attention/scaling/key_log_scales.hpp"

#include <cmath>
#include <limits>

#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"

namespace nprf::test::attention_scaling_key_log_scales {

constexpr double none = -std::numeric_limits<double>::infinity();

TEST_CASE("log-scales times rows are the features of keys; a map without factors has none", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  const Matrix<double> x = 3 * normal<double>(7, 4, 1);
  const PositiveFeatures<double> positive = orf<double>(4, 6, 2);
  const FeatureMapView<double> features(positive);
  Matrix<double> B(7, 6);
  const double* log_scales = scaled_key_features<double>(features, x, {}, B, team);
  REQUIRE(log_scales != nullptr);
  const Matrix<double> expected = positive.keys(x);  // up to one common factor
  for (Index j = 0; j < 7; ++j) {
    CHECK((B.row(j).maxCoeff() <= 1 + 8 * epsilon<double> && B.row(j).maxCoeff() > 0.1));
    // both relative to key 0; exponents are a few times the rows' length
    const double factor = std::exp(log_scales[j] - log_scales[0]) * expected(0, 0) / B(0, 0);
    CHECK((factor * B.row(j)).isApprox(expected.row(j), 256 * epsilon<double>));
  }
  const EluFeatures<double> elu(4);
  Matrix<double> C(7, 4);
  CHECK(scaled_key_features<double>(FeatureMapView<double>(elu), x, {}, C, team) == nullptr);
  CHECK(C == elu.keys(x));
}

TEST_CASE("close log-scales are merged into the rows, far ones are not", "[attention]") {
  Workspace workspace;
  const Team team(workspace);
  Matrix<double> B = normal<double>(3, 2, 1), before = B;
  double close[] = {1, none, 199};
  B.row(1).setZero(), before.row(1).setZero();
  CHECK(merge_close_log_scales<double>(B, close, team) == nullptr);
  CHECK((B.row(0) == std::exp(-198.0) * before.row(0) && B.row(1).isZero(0) && B.row(2) == before.row(2)));
  B = before;
  double far[] = {1, none, 202};
  CHECK(merge_close_log_scales<double>(B, far, team) == far);
  CHECK(B == before);
  CHECK(merge_close_log_scales<double>(B, nullptr, team) == nullptr);
  const auto scaled = with_log_scales<double>(B, far, team);
  CHECK((scaled.row(0) == std::exp(-201.0) * before.row(0) && scaled.row(2) == before.row(2) && B == before));
}

}  // namespace nprf::test::attention_scaling_key_log_scales
