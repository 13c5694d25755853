// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/bordered_product.hpp"

#include <string>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"
#include "toeplitz/in_slots.hpp"

// what it computes is tested by attention over grids with extra tokens
namespace nprf::test::toeplitz_bordered_product {

using toeplitz::BorderedProduct;

TEST_CASE("a bordered product: errors of a token without a slot do not grow with the number of keys", "[toeplitz]") {
  const Index n_k = 100 * chunk_keys + 5;
  Workspace workspace;
  const Team team(workspace);
  const Matrix<float> border = Matrix<float>::Ones(1, 3), A = Matrix<float>::Ones(3, 1),
                      B = Matrix<float>::Ones(n_k, 1), U = Matrix<float>::Constant(n_k, 1, 0.1f);
  const LagWeights<float> c{-1, Vector<float>::Ones(n_k)};
  const BorderedProduct<float> product(Engine::direct, c.view(), {1, border.data()}, {2, n_k - 1, 1, 1}, team);
  Matrix<float> Y(3, 1);
  Vector<float> sums(3);
  product.contract({A, B, U, Placement({2}, 1), Placement({n_k - 1}, 1)}, Y, team, sums.data());
  // equal terms, by tiles of 128 keys
  const double roundings = 128 + static_cast<double>(chunk_keys) / 64 + 3;
  const double exact = static_cast<double>(0.1f) * static_cast<double>(n_k);
  CHECK(worst_ratio(Y, Matrix<double>::Constant(3, 1, exact), epsilon<float> / 2 * roundings * exact) <= 1);
  CHECK(worst_ratio(sums, Vector<float>::Constant(3, static_cast<float>(n_k)), 0) <= 1);
  CHECK(product.longest_plain_sum(n_k) == chunk_keys + 1);
}

TEST_CASE("a bordered product accepts key log-scales if the engine is block_causal and all tokens have slots",
          "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n = 300;
  LagWeights<double> c = random_weights<double>(n, n, 4);
  c.values.tail(n - 1).setZero();
  const auto A = normal<double>(n, 3, 1), B = normal<double>(n, 3, 2), U = normal<double>(n, 2, 3);
  const Vector<double> exponents = 40 * normal_vector<double>(n, 5), border = Vector<double>::Ones(3);
  Matrix<double> Y(n, 2), expected(n, 2);
  for (const Engine engine : engines())
    for (const Index E : {0, 1}) {
      const BorderedProduct<double> product(engine, c.view(), Border<double>{E, border.data()}, {n, n, 3, 2}, team);
      INFO(std::string(name(engine)) << ", " << E << " tokens outside");
      CHECK(product.accepts_key_log_scales() == (engine == Engine::block_causal && E == 0));
      const Placement all({n - E}, E);
      const auto contract = [&] { product.contract({A, B, U, all, all, exponents.data()}, Y, team); };
      if (!product.accepts_key_log_scales()) {
        check_invalid(contract, {"key_log_scales:", name(engine)});
        continue;
      }
      contract();
      const MatrixView<double> a = A, b = B, u = U;
      make_product(engine)(c.view(), {n, n, 3, 2}, team)
          .contract({a, b, u, Slots{n}, Slots{n}, exponents.data()}, expected, team);
      CHECK(same_bits(Y, expected));
    }
}

}  // namespace nprf::test::toeplitz_bordered_product
