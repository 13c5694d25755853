// SPDX-License-Identifier: MIT
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/ptx/runtime.hpp"
#include "cuda/tile_case.hpp"
#include "nprf/cuda/attention/exact/backward.cuh"
#include "nprf/cuda/attention/exact/near_sums.cuh"
#include "nprf/cuda/attention/normalize.cuh"
#include "nprf/cuda/device/scratch.hpp"
#include "nprf/cuda/feature_map/backward.cuh"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/cuda/plan/device_model.cuh"
#include "nprf/cuda/plan/model_of.hpp"
#include "nprf/cuda/toeplitz/backward/gradients.cuh"
#include "nprf/cuda/toeplitz/banded/kernel.cuh"
#include "nprf/cuda/toeplitz/direct/kernel.cuh"
#include "nprf/cuda/toeplitz/fft/shared_memory_fft.cuh"
#include "nprf/cuda/toeplitz/fft/two_pass_fft.cuh"
#include "nprf/position/relative.hpp"
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
using InHalf = TileCase<__half, __half>;
using InHalfOnVolta = TileCase<__half, __half, cuda::MmaShape::m8n8k4>;

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
    cuda::DeviceModel model(description, {.n_q = n, .n_k = n, .d_v = 1}, {}, nullptr);
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
  check_tiles<InHalf>("direct_kernel", false, {1, 1, 1, 1});
  check_tiles<InHalfOnVolta>("direct_kernel", false, {1, 1, 1, 1.02});
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
  check_tiles<InHalfOnVolta>("banded_kernel", true, {1, 1, 1.15, 1.02});
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
  CHECK(ptx::traffic_of("features_kernel", [&] { x.run<float, float>(); }).instructions <= 940'000);
}

TEST_CASE("traffic and instructions of features by tensor cores", "[cuda]") {
  const FeatureCase x{.n = 4096, .m = 32};
  const ptx::KernelTraffic taken = ptx::traffic_of("tensor_features_kernel", [&] { x.run<__half, __nv_bfloat16>(); });
  CHECK(taken.shared_loads.least + taken.shared_stores.least == 0);
  CHECK(taken.global_loads.moved == taken.global_loads.least);
  CHECK(taken.global_stores.moved == taken.global_stores.least);
  CHECK(taken.instructions <= 300'000);  // 2300 for each 64 tokens
}

namespace {

// the gradients of 256 tokens of 64 channels, from those of features by m projections
template <class S>
void check_feature_gradients(cuda::FeatureKind kind, int m, const Most& most, std::size_t most_instructions) {
  constexpr int n = 256, d = 64;
  const DeviceArray<S> x(stored<S>(normal<float>(n, d, 1)));
  const DeviceArray<S> dx(std::size_t{n} * d);
  cuda::AttentionModel description;
  description.features = {{kind, d, m, stored<float>(normal<float>(m, d, 3))}};
  description.positions = {{}};
  const cuda::DeviceModel model(description, {.n_q = n, .n_k = n, .d_v = 1}, {}, nullptr);
  const auto r = static_cast<std::size_t>(model.r());
  const DeviceArray<float> phi(std::vector<float>(r * n, 1)), N(phi.fetch()), D(std::vector<float>(n, 1));
  const cuda::FeatureGradientTask<S> task{
      .features = model.features<S>({x.data(), n, d}, true, nullptr, nullptr, phi.data(), n),
      .dphi = {{N.data(), D.data(), 1, model.r(), n}},
      .z = 1,
      .dx = {dx.data(), n, d}};
  const auto run = [&] { cuda::queue_feature_gradients(task, nullptr); };
  check("feature_gradients_kernel", most, run);
  CHECK(ptx::traffic_of("feature_gradients_kernel", run).instructions <= most_instructions);
}

}  // namespace

TEST_CASE("traffic and instructions of the gradients of features", "[cuda]") {
  // threads of the same token store what they add to its sum
  constexpr Most most{1, 1.02, 1, 1};
  check_feature_gradients<float>(cuda::FeatureKind::positive, 32, most, 73'000);
  check_feature_gradients<__nv_bfloat16>(cuda::FeatureKind::positive, 32, most, 73'000);
  check_feature_gradients<float>(cuda::FeatureKind::trigonometric, 32, most, 78'000);
}

namespace {

// near pairs of 256 queries and keys, in 10 pairs of tiles, and what their kernels need
struct NearCase {
  static constexpr int n = 256, d = 64, p = 64, m = 32, near = 64, tiles = 10;

  static cuda::AttentionModel description() {
    cuda::AttentionModel model;
    model.features = {{cuda::FeatureKind::positive, d, m, stored<float>(normal<float>(m, d, 3))}};
    model.positions = {cuda::model_of(RelativePosition<float>(Vector<float>::LinSpaced(2 * n - 1, -1, 0)))};
    model.near = near;
    return model;
  }

  cuda::DeviceModel model{description(), {.n_q = n, .n_k = n, .d_v = p}, {.gradients = true}, nullptr};
  DeviceArray<float> q{stored<float>(normal<float>(n, d, 1))}, k{stored<float>(normal<float>(n, d, 2))},
      V{stored<float>(normal<float>(n, p, 4))}, dy{stored<float>(normal<float>(n, p, 5))};
  DeviceArray<float> N{std::vector<float>(std::size_t{n} * p, 1)}, D{std::vector<float>(n, 1)},
      phi{std::vector<float>(std::size_t{n} * m, 1)}, log_factors{std::vector<float>(n, 0)}, near_D{n},
      factors{std::vector<float>(n, 1)}, db{std::vector<float>(2 * n - 1, 0)};
  DeviceArray<double> log_scales{std::vector<double>(n, 0)};
  DeviceArray<cuda::RowKind> kinds{std::vector<cuda::RowKind>(n, cuda::RowKind::field)};
  DeviceArray<int> recomputed_rows{std::vector<int>(1, 0)};
  DeviceArray<float> dq{std::size_t{n} * d}, dk{std::size_t{n} * d}, dv{std::size_t{n} * p};

  static cuda::DeviceMatrixView<const float> view(const DeviceArray<float>& x, int channels) {
    return {x.data(), n, channels};
  }
  cuda::ExactPairs pairs() const { return {1, n, n, model.bias(), model.weight_bias(), nullptr, nullptr, nullptr}; }
  cuda::SoftmaxScores<float> scores() const { return {view(q, d), view(k, d), factors.data(), factors.data(), 1}; }
  cuda::Sums sums() const { return {N.data(), D.data(), 1, p, n}; }

  void add_near_sums() const {
    cuda::queue_near_sums(cuda::NearSumsTask<float, float>{.pairs = pairs(),
                                                           .scores = scores(),
                                                           .U = {view(V, p), nullptr},
                                                           .far = {log_factors.data(), nullptr, 0, 0, 1},
                                                           .sums = sums(),
                                                           .A = {phi.data(), m, n},
                                                           .log_scales = log_scales.data(),
                                                           .near_D = near_D.data()},
                          1, nullptr);
  }
  void compute_gradients() const {
    const auto take = [&](cuda::Scratch& scratch) {
      cuda::ExactGradients to = cuda::ExactGradients::take(scratch, model.bias(), 1, n, n);
      to.dq = dq.data(), to.dk = dk.data(), to.dv = dv.data();
      return to;
    };
    cuda::Scratch count;
    take(count);
    const DeviceArray<unsigned char> memory(count.bytes());
    cuda::Scratch scratch(memory.data());
    const cuda::ExactGradientTask<float> task{.pairs = pairs(),
                                              .softmax = scores(),
                                              .features = {cuda::Operand<float>::by_channel(phi.data(), 1, n, m, n),
                                                           cuda::Operand<float>::by_channel(phi.data(), 1, n, m, n)},
                                              .dy = view(dy, p),
                                              .V = cuda::Operand<float>::by_channel(V.data(), 1, n, p, n),
                                              .sums = {sums()},
                                              .has_field = true,
                                              .positive = true,
                                              .z = 1,
                                              .positions = 1,
                                              .log_scales = log_scales.data(),
                                              .kinds = kinds.data(),
                                              .recomputed_rows = recomputed_rows.data(),
                                              .to = take(scratch),
                                              .db = db.data()};
    cuda::queue_exact_rows(task, nullptr);
    cuda::queue_exact_queries(task, nullptr);
    cuda::queue_exact_keys(task, nullptr);
  }
};

}  // namespace

TEST_CASE("traffic and instructions of a near field and its gradients", "[cuda]") {
  const NearCase x;
  const auto instructions = [&](const char* kernel, auto&& run) { return ptx::traffic_of(kernel, run).instructions; };
  const auto near_sums = [&] { x.add_near_sums(); };
  const auto gradients = [&] { x.compute_gradients(); };
  // biases are loaded four lags apart; features that are scaled are stored a token apart by channel
  check("near_sums_kernel", {1.05, 1.6, 1.8, 2}, near_sums);
  check("exact_queries_kernel", {1.02, 1, 1.3, 1.01}, gradients);
  check("exact_keys_kernel", {1, 1, 1.24, 1}, gradients);
  CHECK(instructions("near_sums_kernel", near_sums) <= NearCase::tiles * std::size_t{55'500});
  CHECK(instructions("exact_queries_kernel", gradients) <= NearCase::tiles * std::size_t{72'000});
  CHECK(instructions("exact_keys_kernel", gradients) <= NearCase::tiles * std::size_t{95'000});
}

namespace {

// FFTs in shared memory of two pairs of columns, and of r features
ptx::KernelTraffic traffic_of_ffts(const cuda::SharedMemoryVariant& variant, int N, int r) {
  constexpr int pairs = 2, residues = 2;
  const auto size = static_cast<std::size_t>(N);
  const std::vector<float> features(static_cast<std::size_t>(r) * size, 1);
  const DeviceArray<float> A(features), B(features);
  const DeviceArray<float2> U(std::vector<float2>(residues * pairs * size)), Y(residues * pairs * size),
      spectrum(std::vector<float2>(2 * size));
  return ptx::traffic_of("shared_memory_kernel", [&] {
    cuda::launch("test", variant.kernel, dim3{pairs, residues, 1}, dim3{static_cast<unsigned>(variant.threads), 1, 1},
                 variant.shared, nullptr,
                 cuda::SharedMemoryTask{A.data(), B.data(), U.data(), spectrum.data(), 0, 1, r, pairs, 1, r, Y.data()});
  });
}

}  // namespace

TEST_CASE("traffic and instructions of FFTs in shared memory", "[cuda]") {
  using enum cuda::FftMemory;
  const auto check_variant = [](const cuda::SharedMemoryVariant& variant, int N, int most_instructions) {
    const ptx::KernelTraffic of_four = traffic_of_ffts(variant, N, 4), of_eight = traffic_of_ffts(variant, N, 8);
    INFO(N << " points");
    for (const auto& taken : {of_four.shared_loads, of_four.shared_stores, of_four.global_loads, of_four.global_stores})
      CHECK((taken.least > 0 && taken.moved == taken.least));
    // of a warp, for a further feature
    const auto warps = static_cast<std::size_t>(2 * 2 * variant.threads / 32);  // of two pairs and two residues
    CHECK((of_eight.instructions - of_four.instructions) / (4 * warps) <= static_cast<std::size_t>(most_instructions));
  };
  check_variant(cuda::SharedMemoryVariant::of<cuda::Points1024, 1, in_shared_memory, in_registers>(), 1024, 1650);
  check_variant(cuda::SharedMemoryVariant::of<cuda::Points8192, 1, in_shared_memory, in_registers>(), 8192, 4150);
}

TEST_CASE("traffic of FFTs in two passes", "[cuda]") {
  constexpr int r = 2, p = 1;  // a pair of columns
  const cuda::TwoPassVariant& variant = cuda::two_pass_variants()[0];
  const auto N = static_cast<std::size_t>(variant.N());
  const cuda::TwoPassFft fft(variant, cuda::Device::current(), r, p, 1, std::size_t{1} << 24);
  const DeviceArray<float> A(std::vector<float>(r * N, 1)), B(std::vector<float>(r * N, 1)),
      V(std::vector<float>(N, 1)), c(std::vector<float>(2 * N - 1, 1)), Y(N), D(N);
  const int n = variant.N();
  const cuda::DeviceWeights weights{c.data(), 2 * n - 1, 2 * n - 1, 1 - n, 1, 1 - n, n - 1};
  const DeviceArray<float2> spectrum(2 * N);
  fft.queue_spectrum(weights, 1, spectrum.data(), nullptr);
  cuda::Scratch count;
  fft.take(count);
  const DeviceArray<unsigned char> memory(count.bytes());
  cuda::Scratch scratch(memory.data());
  const auto arrays = fft.take(scratch);
  const cuda::TileTask<float> task{cuda::Operand<float>::by_channel(A.data(), 1, n, r, n),
                                   cuda::Operand<float>::by_channel(B.data(), 1, n, r, n),
                                   {cuda::DeviceMatrixView<const float>(V.data(), n, p), nullptr},
                                   weights};
  for (const char* kernel : {"two_pass_columns_kernel", "two_pass_rows_kernel", "two_pass_inverse_kernel"})
    check(kernel, {1, 1, 1, 1}, [&] {
      fft.queue(task, {spectrum.data(), 2 * n}, Y.data(), D.data(), arrays, nullptr);
    });
}

TEST_CASE("traffic and instructions of a step of a decoder", "[cuda]") {
  constexpr int d = 64, m = 32, reach = 128;
  cuda::AttentionModel model{Direction::causal, 1, {{cuda::FeatureKind::positive, d, m, {}}}, {}};
  model.features.front().projection = stored<float>(normal<float>(m, d, 3));
  model.positions.push_back(cuda::model_of(RelativePosition<float>(Vector<float>::LinSpaced(2 * reach + 1, -1, 0))));
  cuda::DecodePlan<float> plan(model, {.d_v = d});
  const DeviceArray<float> x(stored<float>(normal<float>(reach + 40, d, 1))), y(std::size_t{d});
  const auto rows = [&](int n) { return cuda::DeviceMatrixView<const float>(x.data(), n, d); };
  plan.append(rows(reach + 40), rows(reach + 40));
  const auto step = [&] { plan.step(rows(1), rows(1), rows(1), {y.data(), 1, d}); };
  // the ring begins anywhere, and the new token's features are stored `slots` numbers apart
  check("decode_kernel", {1, 1, 1.06, 1.06}, step);
  CHECK(ptx::traffic_of("decode_kernel", step).instructions <= 22'200);
}

TEST_CASE("traffic of the columns of gradients", "[cuda]") {
  constexpr int n = 256, p = 64;
  constexpr std::size_t size = std::size_t{n} * p, columns = std::size_t{n} * (p + 1);
  const DeviceArray<__half> dy(stored<__half>(normal<float>(n, p, 1))), V(stored<__half>(normal<float>(n, p, 2)));
  const DeviceArray<float> N(std::vector<float>(size, 1)), D(std::vector<float>(n, 1)), G(columns), U(columns);
  const cuda::GradientColumnsTask<__half> task{
      .dy = cuda::DeviceMatrixView<const __half>(dy.data(), n, p),
      .sums = {.sums = {N.data(), D.data(), 1, p, n}},
      .positive = true,
      .V = {cuda::DeviceMatrixView<const __half>(V.data(), n, p), nullptr},
      .z = 1,
      .stride_q = n,
      .stride_k = n,
      .G = G.data(),
      .U = U.data(),
  };
  check("gradient_columns_kernel", {1, 1, 1, 1}, [&] { cuda::queue_gradient_columns(task, nullptr); });
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
