// SPDX-License-Identifier: MIT
#include "nprf/cuda/attention/normalize.cuh"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "cuda/device_array.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace nprf::test::cuda_attention_normalize {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
constexpr Index n = 120;

// the fields of both sides with the same names agree; the CPU's direct engine recomputes no row for the error of an FFT
template <class F, class P>
cuda::Counts check_counts(const PlanCase& x, const Attention<F, P>& attention,
                          const std::vector<unsigned char>& keys = {}) {
  const KeyMask mask(keys);
  Report report;
  const Matrix<float> expected = attention(
      x.q, x.k, x.v, {.key_mask = mask.on_cpu(), .offset = x.shape.offset, .check_finite = false, .report = &report});
  cuda::Counts counts{};
  const Matrix<float> y = x.result(*x.plan(attention), mask.call(), &counts);
  INFO(name(x.options.engine) << ": empty " << counts.empty_rows << " and " << report.empty_rows << ", indefinite "
                              << counts.indefinite_rows << " and " << report.indefinite_rows << ", repaired "
                              << counts.repaired_rows << " and " << report.repaired_rows);
  CHECK(counts.empty_rows == report.empty_rows);
  CHECK(counts.indefinite_rows == report.indefinite_rows);
  if (!uses_fft(x.options.engine)) CHECK(counts.repaired_rows == report.repaired_rows);
  CHECK(counts.softmax_rows <= counts.repaired_rows);
  return counts;
}

PlanCase plan_case(cuda::Engine engine, Index offset = 0) {
  return {{.n_q = n, .n_k = n, .d_v = 3, .offset = offset}, {.engine = engine}, 6};
}

template <class P>
auto direct(P position, Direction direction = Direction::bidirectional) {
  return Attention(orf<float>(6, 16, 7), std::move(position), {.direction = direction, .engine = Engine::direct});
}

}  // namespace

TEST_CASE("rows that attend to no key are empty, on the GPU as on the CPU", "[cuda]") {
  Vector<float> window = normal_vector<float>(41, 5);
  window.head(15).setConstant(-infinity);
  window.tail(5).setConstant(-infinity);
  std::vector<unsigned char> padding(static_cast<std::size_t>(n), 1), nothing(static_cast<std::size_t>(n), 0);
  std::fill_n(padding.begin() + 20, 40, 0);
  for (const cuda::Engine engine : cuda_engines) {
    const auto all = direct(NoPosition<float>()), causal = direct(NoPosition<float>(), Direction::causal);
    CHECK(check_counts(plan_case(engine), all).empty_rows == 0);
    CHECK(check_counts(plan_case(engine, -10), causal).empty_rows == 10);
    CHECK(check_counts(plan_case(engine), direct(RelativePosition<float>(window)), padding).empty_rows > 10);
    CHECK(check_counts(plan_case(engine), all, nothing).empty_rows == n);
    // with features that do not estimate exp, too
    const Attention elu(EluFeatures<float>(6), RelativePosition<float>(window), {.engine = Engine::direct});
    const cuda::Counts counts = check_counts(plan_case(engine), elu, padding);
    CHECK((counts.empty_rows > 10 && counts.imprecise_rows == 0));
  }
}

TEST_CASE("rows whose denominator is not positive are indefinite, on the GPU as on the CPU", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines)
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const Attention attention(
          trf<float>(6, 2, 7), RelativePosition<float>(normal_vector<float>(41, 5)),
          {.direction = direction, .normalization = Normalization::unit(4), .engine = Engine::direct});
      const cuda::Counts counts = check_counts(plan_case(engine), attention);
      CHECK(counts.indefinite_rows > 10);
      CHECK(counts.imprecise_rows == 0);
    }
}

TEST_CASE("rows whose denominator underflows are repaired, on the GPU as on the CPU", "[cuda]") {
  Vector<float> table = normal_vector<float>(2 * n - 1, 5);
  table.head(n + 50).setConstant(-200);  // queries in the last 50 places attend to no other lags
  for (const cuda::Engine engine : cuda_engines) {
    const cuda::Counts counts = check_counts(plan_case(engine), direct(RelativePosition<float>(table)));
    CHECK(counts.repaired_rows >= 50);
    CHECK((counts.softmax_rows == 0 && counts.imprecise_rows == 0));
  }
}

TEST_CASE("rows that are NaN are not counted", "[cuda]") {
  for (const cuda::Engine engine : cuda_engines) {
    PlanCase x = plan_case(engine);
    x.q.row(3).setConstant(nan);
    x.k.row(50).setConstant(nan);
    x.v(70, 1) = nan;
    // rows 50 and later attend to a key or a value that is not finite
    const cuda::Counts counts = check_counts(x, direct(NoPosition<float>(), Direction::causal));
    CHECK((counts.empty_rows == 0 && counts.indefinite_rows == 0 && counts.imprecise_rows == 0));
    CHECK(counts.repaired_rows <= 49);
    CHECK(counts.softmax_rows == 0);
  }
}

}  // namespace nprf::test::cuda_attention_normalize
