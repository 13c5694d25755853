// SPDX-License-Identifier: MIT
#include "cuda/stand_in/machine.hpp"

#include <limits>
#include <string>
#include <vector>

#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/cuda/toeplitz/fft/shared_memory_fft.cuh"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

/// Situations that a GPU cannot produce: missing devices, too little memory, other orders of threads.
namespace nprf::test::cuda_stand_in_machine {

namespace {

using stand_in::Settings;

// changes the settings, and restores them at the end of the scope
struct ScopedSettings {
  template <class F>
  explicit ScopedSettings(F&& change) {
    change(stand_in::settings());
  }
  ScopedSettings(const ScopedSettings&) = delete;
  ~ScopedSettings() { stand_in::settings() = before; }

  Settings before = stand_in::settings();
};

auto attention() {
  return Attention(orf<float>(6, 16, 7), RelativePosition<float>(Vector<float>::LinSpaced(41, -1, 1)));
}

cuda::PlanShape shape(Index n) { return {.n_q = n, .n_k = n, .d_v = 5}; }

}  // namespace

TEST_CASE("errors for missing devices, old devices and too little memory are reported, and free all memory", "[cuda]") {
  const auto make = [] { cuda::AttentionPlan<float>(cuda::model_of(attention()), shape(70)); };
  const stand_in::Counts before = stand_in::counts();
  {
    const ScopedSettings scoped([](Settings& s) { s.devices = 0; });
    CHECK(backend_error(make) == "CUDA: looking for a device: no CUDA-capable device is detected (cudaErrorNoDevice)");
  }
  {
    const ScopedSettings scoped([](Settings& s) { s.capability = 61; });
    CHECK(backend_error(make) == "CUDA: expected a device of compute capability 7.0 (Volta) or newer, got 6.1");
  }
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{2000}, std::size_t{12000}}) {
    const ScopedSettings scoped([bytes](Settings& s) { s.memory_bytes = bytes; });
    const std::string message = backend_error(make);
    INFO(message);
    CHECK((message.starts_with("CUDA: allocating ") && message.ends_with("out of memory (cudaErrorMemoryAllocation)")));
  }
  const stand_in::Counts after = stand_in::counts();
  CHECK(after.allocations - before.allocations == after.frees - before.frees);
  make();  // the device is still usable
}

TEST_CASE("another device's stream is refused", "[cuda]") {
  const ScopedSettings scoped([](Settings& s) { s.devices = 2; });
  PlanCase x{shape(70), {}, 6};
  const auto plan = x.plan(attention());
  const DeviceArray<float> q(1000);
  cuda::check(cudaSetDevice(1), "choosing");
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreate(&stream), "a stream");
  check_invalid(
      [&] {
        plan->forward({q.data(), 70, 6}, {q.data(), 70, 6}, {q.data(), 70, 5}, {q.data(), 70, 5});
      },
      {"device: expected 0, the current device at construction, got 1"});
  cuda::check(cudaSetDevice(0), "choosing");
  const std::string message = backend_error([&] {
    plan->forward({q.data(), 70, 6}, {q.data(), 70, 6}, {q.data(), 70, 5}, {q.data(), 70, 5}, stream);
  });
  CHECK(message == "CUDA: features: invalid resource handle (cudaErrorInvalidResourceHandle)");
  cuda::check(cudaStreamDestroy(stream), "a stream");
}

TEST_CASE("heads that are too wide for a device are refused", "[cuda]") {
  const ScopedSettings scoped([](Settings& s) { s.shared_bytes = 64 * 1024; });  // as on Turing
  const auto make = [](Index d) {
    PlanCase(shape(7), {}, d).result(Attention(orf<float>(d, 5, 7), NoPosition<float>()));
  };
  make(216);
  check_invalid([&] { make(256); }, {"input_dim: expected a size that fits in 65536 bytes of shared memory, got 256"});
}

TEST_CASE("devices without tensor cores for bfloat16 multiply half storage in half, or in float", "[cuda]") {
  const Attention not_normalised(orf<float>(6, 16, 7), NoPosition<float>(), {.normalization = Normalization::none()});
  for (const int capability : {70, 75})
    for (const bool program : {false, true}) {  // whether the program or the device lacks them
      const ScopedSettings scoped([&](Settings& s) {
        s.compiled_for = capability;
        if (!program) s.capability = capability;
      });
      for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
        const PlanCase x{shape(90), {.engine = engine}, 6};
        INFO(name(engine) << ", compiled for " << capability << ", device " << stand_in::settings().capability);
        // code of Volta is slow on newer devices
        const bool in_half = capability == stand_in::settings().capability || capability >= 75;
        const double error = x.error<__half>(attention());
        CHECK(error <= (in_half ? (3 * 2 + 1 + 1) * 0x1p-11 : 0x1p-11));
        CHECK(x.error<__half>(not_normalised) <= 0x1p-11 + 2e-5);  // features do not fit half
        CHECK(x.error<__nv_bfloat16>(attention()) <= 0x1p-8);
      }
    }
}

TEST_CASE("a call allocates nothing and does not synchronise", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{shape(70), {.engine = engine}, 6};
    const auto plan = x.plan(attention());
    const DeviceArray<float> q(1000), y(1000);
    const stand_in::Counts before = stand_in::counts();
    plan->forward({q.data(), 70, 6}, {q.data(), 70, 6}, {q.data(), 70, 5}, {y.data(), 70, 5});
    const stand_in::Counts after = stand_in::counts();
    INFO(name(engine));
    CHECK(after.launches > before.launches);
    CHECK((after.allocations == before.allocations && after.synchronizations == before.synchronizations &&
           after.copies == before.copies));
  }
}

TEST_CASE("a stream-ordered plan owns no workspace, and its calls free theirs", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{shape(70), {.engine = engine, .stream_ordered = true}, 6},
        owning{shape(70), {.engine = engine}, 6};
    const auto plan = x.plan(attention());
    const DeviceArray<float> q(1000), y(1000);
    const auto call = [&] {
      plan->forward({q.data(), 70, 6}, {q.data(), 70, 6}, {q.data(), 70, 5}, {y.data(), 70, 5});
    };
    const stand_in::Counts before = stand_in::counts();
    call();
    const stand_in::Counts after = stand_in::counts();
    INFO(name(engine));
    CHECK((after.stream_allocations == before.stream_allocations + 1 && after.stream_frees == before.stream_frees + 1));
    CHECK((after.allocations == before.allocations && after.synchronizations == before.synchronizations));
    {
      const ScopedSettings scoped([](Settings& s) { s.memory_bytes = 0; });
      CHECK(backend_error(call).starts_with("CUDA: allocating "));
    }
    CHECK(x.result(*plan) == owning.result(attention()));
  }
  const ScopedSettings scoped([](Settings& s) { s.memory_pools = false; });
  const PlanCase x{shape(70), {.stream_ordered = true}, 6};
  CHECK(backend_error([&] { x.plan(attention()); }) ==
        "stream_ordered: expected a device with memory pools (cudaMallocAsync), got one without");
}

TEMPLATE_TEST_CASE("results are bitwise equal for any order of a block's threads", "[cuda]", float, __half) {
  for (const cuda::Engine engine : cuda_engines) {
    const PlanCase x{{.n_q = 150, .n_k = 150, .d_v = 8}, {.engine = engine}, 6};
    const Matrix<float> first = x.result<TestType>(attention());
    for (const Settings::Order order : {Settings::Order::backward, Settings::Order::shuffled}) {
      const ScopedSettings scoped([order](Settings& s) { s.order = order; });
      INFO(name(engine));
      CHECK(x.result<TestType>(attention()) == first);
    }
  }
}

TEST_CASE("the shared memory engine chooses the variant that fits the device", "[cuda]") {
  struct Expected {
    int n;
    std::size_t shared;
    int N;
  };
  // KiB of shared memory per block of Hopper and of Volta
  for (const auto& [n, shared, N] : std::vector<Expected>{{1, 227, 1024},
                                                          {1025, 227, 2048},
                                                          {2049, 227, 3072},
                                                          {4096, 227, 4096},
                                                          {5000, 227, 6144},
                                                          {8192, 227, 8192},
                                                          {8192, 96, 8192},
                                                          {12288, 96, 12288},
                                                          {16384, 227, 16384},
                                                          {16384, 96, 0},
                                                          {16385, 227, 0}}) {
    cuda::Device device;
    device.shared_bytes = shared * 1024;
    const cuda::SharedMemoryVariant* variant = cuda::SharedMemoryFft::variant_for(device, n);
    INFO("n " << n << ", " << shared << " KiB");
    CHECK((variant ? variant->N() : 0) == N);
  }
  check_invalid(
      [] {
        cuda::AttentionPlan<float>(cuda::model_of(attention()), shape((1 << 20) + 1), {.engine = cuda::Engine::fused});
      },
      {"n_q and n_k: expected at most 2^20"});
}

TEST_CASE("every variant of the fused engine agrees with the CPU", "[cuda]") {
  for (const Index n : {1000, 2000, 2500, 4000, 5000, 8000, 9000, 13000}) {
    PlanCase x{{.n_q = n, .n_k = n - 300, .d_v = 2}, {.engine = cuda::Engine::fused}, 3};
    const Attention small(orf<float>(3, 2, 7), RelativePosition<float>(Vector<float>::LinSpaced(41, -1, 1)));
    INFO("n " << n);
    CHECK(x.error(small) <= 20 * static_cast<double>(std::numeric_limits<float>::epsilon()));
    if (n != 8000) continue;
    const ScopedSettings scoped([](Settings& s) { s.shared_bytes = 96 * 1024; });
    CHECK(x.error(small) <= 20 * static_cast<double>(std::numeric_limits<float>::epsilon()));
  }
}

}  // namespace nprf::test::cuda_stand_in_machine
