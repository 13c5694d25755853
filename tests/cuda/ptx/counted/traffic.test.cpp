// SPDX-License-Identifier: MIT
#include <cstddef>
#include <string>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/ptx/runtime.hpp"
#include "cuda/tile_case.hpp"
#include "nprf/cuda/attention/normalize.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/toeplitz/banded/kernel.cuh"
#include "nprf/cuda/toeplitz/direct/kernel.cuh"
#include "nprf/cuda/toeplitz/fft/shared_memory_engine.cuh"
#include "support/catch.hpp"
#include "support/random.hpp"

/// Bank conflicts and sectors of the kernels that take most of the time.
namespace nprf::test::cuda_ptx_counted_traffic {

namespace {

// how many times the least passes over the banks, or sectors, an access may take
struct Most {
  double shared_loads, shared_stores, global_loads, global_stores;
};

void check(const std::string& kernel, const Most& most, const std::function<void()>& run) {
  const ptx::KernelTraffic traffic = ptx::traffic_of(kernel, run);
  const auto check_taken = [&](const char* what, const ptx::KernelTraffic::Taken& taken, double times) {
    INFO(kernel << ", " << what << ": " << taken.moved << " of " << taken.least);
    CHECK(taken.least > 0);
    CHECK(static_cast<double>(taken.moved) <= times * static_cast<double>(taken.least));
  };
  check_taken("loads from shared memory", traffic.shared_loads, most.shared_loads);
  check_taken("stores to shared memory", traffic.shared_stores, most.shared_stores);
  check_taken("loads from global memory", traffic.global_loads, most.global_loads);
  check_taken("stores to global memory", traffic.global_stores, most.global_stores);
}

template <class Case>
void check_tiles(const std::string& kernel, bool banded, const Most& most, bool streams = false) {
  const Case x{.n_q = 256, .n_k = 256, .r = 64, .p = 64, .band = {-20, 20}, .streams = streams};
  const auto data = x.data();
  check(kernel, most, [&] { x.result(data, 1, banded); });
}

using InFloat = TileCase<float, float>;
using InBfloat16 = TileCase<__nv_bfloat16, __nv_bfloat16>;

// positive features of n queries and of as many keys
struct FeatureCase {
  int n, m;

  template <class S, class Feature>
  void run() const {
    constexpr int d = 64;
    const DeviceArray<S> q(stored<S>(normal<float>(n, d, 1))), k(stored<S>(normal<float>(n, d, 2)));
    cuda::AttentionModel description;
    description.features = {{cuda::FeatureKind::positive, d, m, stored<float>(normal<float>(m, d, 3))}};
    description.positions = {{}};
    cuda::DeviceModel model(description, {.n_q = n, .n_k = n, .d_v = 1}, false, nullptr);
    if constexpr (cuda::MmaFactor<S>) model.split_projections<S>(cuda::Device::current(), nullptr);
    const auto size = static_cast<std::size_t>(n) * static_cast<std::size_t>(m);
    const DeviceArray<Feature> phi_q(size), phi_k(size);
    const int stride = cuda::by_token<Feature> ? m : n;
    cuda::queue_features(model.features<S>({q.data(), n, d}, true, nullptr, nullptr, phi_q.data(), stride),
                         model.features<S>({k.data(), n, d}, false, nullptr, nullptr, phi_k.data(), stride), 1,
                         nullptr);
  }
};

}  // namespace

TEST_CASE("traffic of direct tiles", "[cuda]") {
  // lanes of two rows of queries read the weights of as many lags, some from the same bank
  check_tiles<InFloat>("direct_kernel", false, {1.04, 1, 1, 1});
  check_tiles<InBfloat16>("direct_kernel", false, {1, 1, 1, 1});
  check_tiles<InBfloat16>("streamed_direct_kernel", false, {1, 1, 1, 1}, true);
}

TEST_CASE("instructions of streamed tiles", "[cuda]") {
  // of 4 warps and 2 tiles of 64 keys more
  const auto instructions = [](int n_k) {
    const InBfloat16 x{.n_q = 128, .n_k = n_k, .r = 32, .p = 64, .streams = true};
    const auto data = x.data();
    return ptx::traffic_of("streamed_direct_kernel", [&] { x.result(data, 1); }).instructions;
  };
  CHECK((instructions(512) - instructions(384)) / (4 * 2) <= 500);
}

TEST_CASE("traffic of banded products", "[cuda]") {
  // rows of states have p + 1 columns, and so do not start at sectors
  check_tiles<InFloat>("banded_kernel", true, {1.04, 1, 1.06, 1});
  check_tiles<InBfloat16>("banded_kernel", true, {1, 1, 1.1, 1});
}

TEST_CASE("traffic of the sums of chunks", "[cuda]") {
  // features by channel are transposed in shared memory; a thread stores its 4 x 4 sums one by one, to rows of p + 1
  check_tiles<InFloat>("chunks_kernel", true, {1, 2.5, 1, 4.2});
  check_tiles<InBfloat16>("chunks_kernel", true, {1, 1, 1, 3.6});
}

TEST_CASE("traffic and instructions of features", "[cuda]") {
  constexpr Most most{1, 1.04, 1, 1};  // reductions over channels store a float a thread
  const FeatureCase x{.n = 4096, .m = 32};
  check("features_kernel", most, [&] { x.run<float, float>(); });
  check("features_kernel", most, [&] { x.run<float, __nv_bfloat16>(); });
}

TEST_CASE("traffic and instructions of features by tensor cores", "[cuda]") {
  const FeatureCase x{.n = 4096, .m = 32};
  const ptx::KernelTraffic taken = ptx::traffic_of("tensor_features_kernel", [&] { x.run<__half, __nv_bfloat16>(); });
  CHECK(taken.shared_loads.least + taken.shared_stores.least == 0);
  CHECK(taken.global_loads.moved == taken.global_loads.least);
  CHECK(taken.global_stores.moved == taken.global_stores.least);
  CHECK(taken.instructions <= 300'000);  // 2300 for each 64 tokens
}

TEST_CASE("traffic of FFTs in shared memory", "[cuda]") {
  const auto variant = cuda::SharedMemoryVariant::of<cuda::Points1024, 1, cuda::Placement::in_shared_memory,
                                                     cuda::Placement::in_registers>();
  constexpr std::size_t pairs = 2, r = 4, N = 1024, residues = 2;
  const DeviceArray<float> A(std::vector<float>(r * N, 1)), B(std::vector<float>(r * N, 1));
  const DeviceArray<float2> U(std::vector<float2>(residues * pairs * N)), Y(residues * pairs * N),
      spectrum(std::vector<float2>(2 * N));
  check("shared_memory_kernel", {1, 1, 1, 1}, [&] {
    cuda::launch("test", variant.kernel, dim3{pairs, residues, 1}, dim3{static_cast<unsigned>(variant.threads), 1, 1},
                 variant.shared, nullptr,
                 cuda::SharedMemoryTask{A.data(), B.data(), U.data(), spectrum.data(), 0, 1, int{r}, int{pairs}, 1,
                                        int{r}, Y.data()});
  });
}

TEST_CASE("traffic of twiddles", "[cuda]") {
  constexpr int n = 256, p = 63;
  constexpr int pairs = cuda::column_pairs(p);
  const DeviceArray<float> V(std::vector<float>(std::size_t{n} * (p + 1), 1));
  const DeviceArray<float2> U(std::size_t{2} * pairs * n);
  cuda::DeviceMatrixView<const float> view(V.data(), n, p);
  view.token_stride = p + 1;
  check("twiddle_kernel", {1, 1, 1, 1}, [&] {
    cuda::queue_twiddles(
        cuda::TwiddleTask<float>{{cuda::Operand<float>(view), nullptr}, n, 2, pairs, pairs, 0, pairs, U.data(), pairs},
        nullptr);
  });
}

TEST_CASE("traffic and instructions of the quotients of rows", "[cuda]") {
  constexpr int n = 4096, p = 64, parts = 4;
  constexpr auto all = static_cast<std::size_t>(n) * p;
  const DeviceArray<float> N(std::vector<float>(all * parts, 1)), D(std::vector<float>(std::size_t{n} * parts, 1));
  const auto traffic = [&]<class S>(const DeviceArray<S>& y) {
    cuda::NormalizeTask<S> task{};
    task.sums.sums = {N.data(), D.data(), parts, p, n};
    task.positive = true;
    task.y = {y.data(), n, p};
    const ptx::KernelTraffic taken = ptx::traffic_of("normalize_kernel", [&] { cuda::queue_normalize(task, nullptr); });
    CHECK(taken.global_stores.moved == all * sizeof(S) / 32);
    CHECK(taken.global_stores.moved == taken.global_stores.least);
    return taken;
  };
  const auto of_float = traffic(DeviceArray<float>(all));
  CHECK(of_float.global_loads.moved == of_float.global_loads.least);
  // a lane loads 8 entries by two loads, which share sectors
  const auto of_half = traffic(DeviceArray<__half>(all));
  CHECK(of_half.global_loads.moved <= 2 * of_half.global_loads.least);
  CHECK(of_half.instructions <= 200'000);
}

}  // namespace nprf::test::cuda_ptx_counted_traffic
