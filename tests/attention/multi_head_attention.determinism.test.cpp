// SPDX-License-Identifier: MIT

// No bit of a result depends on the addresses of the caller's arrays or on earlier calls of the object.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/core/buffer.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::multi_head_determinism {

namespace {

constexpr Index d = 13, m = 6, d_v = 19;

template <Real T>
using Heads = MultiHeadAttention<PositiveFeatures<T>, RelativePosition<T>>;

template <Real T>
Heads<T> make(const AttentionOptions& options) {
  return {std::vector{orf<T>(d, m, 7), orf<T>(d, m, 8)}, RelativePosition<T>(random_table<T>(150, 40)), options};
}

// an array [batch, heads, tokens, channels] that starts `shift` scalars after a multiple of 64 bytes
template <Real T>
class Array {
 public:
  Array(Index batch, Index heads, Index tokens, Index channels, Index shift)
      : m_memory(batch * heads * tokens * channels + shift),
        m_view{m_memory.data() + shift, batch, heads, tokens, channels} {}

  HeadsView<T> view() { return m_view; }
  auto values() const { return Eigen::Map<Matrix<T>>(m_view.data, m_view.size(), 1); }

 private:
  Buffer<T> m_memory;
  HeadsView<T> m_view;
};

template <Real T>
struct Outcome {
  Matrix<T> y, dq, dk, dv;
  std::vector<Matrix<T>> dbias;

  friend bool same(const Outcome& a, const Outcome& b) {
    return same_bits(a.y, b.y) && same_bits(a.dq, b.dq) && same_bits(a.dk, b.dk) && same_bits(a.dv, b.dv) &&
           std::ranges::equal(a.dbias, b.dbias,
                              [](const auto& one, const auto& other) { return same_bits<T>(one, other); });
  }
};

// forward and backward; every array has a different alignment
template <Real T>
Outcome<T> run(const Heads<T>& attention, Index batch, Index n_q, Index n_k, Index shift, Saved<T>& saved) {
  constexpr Index line = 64 / sizeof(T);
  auto array = [&, count = Index{0}](Index tokens, Index channels) mutable {
    return Array<T>(batch, 2, tokens, channels, (shift * (1 + 2 * count++)) % line);
  };
  Array<T> q = array(n_q, d), k = array(n_k, d), v = array(n_k, d_v), y = array(n_q, d_v), dy = array(n_q, d_v),
           dq = array(n_q, d), dk = array(n_k, d), dv = array(n_k, d_v);
  std::uint64_t seed = 1;
  for (Array<T>* in : {&q, &k, &v, &dy}) in->values() = normal<T>(in->values().size(), 1, seed++);
  std::vector<Matrix<T>> dbias;
  attention.forward(q.view(), k.view(), v.view(), y.view(), saved);
  attention.backward(saved, dy.view(), dq.view(), dk.view(), dv.view(), dbias);
  return {y.values(), dq.values(), dk.values(), dv.values(), dbias};
}

template <class Body>
void for_each_kind(Body&& body) {
  for (const Engine engine : all_engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal" : " bidirectional"));
      body(AttentionOptions{.direction = direction, .engine = engine});
    }
}

}  // namespace

TEMPLATE_TEST_CASE("multi-head: no bit depends on the alignment of the arrays", "[multi_head]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index line = 64 / sizeof(T);
  for_each_kind([](const AttentionOptions& options) {
    const Heads<T> attention = make<T>(options);
    Saved<T> saved;
    const Outcome<T> expected = run(attention, 2, 75, 83, 0, saved);
    for (Index shift = 1; shift < line; ++shift) {
      INFO("shift " << shift);
      CHECK(same(run(attention, 2, 75, 83, shift, saved), expected));
    }
  });
}

TEMPLATE_TEST_CASE("multi-head: an object used with other sizes gives the bits of a new one", "[multi_head]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for_each_kind([](const AttentionOptions& options) {
    const Heads<T> attention = make<T>(options);
    Saved<T> saved, first;
    const Outcome<T> expected = run(attention, 2, 131, 131, 1, first);
    for (const Index n : {1, 2, 7, 64, 130, 300}) run(attention, n % 3, n, n + 5, 0, saved);
    CHECK(same(run(attention, 2, 131, 131, 0, saved), expected));
    Saved<T> none;
    CHECK(same(run(make<T>(options), 2, 131, 131, 0, none), expected));
  });
}

}  // namespace nprf::test::multi_head_determinism
