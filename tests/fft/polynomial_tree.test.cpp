// SPDX-License-Identifier: MIT
#include "nprf/fft/polynomial_tree.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fft/complex_lanes.hpp"
#include "support/catch.hpp"
#include "support/product.hpp"
#include "support/throws.hpp"

namespace nprf::test::fft_polynomial_tree {

namespace {

template <class T>
using Z = fft::ComplexLanes<T>;
template <class T>
using Signal = Buffer<Z<T>>;

// whether length is 8 2^a 3^b 5^c
bool is_valid_length(Index length) {
  if (length <= 0 || length % 8 != 0) return false;
  for (const Index factor : {2, 3, 5})
    while (length % factor == 0) length /= factor;
  return length == 1;
}

// all valid lengths up to 320, and longer ones of a single radix and of all radices
std::vector<Index> lengths() {
  std::vector<Index> all;
  for (Index length = 8; length <= 8 * 40; length += 8)
    if (is_valid_length(length)) all.push_back(length);
  for (const Index length : {8 * 125, 8 * 243, 8 * 60, 1024, 4096}) all.push_back(length);
  return all;
}

// The functions of a tree, on arrays. Each is instantiated only here, because they compile slowly.
template <class T>
Signal<T> values(const fft::PolynomialTree<T>& tree, const Z<T>* x) {
  Signal<T> y(tree.length());
  tree.values([=](Index j) { return x[j]; }, y.data());
  return y;
}

template <class T>
Signal<T> coefficients(const fft::PolynomialTree<T>& tree, const Z<T>* y) {
  Signal<T> x(tree.length()), scratch(tree.length());
  tree.coefficients(
      scratch.data(), [=](Index k, Index l) { return y[8 * k + l]; },
      [z = x.data()](Index j, const Z<T>& value) { z[j] = value; });
  return x;
}

template <class T>
void times_equals(Z<T>& z, const Z<T>& by) {
  z = {z.re * by.re - z.im * by.im, z.re * by.im + z.im * by.re};
}

// the product of x, real or complex numbers, and the polynomial that has the values g
template <class T, class X>
Signal<T> convolved(const fft::PolynomialTree<T>& tree, const X* x, const Z<T>* g) {
  Signal<T> y(tree.length()), scratch(tree.length());
  tree.template convolve<1>(
      {scratch.data()}, [=](auto, Index j) { return x[j]; },
      [=](Index k, Z<T>(&z)[1][8]) {
        for (Index l = 0; l < 8; ++l) times_equals<T>(z[0][l], g[8 * k + l]);
      },
      [z = y.data()](auto, Index j, const Z<T>& value) { z[j] = value; });
  return y;
}

// The rounding error of a transform grows with the square root of the number of its steps. Measured errors are a little
// more than half of this tolerance.
template <class T>
double tolerance(Index L) {
  return 0.5 * epsilon<T> * std::sqrt(std::log2(static_cast<double>(L)));
}

// the errors of single numbers are distributed like normal deviates
constexpr double worst_margin = 6;

// Coefficient j < 2L of a product of real polynomials modulo z^2L + 1, computed from the output of convolve.
template <class T>
long double coefficient(const fft::PolynomialTree<T>& tree, const Signal<T>& z, Index j, Index l) {
  const Index L = tree.length(), at = j % L;
  const Complex twist{tree.twist()[2 * at], tree.twist()[2 * at + 1]};
  const Complex both = std::conj(twist) * lane(z.data()[at], l) / static_cast<long double>(L);
  return j < L ? both.real() : both.imag();
}

// signals of real numbers
template <class T>
Buffer<fft::Lanes<T>> real_lanes(Index n, std::uint64_t seed) {
  const Signal<T> z = normal_lanes<T>(n, seed);
  Buffer<fft::Lanes<T>> x(n);
  for (Index j = 0; j < n; ++j) x.data()[j] = z.data()[j].re;
  return x;
}

// the values of a polynomial with the real coefficients x (2L), by its residue modulo z^L - i
template <class T>
Signal<T> values_of_both_halves(const fft::PolynomialTree<T>& tree, const fft::Lanes<T>* x) {
  const Index L = tree.length();
  Signal<T> residue(L);
  for (Index j = 0; j < L; ++j) residue.data()[j] = {x[j], x[j + L]};
  return values(tree, residue.data());
}

// coefficient i of x (L) times g (2L), modulo z^2L + 1
template <class T>
long double naive_product(const fft::Lanes<T>* x, const fft::Lanes<T>* g, Index L, Index i, Index l) {
  long double sum = 0;
  for (Index j = 0; j < L; ++j) {
    const long double by = static_cast<long double>(g[(i - j + 2 * L) % (2 * L)][l]);
    sum += static_cast<long double>(x[j][l]) * (i < j ? -by : by);
  }
  return sum;
}

template <class T>
bool same_lane_bits(const Signal<T>& a, const Signal<T>& b, Index n, Index l) {
  for (Index j = 0; j < n; ++j) {
    const T x[] = {a.data()[j].re[l], a.data()[j].im[l]}, y[] = {b.data()[j].re[l], b.data()[j].im[l]};
    if (std::memcmp(x, y, sizeof(x)) != 0) return false;
  }
  return true;
}

}  // namespace

TEMPLATE_TEST_CASE("the length of a tree is 8 2^a 3^b 5^c and little more than requested", "[fft]", NPRF_TEST_SCALARS) {
  using Tree = fft::PolynomialTree<TestType>;
  CHECK(Tree::length_for(0) == 8);
  for (Index n = 1; n <= 20000; ++n) {
    const Index length = Tree::length_for(n);
    INFO(n << " -> " << length);
    REQUIRE(is_valid_length(length));
    REQUIRE(length >= n);
    REQUIRE(static_cast<double>(length) <= 1.4 * static_cast<double>(n) + 8);
    REQUIRE(Tree::length_for(length) == length);
  }
  for (const Index n : {Index{1000003}, Index{1} << 30, (Index{1} << 40) + 1}) {
    const Index length = Tree::length_for(n);
    INFO(n << " -> " << length);
    CHECK(is_valid_length(length));
    CHECK(length >= n);
    CHECK(static_cast<double>(length) <= 1.4 * static_cast<double>(n));
  }
}

TEMPLATE_TEST_CASE("a tree rejects lengths that are not 8 2^a 3^b 5^c", "[fft]", NPRF_TEST_SCALARS) {
  using Tree = fft::PolynomialTree<TestType>;
  for (const Index length : {-8, 0, 1, 4, 7, 12, 20, 56, 8 * 11, 8 * 49, 1001})
    check_invalid([=] { Tree tree(length); }, {"length: expected 8 2^a 3^b 5^c", "got " + std::to_string(length)});
  check_invalid([] { Tree::shared(100); }, {"length", "got 100"});
  for (const Index length : lengths()) CHECK(Tree(length).length() == length);
}

TEMPLATE_TEST_CASE("convolve multiplies real polynomials modulo z^2L + 1", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Index L : lengths()) {
    const fft::PolynomialTree<T> tree(L);
    const auto x = real_lanes<T>(L, 4), g = real_lanes<T>(2 * L, 5);
    const Signal<T> y = convolved(tree, x.data(), values_of_both_halves(tree, g.data()).data());
    Errors errors;
    for (const Index i : some_rows(2 * L, 24))
      for (Index l = 0; l < fft::lane_count<T>; ++l)
        errors.add(coefficient(tree, y, i, l), naive_product<T>(x.data(), g.data(), L, i, l));
    INFO("length " << L);
    CHECK(errors.relative() <= 2 * tolerance<T>(L));
    CHECK(errors.worst() <= 2 * worst_margin * tolerance<T>(L));
  }
}

TEMPLATE_TEST_CASE("a non-finite number in one lane changes no other lane of a transform", "[fft]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  for (const Index L : {8, 40, 48, 64, 1000, 1024}) {
    const fft::PolynomialTree<T> tree(L);
    const Signal<T> g = normal_lanes<T>(L, 9);
    const auto x = real_lanes<T>(L, 10);
    const Signal<T> expected = convolved(tree, x.data(), g.data());
    for (Index bad = 0; bad < W; ++bad) {
      auto z = real_lanes<T>(L, 10);
      z.data()[L / 3][bad] = bad % 2 == 0 ? nan_of<T> : std::numeric_limits<T>::infinity();
      const Signal<T> y = convolved(tree, z.data(), g.data());
      for (Index l = 0; l < W; ++l) {
        INFO("length " << L << ", non-finite number in lane " << bad << ", lane " << l);
        CHECK(same_lane_bits(y, expected, L, l) == (l != bad));
      }
    }
  }
}

TEMPLATE_TEST_CASE("numbers near overflow and underflow are transformed with the same relative error", "[fft]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  for (const Index L : {8, 64, 120, 1000, 4096}) {
    const fft::PolynomialTree<T> tree(L);
    // the largest value is the sum of L numbers below 8; rotations need epsilon / 32 of the range above it
    const int largest = Limits::max_exponent - Limits::digits - 6 - std::ilogb(static_cast<double>(8 * L)) - 1;
    for (const int exponent : {largest, Limits::min_exponent + 2 * Limits::digits}) {
      Signal<T> x = normal_lanes<T>(L, 12);
      const Signal<T> y = values(tree, x.data());
      const T size = std::ldexp(T(1), exponent);
      for (Index j = 0; j < L; ++j) x.data()[j] = {x.data()[j].re * size, x.data()[j].im * size};
      const Signal<T> extreme = values(tree, x.data());
      Errors errors;
      for (Index p = 0; p < L; ++p)
        for (Index l = 0; l < fft::lane_count<T>; ++l)
          errors.add(lane(extreme.data()[p], l) / static_cast<long double>(size), lane(y.data()[p], l));
      INFO("length " << L << ", 2^" << exponent);
      CHECK(errors.relative() <= epsilon<T>);
    }
  }
}

TEMPLATE_TEST_CASE("callers of one length share one tree, also from several threads", "[fft][threads]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  using Tree = fft::PolynomialTree<T>;
  const std::vector<Index> all = lengths();
  std::vector<std::vector<std::shared_ptr<const Tree>>> got(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < got.size(); ++t)
    threads.emplace_back([&, t] {
      for (std::size_t k = 0; k < all.size(); ++k) {
        const std::size_t at = t % 2 == 0 ? k : all.size() - 1 - k;
        got[t].push_back(Tree::shared(all[at]));
      }
      if (t % 2 == 1) std::reverse(got[t].begin(), got[t].end());
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t k = 0; k < all.size(); ++k) {
    INFO("length " << all[k]);
    CHECK(got[0][k]->length() == all[k]);
    for (const auto& trees : got) CHECK(trees[k] == got[0][k]);
    CHECK(Tree::shared(all[k]) == got[0][k]);
  }
  // a shared tree gives the same values as another tree of its length
  const Signal<T> x = normal_lanes<T>(240, 13);
  const Signal<T> y = values(*Tree::shared(240), x.data()), own = values(Tree(240), x.data());
  for (Index l = 0; l < fft::lane_count<T>; ++l) CHECK(same_lane_bits(y, own, 240, l));
}

TEMPLATE_TEST_CASE("several threads can use a tree at the same time", "[fft][threads]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const auto tree = fft::PolynomialTree<T>::shared(480);
  const Index L = tree->length();
  const Signal<T> x = normal_lanes<T>(L, 14), alone = values(*tree, x.data());
  std::vector<char> same(8, true);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < same.size(); ++t)
    threads.emplace_back([&, t] {
      for (int step = 0; step < 20; ++step) {
        const Signal<T> y = values(*tree, x.data());
        for (Index l = 0; l < fft::lane_count<T>; ++l) same[t] = same[t] && same_lane_bits(y, alone, L, l);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(std::count(same.begin(), same.end(), true) == 8);
}

}  // namespace nprf::test::fft_polynomial_tree
