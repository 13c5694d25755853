// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "cuda/decode_case.hpp"
#include "nprf/core/error.hpp"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

/// Sequences of a DecodePlan that take back tokens, and that become copies of others.
namespace nprf::test::cuda_plan_decode_plan_sequences {

namespace {

using T = float;
constexpr Index d = 6, d_v = 5, batch = 4, heads = 2;

std::vector<DecodePosition> all_positions() {
  return {{"none", NoPosition<T>()},
          of_alibi(T(0.1)),
          of_t5(),
          of_window(9),
          {"table longer than the sequences", RelativePosition<T>(T(0.3) * random_table<T>(200, 5))}};
}

/// Random calls to a plan and to the CPU's Decoder: both refuse the same calls, and their rows agree.
class Storm {
 public:
  Storm(DecodeModel model, Index rollback, Index tokens, std::uint32_t seed, Index heads_k = heads)
      : m_draw(seed),
        m_model(std::move(model)),
        m_x(batch, heads, heads_k, tokens, d, d_v, 7),
        m_on_device(m_x),
        m_plan(m_model.model, m_on_device.shape(0, rollback)) {}

  void run() {
    for (Index t = 0; t < m_x.q.view.tokens;) {
      change();
      const Index count = std::min(1 + below(below(4) == 0 ? 30 : 3), m_x.q.view.tokens - t);
      step(t, count);
      check_tokens(m_model, m_plan);
      t += count;
    }
    const cuda::DecodeCounts counts = m_plan.host_counts();
    CHECK(counts.rejected_rollbacks == m_rejected);
    CHECK(counts.rejected_reorders == 0);
    CHECK((m_done > 0 || m_model.decoder.options().rollback == 0));
  }
  Index rejected() const { return m_rejected; }

 private:
  Index below(Index n) { return static_cast<Index>(m_draw() % static_cast<std::uint32_t>(n)); }

  void change() {
    const Index b = below(batch), to = below(batch);
    switch (below(6)) {
      case 0: m_model.decoder.fork(b, to), m_plan.fork(b, to, nullptr); break;
      case 1: reorder(); break;
      case 2: m_model.decoder.reset(b), m_plan.reset(b, nullptr); break;
      case 3: {
        const Index count = below(m_model.decoder.options().rollback + 3);
        take_back(b, count);
        m_plan.rollback(b, count, nullptr);
        break;
      }
      case 4: take_back_of_all(); break;
      default: break;
    }
  }

  // on the CPU, which refuses by an exception
  void take_back(Index b, Index count) {
    try {
      m_model.decoder.rollback(b, count);
      m_done += count > 0;
    } catch (const InvalidArgument&) {
      ++m_rejected;
    }
  }
  void take_back_of_all() {
    std::vector<int> counts;
    for (Index b = 0; b < batch; ++b) {
      counts.push_back(static_cast<int>(below(m_model.decoder.options().rollback + 2)));
      take_back(b, counts.back());
    }
    m_plan.rollback(DeviceArray<int>(counts).data(), nullptr);
  }
  void reorder() {
    std::vector<Index> from;
    for (Index b = 0; b < batch; ++b) from.push_back(below(batch));
    m_model.decoder.reorder(from);
    m_plan.reorder(DeviceArray<int>(std::vector<int>(from.begin(), from.end())).data(), nullptr);
  }

  void step(Index t, Index count) {
    std::vector<Index> lengths;
    for (Index b = 0; b < batch; ++b) lengths.push_back(below(count + 1));
    Report report;
    m_x.step(m_model.decoder, t, count, {.lengths = lengths, .report = &report});
    const DeviceArray<int> on_device(std::vector<int>(lengths.begin(), lengths.end()));
    m_on_device.step(m_plan, t, count, {.lengths = on_device.data()});
    const Matrix<T> y = m_on_device.y();
    const double bound = 2 * report.error_bound * static_cast<double>(m_x.v.values.cwiseAbs().maxCoeff());
    CHECK(report.repaired_rows + report.failing_rows == 0);
    CHECK(bound < 1e-2);
    for (Index z = 0; z < batch * heads; ++z) {
      const auto rows = [&](const Matrix<T>& all) { return all.middleRows(z * m_x.q.view.tokens + t, count); };
      INFO("tokens " << t << ".." << t + count - 1 << ", head " << z);
      CHECK(static_cast<double>((rows(y) - rows(m_x.y.values)).cwiseAbs().maxCoeff()) <= bound);
    }
  }

  std::mt19937 m_draw;
  DecodeModel m_model;
  TokenBatch<T> m_x;
  DecodeCase m_on_device;
  cuda::DecodePlan<T> m_plan;
  Index m_done = 0, m_rejected = 0;  // rollbacks
};

}  // namespace

TEST_CASE("sequences of a DecodePlan: random calls give the rows of the CPU's Decoder", "[cuda]") {
  Index rejected = 0;
  std::uint32_t seed = 1;
  for (const DecodePosition& position : all_positions())
    for (const auto& [near, sinks, rollback] : {std::array<Index, 3>{0, 0, 0}, {0, 0, 9}, {3, 0, 1}, {7, 2, 9}}) {
      INFO(position.name << ", near " << near << ", sinks " << sinks << ", rollback " << rollback);
      Storm storm({std::vector{orf<T>(d, 16, 3)}, {position}, batch, {.near = near, .sinks = sinks}, rollback},
                  rollback, 80, ++seed);
      storm.run();
      rejected += storm.rejected();
    }
  CHECK(rejected > 0);
}

TEST_CASE("sequences of a DecodePlan: maps whose features can be negative", "[cuda]") {
  const std::vector maps{TaylorFeatures<T>({.input_dim = d, .directions = 3})};
  Storm storm({maps, {of_t5()}, batch, {.normalization = Normalization::unit(0.5), .near = 3}, 5}, 5, 200, 3);
  storm.run();
}

TEST_CASE("sequences of a DecodePlan: a map and a position for each head, and heads that share keys", "[cuda]") {
  const std::vector maps{orf<T>(d, 16, 3), orf<T>(d, 16, 4)};
  Vector<T> table = T(0.5) * random_table<T>(11, 3), other = table.reverse();
  const std::vector<DecodePosition> positions{{"table", RelativePosition<T>(table)},
                                              {"other table", RelativePosition<T>(other)}};
  for (const Index heads_k : {1, 2}) Storm({maps, positions, batch, {.near = 4}, 6}, 6, 80, 5, heads_k).run();
}

// a sequence can take back all of its tokens, since none leaves the ring; without a limit of tokens there are more
// weights than fit in shared memory
TEST_CASE("sequences of a DecodePlan: a cache of all tokens", "[cuda]") {
  constexpr Index n = 30, reach = 5000;
  TokenBatch<T> x(1, 1, 1, n, d, d_v, 7);
  Vector<T> table = T(0.3) * random_table<T>(reach, 5);
  table[reach] = 1 + table.maxCoeff();  // so that both plans have biases relative to that of age 0
  DecodeModel model(std::vector{orf<T>(d, 16, 3)}, {{"table", RelativePosition<T>(table)}});
  const DecodeCase on_device(x), expected(x);
  cuda::DecodePlan<T> plan(model.model, on_device.shape(n)), unlimited(model.model, expected.shape());
  CHECK(unlimited.reach() == reach);
  CHECK(plan.bytes() < unlimited.bytes() / 10);
  expected.step(unlimited, 0, n);
  on_device.step(plan, 0, n);
  CHECK(same_bits<T>(on_device.y(), expected.y()));
  on_device.append(plan, 0, 1);  // one too many
  for (cuda::DecodePlan<T>* each : {&plan, &unlimited}) {
    each->rollback(0, n - 3, nullptr);
    expected.step(*each, 3, n - 3);
    CHECK(same_bits<T>(expected.y(), on_device.y()));
    each->rollback(0, n + 1, nullptr);
    CHECK(each->host_counts().rejected_rollbacks == 1);
  }
  CHECK(plan.host_counts().rejected_tokens == 1);
}

TEST_CASE("sequences of a DecodePlan: copies have the bits of the original", "[cuda]") {
  constexpr Index n = 40, R = 4;
  for (const DecodePosition& position : {of_t5(), of_alibi(T(0.1))}) {
    TokenBatch<T> x(batch, heads, heads, n, d, d_v, 7);
    for (TokenArray<T>* array : {&x.q, &x.k, &x.v})  // all sequences get the same tokens
      for (Index z = heads; z < batch * heads; ++z)
        array->values.middleRows(z * n, n) = array->values.middleRows((z % heads) * n, n).eval();
    const DecodeModel model(std::vector{orf<T>(d, 16, 3)}, {position}, batch, {.near = 2, .sinks = 1});
    const DecodeCase on_device(x), expected(x);
    cuda::DecodePlan<T> plan(model.model, on_device.shape(0, R)), other(model.model, expected.shape(0, R));
    expected.step(other, 0, n);
    // one sequence has 30 tokens; the others have fewer, and become copies of it
    const DeviceArray<int> lengths(std::vector<int>{3, 0, 30, 17}), from(std::vector<int>{2, 2, 2, 2});
    on_device.step(plan, 0, 30, {.lengths = lengths.data()});
    plan.reorder(from.data(), nullptr);
    on_device.step(plan, 30, n - 30);
    const Matrix<T> got = on_device.y(), all = expected.y();
    for (Index z = 0; z < batch * heads; ++z) {
      INFO(position.name << ", head " << z);
      CHECK(same_bits<T>(got.middleRows(z * n + 30, n - 30), all.middleRows(z * n + 30, n - 30)));
    }
  }
}

TEST_CASE("sequences of a DecodePlan: what is refused", "[cuda]") {
  cuda::AttentionModel model{Direction::causal, 1, {cuda::model_of(orf<T>(d, 8, 3))}, {of_alibi(T(0.1)).model}};
  check_invalid([&] { cuda::DecodePlan<T>(model, {.d_v = d_v, .rollback = -1}); }, {"rollback", "0 to 2^24", "-1"});
  cuda::DecodePlan<T> plan(model, {.batch = 2, .heads = 3, .d_v = d_v, .rollback = 2});
  check_invalid([&] { plan.rollback(2, 1, nullptr); }, {"sequence", "0 to 1", "2"});
  check_invalid([&] { plan.rollback(0, -1, nullptr); }, {"tokens", "0 or more", "-1"});
  check_invalid([&] { plan.rollback(nullptr, nullptr); }, {"tokens", "null"});
  check_invalid([&] { plan.reorder(nullptr, nullptr); }, {"from", "null"});
  check_invalid([&] { plan.fork(0, 2, nullptr); }, {"to", "0 to 1", "2"});
  check_invalid([&] { plan.fork(-1, 1, nullptr); }, {"from", "0 to 1", "-1"});
  plan.rollback(0, 1, nullptr);  // of an empty sequence
  for (const std::vector<int>& from : {std::vector<int>{0, 2}, {-1, 0}})
    plan.reorder(DeviceArray<int>(from).data(), nullptr);
  plan.rollback(DeviceArray<int>(std::vector<int>{-1, 3}).data(), nullptr);
  CHECK(plan.host_counts().rejected_rollbacks == 3);
  CHECK(plan.host_counts().rejected_reorders == 2);
}

}  // namespace nprf::test::cuda_plan_decode_plan_sequences
