// SPDX-License-Identifier: MIT
#include "nprf/calibration/head_sample.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test::calibration_head_sample {

namespace {

SampleTokens<double> tokens(Index n_q, Index n_k, std::uint64_t seed = 1) {
  return sample_tokens<double>(normal<double>(n_q, 3, seed), normal<double>(n_k, 3, seed + 1),
                               normal<double>(n_k, 2, seed + 2), Normalization::none());
}

}  // namespace

TEST_CASE("sample: rows are normalised as attention normalises them", "[calibration]") {
  const Matrix<float> q = normal<float>(12, 4, 1), k = normal<float>(10, 4, 2), v = normal<float>(10, 2, 3);
  const SampleTokens<double> unit = sample_tokens<float>(q, k, v, Normalization::unit(2));
  for (Index i = 0; i < 12; ++i) {
    const Matrix<double> expected = 2 * q.row(i).cast<double>().normalized();
    CHECK((unit.q.row(i) - expected).cwiseAbs().maxCoeff() <= 8 * epsilon<double>);
  }
  CHECK(same_bits<double>(unit.v, v.cast<double>()));
  const SampleTokens<double> none = sample_tokens<float>(q, k, v, Normalization::none());
  CHECK((none.k - k.cast<double>() / std::sqrt(2.0)).cwiseAbs().maxCoeff() <= 8 * epsilon<double> * 4);
  // a zero row stays zero, and a row whose factor overflows has the norm too
  Matrix<double> small = normal<double>(10, 4, 4);
  small.row(0).setZero();
  small.row(1) *= 1e-310;
  const SampleTokens<double> lifted =
      sample_tokens<double>(small, small, Matrix<double>(10, 0), Normalization::unit(1));
  CHECK(lifted.q.row(0).isZero(0));
  CHECK(std::abs(lifted.q.row(1).norm() - 1) <= 1e-12);
}

TEST_CASE("sample: the halves of a sequence are consecutive tokens with their positions", "[calibration]") {
  const SampleTokens<double> all = tokens(11, 14);
  const SampleTokens<double> part = all.half(1).half(0);  // queries 5..10, of these 5..7; keys 7..13, of these 7..9
  CHECK(part.first_query == 5);
  CHECK(part.first_key == 7);
  CHECK(same_bits<double>(part.q, all.q.middleRows(5, 3)));
  CHECK(same_bits<double>(part.k, all.k.middleRows(7, 3)));
  CHECK(same_bits<double>(part.v, all.v.middleRows(7, 3)));
  const SampleTokens<double> last = all.half(1).half(1);
  CHECK(last.first_query == 8);
  CHECK(same_bits<double>(last.k, all.k.bottomRows(4)));
  CHECK(all.half(0).q.rows() + all.half(1).q.rows() == 11);
  const SampleTokens<double> fewer = part.with_first_keys(2);
  CHECK(same_bits<double>(fewer.q, part.q));
  CHECK(same_bits<double>(fewer.k, all.k.middleRows(7, 2)));
  CHECK(same_bits<double>(fewer.v, all.v.middleRows(7, 2)));
  CHECK(fewer.first_key == 7);
  const SampleTokens<double> half = all.half(1), more = part.with_keys_of(half);
  CHECK(same_bits<double>(more.q, part.q));
  CHECK(same_bits<double>(more.k, half.k));
  CHECK(same_bits<double>(more.v, half.v));
  CHECK((more.first_query == 5 && more.first_key == 7));
}

TEST_CASE("sample: each half of a sequence has its sinks, and the balance does not", "[calibration]") {
  const Matrix<double> q = normal<double>(11, 3, 1), k = normal<double>(17, 3, 2), v = normal<double>(17, 2, 3);
  const SampleTokens<double> all = sample_tokens<double>(q, k, v, Normalization::none(), 3);
  const SampleTokens<double> part = all.half(1).half(0);  // of keys 3..16 those from 10 on, of these 10..12
  REQUIRE(part.k.rows() == 6);
  REQUIRE(part.v.rows() == 6);
  for (Index j = 0; j < 6; ++j) {
    const Index at = j < 3 ? j : 7 + j;
    CHECK(part.position(j) == at);
    CHECK(same_bits<double>(part.k.row(j), all.k.row(at)));
    CHECK(same_bits<double>(part.v.row(j), all.v.row(at)));
  }
  const HeadSample<double> head{{all, part}, {}};
  Matrix<double> queries(11 + part.q.rows(), 3), keys(14 + 3, 3);
  queries << all.q, part.q;
  keys << all.k.bottomRows(14), part.k.bottomRows(3);
  const Balance<double> got = head.balance(0.1), expected = balance<double>(queries, keys, 0.1);
  CHECK(same_bits<double>(got.constants.query_axes, expected.constants.query_axes));
  CHECK(same_bits<double>(got.constants.key_mean, expected.constants.key_mean));
  check_invalid([&] { sample_tokens<double>(q, k, v, Normalization::none(), 10); },
                {"keys: expected at least 8 rows beside 10 sinks, got 17"});
}

TEST_CASE("sample: the halves of several sequences are whole sequences", "[calibration]") {
  const HeadSample<double> three{{tokens(9, 12, 1), tokens(8, 10, 11), tokens(10, 9, 21)}, {}};
  REQUIRE(three.half(0).sequences.size() == 2);
  REQUIRE(three.half(1).sequences.size() == 1);
  CHECK(same_bits<double>(three.half(0).sequences[1].k, three.sequences[1].k));
  CHECK(same_bits<double>(three.half(1).sequences[0].q, three.sequences[2].q));
  CHECK(three.half(1).half(1).sequences[0].first_query == 5);  // one sequence: of its tokens
}

TEST_CASE("sample: the balance of several sequences is that of all their rows", "[calibration]") {
  const HeadSample<double> head{{tokens(9, 12, 1), tokens(8, 10, 11)}, {}};
  Matrix<double> q(17, 3), k(22, 3);
  q << head.sequences[0].q, head.sequences[1].q;
  k << head.sequences[0].k, head.sequences[1].k;
  const Balance<double> got = head.balance(0.1), expected = balance<double>(q, k, 0.1);
  CHECK(same_bits<double>(got.constants.query_axes, expected.constants.query_axes));
  CHECK(same_bits<double>(got.variances, expected.variances));
}

TEST_CASE("sample: too few tokens, other shapes and non-finite scalars are rejected", "[calibration]") {
  const auto sample = [](Index n_q, Index n_k, Index values) {
    return [=] {
      sample_tokens<double>(normal<double>(n_q, 3, 1), normal<double>(n_k, 3, 2), normal<double>(values, 2, 3),
                            Normalization::unit(1));
    };
  };
  sample(8, 8, 8)();
  check_invalid(sample(7, 8, 8), {"queries: expected at least 8 rows, got 7"});
  check_invalid(sample(8, 7, 7), {"keys: expected at least 8 rows, got 7"});
  check_invalid(sample(8, 8, 9), {"values: expected 8 rows", "got 9"});
  Matrix<double> x = normal<double>(8, 3, 1);
  const auto with = [&](const Matrix<double>& q, const Matrix<double>& k, const Matrix<double>& v) {
    return [=] { sample_tokens<double>(q, k, v, Normalization::unit(1)); };
  };
  check_invalid(with(x, normal<double>(8, 2, 1), x), {"keys: expected 3 columns", "got 2"});
  check_invalid(with(Matrix<double>(8, 0), Matrix<double>(8, 0), x), {"queries: expected at least 1 column"});
  Matrix<double> bad = x;
  bad(7, 2) = std::numeric_limits<double>::quiet_NaN();
  check_invalid(with(bad, x, x), {"sample: expected finite scalars"});
  check_invalid(with(x, bad, x), {"sample: expected finite scalars"});
  check_invalid(with(x, x, bad), {"sample: expected finite scalars"});
}

}  // namespace nprf::test::calibration_head_sample
