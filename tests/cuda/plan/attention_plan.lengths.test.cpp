// SPDX-License-Identifier: MIT
#include <cstddef>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_magnitudes.hpp"
#include "cuda/heads_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

/// Sequences of different lengths in one batch.
namespace nprf::test::cuda_plan_attention_plan_lengths {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr double eps = static_cast<double>(std::numeric_limits<float>::epsilon());
constexpr double tolerance = 20 * eps;           // of y, as in attention_plan.test.cpp
constexpr double gradient_tolerance = 10 * eps;  // as in backward.test.cpp

constexpr Index d = 6, n_k = 50;
const cuda::PlanShape shape{.batch = 4, .heads = 2, .n_q = 70, .n_k = n_k, .d_v = 5, .heads_k = 1};
const std::vector<int> lengths{n_k, 17, 1, 0};

Attention<PositiveFeatures<float>, RelativePosition<float>> attention(const AttentionOptions& options = {}) {
  return Attention(orf<float>(d, 16, 7), RelativePosition<float>(normal_vector<float>(41, 5)), options);
}

/// Keys and values beyond the lengths are NaN.
HeadsCase padded_case() {
  HeadsCase x(shape, d);
  for (Index b = 0; b < shape.batch; ++b) {
    const Index length = lengths[static_cast<std::size_t>(b)], padding = n_k - length;
    x.k.middleRows(b * n_k + length, padding).setConstant(nan);
    x.v.middleRows(b * n_k + length, padding).setConstant(nan);
  }
  return x;
}

double largest_difference(const Matrix<float>& a, const Matrix<float>& b) {
  return a.size() == 0 ? 0 : static_cast<double>((a - b).cwiseAbs().maxCoeff());
}

}  // namespace

TEST_CASE("keys beyond the length of their sequence are padding, as on the CPU", "[cuda]") {
  const HeadsCase x = padded_case();
  const DeviceArray<int> on_device(lengths);
  for (const Direction direction : {Direction::bidirectional, Direction::causal})
    for (const cuda::Engine engine : {cuda::Engine::direct, cuda::Engine::banded}) {
      const auto cpu = attention({.direction = direction});
      const cuda::AttentionPlan<float> plan(cuda::model_of(cpu), shape, {.engine = engine, .gradients = true});
      const HeadsResults got = x.results(plan, {.lengths = on_device.data()});
      CHECK(got.counts.empty_rows == 2 * shape.n_q);  // of the last sequence
      Matrix<float> dk = Matrix<float>::Zero(x.k.rows(), d), dv = Matrix<float>::Zero(x.v.rows(), shape.d_v);
      std::vector<double> of_keys(4), of_values(4);
      for (Index z = 0; z < x.matrices(); ++z) {
        const auto b = static_cast<std::size_t>(z / shape.heads);
        const std::vector<Index> length{lengths[b]};
        const Matrix<float> q = x.queries_of(x.q, z), k = x.keys_of(x.k, z), v = x.keys_of(x.v, z),
                            dy = x.queries_of(x.dy, z);
        Saved<float> saved;
        const Matrix<float> y = cpu.forward(q, k, v, saved, {.lengths = length, .tolerance = 1e-6});
        const Gradients<float> expected = cpu.backward(saved, dy);
        INFO(name(engine) << (direction == Direction::causal ? ", causal" : "") << ", z " << z);
        if (length[0] == 0) {
          CHECK((x.queries_of(got.y, z).isZero(0) && x.queries_of(got.dq, z).isZero(0)));
          continue;
        }
        const Matrix<float> present_k = k.topRows(length[0]), present_v = v.topRows(length[0]);
        const GradientMagnitudes sizes = gradient_magnitudes(cpu, q, present_k, present_v, dy, 0);
        CHECK(largest_difference(x.queries_of(got.y, z), y) <=
              tolerance * static_cast<double>(present_v.cwiseAbs().maxCoeff()));
        CHECK(largest_difference(x.queries_of(got.dq, z), expected.queries) <= gradient_tolerance * sizes.queries);
        dk.middleRows(z / 2 * n_k, n_k) += expected.keys;
        dv.middleRows(z / 2 * n_k, n_k) += expected.values;
        of_keys[b] += sizes.keys;
        of_values[b] += sizes.values;
      }
      for (Index b = 0; b < shape.batch; ++b) {
        const Index length = lengths[static_cast<std::size_t>(b)], padding = n_k - length;
        const Matrix<float> got_dk = got.dk.middleRows(b * n_k, n_k), got_dv = got.dv.middleRows(b * n_k, n_k);
        INFO(name(engine) << (direction == Direction::causal ? ", causal" : "") << ", sequence " << b);
        CHECK((got_dk.bottomRows(padding).isZero(0) && got_dv.bottomRows(padding).isZero(0)));
        CHECK(largest_difference(got_dk, dk.middleRows(b * n_k, n_k)) <=
              gradient_tolerance * of_keys[static_cast<std::size_t>(b)]);
        CHECK(largest_difference(got_dv, dv.middleRows(b * n_k, n_k)) <=
              gradient_tolerance * of_values[static_cast<std::size_t>(b)]);
      }
    }
}

TEST_CASE("lengths and a mask give the bits of the mask of both", "[cuda]") {
  const HeadsCase x = padded_case();
  std::vector<unsigned char> mask(static_cast<std::size_t>(shape.batch * n_k)), both(mask.size());
  for (Index b = 0; b < shape.batch; ++b)
    for (Index j = 0; j < n_k; ++j) {
      const auto at = static_cast<std::size_t>(b * n_k + j);
      mask[at] = at % 5 != 0;
      both[at] = mask[at] != 0 && j < lengths[static_cast<std::size_t>(b)];
    }
  const DeviceArray<int> of_lengths(lengths);
  const DeviceArray<unsigned char> of_mask(mask), of_both(both);
  const auto as_mask = [](const DeviceArray<unsigned char>& a) { return reinterpret_cast<const bool*>(a.data()); };
  for (const cuda::Engine engine : cuda_engines)
    for (const Index near : {0, 4}) {
      const cuda::AttentionPlan<float> plan(cuda::model_of(attention({.near = near})), shape,
                                            {.engine = engine, .gradients = true});
      const HeadsResults got = x.results(plan, {.key_mask = as_mask(of_mask), .lengths = of_lengths.data()}),
                         expected = x.results(plan, {.key_mask = as_mask(of_both)});
      INFO(name(engine) << ", near " << near);
      CHECK((same_bits(got.y, expected.y) && same_bits(got.dq, expected.dq) && same_bits(got.dk, expected.dk)));
      CHECK((same_bits(got.dv, expected.dv) && same_bits(got.parameters, expected.parameters)));
      CHECK((got.y.allFinite() && got.dk.allFinite()));
    }
}

}  // namespace nprf::test::cuda_plan_attention_plan_lengths
