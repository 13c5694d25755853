// SPDX-License-Identifier: MIT
#include "nprf/cuda/position/attention_mask.cuh"

#include <algorithm>
#include <cstddef>
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

TEST_CASE("the sinks of a sequence are its first keys that are not padding", "[cuda]") {
  constexpr int n_k = 70, sequences = 40;  // more than a block of threads
  std::vector<unsigned char> mask(std::size_t{sequences} * n_k);
  for (std::size_t at = 0; at < mask.size(); ++at) {
    const std::size_t sequence = at / n_k, j = at % n_k;
    mask[at] = j >= 2 * sequence && j % 3 != 1;  // sequences of padding alone from 35 on
  }
  const DeviceArray<unsigned char> on_device(mask);
  for (const int count : {0, 1, 4, 65, n_k})
    for (const bool masked : {false, true}) {
      const DeviceArray<int2> ranges(sequences);
      cuda::queue_sinks(
          {masked ? reinterpret_cast<const bool*>(on_device.data()) : nullptr, sequences, n_k, count, ranges.data()},
          nullptr);
      const std::vector<int2> got = ranges.fetch();
      for (std::size_t sequence = 0; sequence < sequences; ++sequence) {
        const auto [first, end] = got[sequence];
        INFO("count " << count << ", sequence " << sequence << ", first " << first << ", end " << end);
        REQUIRE((first >= 0 && first <= end && end <= n_k));
        int before = 0, within = 0, all = 0;
        for (int j = 0; j < n_k; ++j) {
          const bool is_key = !masked || mask[sequence * n_k + static_cast<std::size_t>(j)] != 0;
          all += is_key, before += is_key && j < first, within += is_key && j >= first && j < end;
          if (j == first && first < end) CHECK(is_key);
        }
        CHECK(before == 0);
        CHECK(within == (all < count ? all : count));
      }
    }
}

TEST_CASE("keys are present up to the length of their sequence, without those that the mask excludes", "[cuda]") {
  constexpr int n_k = 300;
  const std::vector<int> lengths{n_k, 7, 0, -5, n_k + 1000, 1};
  std::vector<unsigned char> mask(lengths.size() * n_k);
  for (std::size_t at = 0; at < mask.size(); ++at) mask[at] = at % 3 != 0;
  const DeviceArray<int> of_lengths(lengths);
  const DeviceArray<unsigned char> of_mask(mask);
  const bool masked = GENERATE(false, true);
  for (const int sequences : {0, 1, static_cast<int>(lengths.size())}) {
    const DeviceArray<unsigned char> present(std::vector<unsigned char>(mask.size() + 1, 7));
    cuda::queue_present_keys({masked ? reinterpret_cast<const bool*>(of_mask.data()) : nullptr, of_lengths.data(),
                              sequences, n_k, reinterpret_cast<bool*>(present.data())},
                             nullptr);
    std::vector<unsigned char> expected(mask.size() + 1, 7);
    for (int b = 0; b < sequences; ++b)
      for (int j = 0; j < n_k; ++j) {
        const auto at = static_cast<std::size_t>(b * n_k + j);
        expected[at] = j < lengths[static_cast<std::size_t>(b)] && (!masked || mask[at] != 0);
      }
    CHECK(present.fetch() == expected);
  }
}

}  // namespace nprf::test::cuda_position_attention_mask
