// SPDX-License-Identifier: MIT
#include "nprf/attention/batch/batch.hpp"

#include <span>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_batch_batch {

namespace {

constexpr Index d = 3, m = 5, d_v = 2;

using Features = PositiveFeatures<double>;
using Relative = RelativePosition<double>;
using Lengths = std::vector<Index>;

// [batch, heads, tokens, channels] as one matrix of all rows
struct Rows {
  Rows(Index batch, Index n_heads, Index tokens, Index channels, std::uint64_t seed = 1)
      : all(normal<double>(batch * n_heads * tokens, channels, seed)), heads(n_heads), n(tokens) {}

  template <class T>
  HeadsView<T> view_of(T* data) const {
    return {data, n > 0 ? all.rows() / (heads * n) : 0, heads, n, all.cols()};
  }
  operator HeadsView<double>() { return view_of(all.data()); }
  operator HeadsView<const double>() const { return view_of(all.data()); }
  Matrix<double> operator()(Index b, Index h) const { return all.middleRows((b * heads + h) * n, n); }

  Matrix<double> all;
  Index heads, n;
};

struct Data {
  Index batch, heads, n_q, n_k;
  Rows q{batch, heads, n_q, d, 1}, k{batch, heads, n_k, d, 2}, v{batch, heads, n_k, d_v, 3};
  Rows dy{batch, heads, n_q, d_v, 4};
  Rows y{batch, heads, n_q, d_v}, dq{batch, heads, n_q, d}, dk{batch, heads, n_k, d}, dv{batch, heads, n_k, d_v};
};

struct Model {
  std::vector<Features> features;   // one, or one for each head
  std::vector<Relative> positions;  // one, or one for each head
  AttentionOptions options;
};

void run(Batch<double>& batch, const Model& model, Data& x, const CallOptions& call) {
  const HeadModels<double> heads(std::span(model.features), std::span(model.positions), model.options);
  Saved<double> saved;
  batch.forward(heads, x.q, x.k, x.v, x.y, call, &saved);
  batch.backward(heads, saved, x.dy, x.dq, x.dk, x.dv);
}

// whether each sequence of each head equals a separate Attention
void check(Batch<double>& batch, const Model& model, Data& x, CallOptions call) {
  Report report, sum;
  call.report = &report;
  run(batch, model, x, call);
  for (Index h = 0; h < x.heads; ++h) {
    const auto of_head = [&](const auto& all) { return all[all.size() == 1 ? 0 : static_cast<std::size_t>(h)]; };
    const Attention attention(of_head(model.features), of_head(model.positions), model.options);
    Matrix<double> bias;
    for (Index b = 0; b < x.batch; ++b) {
      CallOptions own = call;
      Report own_report;
      own.report = &own_report;
      const auto n_k = static_cast<std::size_t>(x.n_k), s = static_cast<std::size_t>(b);
      if (!call.key_mask.empty()) own.key_mask = call.key_mask.subspan(s * n_k, n_k);
      if (!call.lengths.empty()) own.lengths = call.lengths.subspan(s, 1);
      Saved<double> saved;
      const Matrix<double> y = attention.forward(x.q(b, h), x.k(b, h), x.v(b, h), saved, own);
      const Gradients<double> g = attention.backward(saved, x.dy(b, h));
      INFO("sequence " << b << " head " << h);
      CHECK(same_bits(x.y(b, h), y));
      CHECK(same_bits(x.dq(b, h), g.queries));
      CHECK(same_bits(x.dk(b, h), g.keys));
      CHECK(same_bits(x.dv(b, h), g.values));
      if (b == 0)
        bias = g.bias;
      else
        bias += g.bias;
      sum.empty_rows += own_report.empty_rows;
      sum.repaired_rows += own_report.repaired_rows;
    }
    CHECK(worst_ratio(batch.dbias(h), bias, 8 * epsilon<double> * bias.norm()) <= 1);
    CHECK(batch.dextra(h).size() == 0);
  }
  CHECK(report.empty_rows == sum.empty_rows);
  CHECK(report.repaired_rows == sum.repaired_rows);
}

Model model(std::size_t maps, std::size_t positions, const AttentionOptions& options) {
  Model all{{}, {}, options};
  for (std::size_t h = 0; h < maps; ++h) all.features.push_back(orf<double>(d, m, 7 + h));
  for (std::size_t h = 0; h < positions; ++h) all.positions.emplace_back(random_table<double>(4, 40 + h));
  return all;
}

}  // namespace

TEST_CASE("each sequence of each head equals a separate Attention", "[attention]") {
  Batch<double> batch;  // one object, because results do not depend on its earlier calls
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const auto& [maps, positions] :
           std::vector<std::pair<std::size_t, std::size_t>>{{1, 1}, {3, 1}, {1, 3}, {3, 3}}) {
        INFO(std::string(name(engine)) << " " << maps << " feature maps, " << positions << " positions");
        const Model heads = model(maps, positions, {.direction = direction, .engine = engine});
        Data x{2, 3, 11, 14};
        check(batch, heads, x, {.offset = 1});
        const Mask mask = (normal_vector<double>(2 * 14, 90).array() > 0).eval();
        check(batch, heads, x, {.key_mask = view(mask)});
        const Lengths lengths{9, 0};
        check(batch, heads, x, {.lengths = lengths});
        check(batch, heads, x, {.key_mask = view(mask), .lengths = lengths});
        const Lengths q{0, 4, 4, 11}, k{0, 6, 8, 14};
        check(batch, heads, x, {.key_mask = view(mask), .cumulative_lengths = q, .key_cumulative_lengths = k});
      }
}

TEST_CASE("a batch of more work items than threads, and an empty batch", "[attention]") {
  Batch<double> batch;
  const Model heads = model(1, 1, {});
  Data many{7, 3, 5, 5}, one{1, 3, 140, 140}, none{0, 3, 5, 5};
  check(batch, heads, many, {});
  check(batch, heads, one, {});
  Report report;
  run(batch, heads, none, {.report = &report});
  CHECK(report.empty_rows == 0);
  CHECK(report.engine == Engine::automatic);
}

TEST_CASE("a batch rejects masks and lengths of wrong sizes", "[attention]") {
  Batch<double> batch;
  const Model heads = model(1, 1, {});
  Data x{2, 1, 5, 6};
  const Mask mask = Mask::Constant(6, true);
  check_invalid([&] { run(batch, heads, x, {.key_mask = view(mask)}); }, {"key_mask: expected 12", "got 6"});
  const Lengths lengths{6};
  check_invalid([&] { run(batch, heads, x, {.lengths = lengths}); }, {"lengths: expected 2", "got 1"});
}

TEST_CASE("a call of the same shapes uses the same scratch memory", "[attention]") {
  Batch<double> batch;
  const Model heads = model(1, 1, {});
  Data x{2, 3, 40, 40};
  Report first, second, larger;
  run(batch, heads, x, {.report = &first});
  run(batch, heads, x, {.report = &second});
  CHECK(first.workspace_bytes > 0);
  CHECK(second.workspace_bytes == first.workspace_bytes);
  Data more{2, 3, 80, 80};
  run(batch, heads, more, {.report = &larger});
  CHECK(larger.workspace_bytes > first.workspace_bytes);
}

}  // namespace nprf::test::attention_batch_batch
