// SPDX-License-Identifier: MIT
#include "nprf/attention/batch/forward_pass.hpp"

#include <cmath>
#include <vector>

#include "attention/sequence_case.hpp"
#include "nprf/attention/attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_forward_pass {

using namespace sequence_case;

TEST_CASE("a forward pass writes only its rows, and they are bitwise equal to those of Attention", "[attention]") {
  Fixture f;
  Framed y(n_q, d_v);
  Report report;
  f.forward(view(f.mask), n_k, y.block(), nullptr, report);
  const Attention attention(f.features, f.position, options);
  const Matrix<double> expected = attention(f.x.q, f.x.k, f.x.v, {.key_mask = view(f.mask), .offset = offset});
  CHECK(same_bits<double>(y.block(), expected));
  CHECK(y.frame_is_unchanged());
}

TEST_CASE("y does not depend on whether the forward pass saves data for backward", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v), saving_y(n_q, d_v);
  SavedSequence<double> saved;
  Report report;
  f.forward({}, n_k, y, nullptr, report);
  f.forward({}, n_k, saving_y, &saved, report);
  CHECK(same_bits(y, saving_y));
}

TEST_CASE("a forward pass adds to its report", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v);
  Report report;
  const Mask none = Mask::Constant(n_k, false);
  for (int round = 1; round <= 2; ++round) {
    f.forward(view(none), n_k, y, nullptr, report);
    CHECK(report.empty_rows == round * n_q);
    CHECK(all_zero(y));
  }
  CHECK(report.engine == Engine::automatic);
  f.forward({}, n_k, y, nullptr, report);
  CHECK(report.engine == Engine::direct);
}

TEST_CASE("a forward pass releases its scratch memory", "[attention]") {
  Fixture f;
  Matrix<double> y(n_q, d_v);
  SavedSequence<double> saved;
  Report report;
  const auto next = [&] {
    const Workspace::Scope scope(f.workspace);
    return f.workspace.take<double>(1);
  };
  const double* before = next();
  f.forward(view(f.mask), n_k, y, &saved, report);
  CHECK(next() == before);
}

}  // namespace nprf::test::attention_forward_pass
