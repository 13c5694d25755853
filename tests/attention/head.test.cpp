// SPDX-License-Identifier: MIT
#include "nprf/attention/head.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_head {

namespace {

constexpr Index d = 3, m = 6, d_v = 2, n_q = 9, n_k = 12, offset = 2;
constexpr double tolerance = 1e-10;
const AttentionOptions options{.direction = Direction::causal, .engine = Engine::direct};

using Features = PositiveFeatures<double>;
using Relative = RelativePosition<double>;

struct Fixture {
  Features features = orf<double>(d, m, 7);
  Relative position{random_table<double>(5, 3)};
  Workspace workspace;
  Team team{workspace};
  PreparedPosition<double> weights{position, options, {n_q, n_k, m, d_v + 1}, offset, Pass::forward, team};
  Head<double> head{features, options.normalization, &weights};
  Tokens<double> x = random_tokens<double>(n_q, n_k, d, d_v);
  Matrix<double> dy = normal<double>(n_q, d_v, 77);
  Mask mask = (normal_vector<double>(n_k, 90).array() > -0.5).eval();
};

// a block in the midst of other numbers
struct Framed {
  Framed(Index n, Index p) : all(Matrix<double>::Constant(n + 4, p + 3, 5)), rows(n), cols(p) {}
  auto block() { return all.block(3, 1, rows, cols); }
  bool frame_is_whole() {
    Matrix<double> rest = all;
    rest.block(3, 1, rows, cols).setConstant(5);
    return (rest.array() == 5).all();
  }
  Matrix<double> all;
  Index rows, cols;
};

// squares, a row at a time, without a team
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

}  // namespace

TEST_CASE("a head writes its rows and no others", "[attention]") {
  Fixture f;
  Framed y(n_q, d_v), dq(n_q, d), dk(n_k, d), dv(n_k, d_v);
  SavedSequence<double> saved;
  Report report;
  GradientReport gradient_report;
  f.head.forward(f.x.q, f.x.k, f.x.v, view(f.mask), n_k, tolerance, y.block(), &saved, report, f.team);
  const Index lags = f.weights.problem().lags.size();
  std::vector<double> db(static_cast<std::size_t>(lags), 0);
  f.head.backward(saved, f.dy, tolerance, dq.block(), dk.block(), dv.block(), {db, {}}, gradient_report, f.team);

  const Attention attention(f.features, f.position, options);
  Saved<double> expected_saved;
  const CallOptions call{.key_mask = view(f.mask), .offset = offset};
  const Matrix<double> expected = attention.forward(f.x.q, f.x.k, f.x.v, expected_saved, call);
  const Gradients<double> g = attention.backward(expected_saved, f.dy);
  CHECK(same_bits<double>(y.block(), expected));
  CHECK(same_bits<double>(dq.block(), g.queries));
  CHECK(same_bits<double>(dk.block(), g.keys));
  CHECK(same_bits<double>(dv.block(), g.values));
  Matrix<double> d_table;
  f.position.gradient(f.weights.problem().lags.first - f.weights.problem().offset, db, d_table);
  CHECK(same_bits<double>(d_table, g.bias));
  for (Framed* x : {&y, &dq, &dk, &dv}) CHECK(x->frame_is_whole());
}

TEST_CASE("a head's y does not depend on whether it saves, and it saves anew", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v), again(n_q, d_v), dq(n_q, d), dk(n_k, d), dv(n_k, d_v), first_dk(n_k, d);
  SavedSequence<double> saved, fresh;
  Report report;
  GradientReport gradient_report;
  std::vector<double> db(static_cast<std::size_t>(f.weights.problem().lags.size()), 0);
  f.head.forward(f.x.q, f.x.k, f.x.v, {}, n_k, tolerance, y, nullptr, report, f.team);
  f.head.forward(f.x.q, f.x.k, f.x.v, {}, n_k, tolerance, again, &saved, report, f.team);
  CHECK(same_bits(y, again));
  // another mask and length in the same storage
  f.head.forward(f.x.q, f.x.k, f.x.v, view(f.mask), n_k - 2, tolerance, y, &saved, report, f.team);
  f.head.forward(f.x.q, f.x.k, f.x.v, view(f.mask), n_k - 2, tolerance, y, &fresh, report, f.team);
  f.head.backward(fresh, f.dy, tolerance, dq, first_dk, dv, {db, {}}, gradient_report, f.team);
  f.head.backward(saved, f.dy, tolerance, dq, dk, dv, {db, {}}, gradient_report, f.team);
  CHECK(same_bits(dk, first_dk));
  CHECK(all_zero(dk.bottomRows(2)));
}

TEST_CASE("a head adds to its report and to the bias's gradient", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v), dq(n_q, d), dk(n_k, d), dv(n_k, d_v);
  SavedSequence<double> saved;
  Report report;
  GradientReport gradient_report;
  const Mask none = Mask::Constant(n_k, false);
  for (int round = 1; round <= 2; ++round) {
    f.head.forward(f.x.q, f.x.k, f.x.v, view(none), n_k, tolerance, y, nullptr, report, f.team);
    CHECK(report.empty_rows == round * n_q);
    CHECK(all_zero(y));
  }
  CHECK(report.engine == Engine::automatic);
  f.head.forward(f.x.q, f.x.k, f.x.v, {}, n_k, tolerance, y, &saved, report, f.team);
  CHECK(report.engine == Engine::direct);

  const auto lags = static_cast<std::size_t>(f.weights.problem().lags.size());
  std::vector<double> once(lags, 0), twice(lags, 0);
  f.head.backward(saved, f.dy, tolerance, dq, dk, dv, {once, {}}, gradient_report, f.team);
  for (int round = 0; round < 2; ++round)
    f.head.backward(saved, f.dy, tolerance, dq, dk, dv, {twice, {}}, gradient_report, f.team);
  double sum = 0;
  for (std::size_t l = 0; l < lags; ++l) {
    CHECK(twice[l] == 2 * once[l]);
    sum += std::abs(once[l]);
  }
  CHECK(sum > 0.01);
}

TEST_CASE("a head gives back what it took of the workspace", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v), dq(n_q, d), dk(n_k, d), dv(n_k, d_v);
  SavedSequence<double> saved;
  Report report;
  GradientReport gradient_report;
  std::vector<double> db(static_cast<std::size_t>(f.weights.problem().lags.size()), 0);
  const auto next = [&] {
    const Workspace::Scope scope(f.workspace);
    return f.workspace.take<double>(1);
  };
  const double* before = next();
  f.head.forward(f.x.q, f.x.k, f.x.v, view(f.mask), n_k, tolerance, y, &saved, report, f.team);
  CHECK(next() == before);
  f.head.backward(saved, f.dy, tolerance, dq, dk, dv, {db, {}}, gradient_report, f.team);
  CHECK(next() == before);
}

TEST_CASE("features are those of normalised rows", "[attention]") {
  Fixture f;
  for (const Normalization& normalization : {Normalization::unit(2), Normalization::none()}) {
    const Head<double> head(f.features, normalization, nullptr);
    Matrix<double> A(n_q, m), B(n_k, m), xs(n_q, d), ks(n_k, d);
    Vector<double> q_scale(n_q), k_scale(n_k);
    head.query_features(f.x.q, q_scale, A, f.team);
    head.key_features(f.x.k, k_scale, B, f.team);
    for (Index i = 0; i < n_q; ++i)
      CHECK(std::abs(q_scale[i] - (normalization.is_unit() ? 2 / f.x.q.row(i).norm() : std::pow(3., -0.25))) <=
            4 * epsilon<double> * q_scale[i]);
    xs = q_scale.asDiagonal() * f.x.q;
    ks = k_scale.asDiagonal() * f.x.k;
    // exponents w.x are a few times the rows' length
    CHECK(worst_ratio(A, f.features.queries(xs), 32 * epsilon<double>) <= 1);
    CHECK(worst_ratio(B, f.features.keys(ks), 32 * epsilon<double>) <= 1);
  }
}

TEST_CASE("gradients through a user's own feature map are central differences", "[attention]") {
  Fixture f;
  const Squares squares;
  const CallOptions call{.key_mask = view(f.mask), .offset = offset};
  const auto loss = [&](const Tokens<double>& x) {
    return Attention(squares, f.position, options)(x.q, x.k, x.v, call).cwiseProduct(f.dy).sum();
  };
  const Attention attention(squares, f.position, options);
  Saved<double> saved;
  attention.forward(f.x.q, f.x.k, f.x.v, saved, call);
  const Gradients<double> g = attention.backward(saved, f.dy);
  const auto moved = [&](Matrix<double> Tokens<double>::*member) {
    return [&, member](const Matrix<double>& value) {
      Tokens<double> x = f.x;
      x.*member = value;
      return loss(x);
    };
  };
  CHECK(difference_error(f.x.q, g.queries, moved(&Tokens<double>::q)) <= 1e-6);
  CHECK(difference_error(f.x.k, g.keys, moved(&Tokens<double>::k)) <= 1e-6);
  CHECK(difference_error(f.x.v, g.values, moved(&Tokens<double>::v)) <= 1e-6);
}

}  // namespace nprf::test::attention_head
