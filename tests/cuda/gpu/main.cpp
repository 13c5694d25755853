// SPDX-License-Identifier: MIT
//
// The main function of the tests on a GPU. Without a device it prints that and returns 77, which ctest reports as
// skipped.
#define CATCH_CONFIG_RUNNER
#include <algorithm>
#include <cstdio>
#include <string_view>

#include "nprf/cuda/device/runtime.hpp"
#include "support/catch.hpp"

int main(int argc, char** argv) {
  const bool lists = std::any_of(argv, argv + argc, [](std::string_view x) { return x.starts_with("--list"); });
  try {
    if (!lists) nprf::cuda::Device::current();
  } catch (const nprf::BackendError& error) {
    std::printf("skipped: no CUDA device (%s)\n", error.what());
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
