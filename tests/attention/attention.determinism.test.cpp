// SPDX-License-Identifier: MIT

// A call gives the same bits for any addresses and strides of its arrays, and after any other calls.

#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/core/buffer.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_determinism {

namespace {

constexpr Index d = 13, m = 6, d_v = 19;

template <class Body>
void for_each_kind(Body&& body) {
  for (const Engine engine : all_engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      body(AttentionOptions{.direction = direction, .engine = engine});
}

std::string words(const AttentionOptions& options) {
  return std::string(name(options.engine)) + (options.direction == Direction::causal ? " causal" : " bidirectional");
}

template <Real T>
Attention<PositiveFeatures<T>, RelativePosition<T>> make(const AttentionOptions& options, Index reach) {
  return {orf<T>(d, m, 7), RelativePosition<T>(random_table<T>(reach, 40)), options};
}

template <class A, Real T>
Passes<T> run(const A& attention, const Tokens<T>& x, Saved<T>& saved) {
  return both_passes(attention, x, normal<T>(x.q.rows(), x.v.cols(), 77), {}, saved);
}

template <class A, Real T>
Passes<T> run(const A& attention, const Tokens<T>& x) {
  Saved<T> saved;
  return run(attention, x, saved);
}

// a copy of a matrix with gaps between rows and columns, `shift` scalars after a multiple of 64 bytes
template <Real T>
class Laid {
 public:
  using Map = Eigen::Map<Matrix<T>, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

  Laid(const Matrix<T>& x, Index shift, Index gap, Index step)
      : m_memory(shift + x.rows() * (x.cols() * step + gap)),
        m_map(m_memory.data() + shift, x.rows(), x.cols(), {x.cols() * step + gap, step}) {
    m_map = x;
  }
  const Map& operator*() const { return m_map; }

 private:
  Buffer<T> m_memory;
  Map m_map;
};

}  // namespace

TEMPLATE_TEST_CASE("no bit of y or of a gradient depends on addresses or strides", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index line = 64 / sizeof(T);
  const Index n_q = 150, n_k = 131;
  const Tokens<T> x = random_tokens<T>(n_q, n_k, d, d_v);
  const Matrix<T> dy = normal<T>(n_q, d_v, 77);
  for_each_kind([&](const AttentionOptions& options) {
    const auto attention = make<T>(options, n_q);
    const Passes<T> expected = run(attention, x);
    for (const Index shift : {Index{1}, Index{2}, Index{3}, line / 2, line - 1})
      for (const Index step : {1, 2})  // an inner stride of 2 is copied
        for (const Index gap : {0, 1, 3}) {
          if (step == 2 && gap > 0) continue;
          const Laid<T> q(x.q, shift, gap, step), k(x.k, (shift + 1) % line, gap, step),
              v(x.v, (2 * shift) % line, gap, step), g(dy, (shift + line / 2) % line, gap, step);
          Saved<T> saved;
          Passes<T> out;
          if (step == 1) {
            // read in place, without a copy
            const auto in_place = [](const Laid<T>& laid) {
              return MatrixView<T>(Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>(
                  (*laid).data(), (*laid).rows(), (*laid).cols(), Eigen::OuterStride<>((*laid).outerStride())));
            };
            out.y = attention.forward(in_place(q), in_place(k), in_place(v), saved);
            out.g = attention.backward(saved, in_place(g));
          } else {
            out.y = attention.forward(*q, *k, *v, saved);
            out.g = attention.backward(saved, *g);
          }
          INFO(words(options) << ", shift " << shift << ", gap " << gap << ", step " << step);
          CHECK(same_bits(out, expected));
        }
  });
}

TEMPLATE_TEST_CASE("no bit depends on the sizes and engines of earlier calls", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const std::vector<Index> sizes{97, 450};
  std::vector<Passes<T>> first;
  const auto each = [&](auto&& body) {
    for (const Index n : sizes)
      for_each_kind([&](const AttentionOptions& options) { body(options, n, random_tokens<T>(n, n, d, 2)); });
  };
  std::vector<Attention<PositiveFeatures<T>, RelativePosition<T>>> used;
  std::vector<Saved<T>> saved;
  each([&](const AttentionOptions& options, Index n, const Tokens<T>& x) {
    used.push_back(make<T>(options, n));
    first.push_back(run(used.back(), x, saved.emplace_back()));
  });

  // the same objects, and the same saved data, for other sizes
  for (std::size_t object = 0; object < used.size(); ++object)
    for (const Index n : {1, 2, 7, 64, 130, 251}) {
      const Tokens<T> x = random_tokens<T>(n + 3 * static_cast<Index>(object), n, d, 5, object);
      run(used[object], x, saved[object]);
    }

  std::size_t object = 0;
  each([&](const AttentionOptions& options, Index n, const Tokens<T>& x) {
    INFO(words(options) << ", n " << n);
    CHECK(same_bits(run(used[object], x, saved[object]), first[object]));
    CHECK(same_bits(run(make<T>(options, n), x), first[object]));
    ++object;
  });
}

}  // namespace nprf::test::attention_determinism
