// SPDX-License-Identifier: MIT
#include "nprf/cuda/plan/feature_constants.cuh"

#include <cmath>

#include "cuda/device_array.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_plan_half_features {

namespace {

using cuda::FarKeys;
using cuda::FeatureKind;

// a map with these projections (m,d)
cuda::AttentionModel model_of(FeatureKind kind, const Matrix<float>& w, double radius = 1) {
  cuda::AttentionModel model;
  model.radius = radius;
  model.features = {{kind, static_cast<int>(w.cols()), static_cast<int>(w.rows()), stored<float>(w)}};
  model.positions = {{}};
  return model;
}
Matrix<float> one_row(float length) { return Matrix<float>{{length, 0, 0}}; }

bool fit(const cuda::AttentionModel& model, FarKeys far_keys = FarKeys::in_tiles) {
  return cuda::features_fit_half(model, far_keys);
}

}  // namespace

TEST_CASE("the sizes of projections are the largest over rows and heads", "[cuda]") {
  cuda::AttentionModel model = model_of(FeatureKind::positive, Matrix<float>{{3, 4}, {1, 0}});
  // the mean is (2,2): both rows are sqrt(5) from it
  CHECK(cuda::projection_sizes(model).longest == 5);
  CHECK(std::abs(cuda::projection_sizes(model).from_mean - (std::sqrt(5.0) + std::sqrt(8.0))) <= 1e-12);
  model.features.push_back(model_of(FeatureKind::positive, Matrix<float>{{0, 8}, {0, -8}}).features.front());
  CHECK(cuda::projection_sizes(model).longest == 8);
  CHECK(cuda::projection_sizes(model).from_mean == 8);
  model = model_of(FeatureKind::hyperbolic, Matrix<float>{{3, 4}, {1, 0}});
  CHECK(cuda::projection_sizes(model).from_mean == 5);
  model = model_of(FeatureKind::elu, Matrix<float>(0, 2));
  CHECK(cuda::projection_sizes(model).longest == 0);
}

TEST_CASE("products of exponential features are not below their bound", "[cuda]") {
  for (const double radius : {0.5, 1.0, 2.0})
    for (const bool both_signs : {false, true}) {
      const Matrix<float> w = normal<float>(12, 5, 3);
      const auto [longest, from_mean] =
          cuda::projection_sizes(model_of(both_signs ? FeatureKind::hyperbolic : FeatureKind::positive, w));
      Matrix<double> all(both_signs ? 24 : 12, 5);
      all.topRows(12) = w.cast<double>();
      if (both_signs) all.bottomRows(12) = -all.topRows(12);
      // random rows, and those that are parallel to a projection, in both directions
      Matrix<double> x(200 + 2 * all.rows(), 5);
      x << normal<double>(200, 5, 4), all, -all;
      x.rowwise().normalize();
      x *= radius;
      const Matrix<double> e = x * all.transpose();
      const Matrix<double> A = (e.colwise() - e.rowwise().maxCoeff()).array().exp(),
                           B = (e.array() - radius * longest).exp();
      const double bound = static_cast<double>(all.rows()) * std::exp(-radius * (from_mean + longest));
      INFO("radius " << radius << (both_signs ? ", hyperbolic" : ""));
      CHECK(A.maxCoeff() <= 1);
      CHECK(B.maxCoeff() <= 1 + 1e-6);
      CHECK((A * B.transpose()).minCoeff() >= (1 - 1e-12) * bound);
    }
}

TEST_CASE("features fit half if rows have one norm and projections are not too long", "[cuda]") {
  // one row is its own mean, so that the exponent is 2 |w| R
  CHECK(fit(model_of(FeatureKind::positive, one_row(10.4f))));
  CHECK(!fit(model_of(FeatureKind::positive, one_row(10.6f))));
  CHECK(fit(model_of(FeatureKind::positive, one_row(10.4f / 2), 2)));
  CHECK(!fit(model_of(FeatureKind::positive, one_row(10.6f / 2), 2)));
  CHECK(fit(model_of(FeatureKind::hyperbolic, one_row(10.4f))));
  CHECK(!fit(model_of(FeatureKind::hyperbolic, one_row(10.6f))));
  CHECK(!fit(model_of(FeatureKind::positive, one_row(1), 0)));  // rows are not normalised
  CHECK(!fit(model_of(FeatureKind::positive, one_row(1), 3)));  // a key of norm 0 has features exp(9/2 - 3)

  CHECK(fit(model_of(FeatureKind::trigonometric, one_row(30))));
  CHECK(!fit(model_of(FeatureKind::trigonometric, one_row(30), 0)));
  CHECK(fit(model_of(FeatureKind::elu, Matrix<float>(0, 3))));
  CHECK(!fit(model_of(FeatureKind::elu, Matrix<float>(0, 3), 3)));
  CHECK(!fit(model_of(FeatureKind::quadratic, Matrix<float>(0, 3))));
  cuda::AttentionModel centred = model_of(FeatureKind::positive, one_row(1));
  centred.features[0].centring.query_axes.assign(9, 0);
  CHECK(!fit(centred));
}

TEST_CASE("states of weights that fall with the distance need a smaller range", "[cuda]") {
  cuda::AttentionModel model = model_of(FeatureKind::positive, one_row(9));
  CHECK(fit(model, FarKeys::in_states));
  model.positions[0].linear = true;
  model.positions[0].parameters = {0.1f};
  CHECK(fit(model, FarKeys::in_tiles));
  CHECK(!fit(model, FarKeys::in_states));
  model.features = model_of(FeatureKind::positive, one_row(7.9f)).features;
  CHECK(fit(model, FarKeys::in_states));
}

}  // namespace nprf::test::cuda_plan_half_features
