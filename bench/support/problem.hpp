// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "nprf/core/row_quotient.hpp"
#include "nprf/nprf.hpp"

/// What every benchmark computes: one head of n tokens in float, d = d_v = 64, both directions, rows of norm 1.
namespace nprf::bench {

constexpr Index head_dim = 64;

/// One thread, unless a program sets another number.
inline const bool one_thread = (set_num_threads(1), true);

/// N(0,1) scalars; each stream of numbers is drawn on its own.
inline Matrix<float> draw(Index rows, Index cols, std::uint64_t stream) {
  NormalDeviates normal(2021, stream);
  Matrix<float> x(rows, cols);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(normal());
  return x;
}

/// Queries, keys and values (n,d), and a bias for each of the 2n-1 lags.
struct Problem {
  explicit Problem(Index n)
      : q(draw(n, head_dim, 0)), k(draw(n, head_dim, 1)), v(draw(n, head_dim, 2)), position(draw(2 * n - 1, 1, 3)) {}

  Matrix<float> q, k, v;
  RelativePosition<float> position;
};

/// The problem of n tokens, drawn once.
inline const Problem& problem(Index n) {
  static std::map<Index, Problem> drawn;
  return drawn.try_emplace(n, n).first->second;
}

/// Attention with m positive features from orthogonal rows.
template <class P>
auto make_attention(P position, Index m, Engine engine, Direction direction = Direction::bidirectional) {
  return Attention(orf<float>(head_dim, m), std::move(position), {.direction = direction, .engine = engine});
}

/// Exact softmax attention, of the first d_v columns of values.
inline Matrix<float> softmax(const Problem& problem, Index d_v = head_dim,
                             Direction direction = Direction::bidirectional) {
  return reference::softmax_attention<float>(problem.q, problem.k, problem.v.leftCols(d_v), problem.position, direction,
                                             Normalization::unit(1));
}

/// The factors of Y = ((A B^T) o C) U that attention over a problem hands to its engine, with weights of any position.
struct Product {
  Product(const Problem& problem, Index m, const LagBias<float>& bias, Direction direction = Direction::bidirectional) {
    const auto attention = make_attention(NoPosition<float>(), m, Engine::automatic);
    const Index n = problem.q.rows();
    lags = exp_weights(bias, reachable_lags(n, n, 0, direction));
    lags.max_deviation = default_tolerance<float> / 4;  // as in attention
    A = attention.query_features(problem.q);
    B = attention.key_features(problem.k);
    U = Matrix<float>::Ones(n, head_dim + 1);
    U.leftCols(head_dim) = problem.v;
    Y.resize(n, head_dim + 1);
  }
  Product(const Problem& problem, Index m) : Product(problem, m, problem.position.bias()) {}

  void contract(Engine engine) { toeplitz::contract<float>(engine, lags, A, B, U, Y); }

  LagWeights<float> lags;
  Matrix<float> A, B, U, Y;  // (n,m) (n,m) (n,d_v+1) (n,d_v+1)
};

// keeps a result that nobody reads from being optimised away
inline volatile float sink;
inline void keep(const Matrix<float>& y) { sink = y(0, 0); }

}  // namespace nprf::bench
