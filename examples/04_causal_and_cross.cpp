// SPDX-License-Identifier: MIT

// Causal attention: a query does not attend to later keys. Queries may have any position (offset). Cross attention: the
// numbers of queries and keys differ.

#include <cstdio>
#include <nprf/nprf.hpp>

using namespace nprf;

int main() {
  const Index n = 300, d = 32;
  const Matrix<float> q = Matrix<float>::Random(n, d), k = Matrix<float>::Random(n, d), v = Matrix<float>::Random(n, d);
  const Vector<float> buckets = Vector<float>::LinSpaced(32, 1, -1);
  const Attention causal(orf<float>(d, 64), t5_position<float>(buckets, Direction::causal),
                         {.direction = Direction::causal});
  const Matrix<float> y = causal(q, k, v);

  // other values from token 200 on do not change the first 200 rows
  Matrix<float> other_future = v;
  other_future.bottomRows(100).setRandom();
  const Matrix<float> change = causal(q, k, other_future) - y;
  const float past = change.topRows(200).norm(), future = change.bottomRows(100).norm();
  std::printf("the future changed:  past rows by %g, future rows by %g\n", past, future);

  // the last query alone, with its position as the offset, has the same row as among all queries
  const Matrix<float> last = causal(q.bottomRows(1), k, v, {.offset = n - 1});
  const float apart = (last - y.bottomRows(1)).norm();
  std::printf("the last query alone: differs by %g\n", apart);

  // cross attention: 10 queries attend to 300 keys with values of 5 columns
  const Attention cross(orf<float>(d, 64), NoPosition<float>{});
  const Matrix<float> read = cross(q.topRows(10), k, v.leftCols(5));
  std::printf("cross attention: %d x %d\n", static_cast<int>(read.rows()), static_cast<int>(read.cols()));

  return past < 1e-6f && future > 1 && apart < 1e-5f && read.rows() == 10 && read.cols() == 5 ? 0 : 1;
}
