// SPDX-License-Identifier: MIT
#include <cstddef>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/heads_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::cuda_plan_attention_plan_packed {

namespace {

constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
constexpr Index d = 6, d_v = 5, heads = 4, heads_k = 2, longest = 40;

Attention<PositiveFeatures<float>, RelativePosition<float>> attention(Direction direction = Direction::bidirectional) {
  return Attention(orf<float>(d, 16, 7), RelativePosition<float>(normal_vector<float>(41, 5)),
                   {.direction = direction});
}

cuda::PlanShape shape_of(std::size_t sequences) {
  return {.batch = static_cast<Index>(sequences),
          .heads = heads,
          .n_q = longest,
          .n_k = longest,
          .d_v = d_v,
          .heads_k = heads_k};
}

std::vector<int> cumulative(const std::vector<int>& lengths) {
  std::vector<int> sums(1, 0);
  for (const int length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

/// Arrays of packed sequences, whose rows are [head, token].
HeadsCase packed_case(Index tokens, Index keys) {
  return HeadsCase({.heads = heads, .n_q = tokens, .n_k = keys, .d_v = d_v, .heads_k = heads_k}, d);
}

double relative(const Matrix<float>& a, const Matrix<float>& b) {
  return static_cast<double>((a - b).norm() / b.norm());
}

}  // namespace

TEST_CASE("packed sequences have the results of each sequence alone on the CPU, forward and backward", "[cuda]") {
  const std::vector<int> lengths{17, 0, longest, 1}, key_lengths{9, 3, longest, 30};
  const std::vector<int> of_queries = cumulative(lengths), of_keys = cumulative(key_lengths);
  const DeviceArray<int> first_query(of_queries), first_key(of_keys);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const bool cross : {false, true}) {
      const std::vector<int>& first_of_keys = cross ? of_keys : of_queries;
      const HeadsCase x = packed_case(of_queries.back(), first_of_keys.back());
      const auto cpu = attention(direction);
      cuda::PackedPlan<float> plan(cuda::model_of(cpu), shape_of(lengths.size()), {.gradients = true});
      const auto got = x.results(plan, cuda::PackedCall{first_query.data(), cross ? first_key.data() : nullptr});
      Matrix<float> y = Matrix<float>::Zero(x.dy.rows(), d_v), dq = Matrix<float>::Zero(x.q.rows(), d),
                    dk = Matrix<float>::Zero(x.k.rows(), d), dv = Matrix<float>::Zero(x.v.rows(), d_v),
                    parameters = Matrix<float>::Zero(1, 41);
      for (std::size_t b = 0; b < lengths.size(); ++b)
        for (Index head = 0; head < heads; ++head) {
          const Index i0 = head * x.shape.n_q + of_queries[b], n_q = of_queries[b + 1] - of_queries[b],
                      j0 = head / (heads / heads_k) * x.shape.n_k + first_of_keys[b],
                      n_k = first_of_keys[b + 1] - first_of_keys[b];
          if (n_q == 0 || n_k == 0) continue;
          Saved<float> saved;
          y.middleRows(i0, n_q) = cpu.forward(x.q.middleRows(i0, n_q), x.k.middleRows(j0, n_k), x.v.middleRows(j0, n_k),
                                              saved, {.tolerance = 1e-6});
          const Gradients<float> gradients = cpu.backward(saved, x.dy.middleRows(i0, n_q));
          dq.middleRows(i0, n_q) += gradients.queries;
          dk.middleRows(j0, n_k) += gradients.keys;
          dv.middleRows(j0, n_k) += gradients.values;
          parameters.row(0) += gradients.bias.transpose();
        }
      INFO((direction == Direction::causal ? "causal" : "bidirectional") << (cross ? ", cross" : ""));
      // sums of at most 40 terms in two orders, of about their own size
      const double tolerance = 40 * eps;
      CHECK(relative(got.y, y) <= tolerance);
      CHECK(relative(got.dq, dq) <= tolerance);
      CHECK(relative(got.dk, dk) <= tolerance);
      CHECK(relative(got.dv, dv) <= tolerance);
      CHECK(relative(got.parameters, parameters) <= tolerance);
    }
}

TEMPLATE_TEST_CASE("packed sequences have the bits of padded ones", "[cuda]", float, __half) {
  const std::vector<int> lengths{12, longest, 5}, first = cumulative(lengths);
  const Index tokens = first.back(), batch = 3;
  const HeadsCase x = packed_case(tokens, tokens);
  const DeviceArray<int> on_device(first), on_device_lengths(lengths);
  const auto model = cuda::model_of(attention());
  cuda::PackedPlan<TestType> plan(model, shape_of(lengths.size()), {.gradients = true});
  const cuda::AttentionPlan<TestType> padded_plan(model, shape_of(lengths.size()), {.gradients = true});
  const auto got = x.results(plan, cuda::PackedCall{on_device.data()});
  const auto padded = [&](const Matrix<float>& rows, Index of_heads) {
    Matrix<float> all = Matrix<float>::Zero(batch * of_heads * longest, rows.cols());
    for (Index b = 0; b < batch; ++b)
      for (Index head = 0; head < of_heads; ++head) {
        const Index n = lengths[static_cast<std::size_t>(b)];
        all.middleRows((b * of_heads + head) * longest, n) =
            rows.middleRows(head * tokens + first[static_cast<std::size_t>(b)], n);
      }
    return all;
  };
  HeadsCase all(shape_of(lengths.size()), d);
  all.q = padded(x.q, heads), all.k = padded(x.k, heads_k), all.v = padded(x.v, heads_k), all.dy = padded(x.dy, heads);
  const Matrix<float> expected = all.results(padded_plan, {.lengths = on_device_lengths.data()}).y,
                      found = padded(got.y, heads);
  for (Index b = 0; b < batch; ++b)
    for (Index head = 0; head < heads; ++head) {
      const Index at = (b * heads + head) * longest, n = lengths[static_cast<std::size_t>(b)];
      CHECK(found.middleRows(at, n) == expected.middleRows(at, n));
    }
}

TEST_CASE("packed sequences may have a workspace of their own, or one from the stream", "[cuda]") {
  const std::vector<int> first = cumulative({12, longest, 5});
  const HeadsCase x = packed_case(first.back(), first.back());
  const DeviceArray<int> on_device(first);
  cuda::PlanShape shape = shape_of(3);
  shape.packed = true;
  const auto model = cuda::model_of(attention());
  const cuda::AttentionPlan<float> owning(model, shape, {.gradients = true}),
      without(model, shape, {.gradients = true, .owns_workspace = false}),
      of_stream(model, shape, {.gradients = true, .stream_ordered = true});
  const DeviceArray<unsigned char> workspace(without.workspace_bytes());
  const auto expected = x.results(owning, {.cumulative_lengths = on_device.data()});
  for (const auto& got :
       {x.results(without, {.workspace = workspace.data(), .cumulative_lengths = on_device.data()}),
        x.results(of_stream, {.cumulative_lengths = on_device.data(), .key_cumulative_lengths = on_device.data()})}) {
    CHECK(got.y == expected.y);
    CHECK(got.dk == expected.dk);
    CHECK(got.parameters == expected.parameters);
  }
}

TEST_CASE("rows of a packed sequence that is too long are NaN, and those of others are right", "[cuda]") {
  const std::vector<int> too_long{12, longest + 7, 5}, cut{12, longest, 5};
  const std::vector<int> first = cumulative(too_long);
  const HeadsCase x = packed_case(first.back(), first.back());
  const DeviceArray<int> on_device(first);
  cuda::PackedPlan<float> plan(cuda::model_of(attention()), shape_of(cut.size()), {.gradients = true});
  const auto got = x.results(plan, cuda::PackedCall{on_device.data()});
  for (Index head = 0; head < heads; ++head)
    for (Index i = 0; i < x.shape.n_q; ++i) {
      const bool is_beyond = i >= 12 + longest && i < 12 + longest + 7;
      CHECK(got.y.row(head * x.shape.n_q + i).allFinite() == !is_beyond);
      CHECK(got.dq.row(head * x.shape.n_q + i).allFinite() == !is_beyond);
    }
}

TEST_CASE("packed sequences are refused if their arrays do not fit together", "[cuda]") {
  const std::vector<int> first{0, 3, 10};
  const DeviceArray<int> on_device(first);
  cuda::PackedPlan<float> plan(cuda::model_of(attention()), shape_of(2));
  const DeviceArray<float> memory(std::vector<float>(1000, 0.0f));
  const auto view = [&](Index of_heads, Index tokens, Index channels) {
    return cuda::DeviceMatrixView<float>(memory.data(), 1, of_heads, tokens, channels);
  };
  const auto check_refusal = [&](Index tokens_k, const cuda::PackedCall& call, const char* message) {
    check_invalid(
        [&] {
          plan.forward(view(heads, 10, d), view(heads_k, tokens_k, d), view(heads_k, tokens_k, d_v),
                       view(heads, 10, d_v), call);
        },
        {message});
  };
  check_refusal(10, {nullptr}, "cumulative_lengths: expected lengths, got a null pointer");
  check_refusal(11, {on_device.data()}, "k: expected 10 tokens (those of q, without key_cumulative_lengths), got 11");
  check_invalid(
      [&] {
        plan.backward(view(heads, 10, d), view(heads_k, 10, d), view(heads_k, 10, d_v), view(heads, 10, d_v),
                      {view(heads, 10, d), view(heads_k, 10, d), view(heads_k, 10, d_v)}, {on_device.data()});
      },
      {"gradients: expected a plan with PlanOptions::gradients, got one without"});
  const DeviceArray<bool> mask(std::size_t{2 * longest});
  check_invalid(
      [&] {
        plan.cuda::AttentionPlan<float>::forward(
            view(heads, 10, d), view(heads_k, 10, d), view(heads_k, 10, d_v), view(heads, 10, d_v),
            {.key_mask = mask.data(), .cumulative_lengths = on_device.data()}, nullptr);
      },
      {"key_mask and lengths: expected none for packed sequences"});
  const cuda::AttentionPlan<float> padded(cuda::model_of(attention()), {.n_q = 10, .n_k = 10, .d_v = d_v});
  check_invalid(
      [&] {
        padded.forward(view(1, 10, d), view(1, 10, d), view(1, 10, d_v), view(1, 10, d_v),
                       {.cumulative_lengths = on_device.data()}, nullptr);
      },
      {"cumulative_lengths: expected a plan with PlanShape::packed, got one without"});
}

}  // namespace nprf::test::cuda_plan_attention_plan_packed
