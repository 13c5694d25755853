// SPDX-License-Identifier: MIT
//
// Random calls of every kind on random attentions: each row is that of the formula over the tokens that are left.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "decoder/tokens.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"

namespace nprf::test::decoder_decoder_storm {

namespace {

using T = float;
using Held = HeldPosition<T>;

class Random {
 public:
  explicit Random(std::uint32_t seed) : m_draw(seed) {}
  Index below(Index n) { return static_cast<Index>(m_draw() % static_cast<std::uint32_t>(n)); }
  double between(double a, double b) { return a + (b - a) * static_cast<double>(m_draw()) / 4294967296.0; }
  std::uint64_t seed() { return m_draw(); }

 private:
  std::mt19937 m_draw;
};

constexpr Index most_tokens = 200, pool = 50;  // of a sequence, and different ones
constexpr double largest_bound = 1e-3;

Held random_position(Random& random) {
  constexpr T minus_infinity = -std::numeric_limits<T>::infinity();
  switch (random.below(4)) {
    case 0: return {AlibiPosition<T>(static_cast<T>(random.between(-0.5, 3))).bias()};
    case 1: return {t5_position<T>(normal_vector<T>(8, random.seed()), Direction::causal, 8 + random.below(40)).bias()};
    default: break;
  }
  const Index reach = random.below(2) == 0 ? random.below(40) : most_tokens + random.below(20);
  Vector<T> b = normal_vector<T>(2 * reach + 1, random.seed());
  for (Index l = 0, step = 2 + random.below(9); l < reach; l += step)
    if (step < 5) b[l] = minus_infinity;                                        // holes
  if (random.below(3) == 0) b.head(reach / 2 + 1).setConstant(minus_infinity);  // a window
  return {RelativePosition<T>(b).bias()};
}

AttentionOptions random_options(Random& random, bool any_near) {
  AttentionOptions options{.direction = Direction::causal};
  options.normalization = random.below(3) == 0 ? Normalization::none() : Normalization::unit(random.between(0.3, 3));
  if (any_near) options.near = std::array<Index, 4>{0, 1, 7, 60}[static_cast<std::size_t>(random.below(4))];
  return options;
}

// a sequence as indices of the pool, and the most tokens that it had since it was empty
struct Sequence {
  Index size() const { return static_cast<Index>(tokens.size()); }

  std::vector<Index> tokens;
  Index most = 0;
};

template <class F>
class Storm {
 public:
  Storm(std::vector<F> maps, Index sinks, Random& random)
      : m_random(random),
        m_kv_heads(1 + random.below(2)),
        m_heads(maps.size() > 1 ? static_cast<Index>(maps.size()) : m_kv_heads * (1 + random.below(3))),
        m_batch(1 + random.below(3)),
        m_rollback(std::array<Index, 4>{0, 1, 5, 17}[static_cast<std::size_t>(random.below(4))]),
        m_sequences(static_cast<std::size_t>(m_batch)) {
    const Index d = maps[0].input_dim(), d_v = 1 + random.below(20);
    if (m_heads % m_kv_heads != 0) m_kv_heads = 1;
    std::vector<Held> positions{random_position(random)};
    while (random.below(2) == 0 && static_cast<Index>(positions.size()) < m_heads)
      positions.push_back(random_position(random));
    if (static_cast<Index>(positions.size()) != m_heads) positions.resize(1);
    AttentionOptions options = random_options(random, FeatureMapView<T>(maps[0]).estimates_exp());
    options.sinks = sinks;
    for (Index h = 0; h < m_heads; ++h) {
      m_one_head.emplace_back(of_head(maps, h), of_head(positions, h), options);
      m_q.push_back(normal<T>(pool, d, random.seed()));
    }
    for (Index h = 0; h < m_kv_heads; ++h)
      m_k.push_back(normal<T>(pool, d, random.seed())), m_v.push_back(normal<T>(pool, d_v, random.seed()));
    m_k[0].row(1).setZero(), m_v[0].row(2) *= 1e4f;
    // windows of an online convolution, as small as they may be, or none
    m_windows.size = random.below(3) == 0 ? 0
                                          : static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(
                                                std::max({Index{16}, options.near, m_rollback + 1}))));
    m_attention = std::make_unique<MultiHeadAttention<F, Held>>(std::move(maps), std::move(positions), options);
    m_decoder = new_decoder();
  }

  void run(int calls) {
    append(random_count(60), &Decoder<T>::prefill);
    for (int call = 0; call < calls; ++call) {
      change(m_random.below(8));
      append(random_count(m_random.below(5) == 0 ? 30 : 3), &Decoder<T>::step);
      for (Index b = 0; b < m_batch; ++b) REQUIRE(m_decoder->tokens(b) == at(b).size());
    }
  }

 private:
  using Append = void (Decoder<T>::*)(HeadsView<const T>, HeadsView<const T>, HeadsView<const T>, HeadsView<T>,
                                      const CallOptions&);

  template <class X>
  static const X& of_head(const std::vector<X>& all, Index h) {
    return all[all.size() == 1 ? 0 : static_cast<std::size_t>(h)];
  }
  Sequence& at(Index b) { return m_sequences[static_cast<std::size_t>(b)]; }
  std::unique_ptr<Decoder<T>> new_decoder() const {
    return std::make_unique<Decoder<T>>(*m_attention,
                                        DecoderOptions{.batch = m_batch, .rollback = m_rollback, .windows = m_windows});
  }

  void change(Index kind) {
    const Index b = m_random.below(m_batch), to = m_random.below(m_batch);
    switch (kind) {
      case 0: m_decoder->fork(b, to), at(to) = Sequence(at(b)); break;
      case 1: reorder(); break;
      case 2: m_decoder->reset(b), at(b) = {}; break;
      case 3: save_and_load(); break;
      case 4: m_decoder = std::make_unique<Decoder<T>>(std::move(*m_decoder)); break;
      case 5: take_back_as_promised(b); break;
      case 6: take_back_any(b); break;
      default: break;
    }
  }

  void reorder() {
    std::vector<Index> from;
    std::vector<Sequence> selected;
    for (Index b = 0; b < m_batch; ++b) from.push_back(m_random.below(m_batch)), selected.push_back(at(from.back()));
    m_decoder->reorder(from);
    m_sequences = std::move(selected);
  }
  void save_and_load() {
    std::stringstream file;
    m_decoder->save(file);
    m_decoder = new_decoder();
    m_decoder->load(file);
  }
  void take_back_as_promised(Index b) {
    const Index most = std::min(at(b).size(), m_rollback - (at(b).most - at(b).size()));
    if (most >= 0) take_back(b, m_random.below(most + 1));
  }
  // more than promised: the decoder throws and changes nothing, or it can
  void take_back_any(Index b) {
    const Index tokens = m_random.below(at(b).size() + 1);
    try {
      take_back(b, tokens);
    } catch (const InvalidArgument&) {
      CHECK(tokens + at(b).most - at(b).size() > m_rollback);
    }
  }
  void take_back(Index b, Index tokens) {
    m_decoder->rollback(b, tokens);
    at(b).tokens.resize(static_cast<std::size_t>(at(b).size() - tokens));
  }

  // the numbers of tokens that the sequences get
  std::vector<Index> random_count(Index most) {
    for (const Sequence& sequence : m_sequences) most = std::min(most, most_tokens - sequence.size());
    std::vector<Index> count(m_sequences.size(), m_random.below(most + 1));
    if (m_random.below(2) == 0)
      for (Index& each : count) each = m_random.below(most + 1);
    return count;
  }

  void append(const std::vector<Index>& count, Append call) {
    const Index n = *std::max_element(count.begin(), count.end());
    TokenBatch<T> x(m_batch, m_heads, m_kv_heads, n, m_q[0].cols(), m_v[0].cols());
    for (Index b = 0; b < m_batch; ++b)
      for (Index t = 0; t < count[static_cast<std::size_t>(b)]; ++t) {
        const Index token = m_random.below(pool);
        at(b).tokens.push_back(token);
        at(b).most = std::max(at(b).most, at(b).size());
        for (Index h = 0; h < m_heads; ++h) x.q(b, h).row(t) = m_q[static_cast<std::size_t>(h)].row(token);
        for (Index h = 0; h < m_kv_heads; ++h) {
          x.k(b, h).row(t) = m_k[static_cast<std::size_t>(h)].row(token);
          x.v(b, h).row(t) = m_v[static_cast<std::size_t>(h)].row(token);
        }
      }
    Report report;
    ((*m_decoder).*call)(x.q.view, x.k.view, x.v.view, x.y.view, {.lengths = count, .report = &report});
    Index other = 0;  // rows that are not those of the formula: recomputed by exact softmax, or counted as failing
    for (Index b = 0; b < m_batch; ++b)
      for (Index h = 0; h < m_heads; ++h) {
        const Index length = count[static_cast<std::size_t>(b)];
        other += different_rows(b, h, x.y(b, h).topRows(length), report);
        CHECK(all_zero(x.y(b, h).bottomRows(n - length)));
      }
    CHECK(other <= report.repaired_rows + report.failing_rows);
    CHECK((report.failing_rows > 0 || report.error_bound < largest_bound));
  }

  Index different_rows(Index b, Index h, const Matrix<T>& y, const Report& report) {
    const std::vector<Index>& all = at(b).tokens;
    const std::vector<Index> last(all.end() - y.rows(), all.end());
    const auto kv_head = static_cast<std::size_t>(h / (m_heads / m_kv_heads)), head = static_cast<std::size_t>(h);
    const Matrix<T> k = pick(m_k[kv_head], all), v = pick(m_v[kv_head], all);
    const Matrix<T> expected =
        reference::kernelized_attention(m_one_head[head], pick(m_q[head], last), k, v, at(b).size() - y.rows());
    // infinite if a row fails; the others keep theirs
    const double bound = std::min(report.error_bound, largest_bound),
                 tolerance = bound * static_cast<double>(v.size() > 0 ? v.cwiseAbs().maxCoeff() : 0);
    Index different = 0;
    for (Index i = 0; i < y.rows(); ++i)
      different += !((y.row(i) - expected.row(i)).template cast<double>().cwiseAbs().maxCoeff() <= tolerance);
    return different;
  }

  Random& m_random;
  Index m_kv_heads, m_heads, m_batch, m_rollback;
  WindowOptions m_windows;
  std::vector<Matrix<T>> m_q, m_k, m_v;  // of each head (pool,d) (pool,d) (pool,d_v)
  std::vector<Attention<F, Held>> m_one_head;
  std::unique_ptr<MultiHeadAttention<F, Held>> m_attention;
  std::unique_ptr<Decoder<T>> m_decoder;
  std::vector<Sequence> m_sequences;
};

// make(seed) is a feature map; the numbers of sinks are used in turn
template <class Make>
void storms(std::uint32_t first_seed, Make&& make, const std::vector<Index>& sinks = {0}) {
  for (std::uint32_t seed = first_seed; seed < first_seed + (NPRF_TEST_SANITIZED ? 6 : 40); ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    std::vector<decltype(make(std::uint64_t{}))> maps{make(seed)};
    for (Index more = 3 * random.below(2); more > 0; --more) maps.push_back(make(random.seed()));
    Storm(std::move(maps), sinks[seed % sinks.size()], random).run(25);
  }
}

}  // namespace

TEST_CASE("storm: positive features", "[decoder]") {
  storms(1, [](std::uint64_t seed) { return orf<T>(4, 9, seed); });
}

TEST_CASE("storm: attention sinks", "[decoder]") {
  storms(2001, [](std::uint64_t seed) { return orf<T>(4, 9, seed); }, {1, 3, 20, 500});
}

TEST_CASE("storm: a series", "[decoder]") {
  storms(1001, [](std::uint64_t) { return TaylorFeatures<T>({.input_dim = 4, .directions = 2}); });
}

}  // namespace nprf::test::decoder_decoder_storm
