// SPDX-License-Identifier: MIT
#include "nprf/attention/batch/head.hpp"

#include <cmath>

#include "attention/sequence_case.hpp"
#include "nprf/attention/attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_head {

using namespace sequence_case;

TEST_CASE("the features of a head are the features of normalised rows", "[attention]") {
  Fixture f;
  for (const Normalization& normalization : {Normalization::unit(2), Normalization::none()}) {
    const Head<double> head{f.features, normalization, nullptr};
    Matrix<double> A(n_q, m), B(n_k, m), xs(n_q, d), ks(n_k, d);
    Vector<double> q_scale(n_q), k_scale(n_k);
    head.query_features(f.x.q, q_scale, A, f.team);
    head.key_features(f.x.k, k_scale, B, f.team);
    for (Index i = 0; i < n_q; ++i)
      CHECK(std::abs(q_scale[i] - (normalization.is_unit() ? 2 / f.x.q.row(i).norm() : std::pow(3., -0.25))) <=
            4 * epsilon<double> * q_scale[i]);
    xs = q_scale.asDiagonal() * f.x.q;
    ks = k_scale.asDiagonal() * f.x.k;
    // exponents w.x are a few times the norm of a row
    CHECK(worst_ratio(A, f.features.queries(xs), 32 * epsilon<double>) <= 1);
    CHECK(worst_ratio(B, f.features.keys(ks), 32 * epsilon<double>) <= 1);
  }
}

}  // namespace nprf::test::attention_head
