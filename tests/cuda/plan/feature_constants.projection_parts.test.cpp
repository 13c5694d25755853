// SPDX-License-Identifier: MIT
#include "nprf/cuda/plan/feature_constants.cuh"

#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/tensor_cores.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_plan_projection_parts {

namespace {

using cuda::FeatureKind, cuda::ProjectionParts;

cuda::FeatureModel map(FeatureKind kind, int d, int m) { return {kind, d, m, stored<float>(normal<float>(m, d, 1))}; }

ProjectionParts of(const std::vector<cuda::FeatureModel>& maps) {
  return ProjectionParts::of<__nv_bfloat16>(maps, cuda::Device::current(), nullptr);
}
bool exists(const ProjectionParts& parts) { return parts.fragments<__nv_bfloat16>().values != nullptr; }

}  // namespace

TEST_CASE("only projections in whole groups have parts, for one type of tokens", "[cuda]") {
  if (!can_multiply<__nv_bfloat16>()) return;
  CHECK(exists(of({map(FeatureKind::positive, 32, 5)})));
  CHECK_FALSE(exists(of({map(FeatureKind::positive, 24, 5)})));
  CHECK(exists(of({map(FeatureKind::hyperbolic, 32, 8)})));
  CHECK_FALSE(exists(of({map(FeatureKind::hyperbolic, 32, 12)})));
  CHECK_FALSE(exists(of({map(FeatureKind::trigonometric, 32, 12)})));
  CHECK_FALSE(exists(of({map(FeatureKind::elu, 32, 0)})));
  cuda::FeatureModel centred = map(FeatureKind::positive, 32, 8);
  centred.centring.query_axes.assign(32 * 32, 1.0f);
  CHECK_FALSE(exists(of({centred})));
  const ProjectionParts parts = of({map(FeatureKind::positive, 32, 5)});
  CHECK(parts.fragments<__half>().values == nullptr);
  CHECK(parts.fragments<float>().values == nullptr);
}

TEST_CASE("devices without the instruction have no parts", "[cuda]") {
  cuda::Device old = cuda::Device::current();
  old.capability = 75;
  const std::vector<cuda::FeatureModel> maps{map(FeatureKind::positive, 32, 5)};
  CHECK_FALSE(exists(ProjectionParts::of<__nv_bfloat16>(maps, old, nullptr)));
  CHECK((ProjectionParts::of<__half>(maps, old, nullptr).fragments<__half>().values != nullptr) ==
        can_multiply<__half, cuda::MmaShape::m16n8k8>());
  old.capability = 70;
  CHECK(ProjectionParts::of<__half>(maps, old, nullptr).fragments<__half>().values == nullptr);
}

TEST_CASE("parts of several maps have one unit", "[cuda]") {
  if (!can_multiply<__nv_bfloat16>()) return;
  cuda::FeatureModel first = map(FeatureKind::positive, 16, 5), second = map(FeatureKind::positive, 16, 5);
  for (float& entry : second.projection) entry *= -1000;
  const ProjectionParts both = of({first, second});
  const cuda::ProjectionFragments got = both.fragments<__nv_bfloat16>();
  CHECK(got.stride == cuda::ProjectionFragments::size(5, 16));
  CHECK(got.unit == of({second}).fragments<__nv_bfloat16>().unit);
  CHECK(of({first}).fragments<__nv_bfloat16>().stride == 0);
}

}  // namespace nprf::test::cuda_plan_projection_parts
