// SPDX-License-Identifier: MIT

// The effect of a position on attention. All queries and keys are zero here, so that attention depends on distance
// alone. The values are the identity matrix, so that y is the attention matrix. Its middle column is printed: the
// weight of the middle token for each query.

#include <cmath>
#include <cstdio>
#include <nprf/nprf.hpp>

using namespace nprf;

constexpr Index n = 9;

template <class P>
Matrix<double> attention_matrix(const P& position) {
  const Attention attention(orf<double>(4, 4), position);
  const Matrix<double> zero = Matrix<double>::Zero(n, 4);
  return attention(zero, zero, Matrix<double>::Identity(n, n));
}

int main() {
  // b[lag] for lag = key position - query position = -2..2; lags beyond have the bias of the ends, here weight 0
  const Vector<double> window{{-INFINITY, 0, 1, 0, -INFINITY}};
  // T5: buckets for the distances 0, 1, 2-3, 4 and more; first those of keys at or before the query, then those after
  // it
  const Vector<double> buckets{{1, 0.5, 0, -1, 0, -2, -3, -4}};

  const Matrix<double> none = attention_matrix(NoPosition<double>{});
  const Matrix<double> relative = attention_matrix(RelativePosition<double>(window));
  const Matrix<double> t5 = attention_matrix(t5_position<double>(buckets, Direction::bidirectional, 8));
  const Matrix<double> alibi = attention_matrix(AlibiPosition<double>(0.5));

  std::printf("query  lag    none  relative      T5   ALiBi\n");
  for (Index i = 0; i < n; ++i) {
    const Index j = n / 2;
    std::printf("%5d %4d %7.3f %9.3f %7.3f %7.3f\n", static_cast<int>(i), static_cast<int>(j - i), none(i, j),
                relative(i, j), t5(i, j), alibi(i, j));
  }

  const auto rows_sum_to_one = [](const Matrix<double>& a) {
    return (a.rowwise().sum().array() - 1).abs().maxCoeff() < 1e-12;
  };
  const bool window_holds = relative(0, 2) == 0 && relative(0, 1) > 0;
  const bool ratio_holds = std::abs(alibi(4, 3) / alibi(4, 4) - std::exp(-0.5)) < 1e-12;
  const bool sums_hold =
      rows_sum_to_one(none) && rows_sum_to_one(relative) && rows_sum_to_one(t5) && rows_sum_to_one(alibi);
  return window_holds && ratio_holds && sums_hold ? 0 : 1;
}
