// SPDX-License-Identifier: MIT
//
// The rows of steps are those of the formula, for all positions, with features of both signs.
#include "nprf/decoder/decoder.hpp"
#include "decoder/check_steps.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "support/catch.hpp"

namespace nprf::test::decoder_decoder_signed {

using namespace decoder_steps;

namespace {

template <Real T>
Centred<TaylorFeatures<T>> centred() {
  return {TaylorFeatures<T>({.input_dim = d, .directions = 3}), centring<T>(d)};
}

}  // namespace

TEMPLATE_TEST_CASE("steps: features of both signs", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(trf<T>(d, 200, 3), {.normalization = Normalization::unit(0.5)});
}

TEMPLATE_TEST_CASE("steps: series", "[decoder]", NPRF_TEST_SCALARS) {
  using T = TestType;
  check_positions(TaylorFeatures<T>({.input_dim = d, .directions = 2}), {}, 3);
  check_positions(centred<T>(), {.near = 33}, 20);
  check_positions(centred<T>(), {.near = 1}, 20);
}

}  // namespace nprf::test::decoder_decoder_signed
