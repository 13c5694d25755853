// SPDX-License-Identifier: MIT

// nprf's attention as a custom operator of ggml, on the CPU: a layer with ALiBi's biases by ggml's softmax, which forms
// n x n numbers for each head, and by nprf, which forms none. The feature maps are calibrated for the layer's queries,
// keys and values of one sequence; the outputs that are compared are those of another.

#include <ggml-cpu.h>
#include <ggml.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nprf/nprf.hpp>
#include <span>
#include <vector>

using namespace nprf;

namespace {

constexpr Index n = 1024, heads = 4, d = 32, channels = heads * d;
constexpr int threads = 2;  // of ggml

/// One for each head.
using Heads = std::vector<Attention<CalibratedFeatures<float>, AlibiPosition<float>>>;

/// A tensor with ne = {channels, heads, tokens, batch}, whose channels are contiguous. ggml names the fastest axis
/// first, nprf last: [batch, tokens, heads, channels].
HeadsView<float> view(const ggml_tensor* x) {
  const auto stride = [&](int axis) { return static_cast<Index>(x->nb[axis] / sizeof(float)); };
  return {static_cast<float*>(x->data), x->ne[3], x->ne[1], x->ne[2], x->ne[0], {stride(2), stride(1), stride(3)}};
}

/// The operator: what thread `ith` of `nth` computes. ggml's threads wait for each other in a loop, without sleeping,
/// so that they would take the processor from threads of nprf. Instead they divide the heads, and nprf starts none. An
/// exception, which C could not catch, ends the program, as ggml's own errors do.
void attend(ggml_tensor* y, int ith, int nth, void* attentions) noexcept {
  set_num_threads(1);
  const HeadsView<float> q = view(y->src[0]), k = view(y->src[1]), v = view(y->src[2]), rows = view(y);
  for (Index i = ith; i < q.batch * q.heads; i += nth) {
    const Index b = i / q.heads, h = i % q.heads;
    rows(b, h) = (*static_cast<const Heads*>(attentions))[static_cast<std::size_t>(h)](q(b, h), k(b, h), v(b, h));
  }
}

Eigen::Map<Vector<float>> numbers(const ggml_tensor* x) {
  return {static_cast<float*>(x->data), static_cast<Index>(ggml_nelements(x))};
}

void compute(ggml_context* context, ggml_tensor* y) {
  ggml_cgraph* graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, y);
  if (ggml_graph_compute_with_ctx(context, graph, threads) != GGML_STATUS_SUCCESS) std::abort();
}

}  // namespace

int main() {
  const ggml_init_params memory{.mem_size = std::size_t{1} << 28, .mem_buffer = nullptr, .no_alloc = false};
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> owner(ggml_init(memory), &ggml_free);
  ggml_context* const c = owner.get();

  ggml_tensor* x = ggml_new_tensor_2d(c, GGML_TYPE_F32, channels, n);
  const auto weights = [&](float largest) {
    ggml_tensor* w = ggml_new_tensor_2d(c, GGML_TYPE_F32, channels, channels);
    numbers(w) = largest * Vector<float>::Random(channels * channels);
    return w;
  };
  const auto projection = [&](float largest) {
    return ggml_reshape_3d(c, ggml_mul_mat(c, weights(largest), x), d, heads, n);
  };
  ggml_tensor *q = projection(0.2f), *k = projection(0.2f), *v = projection(0.3f), *output = weights(0.3f);

  // by ggml: tokens before heads, for its products, and a mask that it multiplies by ALiBi's slope of each head
  ggml_tensor* distances = ggml_new_tensor_2d(c, GGML_TYPE_F32, n, n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) numbers(distances)[i * n + j] = -static_cast<float>(std::abs(i - j));
  const float scale = 1 / std::sqrt(static_cast<float>(d)), largest_bias = 8;
  ggml_tensor* scores = ggml_mul_mat(c, ggml_permute(c, k, 0, 2, 1, 3), ggml_permute(c, q, 0, 2, 1, 3));
  ggml_tensor* probabilities = ggml_soft_max_ext(c, scores, distances, scale, largest_bias);
  ggml_tensor* by_softmax = ggml_mul_mat(c, ggml_cont(c, ggml_permute(c, v, 1, 2, 0, 3)), probabilities);
  by_softmax = ggml_cont(c, ggml_permute(c, by_softmax, 0, 2, 1, 3));
  by_softmax = ggml_mul_mat(c, output, ggml_reshape_2d(c, by_softmax, channels, n));

  // by nprf
  Heads attentions;
  ggml_tensor* inputs[] = {q, k, v};
  ggml_tensor* by_nprf =
      ggml_custom_4d(c, GGML_TYPE_F32, d, heads, n, 1, inputs, 3, attend, GGML_N_TASKS_MAX, &attentions);
  by_nprf = ggml_mul_mat(c, output, ggml_reshape_2d(c, by_nprf, channels, n));

  numbers(x).setRandom();
  compute(c, by_softmax);
  std::vector<AlibiPosition<float>> positions;
  for (Index h = 1; h <= heads; ++h) positions.emplace_back(std::exp2(-largest_bias * static_cast<float>(h) / heads));
  const HeadsCalibration<float> calibration =
      calibrate_heads<float>(view(q), view(k), view(v), std::span<const AlibiPosition<float>>(positions),
                             {.num_features = 69, .near = 32, .normalization = Normalization::none()});
  for (std::size_t h = 0; h < positions.size(); ++h)
    attentions.emplace_back(calibration.features[h], positions[h],
                            AttentionOptions{.normalization = Normalization::none(), .near = 32});

  numbers(x).setRandom();
  compute(c, by_softmax);
  compute(c, by_nprf);
  const float error = (numbers(by_nprf) - numbers(by_softmax)).norm() / numbers(by_softmax).norm();
  std::printf("%td tokens, %td heads: differs from ggml's softmax by %.2f %%, promised were %.2f %%\n", n, heads,
              100 * error, 100 * calibration.softmax_error);
  return calibration.softmax_error < 0.05 && error < 2 * calibration.softmax_error ? 0 : 1;
}
