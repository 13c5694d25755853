// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda/plan/attention_plan.cuh"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_plan_attention_plan_layout {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr Index batch = 2, heads = 3, n_q = 70, n_k = 50, d = 6, d_v = 5;

/// An array [batch, tokens, heads, channels] whose tokens and sequences are followed by gaps of NaN.
class Interleaved {
 public:
  Interleaved(Index tokens, Index channels) : m_tokens(tokens), m_channels(channels) {}

  Index size() const { return batch * sequence(); }
  /// Converts a contiguous [batch, heads, tokens, channels] array to this layout.
  std::vector<float> from_contiguous(const std::vector<float>& x) const {
    std::vector<float> values(static_cast<std::size_t>(size()), nan);
    each([&](std::size_t own_index, std::size_t contiguous_index) { values[own_index] = x[contiguous_index]; });
    return values;
  }
  /// Converts back. Checks that the gaps are still NaN.
  std::vector<float> to_contiguous(std::vector<float> values) const {
    std::vector<float> x(static_cast<std::size_t>(batch * heads * m_tokens * m_channels));
    each([&](std::size_t own_index, std::size_t contiguous_index) {
      x[contiguous_index] = std::exchange(values[own_index], nan);
    });
    CHECK(std::all_of(values.begin(), values.end(), [](float value) { return std::isnan(value); }));
    return x;
  }
  cuda::DeviceMatrixView<float> view(const DeviceArray<float>& x) const {
    cuda::DeviceMatrixView<float> view(x.data(), batch, heads, m_tokens, m_channels);
    view.batch_stride = sequence();
    view.head_stride = m_channels;
    view.token_stride = token();
    return view;
  }

 private:
  Index token() const { return heads * m_channels + 1; }
  Index sequence() const { return m_tokens * token() + 3; }
  template <class F>
  void each(F&& f) const {
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index t = 0; t < m_tokens; ++t)
          for (Index c = 0; c < m_channels; ++c)
            f(static_cast<std::size_t>(b * sequence() + t * token() + h * m_channels + c),
              static_cast<std::size_t>(((b * heads + h) * m_tokens + t) * m_channels + c));
  }

  Index m_tokens, m_channels;
};

cuda::AttentionModel model() {
  cuda::AttentionModel model;
  for (std::uint64_t h = 0; h < 3; ++h) {
    model.features.push_back(cuda::model_of(orf<float>(d, 16, h)));
    model.positions.push_back(cuda::model_of(RelativePosition<float>(normal_vector<float>(41, 10 + h))));
  }
  return model;
}

std::vector<float> numbers(Index tokens, Index channels, std::uint64_t seed) {
  return stored<float>(normal<float>(batch * heads * tokens, channels, seed));
}

const cuda::PlanShape shape{.batch = batch, .heads = heads, .n_q = n_q, .n_k = n_k, .d_v = d_v};

}  // namespace

TEST_CASE("tokens, heads and sequences may have any order in memory, with gaps", "[cuda]") {
  const std::vector<float> q = numbers(n_q, d, 1), k = numbers(n_k, d, 2), v = numbers(n_k, d_v, 3),
                           dy = numbers(n_q, d_v, 4);
  const auto run = [&](const cuda::AttentionPlan<float>& plan, auto&& layout) {
    const auto to_device = [&](const std::vector<float>& x, Index tokens, Index channels) {
      return DeviceArray<float>(layout(tokens, channels).from_contiguous(x));
    };
    const auto empty = [&](Index tokens, Index channels) {
      return DeviceArray<float>(std::vector<float>(static_cast<std::size_t>(layout(tokens, channels).size()), nan));
    };
    const DeviceArray<float> q_on_device = to_device(q, n_q, d), k_on_device = to_device(k, n_k, d),
                             v_on_device = to_device(v, n_k, d_v), dy_on_device = to_device(dy, n_q, d_v),
                             y = empty(n_q, d_v), dq = empty(n_q, d), dk = empty(n_k, d), dv = empty(n_k, d_v);
    const auto view = [&](const DeviceArray<float>& x, Index tokens, Index channels) {
      return layout(tokens, channels).view(x);
    };
    plan.forward(view(q_on_device, n_q, d), view(k_on_device, n_k, d), view(v_on_device, n_k, d_v), view(y, n_q, d_v));
    plan.backward(view(q_on_device, n_q, d), view(k_on_device, n_k, d), view(v_on_device, n_k, d_v),
                  view(dy_on_device, n_q, d_v), {view(dq, n_q, d), view(dk, n_k, d), view(dv, n_k, d_v)}, {}, nullptr);
    return std::vector{layout(n_q, d_v).to_contiguous(y.fetch()), layout(n_q, d).to_contiguous(dq.fetch()),
                       layout(n_k, d).to_contiguous(dk.fetch()), layout(n_k, d_v).to_contiguous(dv.fetch())};
  };
  struct Contiguous {
    Index tokens, channels;
    Index size() const { return batch * heads * tokens * channels; }
    std::vector<float> from_contiguous(const std::vector<float>& x) const { return x; }
    std::vector<float> to_contiguous(std::vector<float> x) const { return x; }
    cuda::DeviceMatrixView<float> view(const DeviceArray<float>& x) const {
      return {x.data(), batch, heads, tokens, channels};
    }
  };
  for (const cuda::Engine engine : cuda_engines) {
    const cuda::AttentionPlan<float> plan(model(), shape, {.engine = engine, .gradients = true});
    INFO(name(engine));
    CHECK(run(plan, [](Index tokens, Index channels) { return Interleaved(tokens, channels); }) ==
          run(plan, [](Index tokens, Index channels) {
            return Contiguous{tokens, channels};
          }));
  }
}

TEST_CASE("heads may share inputs, but not outputs", "[cuda]") {
  const DeviceArray<float> x(1000), y(1000);
  const cuda::AttentionPlan<float> plan(model(), {.heads = heads, .n_q = 8, .n_k = 8, .d_v = d_v});
  const cuda::DeviceMatrixView<float> q(x.data(), 1, heads, 8, d), v(x.data(), 1, heads, 8, d_v);
  cuda::DeviceMatrixView<float> one_k = q, one_v = v, out(y.data(), 1, heads, 8, d_v);
  one_k.head_stride = one_v.head_stride = 0;
  CHECK_NOTHROW(plan.forward(q, one_k, one_v, out));
  out.head_stride = 39;
  check_invalid([&] { plan.forward(q, one_k, one_v, out); },
                {"y: expected strides such that rows do not overlap, got 120, 39 and 5"});
  out.head_stride = 5;  // [tokens, heads, channels], with a stride one channel too small
  out.token_stride = 14;
  check_invalid([&] { plan.forward(q, one_k, one_v, out); }, {"y: expected strides such that rows do not overlap"});
}

TEST_CASE("a plan can be moved, and then accepts new parameters for each head", "[cuda]") {
  const HeadsCase x(shape, d);
  cuda::AttentionModel other = model();
  std::swap(other.positions[0], other.positions[2]);
  std::vector<float> parameters;
  for (const cuda::PositionModel& position : other.positions)
    parameters.insert(parameters.end(), position.parameters.begin(), position.parameters.end());
  const DeviceArray<float> on_device(parameters);
  const auto results = [&](const cuda::AttentionPlan<float>& plan) {
    const HeadsResults all = x.results(plan);
    return std::vector{all.y, all.dq, all.dk, all.dv, all.parameters};
  };
  for (const cuda::Engine engine : cuda_engines) {
    cuda::AttentionPlan<float> first(model(), shape, {.engine = engine, .gradients = true}), second = std::move(first);
    const cuda::AttentionPlan<float> expected(other, shape, {.engine = engine, .gradients = true});
    INFO(name(engine));
    CHECK(results(second) != results(expected));
    second.set_parameters(on_device.data(), nullptr);
    CHECK(results(second) == results(expected));
  }
}

}  // namespace nprf::test::cuda_plan_attention_plan_layout
