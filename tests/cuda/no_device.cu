// SPDX-License-Identifier: MIT
//
// A program that includes all of nprf, where there is no device: BackendError says so.
#include <cstdio>
#include <string_view>

#include "nprf/cuda.hpp"
#include "nprf/nprf.hpp"

int main() {
  using namespace nprf;
  const Attention attention(orf<float>(64, 32, 7), AlibiPosition<float>(0.1f));
  int devices = 0;
  const bool none = cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
  try {
    const cuda::AttentionPlan<float> plan(cuda::model_of(attention), {.n_q = 1024, .n_k = 1024, .d_v = 64});
    std::printf("a plan with %zu bytes of workspace\n", plan.workspace_bytes());
    return none;
  } catch (const BackendError& error) {
    std::printf("%s\n", error.what());
    return !none || !std::string_view(error.what()).starts_with("CUDA: looking for a device: ");
  }
}
