// SPDX-License-Identifier: MIT

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nprf/position/alibi.hpp"
#include "nprf/position/t5.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/gradient_error.hpp"
#include "toeplitz/in_slots.hpp"

using namespace nprf;
using namespace nprf::test;

namespace {

constexpr auto make_banded = make_product(Engine::banded);
constexpr auto make_with_equal_ends = []<class T>(LagWeightsView<T> lags, const ProductShape& span, const Team& team) {
  return make_banded(lags.with_equal_ends(), span, team);
};

constexpr double never = -std::numeric_limits<double>::infinity();

/// A bias with N(0,1) between its straight lines.
LagBias<double> bias(Index first, Index size, double slope_before, double slope_after) {
  return {first, normal_vector<double>(size, 11), slope_before, slope_after};
}

struct Named {
  std::string name;
  LagBias<double> bias;
  Index offset = 0;
  Direction direction = Direction::bidirectional;
};

std::vector<Named> biases() {
  std::vector<Named> all{{"no position", {}},
                         {"no position, causal", {}, 0, Direction::causal},
                         {"no position, causal, the past alone", {}, 7, Direction::causal},
                         {"clipped", bias(-3, 7, 0, 0)},
                         {"clipped, causal", bias(-3, 7, 0, 0), 0, Direction::causal},
                         {"clipped far away", bias(-100, 190, 0, 0)},
                         {"a table longer than any sequence", bias(-600, 1200, -0.1, -0.1)},
                         {"clipped before, falling after", bias(-3, 7, 0, -0.2)},
                         {"falling before, rising after", bias(-3, 7, -0.2, 0.01)},
                         {"shifted a little", bias(-3, 7, -0.1, 0), 20},
                         {"shifted to the left of all", bias(-3, 7, -0.01, -0.02), 700},
                         {"shifted to the right of all", bias(-3, 7, -0.01, -0.02), -700}};
  for (const double slope : {-1e-4, -0.1, -5.0, -100.0})
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      all.push_back(
          {"ALiBi, slope " + std::to_string(slope), {0, Vector<double>::Zero(1), slope, slope}, 0, direction});
  for (const bool before : {false, true})
    for (const bool after : {false, true}) {
      all.push_back({"zero beyond the table", bias(-20, 61, 0, 0)});
      if (before) all.back().bias.table[0] = never;
      if (after) all.back().bias.table[60] = never;
    }
  return all;
}

/// Its weights in a table by difference of slots.
template <class T>
LagWeights<T> weights(const Named& x, Index n_q, Index n_k) {
  const LagBias<T> b{x.bias.first, x.bias.table.cast<T>(), static_cast<T>(x.bias.slope_before),
                     static_cast<T>(x.bias.slope_after)};
  LagWeights<T> c = exp_weights(b, reachable_lags(n_q, n_k, x.offset, x.direction));
  c.first += x.offset;
  return c;
}

/// How far a table may be from a geometric sequence in its tails: a logarithm x has an error of 2^-53 |x|, and below
/// T's smallest number nothing is left.
template <class T>
LagWeights<double> table_error(const LagWeights<T>& c) {
  LagWeights<double> error{c.first, Vector<double>::Zero(c.values.size())};
  const LagRange middle = c.view().middle();
  for (Index k = 0; k < error.values.size(); ++k) {
    const Index before = middle.first - (c.first + k), after = c.first + k - middle.last;
    const double slope = before > 0 ? c.tails.slope_before : c.tails.slope_after;
    if ((before <= 0 && after <= 0) || slope == 0) continue;
    const double x = static_cast<double>(std::max(before, after)) * slope;
    error.values[k] = 4 * epsilon<double> * (1 + std::abs(x)) * static_cast<double>(c.values[k]) +
                      2 * static_cast<double>(std::numeric_limits<T>::denorm_min());
  }
  return error;
}

template <class T>
double error_of(const LagWeights<T>& c, const LagWeights<double>& c_error, const Matrix<T>& A, const Matrix<T>& B,
                const Matrix<T>& U, const Matrix<T>& got, const std::vector<Index>& rows) {
  const Product reference = reference_product(c, A, B, U, rows);
  // a tail's sum is rounded twice in each tile of 30 tokens that it passes
  const Index passes = (A.rows() + B.rows()) / 15;
  Matrix<double> tolerance = direct_growth<T>(A.cols(), B.rows() + passes) * reference.magnitude;
  if (!c_error.values.isZero(0)) {
    const Matrix<double> a = A.template cast<double>(), b = B.template cast<double>(), u = U.template cast<double>();
    tolerance += reference_product(c_error, a, b, u, rows).magnitude;
    // a sum of keys that has decayed to T's smallest numbers is off by some of them
    const double least = 8 * static_cast<double>(std::numeric_limits<T>::denorm_min());
    for (Index i = 0; i < tolerance.rows(); ++i)
      tolerance.row(i).array() += least * (1 + a.row(rows[static_cast<std::size_t>(i)]).cwiseAbs().sum());
  }
  return worst_ratio(pick(got, rows), reference.values, tolerance);
}

/// dc in the band, and what two of a tail's lags say of all: the worst error over the tolerance.
template <class T>
double weights_error(const LagWeights<T>& c, const LagWeights<double>& c_error, const Matrix<T>& A, const Matrix<T>& B,
                     const Matrix<T>& U, const Matrix<T>& G, const Vector<T>& dc) {
  const Index n_q = A.rows(), n_k = B.rows();
  const LagRange middle = c.view().middle(), support = c.support();
  const bool reaches_before = c.first <= -(n_q - 1), reaches_after = c.last() >= n_k - 1;
  const Matrix<double> a = A.template cast<double>(), b = B.template cast<double>(), u = U.template cast<double>(),
                       g = G.template cast<double>();
  const Matrix<double> term = (a * b.transpose()).cwiseProduct(g * u.transpose());
  const Matrix<double> size =
      (a.cwiseAbs() * b.cwiseAbs().transpose()).cwiseProduct(g.cwiseAbs() * u.cwiseAbs().transpose());
  Vector<double> sum = Vector<double>::Zero(n_q + n_k - 1), magnitude = sum;
  for (Index i = 0; i < n_q; ++i)
    for (Index j = 0; j < n_k; ++j) {
      sum[j - i + n_q - 1] += term(i, j);
      magnitude[j - i + n_q - 1] += size(i, j);
    }
  const double growth = direct_growth<T>(A.cols() + U.cols(), std::min(n_q, n_k));
  double worst = 0;
  constexpr double least = static_cast<double>(std::numeric_limits<T>::denorm_min());
  double error[2][2] = {},
         tolerance[2][2] = {{least, least}, {least, least}};  // before and after; sums of c dc and of k c dc
  for (Index l = 0; l < sum.size(); ++l) {
    const Index lag = l - (n_q - 1), before = middle.first - lag, after = lag - middle.last;
    if (lag < support.first || lag > support.last) continue;
    if ((before > 0 && reaches_before) || (after > 0 && reaches_after)) {
      const int side = before > 0 ? 0 : 1;
      const double k = static_cast<double>(std::max(before, after)), weight = static_cast<double>(c[lag]);
      for (const int power : {0, 1}) {
        const double f = power == 0 ? 1 : k;
        error[side][power] += f * weight * (static_cast<double>(dc[l]) - sum[l]);
        tolerance[side][power] += f * (growth * weight + c_error[lag]) * magnitude[l];
      }
    } else {
      worst = std::max(worst, worst_ratio(Vector<double>::Constant(1, dc[l]), Vector<double>::Constant(1, sum[l]),
                                          growth * magnitude[l]));
    }
  }
  for (const int side : {0, 1})
    for (const int power : {0, 1})
      if (error[side][power] != 0) {
        const double ratio = std::abs(error[side][power]) / tolerance[side][power];
        worst = ratio <= worst ? worst : ratio;
      }
  return std::isnan(worst) ? std::numeric_limits<double>::infinity() : worst;
}

template <class T, class Make>
void check(const InSlots<T>& x, Make&& make, const Team& team, Index rows = 40) {
  const auto in_q = [&](const Matrix<T>& X) { return spread(X, x.queries, x.span.n_q); };
  const auto in_k = [&](const Matrix<T>& X) { return spread(X, x.keys, x.span.n_k); };
  const Matrix<T> A = in_q(x.A), B = in_k(x.B), U = in_k(x.U), G = in_q(x.G);
  const LagWeights<T> ct = transposed(x.c);
  const LagWeights<double> error = table_error(x.c), error_t = transposed(error);
  const auto q = some_rows(x.span.n_q, rows), k = some_rows(x.span.n_k, rows);
  CHECK(error_of(x.c, error, A, B, U, in_q(x.contract(make, team)), q) <= 1);
  CHECK(error_of(x.c, error, A, B, in_k(with_ones(x.U)), in_q(x.contract_with_ones(make, team)), q) <= 1);
  const toeplitz::Gradients<T> d = x.gradients(make, team);
  CHECK(error_of(x.c, error, G, U, B, in_q(d.dA), q) <= 1);
  CHECK(error_of(ct, error_t, U, G, A, in_k(d.dB), k) <= 1);
  CHECK(error_of(ct, error_t, B, A, G, in_k(d.dU), k) <= 1);
  CHECK(weights_error(x.c, error, A, B, U, G, d.dc) <= 1);
}

}  // namespace

TEMPLATE_TEST_CASE("the banded engine computes the product and its gradients, whatever the tails", "[toeplitz]", float,
                   double) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  std::vector<std::pair<Index, Index>> sizes{{1, 257}, {257, 1}, {33, 257}, {257, 33}, {130, 499}, {499, 130}};
  for (const Index n : {1, 2, 3, 5, 31, 32, 33, 127, 128, 129, 130, 257, 500}) sizes.push_back({n, n});
  for (const auto& [n_q, n_k] : sizes)
    for (const Named& bias : biases()) {
      InSlots<T> x(n_q, n_k, Slots{n_q}, Slots{n_k}, 2, 3);
      x.c = weights<T>(bias, n_q, n_k);
      INFO(bias.name << ", " << x.name());
      check(x, make_banded, team);
    }
}

TEMPLATE_TEST_CASE("the banded engine: tokens that leave slots empty are as if zeros stood there", "[toeplitz]", float,
                   double) {
  using T = TestType;
  std::vector<Workspace> workspaces(3);
  const Team team(workspaces);
  std::vector<Named> some = biases();
  std::erase_if(some, [k = 0](const Named&) mutable { return k++ % 3 != 0; });
  with_gaps<T>([&](InSlots<T>&& x) {
    for (const Named& bias : some) {
      x.c = weights<T>(bias, x.span.n_q, x.span.n_k);
      INFO(bias.name << ", " << x.name());
      check(x, make_banded, team, 10);
    }
  });
}

TEST_CASE("the banded engine: a tail that stops short of the farthest lag is part of the band", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  for (const LagRange range : {LagRange{-50, 400}, LagRange{-400, 60}, LagRange{-50, 60}, LagRange{10, 400}}) {
    InSlots<double> x(300, 310, Slots{300}, Slots{310}, 2, 3);
    x.c = exp_weights(bias(-3, 7, -0.01, 0), range);
    INFO("lags " << range.first << " to " << range.last);
    CHECK(x.error(Engine::direct, x.contract(make_banded, team)) <= 1);
    check(x, make_banded, team);
  }
}

TEST_CASE("the banded engine: weights of one side leave the past untouched by the future, bit for bit", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n = 300, now = 137;
  for (const double slope : {0.0, -0.1}) {
    InSlots<double> x(n, n, Slots{n}, Slots{n}, 3, 2);
    x.c = weights<double>({"", bias(-9, 10, slope, slope), 0, Direction::causal}, n, n);
    const Matrix<double> before = x.contract(make_banded, team);
    x.B.bottomRows(n - now) *= 1e20;
    x.U.bottomRows(n - now) *= -1e20;
    const Matrix<double> after = x.contract(make_banded, team);
    CHECK(same_bits<double>(after.topRows(now), before.topRows(now)));
    CHECK(!same_bits<double>(after.middleRows(now, 1), before.middleRows(now, 1)));
  }
}

TEST_CASE("the banded engine keeps each row's own digits", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  const Index n = 260;
  for (const double slope : {0.0, -0.5})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      InSlots<double> x(n, n, Slots{n}, Slots{n}, 3, 2);
      x.c = weights<double>({"", bias(-3, 7, slope, slope), 0, direction}, n, n);
      for (Index i = 0; i < n; ++i) x.A.row(i) *= std::pow(10., static_cast<double>(i % 9) * 25 - 100);
      // keys that grow by e from one to the next, and so do the sums
      for (Index j = 0; j < n; ++j) x.B.row(j) *= std::exp(static_cast<double>(j));
      CHECK(error_of(x.c, table_error(x.c), x.A, x.B, x.U, x.contract(make_banded, team), all_rows(n)) <= 1);
    }
}

TEMPLATE_TEST_CASE("the banded engine: sums over several windows of tiles", "[toeplitz]", float, double) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  for (const Named& bias : {Named{"clipped", bias(-30, 70, 0, 0)}, Named{"ALiBi", bias(0, 1, -0.003, -0.003)},
                            Named{"clipped and falling", bias(-3, 9, 0, -0.05)}}) {
    INFO(bias.name);
    // so many features that a window has few tiles, and so many tokens that there are more
    InSlots<T> wide(1300, 1250, Slots{1300}, Slots{1250}, 130, 65);
    wide.c = weights<T>(bias, 1300, 1250);
    check(wide, make_banded, team, 9);
    InSlots<T> sparse(2900, 3300, random_slots(2900, 0.5, 1), random_slots(3300, 0.4, 2), 130, 65);
    sparse.c = weights<T>(bias, 2900, 3300);
    CHECK(error_of(sparse.c, table_error(sparse.c), spread(sparse.A, sparse.queries, 2900),
                   spread(sparse.B, sparse.keys, 3300), spread(sparse.U, sparse.keys, 3300),
                   spread(sparse.contract(make_banded, team), sparse.queries, 2900), some_rows(2900, 60)) <= 1);
  }
}

TEMPLATE_TEST_CASE("the banded engine: the gradient of ALiBi's slope keeps its digits over long distances",
                   "[toeplitz]", float, double) {
  using T = TestType;
  Workspace workspace;
  const Team team(workspace);
  const Index n = 1500;
  for (const double slope : {1e-3, 1e-2, 0.1, 1.0, 0.0})
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const AlibiPosition<T> alibi(static_cast<T>(slope));
      InSlots<T> x(n, n, Slots{n}, Slots{n}, 2, 3);
      x.c = exp_weights(alibi.bias(), reachable_lags(n, n, 0, direction));
      const toeplitz::Gradients<T> d = x.gradients(make_banded, team);
      INFO("slope " << slope << (direction == Direction::causal ? ", causal" : ""));
      CHECK(weights_error(x.c, table_error(x.c), x.A, x.B, x.U, x.G, d.dc) <= 1);
    }
}

TEST_CASE("the banded engine: with runs of equal weights for tails, T5's buckets", "[toeplitz]") {
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const auto t5 = t5_position<float>(normal_vector<float>(32, 3), direction);
    InSlots<float> x(700, 650, Slots{700}, Slots{650}, 5, 4);
    x.c = exp_weights(t5.bias(), reachable_lags(700, 650, 0, direction));
    CHECK(x.error(Engine::direct, x.contract(make_banded, team)) <= 1);
    CHECK(x.error(Engine::direct, x.contract(make_with_equal_ends, team)) <= 1);
  }
}

TEMPLATE_TEST_CASE("the banded engine: one weight for all lags needs no band", "[toeplitz]", float, double) {
  using T = TestType;
  std::vector<Workspace> workspaces(2);
  const Team team(workspaces);
  for (const auto& sizes : std::vector<std::pair<Index, Index>>{{1, 1}, {300, 7}, {1030, 2500}}) {
    const Index n_q = sizes.first, n_k = sizes.second;
    InSlots<T> x(n_q, n_k, random_slots(n_q, 0.9, 1), random_slots(n_k, 0.9, 2), 3, 2);
    x.c = {-(n_q - 1), Vector<T>::Constant(n_q + n_k - 1, T(0.7)), {n_q - 1, n_k - 1, 0.0, 0.0}};
    INFO(x.name());
    CHECK(x.error(Engine::direct, x.contract(make_banded, team)) <= 1);
    toeplitz::Gradients<T> d = x.gradients(make_banded, team), all = d;
    all.dc.resize(0);
    const MatrixView<T> a = x.A, b = x.B, u = x.U, g = x.G;
    const Workspace::Scope scope(team.workspace());
    make_banded(x.c.view(), x.span, team)
        .gradients({a, b, u, x.queries, x.keys}, g, {all.dA, all.dB, all.dU, all.dc}, team);
    const auto error = [&](const toeplitz::Gradients<T>& e) {
      const Matrix<T> A = spread(x.A, x.queries, n_q), B = spread(x.B, x.keys, n_k), U = spread(x.U, x.keys, n_k),
                      G = spread(x.G, x.queries, n_q);
      return std::max({product_error(Engine::direct, x.c, G, U, B, spread(e.dA, x.queries, n_q)),
                       product_error(Engine::direct, transposed(x.c), U, G, A, spread(e.dB, x.keys, n_k)),
                       product_error(Engine::direct, transposed(x.c), B, A, G, spread(e.dU, x.keys, n_k))});
    };
    CHECK(error(d) <= 1);
    CHECK(error(all) <= 1);
  }
}

TEST_CASE("the banded engine: no queries or no keys in the slots give zeros", "[toeplitz]") {
  Workspace workspace;
  const Team team(workspace);
  for (const Named& bias : biases()) {
    INFO(bias.name);
    InSlots<double> no_keys(200, 300, random_slots(200, 0.5, 1), std::vector<Index>(), 3, 2);
    no_keys.c = weights<double>(bias, 200, 300);
    CHECK(no_keys.contract(make_banded, team).isZero(0));
    const toeplitz::Gradients<double> d = no_keys.gradients(make_banded, team);
    CHECK((d.dA.isZero(0) && d.dB.rows() == 0 && d.dU.rows() == 0 && d.dc.isZero(0)));
    InSlots<double> no_queries(200, 300, std::vector<Index>(), random_slots(300, 0.5, 1), 3, 2);
    no_queries.c = weights<double>(bias, 200, 300);
    CHECK(no_queries.contract(make_banded, team).rows() == 0);
    const toeplitz::Gradients<double> e = no_queries.gradients(make_banded, team);
    CHECK((e.dA.rows() == 0 && e.dB.isZero(0) && e.dU.isZero(0) && e.dc.isZero(0)));
  }
}

TEMPLATE_TEST_CASE("the banded engine: no bit depends on the number of threads", "[toeplitz]", float, double) {
  using T = TestType;
  const auto check_bits = [](InSlots<T>&& x) {
    for (const Named& bias : {Named{"clipped", bias(-30, 70, 0, 0)}, Named{"ALiBi", bias(0, 1, -0.003, -0.003)},
                              Named{"no position", {}}}) {
      x.c = weights<T>(bias, x.span.n_q, x.span.n_k);
      INFO(bias.name);
      check_thread_bits(x, make_banded);
    }
  };
  check_bits({90, 70, Slots{90}, Slots{70}, 3, 2});
  check_bits({600, 500, random_slots(600, 0.8, 1), random_slots(500, 0.7, 2), 9, 5});
  check_bits({2300, 2500, Slots{2300}, Slots{2500}, 130, 65});
}

TEST_CASE("the banded engine's scratch memory is linear in the tokens, and kept", "[toeplitz]") {
  const auto peak = [](const Named& bias, Index n) {
    Workspace workspace;
    const Team team(workspace);
    InSlots<float> x(n, n, Slots{n}, Slots{n}, 8, 9);
    x.c = weights<float>(bias, n, n);
    x.contract(make_banded, team);
    x.gradients(make_banded, team);
    const std::size_t allocated = workspace.allocated_bytes();
    x.contract(make_banded, team);
    x.gradients(make_banded, team);
    CHECK(workspace.allocated_bytes() == allocated);
    return static_cast<double>(workspace.peak_bytes());
  };
  for (const Named& each : {Named{"clipped", bias(-30, 70, 0, 0)}, Named{"ALiBi", bias(0, 1, -0.003, -0.003)}}) {
    INFO(each.name);
    // beyond a window's sums: a table of 2 n weights, and for each tile and each window some numbers
    const double once = peak(each, 20000), twice = peak(each, 40000);
    CHECK(twice - once <= 20000 * (2 + 1) * sizeof(float));
  }
}
