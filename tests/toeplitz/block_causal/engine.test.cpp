// SPDX-License-Identifier: MIT

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/random.hpp"
#include "toeplitz/block_causal/block_causal_case.hpp"
#include "toeplitz/in_slots.hpp"

namespace nprf::test::toeplitz_block_causal_engine {

namespace {

template <class T>
using Case = BlockCausalCase<T>;

// The product by a plain loop, with a log-scale for each row, and the tolerance of its entries.
//
// A row is a sum over keys, rounded as in the direct engine, and has for each of its source blocks
// the error bound of an FFT of that block and its target alone. Two features may share their rounding errors if one has
// 4 times the other's maximum, and twice that by powers of two.
template <class T>
struct Twin {
  explicit Twin(const Case<T>& of)
      : x(of),
        axis(of.c.support(), of.shape()),
        values(Matrix<double>::Zero(of.A.rows(), of.U.cols())),
        tolerance(values),
        row_exponents(Vector<double>::Zero(of.A.rows())) {
    const Index n_q = x.A.rows(), n_k = x.B.rows();
    for (Index i = 0; i < n_q; ++i) {
      const Index place = axis.queries.first + i;
      const Index keys = std::clamp<Index>(place + 1 - axis.keys.first, 0, n_k);
      if (x.exponents() && keys > 0) row_exponents[i] = x.e.head(keys).maxCoeff();
      Vector<long double> y = Vector<long double>::Zero(x.U.cols()), magnitude = y;
      for (Index j = 0; j < keys; ++j) {
        const long double w = x.c[j - i] * std::exp(static_cast<long double>(exponent(j) - row_exponents[i]));
        long double dot = 0, absolute = 0;
        for (Index r = 0; r < x.A.cols(); ++r) {
          const long double term = static_cast<long double>(x.A(i, r)) * x.B(j, r);
          dot += term;
          absolute += std::abs(term);
        }
        for (Index p = 0; p < x.U.cols(); ++p) {
          y[p] += w * dot * x.U(j, p);
          magnitude[p] += std::abs(w) * absolute * std::abs(static_cast<long double>(x.U(j, p)));
        }
      }
      values.row(i) = y.template cast<double>().transpose();
      tolerance.row(i) = direct_growth<T>(x.A.cols(), n_k) * magnitude.template cast<double>().transpose();
    }
    Workspace workspace;
    const toeplitz::CausalLevels<T> levels(
        x.c.view(), axis, toeplitz::BlockCausalEngine<T>::cheapest_diagonal(axis.length(), x.shape()), Team(workspace));
    for (Index level = 0; level < levels.count(); ++level) {
      const Index size = levels[level].size, group = levels[level].group * size;
      for (Index target = 0; target < axis.length(); target += size)
        for (Index source = target / group * group; source < target; source += size)
          add_error_bound(size, source, target);
    }
  }

  double error(const Matrix<T>& Y) const { return worst_ratio(Y, values, tolerance); }

  double exponent(Index j) const { return x.exponents() ? x.e[j] : 0; }

  void add_error_bound(Index size, Index source, Index target) {
    const auto cut = [size](const toeplitz::CausalAxis::Side& side, Index place) {
      const Index first = std::max(side.first, place), end = std::min(side.end, place + size);
      return std::pair{first - side.first, std::max<Index>(end - first, 0)};
    };
    const auto [i0, rows] = cut(axis.queries, target);
    const auto [j0, cols] = cut(axis.keys, source);
    if (rows == 0 || cols == 0) return;
    double largest = 0;
    if (x.exponents()) largest = x.e.segment(j0, cols).maxCoeff();
    Matrix<T> b = x.B.middleRows(j0, cols);
    const Matrix<T> a = x.A.middleRows(i0, rows), u = x.U.middleRows(j0, cols);
    for (Index j = 0; j < cols; ++j) b.row(j) *= static_cast<T>(std::exp(exponent(j0 + j) - largest));
    const Vector<double> bounds = fft_error_bound<T>(LagWeights<T>{x.c.first - (j0 - i0), x.c.values}, a, b, u);
    for (Index i = 0; i < rows; ++i)
      for (Index p = 0; p < u.cols(); ++p)
        tolerance(i0 + i, p) += 2 * 4 * fft_margin * bounds[i] * std::exp(largest - row_exponents[i0 + i]) *
                                static_cast<double>(u.col(p).cwiseAbs().maxCoeff());
  }

  const Case<T>& x;
  toeplitz::CausalAxis axis;
  Matrix<double> values, tolerance;
  Vector<double> row_exponents;
};

template <class T>
void check(const Case<T>& x) {
  INFO("n_q " << x.A.rows() << ", n_k " << x.B.rows() << ", r " << x.A.cols() << ", p " << x.U.cols() << ", last lag "
              << x.c.support().last);
  CHECK(Twin<T>(x).error(x.contract()) <= 1);
}

}  // namespace

TEMPLATE_TEST_CASE("the block-causal product is that of a plain loop, row by row", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  for (const Index n : {1, 2, 7, 127, 128, 129, 255, 256, 257, 1000, 1024, 1025, 1300, 2100})
    check(Case<T>(n, n, 3, 2));
  for (const auto& [n_q, n_k] : std::vector<std::pair<Index, Index>>{{1, 300}, {300, 1}, {400, 1100}, {1100, 400}})
    check(Case<T>(n_q, n_k, 2, 3));
  for (const Index p : {W - 1, W, W + 1, 2 * W + 1})
    for (const Index r : {Index{1}, Index{2}, W + 1, 2 * W + 3}) check(Case<T>(300, 300, r, p));
  check(Case<T>(300, 300, 37, W + 1));  // several blocks of features
  check(Case<T>(4100, 4100, 2, 1));     // two levels
}

TEMPLATE_TEST_CASE("block-causal: diagonal blocks are larger for more signals", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const auto diagonal = [](const ProductShape& x) {
    return toeplitz::BlockCausalEngine<T>::cheapest_diagonal(x.n_q, x);
  };
  CHECK(diagonal({1300, 1300, 3, 2}) == 128);
  CHECK(diagonal({16384, 16384, 32, 64}) >= 512);
  const Case<T> x(1500, 1500, 32, 64);
  CHECK(diagonal(x.shape()) > 128);
  CHECK(diagonal(x.shape()) < 1500);
  check(x);
}

TEMPLATE_TEST_CASE("block-causal: the last weight may be of any lag", "[toeplitz][long]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index last : {-1100, -130, -128, -127, -1, 1, 5, 127, 128, 500, 1199}) {
    check(Case<T>(1200, 1200, 2, 3, last));
  }
  check(Case<T>(200, 700, 2, 3, 600));
  check(Case<T>(700, 200, 2, 3, -600));
  // a window: the offsets beyond it are zero
  for (const Index window : {1, 2, 100, 128, 129, 300, 1025, 1500}) {
    Case<T> x(1700, 1700, 2, 3);
    x.c.values.head(x.c.values.size() / 2 + 1 - window).setZero();
    check(x);
  }
}

TEMPLATE_TEST_CASE("block-causal: later tokens change no bit", "[toeplitz][long]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 1300, r = 5, p = fft::lane_count<T> + 1;
  const T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  Case<T> x(n, n, r, p);
  x.B.col(1) *= T(1e-12);
  x.U.col(2) *= T(1e-20);
  x.U.col(3).head(700).setZero();
  x.B.col(2).head(500).setZero();
  for (const bool with_exponents : {false, true}) {
    if (with_exponents) x.e = 60 * normal_vector<double>(n, 9);
    const Matrix<T> Y = x.contract();
    for (const Index s : {0, 40, 127, 128, 300, 900, 1023, 1150, 1298}) {
      const Index later = n - s - 1;
      const auto same = [&](const char* what, auto&& change) {
        Case<T> other = x;
        change(other);
        INFO(what << " after " << s);
        CHECK(same_bits(Matrix<T>(other.contract().topRows(s + 1)), Matrix<T>(Y.topRows(s + 1))));
      };
      same("other keys and values", [&](Case<T>& y) {
        y.B.bottomRows(later) = normal<T>(later, r, 11);
        y.U.bottomRows(later) = normal<T>(later, p, 12);
      });
      for (const T value : {T(1e30), infinity, nan, T(0)}) {
        same("keys", [&](Case<T>& y) { y.B.bottomRows(later).setConstant(value); });
        same("values", [&](Case<T>& y) { y.U.bottomRows(later).setConstant(value); });
        same("one number of a key", [&](Case<T>& y) { y.B(s + 1, 0) = value; });
        same("one number of a value", [&](Case<T>& y) { y.U(s + 1, 1) = value; });
      }
      if (!with_exponents) continue;
      for (const double e : {-700.0, 700.0, -std::numeric_limits<double>::infinity()})
        same("exponents", [&](Case<T>& y) { y.e.tail(later).setConstant(e); });
    }
  }
}

TEST_CASE("block-causal: finite columns beside non-finite ones are right", "[toeplitz]") {
  Case<float> x(700, 700, 3, fft::lane_count<float> + 1);
  const Twin<float> twin(x);
  x.U(150, 2) = std::numeric_limits<float>::quiet_NaN();
  x.U(180, 2) = std::numeric_limits<float>::infinity();
  x.U(150, x.U.cols() - 1) = std::numeric_limits<float>::infinity();
  const Matrix<float> Y = x.contract();
  Matrix<double> values = twin.values;
  for (const Index p : {Index{2}, x.U.cols() - 1}) {
    CHECK_FALSE(Y.col(p).tail(550).array().isFinite().any());
    values.col(p).tail(550).setZero();
  }
  Matrix<float> finite = Y.array().isFinite().select(Y, Matrix<float>::Zero(Y.rows(), Y.cols()));
  CHECK(worst_ratio(finite, values, twin.tolerance) <= 1);
}

TEST_CASE("block-causal: irregular biases cost no row its digits", "[toeplitz]") {
  Case<float> x(2048, 2048, 8, 9);
  x.A = x.A.array().exp();
  x.B = x.B.array().exp();
  x.U.col(8).setOnes();
  const Vector<float> b = 3 * normal_vector<float>(2048, 21);
  x.c = {-2047, (b.array() - b.maxCoeff()).exp().matrix()};
  const Twin<float> twin(x);
  const Matrix<float> Y = x.contract();
  CHECK(twin.error(Y) <= 1);
  const Matrix<float> lanes = x.contract(make_product(Engine::lanes));
  CHECK_FALSE(twin.error(lanes) <= 1);
}

TEMPLATE_TEST_CASE("block-causal: key log-scales may differ by more than the range of T", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index last : NPRF_TEST_SANITIZED ? std::vector<Index>{60} : std::vector<Index>{0, -3, 60}) {
    Case<T> x(1300, 1300, 4, fft::lane_count<T> + 1, last);
    for_each_spread(1300, [&](const char* name, const Vector<double>& e) {
      x.e = e;
      INFO(name << ", last lag " << last);
      CHECK(Twin<T>(x).error(x.contract()) <= 1);
    });
  }
}

}  // namespace nprf::test::toeplitz_block_causal_engine
