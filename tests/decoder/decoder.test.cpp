// SPDX-License-Identifier: MIT
//
// The rows of steps are those of the formula, for all positions, with positive features.
#include "nprf/decoder/decoder.hpp"

#include "decoder/check_steps.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"

namespace nprf::test::decoder_decoder {

using namespace decoder_steps;

TEMPLATE_TEST_CASE("steps: positive features", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(orf<T>(d, 12, 3));
  check_positions(orf<T>(d, 12, 3), {.normalization = Normalization::none()});
  check_positions(sphere_prf<T>(d, 8, 3));
  check_positions(HyperbolicFeatures<T>({.input_dim = d, .num_features = 9}), {.near = 7});
}

TEMPLATE_TEST_CASE("steps: attention sinks", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(orf<T>(d, 12, 3), {.sinks = 1});
  check_positions(orf<T>(d, 12, 3), {.normalization = Normalization::none(), .near = 7, .sinks = 4});
  check_positions(orf<T>(d, 12, 3), {.near = 2, .sinks = 100});
}

TEMPLATE_TEST_CASE("steps: features of another kernel", "[decoder]", NPRF_TEST_SCALARS) {
  check_positions(EluFeatures<TestType>(d));
}

}  // namespace nprf::test::decoder_decoder
