// SPDX-License-Identifier: MIT

#include "nprf/attention/exact/exponential_weights.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "nprf/core/workspace.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/held_biases.hpp"
#include "support/random.hpp"

namespace nprf::test::attention_exact_exponential_weights {

TEST_CASE("exponential weights are exp(s + b + a), and scores become the factors of their rows", "[attention]") {
  constexpr Index n_q = 9, n_k = 21, most = 24, j0 = 2, count = 17;
  HeldBiases biases{normal<double>(n_q, n_k, 1)};
  biases.b(3, 5) = -std::numeric_limits<double>::infinity();
  std::vector<double> constants(n_q), factors(n_q);
  for (Index i = 0; i < n_q; ++i)
    constants[static_cast<std::size_t>(i)] = 0.25 * static_cast<double>(i),
    factors[static_cast<std::size_t>(i)] = std::ldexp(1.0, static_cast<int>(i) - 4);
  Workspace scratch;
  const ExponentialWeights<double, HeldBiases> weights(biases, constants.data(), factors.data());
  toeplitz::WeightBlock<double> block(most, scratch);
  constexpr Index rows = 3, i0 = 2, packs = packs_for<double>(count);
  Matrix<double> S = normal<double>(Block<double>::rows, most, 2), P = normal<double>(Block<double>::rows, most, 3);
  const Matrix<double> scores = S, before = P;
  const toeplitz::PairBlock pairs{i0, rows, j0, count, packs};
  weights.set(pairs, block);
  weights.replace_scores(pairs, S.data(), most, block);
  weights.multiply_by_factors(pairs, P.data(), most);
  for (Index k = 0; k < rows; ++k) {
    const auto i = static_cast<std::size_t>(i0 + k);
    for (Index j = 0; j < count; ++j) {
      const double expected = std::exp(scores(k, j) + biases.b(i0 + k, j0 + j) + constants[i]);
      CHECK(std::abs(block.row(k)[j] - expected) <= 16 * epsilon<double> * expected);
      CHECK(S(k, j) == factors[i]);
      CHECK(P(k, j) == before(k, j) * factors[i]);
    }
    for (Index j = count; j < packs * Pack<double>::size; ++j) CHECK(block.row(k)[j] == 0);
  }
  for (Index k = rows; k < Block<double>::rows; ++k)  // beyond the last query
    for (Index j = 0; j < count; ++j) CHECK(block.row(k)[j] == 0);
}

}  // namespace nprf::test::attention_exact_exponential_weights
