// SPDX-License-Identifier: MIT
#include "nprf/decoder/window_kernels.hpp"

#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::decoder_window_kernels {

TEST_CASE("window kernels: blocks cover the keys that have a weight", "[decoder]") {
  using T = float;
  const StepBias<T> bias(RelativePosition<T>(random_table<T>(200, 3)).bias().view(), 0, 0, false);
  const WindowKernels<T> kernels(16, bias, 150);
  CHECK(kernels.first_token({64, 16}) == 0);
  CHECK(kernels.blocks({64, 16}) == 1);  // 48 tokens
  CHECK(kernels.blocks({80, 16}) == 2);
  CHECK(kernels.first_token({320, 16}) == 171);
  CHECK(kernels.blocks({320, 16}) == 3);  // tokens 171 to 303
}

}  // namespace nprf::test::decoder_window_kernels
