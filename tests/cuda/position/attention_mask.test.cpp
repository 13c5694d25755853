// SPDX-License-Identifier: MIT
#include "nprf/cuda/position/attention_mask.cuh"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/gradient_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_position_attention_mask {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
constexpr Index n_q = 70;

struct Case {
  const char* what;
  Direction direction;
  Index n_k, offset, padding;  // keys 0 to padding - 1 are padding
  Vector<float> table;
  Index empty_row, one_key_row;  // adjacent queries; the first attends to no key, the second to one
};

std::vector<Case> cases() {
  const Vector<float> table = normal_vector<float>(41, 5);
  Vector<float> window = table;
  window.head(15).setConstant(-infinity);  // lags up to -6
  window.tail(5).setConstant(-infinity);
  return {{"causal", Direction::causal, 60, -10, 0, table, 9, 10},
          {"a window", Direction::bidirectional, 40, 0, 0, window, 45, 44},
          {"padding", Direction::causal, 70, 0, 5, table, 4, 5}};
}

}  // namespace

TEST_CASE("a query of NaNs that attends to no key has a zero row, and affects no gradient", "[cuda]") {
  const Matrix<float> dy = normal<float>(n_q, 5, 9);
  for (const auto& [what, direction, n_k, offset, padding, table, empty_row, one_key_row] : cases())
    for (const cuda::Engine engine : cuda_engines) {
      const Attention attention(orf<float>(6, 4, 7), RelativePosition<float>(table), {.direction = direction});
      std::vector<unsigned char> keys(static_cast<std::size_t>(n_k), 1);
      std::fill_n(keys.begin(), padding, 0);
      const KeyMask mask(keys);
      const cuda::PlanCall call = mask.call();
      PlanCase x{{.n_q = n_q, .n_k = n_k, .d_v = 5, .offset = offset}, {.engine = engine, .gradients = true}, 6};
      const auto plan = x.plan(attention);
      const Gradients<float> before = gradients_of(x, *plan, dy, call);
      x.q.row(empty_row).setConstant(nan);
      x.q(empty_row, 0) = infinity;
      const Gradients<float> after = gradients_of(x, *plan, dy, call);
      INFO(name(engine) << ", " << what);
      CHECK((after.queries == before.queries && after.keys == before.keys));
      CHECK((after.values == before.values && after.bias == before.bias));
      CHECK(after.queries.row(empty_row).isZero(0));

      x.q.row(one_key_row).setConstant(nan);
      const Matrix<float> y = x.result(*plan, call);
      const Matrix<float> expected = attention(x.q, x.k, x.v, {.key_mask = mask.on_cpu(), .offset = offset});
      CHECK((expected.row(empty_row).isZero(0) && y.row(empty_row).isZero(0)));
      CHECK((expected.row(one_key_row).array().isNaN().all() && y.row(one_key_row).array().isNaN().all()));
      CHECK(x.result<__nv_bfloat16>(*x.plan<__nv_bfloat16>(attention), call).row(empty_row).isZero(0));
    }
}

}  // namespace nprf::test::cuda_position_attention_mask
