// SPDX-License-Identifier: MIT
#include <string>

#include "cuda/device_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

/// Errors that the device reports. The device stays usable after them.
namespace nprf::test::cuda_device_errors {

namespace {

template <int>
__global__ void nothing_kernel() {}

auto attention() { return Attention(orf<float>(16, 32, 7), RelativePosition<float>(normal_vector<float>(41, 5))); }

}  // namespace

TEST_CASE("a refused launch leaves the device usable", "[cuda]") {
  const PlanCase x{{.n_q = 300, .n_k = 300, .d_v = 5}, {}, 16};
  const auto plan = x.plan(attention());
  const Matrix<float> before = x.result(*plan);
  const auto refused = [](dim3 block, std::size_t shared) {
    return backend_error([&] { cuda::launch("test", nothing_kernel<0>, dim3{1, 1, 1}, block, shared, nullptr); });
  };
  CHECK(refused(dim3{2048, 1, 1}, 0).starts_with("CUDA: test: "));
  CHECK(refused(dim3{32, 1, 1}, std::size_t{1} << 20).starts_with("CUDA: "));
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(same_bits(x.result(*plan), before));
}

TEST_CASE("calls on another device or with its streams are refused", "[cuda]") {
  int devices = 0;
  cuda::check(cudaGetDeviceCount(&devices), "counting devices");
  if (devices < 2) {
    WARN("skipped: one CUDA device");
    return;
  }
  const PlanCase x{{.n_q = 70, .n_k = 70, .d_v = 5}, {}, 16};
  const auto plan = x.plan(attention());
  const Matrix<float> before = x.result(*plan);
  const DeviceCase<float> on_device(x);
  cuda::check(cudaSetDevice(1), "choosing");
  const Stream other;
  check_invalid([&] { on_device.queue(*plan, other); },
                {"device: expected 0, the current device at construction, got 1"});
  cuda::check(cudaSetDevice(0), "choosing");
  CHECK(backend_error([&] { on_device.queue(*plan, other); }).starts_with("CUDA: "));
  CHECK(same_bits(x.result(*plan), before));
}

}  // namespace nprf::test::cuda_device_errors
