// SPDX-License-Identifier: MIT
#include <cstring>
#include <vector>

#include "cuda/decode_case.hpp"
#include "cuda/stand_in/machine.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/catch.hpp"

/// The calls of the runtime that a step of a DecodePlan makes, and other orders of threads.
namespace nprf::test::cuda_stand_in_decoding {

namespace {

using T = float;
constexpr Index d = 6, d_v = 5, n = 20;

const DecodeModel& model() {
  static const DecodeModel one(std::vector{orf<T>(d, 16, 3)},
                               {{"table", RelativePosition<T>(T(0.5) * random_table<T>(7, 3))}}, 1,
                               {.near = 5, .sinks = 2});
  return one;
}

}  // namespace

// so that a graph of one step can be launched for each token; tests/cuda/gpu/graph.test.cpp does
TEST_CASE("a step with the same arguments is one launch, and computes the next row", "[cuda]") {
  const TokenBatch<T> x(1, 2, 2, n, d, d_v, 7);
  const DecodeCase on_device(x);
  cuda::DecodePlan<T> all_at_once(model().model, on_device.shape()), plan(model().model, on_device.shape());
  on_device.step(all_at_once, 0, n);
  const Matrix<T> expected = on_device.y();
  std::vector<T> q(2 * d), k(2 * d), v(2 * d_v), y(2 * d_v);  // on the stand-in's device too
  const auto view = [](std::vector<T>& row, Index channels) {
    return cuda::DeviceMatrixView<T>(row.data(), 1, 2, 1, channels);
  };
  for (Index t = 0; t < n; ++t) {
    for (const auto& [to, from] : {std::pair{&q, &x.q.values}, {&k, &x.k.values}, {&v, &x.v.values}})
      for (Index h = 0; h < 2; ++h)
        std::memcpy(to->data() + h * from->cols(), from->data() + (h * n + t) * from->cols(),
                    static_cast<std::size_t>(from->cols()) * sizeof(T));
    const stand_in::Counts before = stand_in::counts();
    plan.step(view(q, d), view(k, d), view(v, d_v), view(y, d_v));
    const stand_in::Counts after = stand_in::counts();
    CHECK(after.launches - before.launches == 1);
    CHECK(after.allocations == before.allocations);
    CHECK(after.copies == before.copies);
    CHECK(after.synchronizations == before.synchronizations);
    for (Index h = 0; h < 2; ++h)
      CHECK(std::memcmp(y.data() + h * d_v, expected.data() + (h * n + t) * d_v, d_v * sizeof(T)) == 0);
  }
}

TEST_CASE("the rows of a DecodePlan do not depend on the order of the threads", "[cuda]") {
  using Order = stand_in::Settings::Order;
  const TokenBatch<T> x(1, 1, 1, n, d, 70, 7);
  Matrix<T> first;
  for (const Order order : {Order::forward, Order::backward, Order::shuffled}) {
    const DecodeCase on_device(x);
    const stand_in::Settings before = stand_in::settings();
    stand_in::settings().order = order;
    cuda::DecodePlan<T> plan(model().model, on_device.shape());
    on_device.append(plan, 0, 3);
    on_device.step(plan, 3, n - 3);
    stand_in::settings() = before;
    const Matrix<T> y = on_device.y().bottomRows(n - 3);
    CHECK(y.allFinite());
    if (first.size() == 0) first = y;
    CHECK(same_bits(y, first));
  }
}

}  // namespace nprf::test::cuda_stand_in_decoding
