// SPDX-License-Identifier: MIT
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/device_case.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

/// Calls do not affect other calls, are bitwise reproducible, and leave the device usable after an error.
namespace nprf::test::cuda_calls {

namespace {

auto attention(float spread = 1) {
  return Attention(orf<float>(16, 32, 7), RelativePosition<float>(Vector<float>::LinSpaced(41, -spread, 0)));
}

constexpr double tolerance = 20 * static_cast<double>(std::numeric_limits<float>::epsilon());

}  // namespace

TEST_CASE("results are bitwise reproducible, whatever the workspace contains", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = 200, .n_k = 130, .d_v = 9}, {.engine = engine, .owns_workspace = false}, 16};
    const auto plan = x.plan(attention());
    INFO(name(engine));
    Matrix<float> first;
    // byte patterns of 0, NaN, NaN and 0.747
    for (const unsigned char byte : std::vector<unsigned char>{0, 0xff, 0xff, 0x3f}) {
      const DeviceArray<unsigned char> memory(std::vector<unsigned char>(plan->workspace_bytes(), byte));
      const Matrix<float> y = x.result(*plan, {.workspace = memory.data()});
      if (first.size() == 0) first = y;
      CHECK(same_bits(y, first));
    }
    CHECK(first.allFinite());
  }
}

TEST_CASE("a workspace that calls allocate in their stream gives the same bits", "[cuda]") {
  const Stream streams[2];
  const Matrix<float> dy = normal<float>(200, 9, 9);
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase owning{{.n_q = 200, .n_k = 130, .d_v = 9}, {.engine = engine, .gradients = true}, 16};
    PlanCase x = owning;
    x.options.stream_ordered = true;
    const auto expected = owning.plan(attention(20)), plan = x.plan(attention(20));
    const DeviceCase<float> on_device(x), other(x);
    cuda::Counts counts{}, expected_counts{};
    const Matrix<float> y = owning.result(*expected, {}, &expected_counts);
    INFO(name(engine));
    on_device.queue(*plan, streams[0]);
    other.queue(*plan, streams[1]);
    CHECK((same_bits(on_device.y(streams[0]), y) && same_bits(other.y(streams[1]), y)));
    CHECK(same_bits(x.result(*plan, {}, &counts), y));
    CHECK((counts.repaired_rows == expected_counts.repaired_rows && counts.empty_rows == 0));
    const Gradients<float> got = gradients_of(x, *plan, dy), g = gradients_of(owning, *expected, dy);
    CHECK((same_bits(got.queries, g.queries) && same_bits(got.keys, g.keys) && same_bits(got.values, g.values)));
    const DeviceArray<unsigned char> memory(plan->workspace_bytes());
    CHECK(same_bits(x.result(*plan, {.workspace = memory.data()}), y));
  }
}

TEST_CASE("two plans can run concurrently in two streams", "[cuda]") {
  const Stream streams[2];
  for (std::size_t e = 0; e < cuda_engines.size(); ++e) {
    const cuda::Engine a = cuda_engines[e], b = cuda_engines[(e + 1) % cuda_engines.size()];
    const PlanCase x{{.n_q = 200, .n_k = 200, .d_v = 9}, {.engine = a}, 16},
        other{{.n_q = 150, .n_k = 170, .d_v = 6}, {.engine = b}, 16};
    const auto plan = x.plan(attention()), other_plan = other.plan(attention());
    const Matrix<float> alone = x.result(*plan), other_alone = other.result(*other_plan);
    const DeviceCase<float> on_device(x), other_on_device(other);
    for (int repeat = 0; repeat < 2; ++repeat) {
      on_device.queue(*plan, streams[0]);
      other_on_device.queue(*other_plan, streams[1]);
    }
    INFO(name(a) << " and " << name(b));
    CHECK(same_bits(on_device.y(streams[0]), alone));
    CHECK(same_bits(other_on_device.y(streams[1]), other_alone));
  }
}

TEST_CASE("a plan keeps its shared memory limit after a plan with fewer channels is made", "[cuda]") {
  const PlanCase wide{{.n_q = 70, .n_k = 70, .d_v = 5}, {}, 256}, narrow{{.n_q = 70, .n_k = 70, .d_v = 5}, {}, 200};
  const auto attention_of = [](Index d) { return Attention(orf<float>(d, 8, 7), NoPosition<float>()); };
  const auto plan = wide.plan(attention_of(256)), other = narrow.plan(attention_of(200));
  CHECK(wide.error(attention_of(256), *plan) <= tolerance);
  CHECK(narrow.error(attention_of(200), *other) <= tolerance);
}

TEST_CASE("direct and banded engines are exact for steep biases", "[cuda]") {
  for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded})
    for (const float spread : {20.0f, 60.0f}) {
      const PlanCase x{{.n_q = 300, .n_k = 300, .d_v = 64}, {.engine = engine}, 16};
      INFO(name(engine) << ", range of biases " << spread);
      CHECK(x.error(attention(spread)) <= tolerance);
    }
}

TEST_CASE("a failed allocation leaves the device usable", "[cuda]") {
  const PlanCase x{{.n_q = 300, .n_k = 300, .d_v = 5}, {}, 16};
  const auto plan = x.plan(attention());
  const Matrix<float> before = x.result(*plan);
  std::string message = "no error";
  try {
    // requests a tebibyte of features
    const cuda::PlanShape absurd{.heads = 1 << 12, .n_q = 1 << 20, .n_k = 1 << 20, .d_v = 5};
    cuda::AttentionPlan<float>(cuda::model_of(attention()), absurd, {.engine = cuda::Engine::direct});
  } catch (const BackendError& error) {
    message = error.what();
  }
  CHECK(message.starts_with("CUDA: allocating "));
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(same_bits(x.result(*plan), before));
}

}  // namespace nprf::test::cuda_calls
