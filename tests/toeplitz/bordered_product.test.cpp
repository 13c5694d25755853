// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/bordered_product.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nprf/toeplitz/recompute/checked_gradients.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_bordered_product {

using toeplitz::BorderedProduct;

namespace {

// the tokens of one side: some of the E without a slot, some of the slots
struct Side {
  std::vector<Index> outside, slots;
  Index span = 0;  // of the slots

  Index count() const { return static_cast<Index>(outside.size() + slots.size()); }
  bool is_outside(Index i) const { return i < static_cast<Index>(outside.size()); }
  Index extra(Index i) const { return outside[static_cast<std::size_t>(i)]; }
  Index slot(Index i) const { return slots[static_cast<std::size_t>(i) - outside.size()]; }
};

// sums, and the same with the absolute value of each term
struct Sums {
  Sums(Index rows, Index cols) : values(Matrix<double>::Zero(rows, cols)), magnitude(values) {}
  void add(Index row, long double weight, long double size, const Matrix<double>& factors, Index factor_row) {
    for (Index k = 0; k < values.cols(); ++k) {
      values(row, k) += static_cast<double>(weight * factors(factor_row, k));
      magnitude(row, k) += static_cast<double>(size * std::abs(factors(factor_row, k)));
    }
  }
  Matrix<double> values, magnitude;
};

template <class T>
struct Results {
  Matrix<T> Y, with_ones, dA, dB, dU, dborder;  // of U, and of [U 1]
  Vector<T> dc;
};

template <class T>
class Case {
 public:
  Case(Index extra, Side queries, Side keys, Index r = 3, Index p = 2)
      : E(extra),
        q(std::move(queries)),
        k(std::move(keys)),
        A(normal<T>(q.count(), r, 1)),
        B(normal<T>(k.count(), r, 2)),
        U(normal<T>(k.count(), p, 3)),
        G(normal<T>(q.count(), p, 5)),
        border(Matrix<T>::Constant(E, E + 2, std::numeric_limits<T>::quiet_NaN())),
        before(normal<T>(E, E + 2, 7)),
        c(q.span + k.span > 0 ? random_weights<T>(q.span, k.span, 4) : LagWeights<T>()),
        m_q_numbers(numbers(q)),
        m_k_numbers(numbers(k)) {
    // the weights that pairs of tokens need are set; the others may have any value
    const Matrix<T> weights = normal<T>(E, E + 2, 6);
    for (Index i = 0; i < q.count(); ++i)
      for (Index j = 0; j < k.count(); ++j)
        if (const auto [row, col] = place(i, j); row >= 0) border(row, col) = weights(row, col);
  }

  std::string name(Engine engine) const {
    return std::string(nprf::name(engine)) + ", E " + std::to_string(E) + ", queries " +
           std::to_string(q.outside.size()) + " + " + std::to_string(q.slots.size()) + " of " + std::to_string(q.span) +
           ", keys " + std::to_string(k.outside.size()) + " + " + std::to_string(k.slots.size()) + " of " +
           std::to_string(k.span) + (sizeof(T) == 4 ? ", float" : ", double");
  }

  Results<T> run(Engine engine, const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    const Index r = A.cols(), p = U.cols();
    const BorderedProduct<T> product(engine, c.view(), Border<T>{E, border.data()}, {q.span, k.span, r, p}, team);
    const Placement queries = placement(q, m_q_numbers), keys = placement(k, m_k_numbers);
    Results<T> out{Matrix<T>::Constant(q.count(), p, 17),
                   {},
                   Matrix<T>::Constant(q.count(), r, 17),
                   Matrix<T>::Constant(k.count(), r, 17),
                   Matrix<T>::Constant(k.count(), p, 17),
                   {},
                   Vector<T>::Constant(std::max<Index>(q.span + k.span - 1, 0), T(17))};
    Vector<T> sums = Vector<T>::Constant(q.count(), T(17));
    const toeplitz::Factors<T> x{A, B, U, queries, keys};
    product.contract(x, out.Y, team, sums.data());
    out.with_ones = beside(out.Y, sums);
    product.contract(x, out.Y, team);
    auto db = team.workspace().template matrix<T>(E, E + 2);
    db = before;
    const Vector<T> ones = Vector<T>::Ones(q.count());  // a measure for which no gradient is recomputed
    product.gradients(x, G, {ones.data(), ones.data(), false, 1}, {out.dA, out.dB, out.dU, out.dc}, db, team);
    out.dborder = db;
    return out;
  }

  // C entry by entry
  long double weight(Index i, Index j) const {
    if (const auto [row, col] = place(i, j); row >= 0) return border(row, col);
    return c[k.slot(j) - q.slot(i)];
  }

  // the ratio of error to tolerance of each result
  double error(Engine engine, const Results<T>& got) const {
    const Matrix<double> a = A.template cast<double>(), b = B.template cast<double>(), u = U.template cast<double>(),
                         g = G.template cast<double>();
    const Matrix<double> u1 = with_ones(u);
    Sums Y(q.count(), U.cols()), Y1(q.count(), U.cols() + 1), dA(q.count(), A.cols()), dB(k.count(), A.cols()),
        dU(k.count(), U.cols()), dborder(E, E + 2);
    dborder.values = before.template cast<double>(), dborder.magnitude = dborder.values.cwiseAbs();
    for (Index i = 0; i < q.count(); ++i)
      for (Index j = 0; j < k.count(); ++j) {
        const long double w = weight(i, j);
        long double s = 0, s_size = 0, t = 0, t_size = 0;  // A_i.B_j and G_i.U_j
        for (Index f = 0; f < A.cols(); ++f) s += a(i, f) * b(j, f), s_size += std::abs(a(i, f) * b(j, f));
        for (Index f = 0; f < U.cols(); ++f) t += g(i, f) * u(j, f), t_size += std::abs(g(i, f) * u(j, f));
        Y.add(i, w * s, std::abs(w) * s_size, u, j);
        Y1.add(i, w * s, std::abs(w) * s_size, u1, j);
        dA.add(i, w * t, std::abs(w) * t_size, b, j);
        dB.add(j, w * t, std::abs(w) * t_size, a, i);
        dU.add(j, w * s, std::abs(w) * s_size, g, i);
        if (const auto [row, col] = place(i, j); row >= 0) {
          dborder.values(row, col) += static_cast<double>(s * t);
          dborder.magnitude(row, col) += static_cast<double>(s_size * t_size);
        }
      }
    const double growth = direct_growth<T>(A.cols() + U.cols(), q.count() + k.count());
    const Matrix<T> As = in_slots(A, q), Bs = in_slots(B, k), Us = in_slots(U, k), Gs = in_slots(G, q);
    const LagWeights<T> back = transposed(c);
    const auto worst = [&](const Matrix<T>& x, const Sums& sums, const Matrix<double>& bounds) {
      return worst_ratio(x, sums.values, growth * sums.magnitude + bounds);
    };
    return std::max({worst(got.Y, Y, bounds(engine, c, As, Bs, Us, q)),
                     worst(got.with_ones, Y1, bounds(engine, c, As, Bs, in_slots(with_ones(U), k), q)),
                     worst(got.dA, dA, bounds(engine, c, Gs, Us, Bs, q)),
                     worst(got.dB, dB, bounds(engine, back, Us, Gs, As, k)),
                     worst(got.dU, dU, bounds(engine, back, Bs, As, Gs, k)),
                     worst(got.dborder, dborder, Matrix<double>::Zero(E, E + 2)),
                     q.span * k.span == 0 ? 0 : lag_error(engine, As, Bs, Us, Gs, got.dc)});
  }

  const Index E;
  const Side q, k;
  const Matrix<T> A, B, U, G;
  Matrix<T> border, before;
  const LagWeights<T> c;

 private:
  // the index of the weight of query i and key j in the border; -1 for two tokens in slots
  std::pair<Index, Index> place(Index i, Index j) const {
    if (q.is_outside(i)) return {q.extra(i), k.is_outside(j) ? 2 + k.extra(j) : 0};
    if (k.is_outside(j)) return {k.extra(j), 1};
    return {-1, -1};
  }

  // their numbers among all tokens: those without a slot, then one for each slot
  std::vector<Index> numbers(const Side& side) const {
    std::vector<Index> all = side.outside;
    for (const Index slot : side.slots) all.push_back(E + slot);
    return all;
  }
  Placement placement(const Side& side, const std::vector<Index>& of) const {
    const bool complete = static_cast<Index>(side.outside.size()) == E;
    return Placement({static_cast<Index>(side.slots.size()), 0, side.slots.data()},
                     static_cast<Index>(side.outside.size()), complete ? nullptr : of.data());
  }

  // the rows of the tokens in slots, each in its slot
  static Matrix<T> in_slots(const Matrix<T>& X, const Side& side) {
    const Index n = static_cast<Index>(side.slots.size());
    return spread<T>(X.bottomRows(n), {n, 0, side.slots.data()}, side.span);
  }

  // the error bound of an FFT in the slots
  static Matrix<double> bounds(Engine engine, const LagWeights<T>& lags, const Matrix<T>& X, const Matrix<T>& Y,
                               const Matrix<T>& Z, const Side& side) {
    Matrix<double> tokens = Matrix<double>::Zero(side.count(), Z.cols());
    if (engine == Engine::direct || X.size() == 0 || Y.size() == 0) return tokens;
    const std::vector<Index> rows = all_rows(X.rows());
    const Matrix<double> all = product_tolerance(engine, lags, X, Y, Z, rows, reference_product(lags, X, Y, Z, rows));
    for (Index i = 0; i < tokens.rows(); ++i)
      if (!side.is_outside(i)) tokens.row(i) = all.row(side.slot(i));
    return tokens;
  }

  const std::vector<Index> m_q_numbers, m_k_numbers;
};

// calls use(x) for tokens without slots, in slots and missing on either side
template <class T, class Use>
void with_cases(Use&& use) {
  const auto some = [](Index n, std::uint64_t seed) { return random_slots(n, 0.6, seed); };
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{1, 1}, {30, 50}, {280, 140}}) {
    use(Case<T>(0, {{}, all_rows(n_q), n_q}, {{}, all_rows(n_k), n_k}));
    use(Case<T>(0, {{}, some(n_q, 1), n_q}, {{}, some(n_k, 2), n_k}));
    use(Case<T>(1, {{0}, all_rows(n_q), n_q}, {{0}, all_rows(n_k), n_k}));
    use(Case<T>(1, {{0}, some(n_q, 1), n_q}, {{}, some(n_k, 2), n_k}));
    use(Case<T>(1, {{}, some(n_q, 1), n_q}, {{0}, some(n_k, 2), n_k}));
    use(Case<T>(3, {{0, 1, 2}, all_rows(n_q), n_q}, {{0, 1, 2}, all_rows(n_k), n_k}));
    use(Case<T>(3, {{0, 2}, some(n_q, 1), n_q}, {{1, 2}, some(n_k, 2), n_k}));
    use(Case<T>(3, {{1}, some(n_q, 1), n_q}, {{2}, all_rows(n_k), n_k}, 2, 3));
    // no tokens in the slots of one side, or of both
    use(Case<T>(3, {{0, 2}, {}, n_q}, {{1, 2}, some(n_k, 2), n_k}));
    use(Case<T>(3, {{0, 2}, some(n_q, 1), n_q}, {{1, 2}, {}, n_k}));
    use(Case<T>(3, {{0, 1, 2}, {}, n_q}, {{2}, {}, n_k}));
  }
  // only tokens without a slot
  use(Case<T>(3, {{0, 1, 2}, {}, 0}, {{0, 1, 2}, {}, 0}));
}

}  // namespace

TEMPLATE_TEST_CASE("a bordered product and its gradients are those of the whole matrix C", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  std::vector<Workspace> workspaces(3);
  with_cases<TestType>([&](const Case<TestType>& x) {
    for (const Engine engine : engines()) {
      INFO(x.name(engine));
      CHECK(x.error(engine, x.run(engine, Team(workspaces))) <= 1);
    }
  });
}

TEMPLATE_TEST_CASE("a bordered product: no bit depends on the number of threads", "[toeplitz][threads]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Case<T> x(3, {{0, 2}, random_slots(400, 0.7, 1), 400}, {{0, 1, 2}, random_slots(300, 0.7, 2), 300}, 700, 5);
  for (const Engine engine : engines()) {
    Results<T> first;
    with_team_sizes([&](const Team& team) {
      const Results<T> now = x.run(engine, team);
      if (team.size() == 1) first = now;
      INFO(std::string(name(engine)) << ", " << team.size() << " threads");
      CHECK(same_bits(now.Y, first.Y));
      CHECK(same_bits(now.with_ones, first.with_ones));
      CHECK(same_bits(now.dA, first.dA));
      CHECK(same_bits(now.dB, first.dB));
      CHECK(same_bits(now.dU, first.dU));
      CHECK(same_bits(now.dborder, first.dborder));
      CHECK(same_bits(Matrix<T>(now.dc), Matrix<T>(first.dc)));
    });
  }
}

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

TEST_CASE("if all tokens have slots, a bordered product is a product with checked gradients, bit for bit",
          "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const Side q{{}, random_slots(200, 0.7, 1), 200}, k{{}, random_slots(150, 0.7, 2), 150};
  const Case<double> x(0, q, k);
  const InSlots<double> inner(200, 150, q.slots, k.slots, 3, 2);
  const MatrixView<double> a = inner.A, b = inner.B, u = inner.U, g = inner.G;
  const toeplitz::Factors<double> factors{a, b, u, inner.queries, inner.keys};
  const Vector<double> ones = Vector<double>::Ones(q.count());
  for (const Engine engine : engines()) {
    const auto make = make_product(engine);
    const Results<double> got = x.run(engine, team);
    INFO(std::string(name(engine)));
    CHECK(same_bits(got.Y, inner.contract(make, team)));
    const Workspace::Scope scope(workspace);
    const toeplitz::Product<double> product = make(inner.c.view(), inner.span, team);
    toeplitz::Gradients<double> d({q.count(), k.count(), 3, 2});
    d.dc.resize(product.num_lags());
    toeplitz::CheckedGradients<double>(product, factors, g, {ones.data(), ones.data(), false, 1}, team)
        .find({d.dA, d.dB, d.dU, d.dc});
    CHECK((same_bits(got.dA, d.dA) && same_bits(got.dB, d.dB) && same_bits(got.dU, d.dU) && got.dc == d.dc));
  }
}

TEST_CASE("a bordered product reports the engine of the slots", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const LagWeights<double> c = random_weights<double>(7, 5, 4);
  for (const Engine engine : engines())
    CHECK(BorderedProduct<double>(engine, c.view(), {}, {7, 5, 2, 3}, team).engine() == engine);
  CHECK(BorderedProduct<double>(Engine::automatic, c.view(), {}, {7, 5, 2, 3}, team).engine() == Engine::direct);
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
