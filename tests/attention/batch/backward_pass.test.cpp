// SPDX-License-Identifier: MIT
#include "nprf/attention/batch/backward_pass.hpp"

#include <cmath>
#include <vector>

#include "attention/sequence_case.hpp"
#include "nprf/attention/attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_backward_pass {

using namespace sequence_case;

namespace {

// squares: a user's map without the overloads that use a team
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

TEST_CASE("a backward pass writes only its rows, and they are bitwise equal to those of Attention", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v);
  Framed dq(n_q, d), dk(n_k, d), dv(n_k, d_v);
  SavedSequence<double> saved;
  Report report;
  GradientReport gradient_report;
  f.forward(view(f.mask), n_k, y, &saved, report);
  std::vector<double> db = f.zero_db();
  f.backward(saved, {dq.block(), dk.block(), dv.block()}, db, gradient_report);

  const Attention attention(f.features, f.position, options);
  Saved<double> expected_saved;
  attention.forward(f.x.q, f.x.k, f.x.v, expected_saved, {.key_mask = view(f.mask), .offset = offset});
  const Gradients<double> g = attention.backward(expected_saved, f.dy);
  CHECK(same_bits<double>(dq.block(), g.queries));
  CHECK(same_bits<double>(dk.block(), g.keys));
  CHECK(same_bits<double>(dv.block(), g.values));
  Matrix<double> d_table;
  f.position.gradient(f.prepared.problem().lags.first - offset, db, d_table);
  CHECK(same_bits<double>(d_table, g.bias));
  for (Framed* x : {&dq, &dk, &dv}) CHECK(x->frame_is_unchanged());
}

TEST_CASE("gradients do not depend on the data that an earlier call saved in the same object", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v), dq(n_q, d), dk(n_k, d), dv(n_k, d_v), first_dk(n_k, d);
  SavedSequence<double> saved, fresh;
  Report report;
  GradientReport gradient_report;
  std::vector<double> db = f.zero_db();
  f.forward({}, n_k, y, &saved, report);
  // another mask and length in the same storage
  f.forward(view(f.mask), n_k - 2, y, &saved, report);
  f.forward(view(f.mask), n_k - 2, y, &fresh, report);
  f.backward(fresh, {dq, first_dk, dv}, db, gradient_report);
  f.backward(saved, {dq, dk, dv}, db, gradient_report);
  CHECK(same_bits(dk, first_dk));
  CHECK(all_zero(dk.bottomRows(2)));
}

TEST_CASE("a backward pass adds to the gradient of the bias", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v), dq(n_q, d), dk(n_k, d), dv(n_k, d_v);
  SavedSequence<double> saved;
  Report report;
  GradientReport gradient_report;
  f.forward({}, n_k, y, &saved, report);
  std::vector<double> once = f.zero_db(), twice = f.zero_db();
  f.backward(saved, {dq, dk, dv}, once, gradient_report);
  for (int round = 0; round < 2; ++round) f.backward(saved, {dq, dk, dv}, twice, gradient_report);
  double sum = 0;
  for (std::size_t l = 0; l < once.size(); ++l) {
    CHECK(twice[l] == 2 * once[l]);
    sum += std::abs(once[l]);
  }
  CHECK(sum > 0.01);
}

TEST_CASE("a backward pass releases its scratch memory", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v), dq(n_q, d), dk(n_k, d), dv(n_k, d_v);
  SavedSequence<double> saved;
  Report report;
  GradientReport gradient_report;
  std::vector<double> db = f.zero_db();
  const auto next = [&] {
    const Workspace::Scope scope(f.workspace);
    return f.workspace.take<double>(1);
  };
  f.forward(view(f.mask), n_k, y, &saved, report);
  const double* before = next();
  f.backward(saved, {dq, dk, dv}, db, gradient_report);
  CHECK(next() == before);
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

}  // namespace nprf::test::attention_backward_pass
