// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_gradients {

namespace {

constexpr Index d = 3;

struct Sizes {
  Index n_q, n_k, d_v, offset;
};

// a user's own map, without the overloads that use a team
struct Squares {
  using Scalar = double;
  Index input_dim() const { return d; }
  Index output_dim() const { return d; }
  Matrix<double> queries(const MatrixView<double>& x) const { return x.array().square() + 0.5; }
  Matrix<double> keys(const MatrixView<double>& x) const { return x.array().square() + 1; }
  Matrix<double> backward(const MatrixView<double>& x, const MatrixView<double>&,
                          const MatrixView<double>& dphi) const {
    return 2 * x.cwiseProduct(dphi);
  }
};

// checks all gradients for a position with these parameters
template <class F, class Make>
void check_gradients(const F& features, const Vector<double>& parameters, Make&& position,
                     const AttentionOptions& options, const Sizes& s) {
  const Tokens<double> x = random_tokens<double>(s.n_q, s.n_k, d, s.d_v);
  INFO(std::string(name(options.engine)) << (options.direction == Direction::causal ? " causal" : "") << " n_q "
                                         << s.n_q << " n_k " << s.n_k << " offset " << s.offset << " radius "
                                         << options.normalization.radius());
  const auto make = [&](const Matrix<double>& b) { return Attention(features, position(b.col(0)), options); };
  const CallOptions call{.offset = s.offset};
  const Passes<double> out = check_differences(make, parameters, x, normal<double>(s.n_q, s.d_v, 77), call);
  CHECK(same_bits<double>(make(parameters)(x.q, x.k, x.v, call), out.y));
}

template <class F>
void check_positions(const F& features) {
  const auto none = [](const Vector<double>&) { return NoPosition<double>(); };
  const auto relative = [](const Vector<double>& b) { return RelativePosition<double>(b); };
  const auto alibi = [](const Vector<double>& slope) { return AlibiPosition<double>(slope[0]); };
  const std::vector<Normalization> normalizations =
      NPRF_TEST_SANITIZED
          ? std::vector<Normalization>{Normalization::unit(1.5)}
          : std::vector<Normalization>{Normalization::unit(1), Normalization::unit(1.5), Normalization::none()};
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const auto t5 = [=](const Vector<double>& w) { return t5_position<double>(w, direction, 8); };
      const auto t5_near = [=](const Vector<double>& w) { return t5_position<double>(w, direction, 5); };
      for (const Normalization& normalization : normalizations)
        for (const Sizes& s : {Sizes{6, 6, 2, 0}, Sizes{4, 7, 1, 2}, Sizes{7, 4, 3, -1}}) {
          const AttentionOptions options{direction, normalization, engine};
          check_gradients(features, Vector<double>(), none, options, s);
          check_gradients(features, normal_vector<double>(5, 50), relative, options, s);
          check_gradients(features, normal_vector<double>(25, 51), relative, options, s);
          check_gradients(features, normal_vector<double>(8, 52), t5, options, s);
          check_gradients(features, normal_vector<double>(4, 53), t5_near, options, s);
          check_gradients(features, Vector<double>::Constant(1, 0.3), alibi, options, s);
        }
    }
}

}  // namespace

TEST_CASE("gradients are central differences: positive features", "[attention]") {
  check_positions(orf<double>(d, 5, 7));
}

TEST_CASE("gradients are central differences: hyperbolic features", "[attention]") {
  check_positions(HyperbolicFeatures<double>({.input_dim = d, .num_features = 4, .seed = 7}));
}

TEST_CASE("gradients are central differences: trigonometric features", "[attention][long]") {
  // 64 vectors are enough to keep denominators away from zero
  check_positions(trf<double>(d, 64, 7));
}

TEST_CASE("gradients are central differences: elu, and a user's own map", "[attention]") {
  check_positions(EluFeatures<double>(d));
  check_positions(Squares());
}

TEST_CASE("gradients of rows whose weights underflow are central differences", "[attention]") {
  // the bias rises by 400 every 4 tokens back: up to 4 farthest keys have all the weight of a row, and the weights of
  // the first rows are e^-2000 of those of the last
  const Index n = 24;
  Vector<double> b = normal_vector<double>(2 * n - 1, 5);
  for (Index lag = -(n - 1); lag < n; ++lag) b[n - 1 + lag] += 400 * std::floor(static_cast<double>(-lag) / 4);
  const auto relative = [](const Vector<double>& table) { return RelativePosition<double>(table); };
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    const AttentionOptions options{direction, Normalization::unit(1), Engine::direct};
    const Tokens<double> x = random_tokens<double>(n, n, d, 2);
    const Attention attention(orf<double>(d, 5, 7), relative(b), options);
    const Passes<double> out = both_passes(attention, x, Matrix<double>::Random(n, 2));
    REQUIRE(out.report.repaired_rows > 5);
    REQUIRE(out.g.queries.row(2).norm() > 1e-3);
    check_gradients(orf<double>(d, 5, 7), b, relative, options, {n, n, 2, 0});
  }
}

TEST_CASE("the gradients of the biases sum to 0, because a common offset changes nothing", "[attention]") {
  const Index n = 300;
  const Tokens<float> x = random_tokens<float>(n, n, d, 5);
  for (const Engine engine : engines()) {
    const Attention attention(orf<float>(d, 8, 7), RelativePosition<float>(normal_vector<float>(2 * n - 1, 3)),
                              {.engine = engine});
    const Gradients<float> g = both_passes(attention, x, normal<float>(n, 5, 9)).g;
    INFO(std::string(name(engine)));
    // each of the 2n - 1 sums has the rounding errors of n terms
    CHECK(std::abs(g.bias.cast<double>().sum()) <=
          epsilon<float> * std::sqrt(static_cast<double>(n)) * g.bias.cast<double>().cwiseAbs().sum());
  }
}

TEST_CASE("in float each gradient is the adjoint of the derivative of attention", "[attention]") {
  const Index n_q = 300, n_k = 200, d_v = 5;
  const Tokens<float> x = random_tokens<float>(n_q, n_k, d, d_v);
  const Vector<float> b = normal_vector<float>(n_q + n_k - 1, 3);
  const Matrix<float> dy = normal<float>(n_q, d_v, 9), rows = orf<float>(d, 8, 7).projection();
  const Tokens<double> to{normal<double>(n_q, d, 20), normal<double>(n_k, d, 21), normal<double>(n_k, d_v, 22)};
  const Vector<double> b_to = normal_vector<double>(b.size(), 23);
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const bool has_global_rounding = is_fft(engine) && engine != Engine::block_causal;
      if (has_global_rounding && direction == Direction::causal)
        continue;  // early rows are far below the rounding errors of late ones
      const auto position = [&](const auto& table) { return RelativePosition(table.eval()); };
      const AttentionOptions options{.direction = direction, .engine = engine};
      // dL of L = <dy, y> along (to, b_to) by a central difference in double; its errors, h^2 and eps / h, are far
      // below the rounding errors of float
      const auto loss = [&](double q, double k, double v, double t) {
        const Attention attention(PositiveFeatures<double>(rows.cast<double>()), position(b.cast<double>() + t * b_to),
                                  options);
        const Matrix<double> y =
            attention(x.q.cast<double>() + q * to.q, x.k.cast<double>() + k * to.k, x.v.cast<double>() + v * to.v);
        return y.cwiseProduct(dy.cast<double>()).sum();
      };
      constexpr double h = 1e-5;
      const auto slope = [&](int q, int k, int v, int t) {
        return (loss(q * h, k * h, v * h, t * h) - loss(-q * h, -k * h, -v * h, -t * h)) / (2 * h);
      };
      const Attention attention(PositiveFeatures<float>(rows), position(b), options);
      const Gradients<float> g = both_passes(attention, x, dy).g;
      const auto check = [&](const char* name, const Matrix<float>& dx, const Matrix<double>& along, double expected) {
        INFO(std::string(nprf::name(engine)) << (direction == Direction::causal ? " causal, " : ", ") << name);
        const double got = dx.cast<double>().cwiseProduct(along).sum();
        // rounding errors of both signs: their sum is little more than that of one entry as large as the norm of all
        CHECK(std::abs(got - expected) <= epsilon<float> * dx.cast<double>().norm() * along.norm());
      };
      check("queries", g.queries, to.q, slope(1, 0, 0, 0));
      check("keys", g.keys, to.k, slope(0, 1, 0, 0));
      check("values", g.values, to.v, slope(0, 0, 1, 0));
      check("bias", g.bias, b_to, slope(0, 0, 0, 1));
    }
}

TEST_CASE("a zero query and a query that attends to no key have the gradient 0", "[attention]") {
  Tokens<double> x = random_tokens<double>(6, 6, d, 2);
  x.q.row(2).setZero();
  x.k.row(4).setZero();
  const Attention attention(orf<double>(d, 5, 7), AlibiPosition<double>(0.1), {.direction = Direction::causal});
  const Gradients<double> g = both_passes(attention, x, normal<double>(6, 2, 9), {.offset = -1}).g;
  CHECK(g.queries.row(2).isZero(0));
  CHECK(g.keys.row(4).isZero(0));
  CHECK(g.queries.row(0).isZero(0));  // position -1 precedes all keys
  CHECK(g.values.row(5).isZero(0));   // no query attends to the last key
  CHECK(g.queries.allFinite());
  CHECK(g.keys.allFinite());
}

TEST_CASE("a non-finite query that attends to no key changes no gradient", "[attention]") {
  const Index n = 70;
  for (const Engine engine : engines())
    for (const double hole : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      INFO(name(engine));
      Tokens<double> x = random_tokens<double>(n, n, d, 2);
      const Attention attention(orf<double>(d, 5, 7), RelativePosition<double>(normal_vector<double>(9, 3)),
                                {.direction = Direction::causal, .engine = engine});
      const auto gradients = [&] { return both_passes(attention, x, normal<double>(n, 2, 9), {.offset = -2}).g; };
      const Gradients<double> finite = gradients();
      x.q(1, 2) = hole;
      const Gradients<double> g = gradients();
      CHECK(g.queries == finite.queries);
      CHECK(g.keys == finite.keys);
      CHECK(g.values == finite.values);
      CHECK(g.bias == finite.bias);
    }
}

TEST_CASE("a table for more tokens has gradients in its middle; one for fewer sums those of far lags in its ends",
          "[attention]") {
  const Index n_q = 12, n_k = 9;
  const Tokens<double> x = random_tokens<double>(n_q, n_k, d, 2);
  const Matrix<double> dy = normal<double>(n_q, 2, 9);
  // L = 30 tokens: lags up to 11 to each side are used; L = 4: the biases beyond lag 3 are those of lag 3
  const Vector<double> b = normal_vector<double>(59, 3), middle = b.segment(29 - 11, 23),
                       few = normal_vector<double>(7, 4);
  Vector<double> extended(23);
  for (Index l = 0; l < 23; ++l) extended[l] = few[std::clamp<Index>(l - 11 + 3, 0, 6)];
  for (const Engine engine : engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const Index offset : {0, -2}) {
        const auto run = [&](const Vector<double>& table) {
          const Attention attention(orf<double>(d, 5, 7), RelativePosition<double>(table),
                                    {.direction = direction, .engine = engine});
          return both_passes(attention, x, dy, {.offset = offset});
        };
        const Passes<double> whole = run(b), cut = run(middle), clipped = run(few), full = run(extended);
        INFO(std::string(name(engine)) << (direction == Direction::causal ? " causal" : "") << " offset " << offset);
        CHECK(same_bits<double>(whole.y, cut.y));
        CHECK(same_bits<double>(whole.g.queries, cut.g.queries));
        CHECK(same_bits<double>(whole.g.keys, cut.g.keys));
        REQUIRE(whole.g.bias.rows() == 59);
        CHECK(same_bits<double>(whole.g.bias.middleRows(29 - 11, 23), cut.g.bias));
        CHECK(all_zero(whole.g.bias.topRows(29 - 11)));
        CHECK(all_zero(whole.g.bias.bottomRows(29 - 11)));

        CHECK(same_bits<double>(clipped.y, full.y));
        CHECK(same_bits<double>(clipped.g.queries, full.g.queries));
        CHECK(same_bits<double>(clipped.g.keys, full.g.keys));
        Matrix<double> collected = Matrix<double>::Zero(7, 1);
        for (Index l = 0; l < 23; ++l) collected(std::clamp<Index>(l - 11 + 3, 0, 6), 0) += full.g.bias(l, 0);
        CHECK(worst_ratio(clipped.g.bias, collected, 23 * epsilon<double> * full.g.bias.cwiseAbs().maxCoeff()) <= 1);
      }
}

}  // namespace nprf::test::attention_gradients
