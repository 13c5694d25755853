// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "nprf/core/function_ref.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"
#include "support/throws.hpp"

namespace nprf::test {

/// Checks that write() writes `expected` into the caller's matrix, and nothing outside a block.
template <Real T>
void check_write(const Matrix<T>& expected, FunctionRef<void(MatrixRef<T>)> write) {
  const Index n = expected.rows();
  Matrix<T> own(n, expected.cols());
  write(MatrixRef<T>(own));
  CHECK(same_bits(own, expected));

  const Matrix<T> untouched = Matrix<T>::Constant(n + 2, expected.cols() + 3, T(17));
  Matrix<T> wide = untouched;
  auto block = wide.block(1, 2, n, expected.cols());
  write(MatrixRef<T>(block));
  // the last bits of Eigen's exp, sin and cos depend on the alignment of a row
  const double largest = n == 0 ? 0 : static_cast<double>(expected.cwiseAbs().maxCoeff());
  CHECK(worst_ratio(block, expected, 8 * epsilon<T> * largest) <= 1);
  block.setConstant(T(17));
  CHECK(wide == untouched);
}

/// Checks the overloads that write features of n rows and gradients into the caller's matrices. Teams of 1, 2, 3 and 5
/// threads must give the same bits as the overloads that return matrices, and must not write outside a block.
template <class F>
void check_in_place(const F& features, Index n) {
  using T = typename F::Scalar;
  const Index d = features.input_dim(), r = features.output_dim();
  const Matrix<T> x = normal<T>(n, d, 31) / static_cast<T>(std::sqrt(static_cast<double>(d)));
  const Matrix<T> g = normal<T>(n, r, 32);
  const Matrix<T> q = features.queries(x), k = features.keys(x);  // (n,r)
  const Matrix<T> dx = features.backward(x, q, g);                // (n,d)
  const std::vector<T> scale(static_cast<std::size_t>(n), T(0.5));
  const Matrix<T> half = x * T(0.5);  // exact
  const Matrix<T> q_half = features.queries(half), k_half = features.keys(half);

  for (const std::size_t threads : {1u, 2u, 3u, 5u}) {
    std::vector<Workspace> workspaces(threads);
    const Team team(workspaces);
    INFO(n << " rows, d " << d << ", r " << r << ", " << threads << " threads");
    check_write<T>(q, [&](MatrixRef<T> phi) { features.queries(x, {}, phi, team); });
    check_write<T>(k, [&](MatrixRef<T> phi) { features.keys(x, {}, phi, team); });
    check_write<T>(q_half, [&](MatrixRef<T> phi) { features.queries(x, scale, phi, team); });
    check_write<T>(k_half, [&](MatrixRef<T> phi) { features.keys(x, scale, phi, team); });
    check_write<T>(dx, [&](MatrixRef<T> out) { features.backward(x, q, g, out, team); });
  }
}

/// The same for numbers of rows around the size of a tile, and for sizes that a matrix product divides into blocks.
template <class Make>
void check_in_place_sizes(Make&& make) {
  for (const Index n : {0, 1, 127, 128, 129, 300}) check_in_place(make(5, 7), n);
  check_in_place(make(64, 32), 700);
  if (NPRF_TEST_SANITIZED) return;
  check_in_place(make(700, 40), 200);
  check_in_place(make(20, 700), 200);
}

/// Checks that the map rejects arguments of wrong shapes.
template <class F>
void check_shapes(const F& features) {
  using T = typename F::Scalar;
  const Index d = features.input_dim(), r = features.output_dim();
  const Matrix<T> x = Matrix<T>::Zero(4, d), phi = Matrix<T>::Zero(4, r);
  Workspace workspace;
  const Team team(workspace);
  for (const auto& [rows, cols] : {std::pair<Index, Index>{4, d + 1}, {0, d - 1}}) {
    const Matrix<T> wrong = Matrix<T>::Zero(rows, cols), of_wrong = Matrix<T>::Zero(rows, r);
    const std::string expected = "x: expected " + std::to_string(d) + " columns", got = "got " + std::to_string(cols);
    check_invalid([&] { features.queries(wrong); }, {expected, got});
    check_invalid([&] { features.keys(wrong); }, {expected, got});
    check_invalid([&] { features.backward(wrong, of_wrong, of_wrong); }, {expected, got});
  }
  const std::vector<T> scale(3, T(1));
  Matrix<T> out(4, r);
  check_invalid([&] { features.queries(x, scale, out, team); }, {"scale: expected 4 factors", "got 3"});
  check_invalid([&] { features.keys(x, scale, out, team); }, {"scale: expected 4 factors", "got 3"});
  for (const auto& [rows, cols] : {std::pair<Index, Index>{3, r}, {4, r + 1}, {5, r}, {4, r - 1}}) {
    Matrix<T> wrong = Matrix<T>::Zero(rows, cols);
    check_invalid([&] { features.queries(x, {}, wrong, team); }, {"phi: expected 4 x"});
    check_invalid([&] { features.keys(x, {}, wrong, team); }, {"phi: expected 4 x"});
    check_invalid([&] { features.backward(x, wrong, phi); }, {"phi: expected 4 x"});
    check_invalid([&] { features.backward(x, phi, wrong); }, {"dphi: expected 4 x"});
  }
  for (const auto& [rows, cols] : {std::pair<Index, Index>{3, d}, {4, d + 1}, {5, d}, {4, d - 1}}) {
    Matrix<T> wrong(rows, cols);
    check_invalid([&] { features.backward(x, phi, phi, wrong, team); }, {"dx: expected 4 x"});
  }
}

}  // namespace nprf::test
