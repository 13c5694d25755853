// SPDX-License-Identifier: MIT
#include "nprf/attention/multi_head_attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/core/function_ref.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/toeplitz/plan/choose.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_multi_head_attention {

namespace {

constexpr Index d = 13, m = 6, d_v = 3;

template <Real T>
using Features = PositiveFeatures<T>;
template <Real T>
using Relative = RelativePosition<T>;
template <Real T>
using Heads = MultiHeadAttention<Features<T>, Relative<T>>;
using Lengths = std::vector<Index>;

// an array [batch, heads, tokens, channels], initially NaN, one scalar off alignment: no bit may depend on its address
template <Real T>
class Array {
 public:
  Array(Index batch, Index heads, Index tokens, Index channels)
      : m_values(Matrix<T>::Constant(batch * heads * tokens * channels + 2, 1, std::numeric_limits<T>::quiet_NaN())),
        m_batch(batch),
        m_heads(heads),
        m_tokens(tokens),
        m_channels(channels) {}

  HeadsView<T> view() { return {m_values.data() + 1, m_batch, m_heads, m_tokens, m_channels}; }
  HeadsView<const T> view() const { return {m_values.data() + 1, m_batch, m_heads, m_tokens, m_channels}; }
  // a head of a sequence, computed without the view
  Matrix<T> operator()(Index b, Index h) const {
    const T* first = m_values.data() + 1 + (b * m_heads + h) * m_tokens * m_channels;
    return Eigen::Map<const Matrix<T>>(first, m_tokens, m_channels);
  }

  void fill(std::uint64_t seed) { inner() = normal_vector<T>(m_values.size() - 2, seed); }
  auto inner() { return m_values.col(0).segment(1, m_values.size() - 2); }
  auto inner() const { return m_values.col(0).segment(1, m_values.size() - 2); }

  // whether every scalar is finite and the two scalars next to the array are unchanged
  bool written() const {
    return inner().allFinite() && std::isnan(m_values(0, 0)) && std::isnan(m_values(m_values.size() - 1, 0));
  }
  friend bool same(const Array& a, const Array& b) { return same_bits<T>(a.m_values, b.m_values); }

 private:
  Matrix<T> m_values;  // one column
  Index m_batch, m_heads, m_tokens, m_channels;
};

template <Real T>
struct Inputs {
  Inputs(Index b, Index h, Index queries, Index keys, Index columns = d, Index values = d_v)
      : batch(b),
        heads(h),
        n_q(queries),
        n_k(keys),
        q(b, h, queries, columns),
        k(b, h, keys, columns),
        v(b, h, keys, values),
        dy(b, h, queries, values) {
    const auto seed = static_cast<std::uint64_t>(((b * 7 + h) * 1000 + queries) * 1000 + keys);
    q.fill(10 * seed), k.fill(10 * seed + 1), v.fill(10 * seed + 2), dy.fill(10 * seed + 3);
  }

  Index batch, heads, n_q, n_k;
  Array<T> q, k, v, dy;
};

template <Real T>
struct Outputs {
  explicit Outputs(const Inputs<T>& x)
      : y(x.batch, x.heads, x.n_q, x.v.view().channels),
        dq(x.batch, x.heads, x.n_q, x.q.view().channels),
        dk(x.batch, x.heads, x.n_k, x.q.view().channels),
        dv(x.batch, x.heads, x.n_k, x.v.view().channels) {}

  bool written() const { return y.written() && dq.written() && dk.written() && dv.written(); }

  Array<T> y, dq, dk, dv;
  std::vector<Matrix<T>> dbias, dextra;
  Report report;
};

template <Real T>
bool same(const std::vector<Matrix<T>>& a, const std::vector<Matrix<T>>& b) {
  return std::ranges::equal(a, b, [](const auto& one, const auto& other) { return same_bits<T>(one, other); });
}

template <Real T>
bool same(const Outputs<T>& a, const Outputs<T>& b) {
  return same(a.y, b.y) && same(a.dq, b.dq) && same(a.dk, b.dk) && same(a.dv, b.dv) && same(a.dbias, b.dbias) &&
         same(a.dextra, b.dextra);
}

template <class F, class P, Real T>
void forward(const MultiHeadAttention<F, P>& attention, const Inputs<T>& x, Outputs<T>& out, Saved<T>& saved,
             CallOptions call = {}) {
  call.report = &out.report;
  attention.forward(x.q.view(), x.k.view(), x.v.view(), out.y.view(), saved, call);
}

template <class F, class P, Real T>
void backward(const MultiHeadAttention<F, P>& attention, const Inputs<T>& x, Outputs<T>& out, const Saved<T>& saved) {
  attention.backward(saved, x.dy.view(), out.dq.view(), out.dk.view(), out.dv.view(), out.dbias, &out.dextra);
}

template <class F, class P, Real T>
Outputs<T> run(const MultiHeadAttention<F, P>& attention, const Inputs<T>& x, const CallOptions& call = {}) {
  Outputs<T> out(x);
  Saved<T> saved;
  forward(attention, x, out, saved, call);
  backward(attention, x, out, saved);
  return out;
}

template <Real T>
Array<T> call_only(const Heads<T>& attention, const Inputs<T>& x, const CallOptions& call = {}) {
  Array<T> y(x.batch, x.heads, x.n_q, x.v.view().channels);
  attention(x.q.view(), x.k.view(), x.v.view(), y.view(), call);
  return y;
}

// Checks that `got` is the sum of one matrix for each sequence of the batch. The terms and the sum are rounded to T,
// with errors of half an epsilon of each. An end of a table sums the gradients of many lags, here in another order:
// each addition rounds by half an epsilon of double of the partial sum, which is about as large as the largest
// gradient.
template <Real T>
void check_sum(const Matrix<T>& got, const std::vector<Matrix<T>>& terms, Index lags = 0) {
  Matrix<double> sum = Matrix<double>::Zero(got.rows(), got.cols()), size = sum;
  for (const Matrix<T>& term : terms) {
    REQUIRE((term.rows() == got.rows() && term.cols() == got.cols()));
    sum += term.template cast<double>();
    size += term.template cast<double>().cwiseAbs();
  }
  const double largest = size.size() > 0 ? size.maxCoeff() : 0;
  const double another_order = epsilon<double> * std::sqrt(static_cast<double>(lags)) * largest;
  CHECK(worst_ratio(got, sum, Matrix<double>(epsilon<T> * size.array() + another_order)) <= 1);
}

// checks each head of each sequence against a separate Attention
template <class F, class P, Real T>
void check_by_head(const MultiHeadAttention<F, P>& attention, const Inputs<T>& x, const Outputs<T>& out,
                   const CallOptions& call = {}) {
  Report sum;
  CHECK(out.written());
  REQUIRE(static_cast<Index>(out.dbias.size()) == x.heads);
  REQUIRE(static_cast<Index>(out.dextra.size()) == x.heads);
  for (Index h = 0; h < x.heads; ++h) {
    const auto of_head = [&](const auto& all) { return all[all.size() == 1 ? 0 : static_cast<std::size_t>(h)]; };
    const Attention one(of_head(attention.features()), of_head(attention.positions()), attention.options());
    std::vector<Matrix<T>> bias, extra;
    for (Index b = 0; b < x.batch; ++b) {
      Report report;
      CallOptions own = call;
      own.report = &report;
      const auto n_k = static_cast<std::size_t>(x.n_k), s = static_cast<std::size_t>(b);
      if (!call.key_mask.empty()) own.key_mask = call.key_mask.subspan(s * n_k, n_k);
      if (!call.lengths.empty()) own.lengths = call.lengths.subspan(s, 1);
      Saved<T> saved;
      const Matrix<T> y = one.forward(x.q(b, h), x.k(b, h), x.v(b, h), saved, own);
      const Gradients<T> g = one.backward(saved, x.dy(b, h));
      INFO("sequence " << b << " head " << h);
      CHECK(same_bits(out.y(b, h), y));
      CHECK(same_bits(out.dq(b, h), g.queries));
      CHECK(same_bits(out.dk(b, h), g.keys));
      CHECK(same_bits(out.dv(b, h), g.values));
      bias.push_back(g.bias);
      extra.push_back(g.extra);
      if (sum.engine == Engine::automatic) sum.engine = report.engine;
      sum.empty_rows += report.empty_rows;
      sum.repaired_rows += report.repaired_rows;
      sum.indefinite_rows += report.indefinite_rows;
    }
    INFO("head " << h);
    const auto at = static_cast<std::size_t>(h);
    check_sum(out.dbias[at], bias, x.batch * (x.n_q + x.n_k));
    check_sum(out.dextra[at], extra);
  }
  CHECK(out.report.engine == sum.engine);
  CHECK(out.report.empty_rows == sum.empty_rows);
  CHECK(out.report.repaired_rows == sum.repaired_rows);
  CHECK(out.report.indefinite_rows == sum.indefinite_rows);
}

template <Real T>
std::vector<Features<T>> maps(Index count) {
  std::vector<Features<T>> maps;
  for (Index h = 0; h < count; ++h) maps.push_back(orf<T>(d, m, 7 + static_cast<std::uint64_t>(h)));
  return maps;
}

template <Real T>
std::vector<Relative<T>> tables(Index count, Index reach = 4) {
  std::vector<Relative<T>> positions;
  for (Index h = 0; h < count; ++h) positions.emplace_back(random_table<T>(reach, 40 + static_cast<std::uint64_t>(h)));
  return positions;
}

// attentions with one feature map or one for each head, and one position or one for each head
template <Real T>
std::vector<Heads<T>> kinds(Index heads, const AttentionOptions& options) {
  const MultiHeadAttention one_one(maps<T>(1)[0], tables<T>(1)[0], options);
  const MultiHeadAttention many_one(maps<T>(heads), tables<T>(1)[0], options);
  const MultiHeadAttention one_many(maps<T>(1)[0], tables<T>(heads), options);
  const MultiHeadAttention many_many(maps<T>(heads), tables<T>(heads), options);
  static_assert(std::same_as<decltype(one_one), const Heads<T>>);
  static_assert(std::same_as<decltype(many_one), const Heads<T>>);
  static_assert(std::same_as<decltype(one_many), const Heads<T>>);
  static_assert(std::same_as<decltype(many_many), const Heads<T>>);
  return {one_one, many_one, one_many, many_many};
}

std::string description(const AttentionOptions& options) {
  return std::string(name(options.engine)) + (options.direction == Direction::causal ? " causal" : " bidirectional");
}

template <class Body>
void for_each_option(Body&& body) {
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const AttentionOptions options{.direction = direction, .engine = engine};
      INFO(description(options));
      body(options);
    }
}

template <Real T>
void check_kinds() {
  struct Sizes {
    Index batch, heads, n_q, n_k, offset;
  };
  for_each_option([](const AttentionOptions& options) {
    for (const Sizes& s : {Sizes{1, 1, 9, 9, 0}, Sizes{1, 4, 7, 12, 3}, Sizes{2, 3, 11, 8, -2}, Sizes{3, 2, 1, 6, 0},
                           Sizes{3, 4, 13, 1, 1}, Sizes{2, 2, 140, 133, 5}}) {
      const Inputs<T> x(s.batch, s.heads, s.n_q, s.n_k);
      int kind = 0;
      for (const Heads<T>& attention : kinds<T>(s.heads, options)) {
        INFO("kind " << kind++ << ", batch " << s.batch << " heads " << s.heads << " n_q " << s.n_q << " n_k " << s.n_k
                     << " offset " << s.offset);
        const Outputs<T> out = run(attention, x, {.offset = s.offset});
        check_by_head(attention, x, out, {.offset = s.offset});
        CHECK(same(call_only(attention, x, {.offset = s.offset}), out.y));
      }
    }
  });
}

Mask random_mask(Index size, std::uint64_t seed = 90) { return (normal_vector<double>(size, seed).array() > 0).eval(); }

// x with NaN in the keys and values that the mask or the lengths exclude
template <Real T>
Inputs<T> padded(Inputs<T> x, const Mask& mask, const Lengths& lengths) {
  for (Index b = 0; b < x.batch; ++b)
    for (Index j = 0; j < x.n_k; ++j) {
      const bool attended =
          (mask.size() == 0 || mask[b * x.n_k + j]) && (lengths.empty() || j < lengths[static_cast<std::size_t>(b)]);
      for (Index h = 0; h < x.heads && !attended; ++h) {
        x.k.view()(b, h).row(j).setConstant(std::numeric_limits<T>::quiet_NaN());
        x.v.view()(b, h).row(j).setConstant(std::numeric_limits<T>::quiet_NaN());
      }
    }
  return x;
}

}  // namespace

TEST_CASE("multi-head: each head of each sequence equals a separate Attention, in float", "[multi_head]") {
  check_kinds<float>();
}

TEST_CASE("multi-head: each head of each sequence equals a separate Attention, in double", "[multi_head]") {
  check_kinds<double>();
}

TEST_CASE("multi-head: the object returns its feature maps, positions and options", "[multi_head]") {
  const MultiHeadAttention attention(maps<float>(1)[0], tables<float>(3), {.direction = Direction::causal});
  REQUIRE(attention.features().size() == 1);
  CHECK(attention.features()[0].projection() == maps<float>(1)[0].projection());
  REQUIRE(attention.positions().size() == 3);
  CHECK(attention.positions()[2].bias().table == tables<float>(3)[2].bias().table);
  CHECK(attention.options().direction == Direction::causal);
  CHECK(Heads<float>(maps<float>(1), tables<float>(1)).options().direction == Direction::bidirectional);
}

TEST_CASE("multi-head: without a position the bias is 0", "[multi_head]") {
  const AttentionOptions causal{.direction = Direction::causal};
  const auto check = [&](const auto& bare, const auto& with) {
    Array<float> q(2, 2, 9, d), k(2, 2, 9, d), v(2, 2, 9, d_v), y(2, 2, 9, d_v), expected = y;
    q.fill(1), k.fill(2), v.fill(3);
    bare(q.view(), k.view(), v.view(), y.view());
    with(q.view(), k.view(), v.view(), expected.view());
    CHECK(same(y, expected));
  };
  const auto one = orf<float>(d, m, 1);
  const std::vector<PositiveFeatures<float>> each{orf<float>(d, m, 1), orf<float>(d, m, 2)};
  check(MultiHeadAttention(one), MultiHeadAttention(one, NoPosition<float>()));
  check(MultiHeadAttention(one, causal), MultiHeadAttention(one, NoPosition<float>(), causal));
  check(MultiHeadAttention(each), MultiHeadAttention(each, NoPosition<float>()));
  check(MultiHeadAttention(each, {.direction = Direction::causal}),
        MultiHeadAttention(each, NoPosition<float>(), causal));
}

TEST_CASE("multi-head: each sequence of a batch has its own padding", "[multi_head]") {
  const Inputs<float> x(3, 2, 10, 14);
  const Mask mask = random_mask(3 * 14);
  for (Index b = 0; b < 3; ++b) REQUIRE(mask.segment(b * 14, 14).count() % 14 != 0);
  const Lengths lengths{14, 0, 5};
  for_each_option([&](const AttentionOptions& options) {
    const MultiHeadAttention attention(maps<float>(2), tables<float>(2), options);
    const auto check = [&](const CallOptions& call, const Inputs<float>& padded_x) {
      const Outputs<float> out = run(attention, x, call), with_nan = run(attention, padded_x, call);
      check_by_head(attention, x, out, call);
      CHECK(with_nan.written());
      CHECK(same(with_nan, out));
    };
    check({.key_mask = view(mask), .offset = 1}, padded(x, mask, {}));
    check({.lengths = lengths, .offset = 1}, padded(x, {}, lengths));
    check({.key_mask = view(mask), .lengths = lengths}, padded(x, mask, lengths));
  });
}

TEST_CASE("multi-head: cumulative lengths apply to every sequence of a batch", "[multi_head]") {
  const Inputs<float> x(3, 2, 12, 15);
  const Lengths q{0, 4, 4, 5, 12}, k{0, 6, 8, 9, 15};
  const Mask mask = random_mask(3 * 15, 91);
  for_each_option([&](const AttentionOptions& options) {
    const MultiHeadAttention attention(maps<float>(2), tables<float>(2), options);
    // gradients are summed in double and rounded once, so that the tolerance of check_sum() holds here too
    const CallOptions cross{.cumulative_lengths = q, .key_cumulative_lengths = k};
    check_by_head(attention, x, run(attention, x, cross), cross);
    const CallOptions masked{.key_mask = view(mask), .cumulative_lengths = q, .key_cumulative_lengths = k, .offset = 1};
    const Outputs<float> out = run(attention, x, masked);
    check_by_head(attention, x, out, masked);
    CHECK(same(run(attention, padded(x, mask, {}), masked), out));

    const Inputs<float> self(2, 2, 12, 12);
    check_by_head(attention, self, run(attention, self, {.cumulative_lengths = q}), {.cumulative_lengths = q});
  });
}

TEST_CASE("multi-head: a report counts the rows of all heads of all sequences", "[multi_head]") {
  // steep tables, with which most rows are recomputed in double; the first query precedes all keys
  std::vector<RelativePosition<float>> steep;
  for (const float top : {400.0f, 800.0f}) steep.emplace_back(Vector<float>::LinSpaced(61, top, -top));
  const MultiHeadAttention attention(maps<float>(1)[0], steep, {.direction = Direction::causal});
  const Inputs<float> x(3, 2, 30, 30);
  Mask mask = random_mask(3 * 30);
  mask.segment(30, 30).setConstant(false);
  const CallOptions call{.key_mask = view(mask), .offset = -1};
  const Outputs<float> out = run(attention, x, call);
  check_by_head(attention, x, out, call);
  CHECK(out.report.repaired_rows > 20);
  CHECK(out.report.empty_rows >= 2 * (30 + 2));
  CHECK(out.report.engine == Engine::direct);
  CHECK(out.report.workspace_bytes > 0);
  CHECK((out.report.error_bound > 1e-6 && out.report.error_bound < 1e-4));
}

TEST_CASE("multi-head: a report of gradients counts those of all heads of all sequences", "[multi_head]") {
  const Index n = 200, few = 10;
  const Inputs<float> x(2, 2, n, n);
  // the last keys have tiny weights in one head
  Vector<float> b = Vector<float>::Zero(2 * n + 1), gap = b;
  gap.segment(n - few + 1, few).setConstant(-7);
  const std::vector<RelativePosition<float>> tables{RelativePosition<float>(b), RelativePosition<float>(gap)};
  const Features<float> features = orf<float>(d, m, 1);
  for (const Engine engine : {Engine::direct, Engine::lanes}) {
    const AttentionOptions options{.direction = Direction::causal, .engine = engine};
    const Heads<float> heads({features}, tables, options);
    Outputs<float> out(x);
    Saved<float> saved;
    forward(heads, x, out, saved);
    GradientReport report, sum;
    heads.backward(saved, x.dy.view(), out.dq.view(), out.dk.view(), out.dv.view(), out.dbias, nullptr, &report);
    for (const Index seq : {0, 1})
      for (const Index h : {0, 1}) {
        const Attention one(features, tables[static_cast<std::size_t>(h)], options);
        Saved<float> one_saved;
        one.forward(x.q(seq, h), x.k(seq, h), x.v(seq, h), one_saved);
        const GradientReport of_one = one.backward(one_saved, x.dy(seq, h)).report;
        sum.recomputed_queries += of_one.recomputed_queries;
        sum.recomputed_keys += of_one.recomputed_keys;
        sum.recomputed_lags += of_one.recomputed_lags;
        sum.error_bound = std::max(sum.error_bound, of_one.error_bound);
      }
    CHECK(report.engine == engine);
    CHECK(report.recomputed_queries == sum.recomputed_queries);
    CHECK(report.recomputed_keys == sum.recomputed_keys);
    CHECK(report.recomputed_lags == sum.recomputed_lags);
    CHECK(report.error_bound == sum.error_bound);
    CHECK(report.workspace_bytes > 0);
    CHECK((report.recomputed_keys > 0) == (engine == Engine::lanes));
  }
}

TEST_CASE("multi-head: each head with a grid and extra tokens equals a separate Attention", "[multi_head]") {
  // trigonometric features of rows of norm 2, so that some denominators are negative
  const Index height = 3, width = 4;
  for_each_option([&](AttentionOptions options) {
    options.normalization = Normalization::unit(2);
    for (const Index extra : {0, 2}) {
      std::vector<GridPosition<float>> grids;
      for (std::uint64_t h = 0; h < 3; ++h)
        grids.emplace_back(height, width, normal<float>(2 * height - 1, 2 * width - 1, 30 + h),
                           normal<float>(extra, extra + 2, 60 + h));
      const Index n = extra + height * width;
      const Inputs<float> x(2, 3, n, n);
      const MultiHeadAttention attention(trf<float>(d, 4, 7), grids, options);
      const Outputs<float> out = run(attention, x);
      check_by_head(attention, x, out);
      CHECK(out.report.indefinite_rows > 0);
      for (const Matrix<float>& dextra : out.dextra) CHECK((dextra.rows() == extra && dextra.cols() == extra + 2));

      Mask mask = random_mask(2 * n, 92);
      mask[n] = false;
      const CallOptions masked{.key_mask = view(mask)};
      check_by_head(attention, x, run(attention, x, masked), masked);

      // without dextra all other results are the same
      Saved<float> saved;
      Outputs<float> again(x);
      forward(attention, x, again, saved);
      attention.backward(saved, x.dy.view(), again.dq.view(), again.dk.view(), again.dv.view(), again.dbias);
      CHECK(again.dextra.empty());
      again.dextra = out.dextra;
      CHECK(same(again, out));
    }
  });
}

TEST_CASE("multi-head: results are bitwise equal for any thread count", "[multi_head][threads]") {
  struct Sizes {
    Index batch, heads, n_q, n_k;
  };
  constexpr Index values = 9;
  for (const Engine engine : engines())
    for (const Sizes& s :
         NPRF_TEST_SANITIZED
             ? std::vector<Sizes>{{2, 3, 720, 720}, {1, 7, 500, 620}}
             : std::vector<Sizes>{{2, 3, 720, 720}, {1, 1, 4000, 3900}, {1, 7, 500, 620}, {3, 1, 1400, 1450}}) {
      const bool causal = s.heads == 3;
      const AttentionOptions options{.direction = causal ? Direction::causal : Direction::bidirectional,
                                     .engine = engine};
      const Inputs<float> x(s.batch, s.heads, s.n_q, s.n_k, d, values);
      const Mask mask = random_mask(s.batch * s.n_k);
      const CallOptions call{.key_mask = s.heads == 7 ? view(mask) : std::span<const bool>(), .offset = 3};
      std::optional<Outputs<float>> alone;
      for (const Index threads : NPRF_TEST_SANITIZED ? std::vector<Index>{1, 3} : std::vector<Index>{1, 2, 3, 4, 5}) {
        const Threads restore(threads);
        const double operations = toeplitz::dense_cost<float>({s.n_q, s.n_k, m, values + 1});
        REQUIRE(toeplitz::worthwhile_threads(static_cast<double>(s.batch * s.heads) * operations) == threads);
        // a new object, without scratch memory of another number of threads
        const MultiHeadAttention attention(maps<float>(s.heads), tables<float>(s.heads, 500), options);
        const Outputs<float> now = run(attention, x, call);
        INFO(description(options) << ", batch " << s.batch << " heads " << s.heads << ", " << threads << " threads");
        if (!alone) {
          alone = now;
          check_by_head(attention, x, now, call);
        }
        CHECK(same(now, *alone));
        CHECK(same(call_only(attention, x, call), alone->y));
      }
    }
}

TEST_CASE("multi-head: a call gives the same bits after calls of other shapes", "[multi_head]") {
  for (const Engine engine : engines()) {
    const MultiHeadAttention attention(maps<double>(2), tables<double>(2), {.engine = engine});
    const Inputs<double> x(2, 2, 9, 7), larger(3, 2, 150, 140), none(0, 2, 3, 3);
    const Lengths lengths{3, 5, 0}, packed{0, 50, 150}, keys{0, 140, 140};
    const Outputs<double> first = run(attention, x);
    const Outputs<double> again_first = run(attention, x);
    CHECK(same(again_first, first));
    CHECK(again_first.report.workspace_bytes == first.report.workspace_bytes);
    const Outputs<double> other = run(attention, larger, {.lengths = lengths});
    run(attention, larger, {.cumulative_lengths = packed, .key_cumulative_lengths = keys});
    run(attention, none);
    CHECK(same(run(attention, x), first));
    CHECK(same(run(attention, larger, {.lengths = lengths}), other));

    // backward does not change the saved data and can run again; the same Saved can be filled by another call
    Saved<double> saved;
    Outputs<double> out(larger);
    forward(attention, larger, out, saved, {.lengths = lengths});
    for (int again = 0; again < 2; ++again) {
      backward(attention, larger, out, saved);
      CHECK(same(out, other));
    }
    Outputs<double> small(x);
    forward(attention, x, small, saved);
    backward(attention, x, small, saved);
    CHECK(same(small, first));
  }
}

TEST_CASE("multi-head: several threads can use an attention and its copies at the same time", "[multi_head][threads]") {
  constexpr int threads = 8, rounds = 3;
  std::vector<AttentionOptions> kinds;
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      kinds.push_back({.direction = direction, .engine = engine});
  for (const AttentionOptions& options : kinds) {
    const MultiHeadAttention attention(maps<float>(2), tables<float>(2), options);
    const Heads<float> copy = attention;
    std::vector<Inputs<float>> inputs;
    std::vector<Outputs<float>> expected;
    for (Index t = 0; t < threads; ++t) {
      // the last call is large enough to use several threads itself
      inputs.emplace_back(1 + t % 3, 2, t == 7 ? 600 : 5 + 17 * t, t == 7 ? 500 : 90 - 11 * t);
      expected.push_back(run(Heads<float>(maps<float>(2), tables<float>(2), options), inputs.back()));
    }
    std::vector<int> equal(threads, 0);
    std::vector<std::thread> callers;
    for (std::size_t t = 0; t < threads; ++t)
      callers.emplace_back([&, t] {
        for (std::size_t round = 0; round < rounds; ++round) {
          const std::size_t which = (t + round) % threads;
          const Heads<float>& object = (t + round) % 2 == 0 ? attention : copy;
          equal[t] += same(run(object, inputs[which]), expected[which]);
        }
      });
    for (std::thread& thread : callers) thread.join();
    for (const int count : equal) CHECK(count == rounds);
  }
}

TEST_CASE("multi-head: a copy gives the same bits after the original is destroyed", "[multi_head]") {
  const Inputs<double> x(2, 3, 9, 7);
  std::optional<Heads<double>> attention(std::in_place, maps<double>(3), tables<double>(1));
  Outputs<double> out(x);
  Saved<double> saved;
  forward(*attention, x, out, saved);
  backward(*attention, x, out, saved);
  const Heads<double> copy = *attention;
  Heads<double> assigned(maps<double>(1), tables<double>(1));
  assigned = *attention;
  attention.reset();
  for (const Heads<double>& one : {copy, assigned, Heads<double>(std::move(assigned))}) {
    CHECK(same(run(one, x), out));
    Outputs<double> again(x);
    again.y = out.y;
    backward(one, x, again, saved);
    CHECK(same(again, out));
  }
}

TEST_CASE("multi-head: attentions that share scratch memory have the results of those that do not", "[multi_head]") {
  const Inputs<double> x(2, 3, 40, 37), larger(1, 3, 300, 300);
  const Heads<double> alone(maps<double>(3), tables<double>(3));
  const MultiHeadAttention first(maps<double>(1)[0], AlibiPosition<double>(0.1));
  Heads<double> second(maps<double>(3), tables<double>(3));
  second.share_scratch_memory(first);
  const Outputs<double> expected = run(alone, x);
  run(first, larger);
  CHECK(same(run(second, x), expected));
  first.free_scratch_memory();
  CHECK(same(run(second, x), expected));
  // what the other saved is still rejected
  Outputs<double> out(x);
  Saved<double> saved;
  forward(first, x, out, saved);
  check_invalid([&] { backward(second, x, out, saved); }, {"saved: expected one filled by", "got another's"});
}

TEST_CASE("multi-head: redraw gives all heads maps determined by the seed", "[multi_head]") {
  const Inputs<double> x(2, 3, 9, 7);
  for (const Index count : {1, 3}) {
    const MultiHeadAttention attention(maps<double>(count), tables<double>(3), {.direction = Direction::causal});
    const Heads<double> first = attention.redraw(5), again = attention.redraw(5), other = attention.redraw(6);
    const Outputs<double> out = run(first, x);
    check_by_head(first, x, out);
    CHECK(same(run(again, x), out));
    CHECK(first.options().direction == Direction::causal);
    REQUIRE(first.features().size() == attention.features().size());
    CHECK(first.positions().size() == 3);
    // all maps have different rows
    std::vector<Matrix<double>> rows;
    for (const Heads<double>* one : {&attention, &first, &other})
      for (const Features<double>& map : one->features()) rows.push_back(map.projection());
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) CHECK(rows[i] != rows[j]);
    for (std::size_t h = 0; h < first.features().size(); ++h)
      CHECK(first.features()[h].projection() == again.features()[h].projection());
    const Outputs<double> before = run(attention, x), redrawn = run(other, x);
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 3; ++h) {
        CHECK(out.y(b, h) != before.y(b, h));
        CHECK(out.y(b, h) != redrawn.y(b, h));
      }
  }
  const MultiHeadAttention one(maps<double>(1)[0], tables<double>(1)[0]);
  const Attention alone(maps<double>(1)[0], tables<double>(1)[0]);
  CHECK(one.redraw(9).features()[0].projection() == alone.redraw(9).features().projection());
}

TEST_CASE("multi-head: feature maps and positions that do not match are rejected", "[multi_head]") {
  using A = Heads<double>;
  check_invalid([] { A(std::vector<Features<double>>{}, tables<double>(1)); },
                {"feature_maps: expected one", "got none"});
  check_invalid([] { A(maps<double>(1), std::vector<Relative<double>>{}); }, {"positions: expected one", "got none"});
  check_invalid([] { A(maps<double>(2), tables<double>(3)); },
                {"positions: expected 1 or 2 (the number of feature maps)", "got 3"});
  check_invalid([] { A(maps<double>(3), tables<double>(2)); },
                {"positions: expected 1 or 3 (the number of feature maps)", "got 2"});
  std::vector<Features<double>> wide = maps<double>(3), long_ones = wide;
  wide[2] = orf<double>(d + 1, m, 7);
  long_ones[1] = orf<double>(d, m + 2, 7);
  check_invalid([&] { A(wide, tables<double>(1)); }, {"feature_maps: expected 13 -> 6 of all heads", "got 14 -> 6"});
  check_invalid([&] { A(long_ones, tables<double>(1)); },
                {"feature_maps: expected 13 -> 6 of all heads", "got 13 -> 8"});
  check_invalid([] { A(maps<double>(1), tables<double>(1), {.engine = static_cast<Engine>(9)}); },
                {"engine: expected one of nprf::Engine, got number 9"});
  check_invalid([] { A(maps<double>(1), tables<double>(1), {.direction = static_cast<Direction>(2)}); },
                {"direction: expected bidirectional or causal, got number 2"});
  // the bias of a user's own position is checked
  std::vector<HeldPosition<double>> held(2);
  held[1].held.table[0] = std::nan("");
  check_invalid([&] { MultiHeadAttention(maps<double>(1)[0], held); },
                {"bias.table[0]: expected a finite number or -infinity", "got nan"});
}

namespace {

// a view with one of its sizes changed
template <class T>
HeadsView<T> resized(HeadsView<T> x, Index HeadsView<T>::*size, Index by) {
  x.*size += by;
  return x;
}

constexpr std::array sizes{&HeadsView<double>::batch, &HeadsView<double>::heads, &HeadsView<double>::tokens,
                           &HeadsView<double>::channels};

std::string text(const HeadsView<double>& x) {
  return std::to_string(x.batch) + " x " + std::to_string(x.heads) + " x " + std::to_string(x.tokens) + " x " +
         std::to_string(x.channels);
}

// checks that `call` rejects an array if one of its sizes is wrong, or its pointer null. A wrong size of `elsewhere` is
// reported for another array
void check_rejected(const std::string& name, const HeadsView<double>& of,
                    FunctionRef<void(const HeadsView<double>&)> call,
                    const std::vector<Index HeadsView<double>::*>& elsewhere = {}) {
  for (const auto size : sizes)
    for (const Index by : {-1, 1}) {
      if (std::ranges::count(elsewhere, size) > 0) continue;
      const HeadsView<double> wrong = resized(of, size, by);
      check_invalid([&] { call(wrong); }, {name + ": expected " + text(of), "got " + text(wrong)});
    }
  HeadsView<double> null = of;
  null.data = nullptr;
  check_invalid([&] { call(null); }, {name + ": expected data", "got a null pointer"});
}

}  // namespace

TEST_CASE("multi-head: arrays whose shapes do not match the queries are rejected", "[multi_head]") {
  Inputs<double> x(2, 3, 4, 6);
  Outputs<double> out(x);
  const MultiHeadAttention attention(maps<double>(1)[0], tables<double>(1)[0]);
  const HeadsView<double> q = x.q.view(), k = x.k.view(), v = x.v.view(), y = out.y.view();
  using View = HeadsView<double>;
  // fewer heads of keys are shared by those of queries, if they divide them
  check_rejected("keys", k, [&](const View& wrong) { attention(q, wrong, v, y); }, {&View::tokens, &View::heads});
  check_rejected("values", v, [&](const View& wrong) { attention(q, k, wrong, y); }, {&View::channels});
  check_rejected("y", y, [&](const View& wrong) { attention(q, k, v, wrong); });
  for (const Index by : {-1, 1}) {
    const HeadsView<double> other = resized(k, &HeadsView<double>::tokens, by), wide = resized(v, sizes[3], by);
    check_invalid([&] { attention(q, other, v, y); }, {"values: expected " + text({v.data, 2, 3, 6 + by, d_v})});
    check_invalid([&] { attention(q, k, wide, y); }, {"y: expected " + text({y.data, 2, 3, 4, d_v + by})});
  }
  check_invalid([&] { attention({nullptr, 2, 3, 4, d}, k, v, y); }, {"queries: expected data", "got a null pointer"});
  CHECK(out.y.inner().array().isNaN().all());  // nothing was written
}

TEST_CASE("multi-head: arrays of negative sizes are rejected", "[multi_head]") {
  Inputs<double> x(2, 3, 4, 6);
  Outputs<double> out(x);
  const MultiHeadAttention attention(maps<double>(1)[0], tables<double>(1)[0]);
  double* data = x.q.view().data;
  const auto call = [&](Index b, Index h, Index n_q, Index n_k, Index columns, Index values) {
    attention({data, b, h, n_q, columns}, {data, b, h, n_k, columns}, {data, b, h, n_k, values},
              {data, b, h, n_q, values});
  };
  check_invalid([&] { call(-1, 3, 4, 6, d, d_v); }, {"queries: expected no negative size", "got -1 x 3 x 4 x 13"});
  check_invalid([&] { call(2, -3, 4, 6, d, d_v); }, {"queries: expected no negative size", "got 2 x -3 x 4 x 13"});
  check_invalid([&] { call(2, 3, -4, 6, d, d_v); }, {"queries: expected no negative size", "got 2 x 3 x -4 x 13"});
  check_invalid([&] { call(2, 3, 4, -6, d, d_v); }, {"keys: expected no negative size", "got 2 x 3 x -6 x 13"});
  check_invalid([&] { call(2, 3, 4, 6, -d, d_v); }, {"queries: expected no negative size", "got 2 x 3 x 4 x -13"});
  check_invalid([&] { call(2, 3, 4, 6, d, -d_v); }, {"values: expected no negative size", "got 2 x 3 x 6 x -3"});
  check_invalid([&] { call(-2, -3, 4, 6, d, d_v); }, {"queries: expected no negative size", "got -2 x -3 x 4 x 13"});
}

TEST_CASE("multi-head: a number of heads other than that of maps or positions is rejected", "[multi_head]") {
  for (const Index heads : {0, 1, 2, 4}) {
    const Inputs<double> x(2, heads, 4, 6);
    const std::string got = "got " + std::to_string(heads);
    check_invalid([&] { run(Heads<double>(maps<double>(3), tables<double>(1)), x); },
                  {"queries: expected 3 heads (the number of feature maps or positions)", got});
    check_invalid([&] { run(Heads<double>(maps<double>(1), tables<double>(3)), x); },
                  {"queries: expected 3 heads (the number of feature maps or positions)", got});
    run(Heads<double>(maps<double>(1), tables<double>(1)), x);
  }
}

TEST_CASE("multi-head: call options that do not match the arrays are rejected", "[multi_head]") {
  const Inputs<double> x(2, 3, 4, 6), wide(2, 3, 4, 6, d + 1);
  const MultiHeadAttention attention(maps<double>(1)[0], tables<double>(1)[0]);
  check_invalid([&] { run(attention, wide); },
                {"queries: expected 13 columns (the feature map's input_dim)", "got 14"});
  for (const Index size : {6, 11, 13, 36}) {
    const Mask mask = Mask::Constant(size, true);
    check_invalid([&] { run(attention, x, {.key_mask = view(mask)}); },
                  {"key_mask: expected 12", "got " + std::to_string(size)});
  }
  const Lengths one{6}, six{6, 6, 6, 6, 6, 6}, long_one{6, 7}, packed{0, 4}, keys{0, 7};
  check_invalid([&] { run(attention, x, {.lengths = one}); }, {"lengths: expected 2", "got 1"});
  check_invalid([&] { run(attention, x, {.lengths = six}); }, {"lengths: expected 2", "got 6"});
  check_invalid([&] { run(attention, x, {.lengths = long_one}); }, {"lengths[1]: expected 0 to 6", "got 7"});
  check_invalid([&] { run(attention, x, {.cumulative_lengths = packed}); },
                {"cumulative_lengths: expected to end at 6", "got 4"});
  check_invalid([&] { run(attention, x, {.cumulative_lengths = packed, .key_cumulative_lengths = keys}); },
                {"key_cumulative_lengths: expected to end at 6", "got 7"});
}

TEST_CASE("multi-head: backward rejects saved data of another attention", "[multi_head]") {
  const Inputs<double> x(2, 3, 4, 6);
  const Heads<double> attention(maps<double>(3), tables<double>(1)), other(maps<double>(3), tables<double>(1));
  Outputs<double> out(x);
  Saved<double> saved;
  const auto check_rejected = [&](const Heads<double>& by) {
    check_invalid([&] { backward(by, x, out, saved); },
                  {"saved: expected one filled by forward of this attention", "got another's"});
  };
  check_invalid([&] { backward(attention, x, out, saved); }, {"saved: expected one", "call forward first"});
  forward(other, x, out, saved);
  check_rejected(attention);
  forward(attention, x, out, saved);
  check_rejected(other);
  check_rejected(attention.redraw(7));
  check_rejected(attention.redraw(0));
  backward(attention, x, out, saved);

  // a rejected forward leaves the saved data of the previous one valid
  const Mask mask = Mask::Constant(5, true);
  check_invalid([&] { forward(attention, x, out, saved, {.key_mask = view(mask)}); }, {"key_mask"});
  backward(attention, x, out, saved);
  Outputs<double> wrong(Inputs<double>(2, 3, 5, 6));
  check_invalid([&] { forward(attention, x, wrong, saved); }, {"y: expected 2 x 3 x 4 x 3"});
  backward(attention, x, out, saved);

  // saved data of an Attention is rejected
  const Attention single(maps<double>(1)[0], tables<double>(1)[0]);
  single.forward(x.q(0, 0), x.k(0, 0), x.v(0, 0), saved);
  check_rejected(attention);
}

TEST_CASE("multi-head: backward rejects arrays of wrong shapes", "[multi_head]") {
  Inputs<double> x(2, 3, 4, 6);
  Outputs<double> out(x);
  const MultiHeadAttention attention(maps<double>(1)[0], tables<double>(1)[0]);
  Saved<double> saved;
  forward(attention, x, out, saved);
  const HeadsView<double> dy = x.dy.view(), dq = out.dq.view(), dk = out.dk.view(), dv = out.dv.view();
  using View = HeadsView<double>;
  check_rejected("dy", dy, [&](const View& wrong) { attention.backward(saved, wrong, dq, dk, dv, out.dbias); });
  check_rejected("dq", dq, [&](const View& wrong) { attention.backward(saved, dy, wrong, dk, dv, out.dbias); });
  check_rejected("dk", dk, [&](const View& wrong) { attention.backward(saved, dy, dq, wrong, dv, out.dbias); });
  check_rejected("dv", dv, [&](const View& wrong) { attention.backward(saved, dy, dq, dk, wrong, out.dbias); });
  // the saved data is still valid
  backward(attention, x, out, saved);
  CHECK(same(out, run(attention, x)));
}

TEST_CASE("multi-head: an attention works after a call that threw", "[multi_head]") {
  const MultiHeadAttention attention(trf<float>(d, 4, 7),
                                     GridPosition<float>(3, 4, normal<float>(5, 7, 3), normal<float>(1, 3, 4)));
  const Inputs<float> x(2, 3, 13, 13), wrong(2, 3, 14, 14);
  const Outputs<float> before = run(attention, x);
  Saved<float> saved;
  Outputs<float> out(x), rejected(wrong);
  forward(attention, x, out, saved);
  check_invalid([&] { forward(attention, wrong, rejected, saved); },
                {"expected 13 rows (the position's tokens), got 14"});
  backward(attention, x, out, saved);
  CHECK(same(run(attention, x), before));
}

TEST_CASE("multi-head: empty inputs give empty or zero outputs and gradients", "[multi_head]") {
  struct Sizes {
    Index batch, heads, n_q, n_k, values;
  };
  for_each_option([](const AttentionOptions& options) {
    for (const Sizes& s : {Sizes{0, 2, 4, 6, 3}, Sizes{2, 0, 4, 6, 3}, Sizes{2, 2, 0, 6, 3}, Sizes{2, 2, 4, 0, 3},
                           Sizes{2, 2, 4, 6, 0}, Sizes{2, 2, 0, 0, 0}, Sizes{0, 0, 0, 0, 0}})
      for (const Index count : {1, 2}) {
        if (count == 2 && s.heads != 2) continue;
        INFO(s.batch << " x " << s.heads << " x " << s.n_q << ", " << s.n_k << " x " << s.values);
        const MultiHeadAttention attention(maps<double>(count), tables<double>(count), options);
        const Inputs<double> x(s.batch, s.heads, s.n_q, s.n_k, d, s.values);
        const Outputs<double> out = run(attention, x);
        check_by_head(attention, x, out);
        CHECK(all_zero(out.y.inner()));
        CHECK(all_zero(out.dq.inner()));
        CHECK(all_zero(out.dk.inner()));
        CHECK(all_zero(out.dv.inner()));
        REQUIRE(static_cast<Index>(out.dbias.size()) == s.heads);
        for (const Matrix<double>& dbias : out.dbias)
          CHECK((dbias.rows() == 9 && dbias.cols() == 1 && all_zero(dbias)));
        CHECK(out.report.empty_rows == (s.n_k == 0 ? s.batch * s.heads * s.n_q : 0));
      }
  });
}

TEST_CASE("multi-head: empty arrays may have a null pointer", "[multi_head]") {
  const MultiHeadAttention attention(maps<double>(1)[0], tables<double>(1)[0]);
  const auto none = [](Index tokens, Index channels) { return HeadsView<double>{nullptr, 2, 3, tokens, channels}; };
  Saved<double> saved;
  std::vector<Matrix<double>> dbias;
  attention.forward(none(0, d), none(0, d), none(0, d_v), none(0, d_v), saved);
  attention.backward(saved, none(0, d_v), none(0, d), none(0, d), none(0, d_v), dbias);
  CHECK(dbias.size() == 3);
  const Inputs<double> x(2, 3, 4, 6);
  Array<double> dq(2, 3, 4, d), dk(2, 3, 6, d);
  attention.forward(x.q.view(), x.k.view(), none(6, 0), none(4, 0), saved);
  attention.backward(saved, none(4, 0), dq.view(), dk.view(), none(6, 0), dbias);
  CHECK(all_zero(dq.inner()));
  CHECK(all_zero(dk.inner()));
}

}  // namespace nprf::test::attention_multi_head_attention
