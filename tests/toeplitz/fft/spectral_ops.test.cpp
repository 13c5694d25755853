// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fft/spectral_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "fft/complex_lanes.hpp"
#include "support/catch.hpp"

namespace nprf::test::toeplitz_fft_spectral_ops {

namespace {

// eight values, different in each lane
template <class T>
struct Leaf {
  explicit Leaf(std::uint64_t seed) { std::copy_n(normal_lanes<T>(8, seed).data(), 8, z); }

  fft::ComplexLanes<T> z[8];
};

template <class T>
Complex pair(const T* x) {
  return {x[0], x[1]};
}

// a sum of two products is rounded three times
template <class T>
bool near(const Complex& got, const Complex& expected, const Complex& a, const Complex& b) {
  return std::abs(got - expected) <= epsilon<T> * std::abs(a) * std::abs(b);
}

}  // namespace

TEMPLATE_TEST_CASE("a leaf's values are multiplied by a spectrum or by its conjugate, lane by lane", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Leaf<T> x(1);
  Leaf<T> y = x, conjugate = x;
  const Vector<T> g = normal_vector<T>(16, 2);
  toeplitz::multiply(y.z, g.data());
  toeplitz::multiply_conjugate(conjugate.z, g.data());
  for (Index s = 0; s < 8; ++s)
    for (Index l = 0; l < fft::lane_count<T>; ++l) {
      const Complex a = lane(x.z[s], l), b = pair(&g[2 * s]);
      CHECK(near<T>(lane(y.z[s], l), a * b, a, b));
      CHECK(near<T>(lane(conjugate.z[s], l), a * std::conj(b), a, b));
    }
}

TEMPLATE_TEST_CASE("a correlation is conj(w) x, real parts first, and is set or added", "[toeplitz]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Leaf<T> w(1), x(2), v(3), y(4);
  fft::Lanes<T> set[16], added[16];
  std::fill_n(set, 16, fft::Lanes<T>{} + nan_of<T>);
  toeplitz::correlate<false>(w.z, x.z, set);
  std::copy_n(set, 16, added);
  toeplitz::correlate<true>(v.z, y.z, added);
  for (Index s = 0; s < 8; ++s)
    for (Index l = 0; l < fft::lane_count<T>; ++l) {
      const Complex a = lane(w.z[s], l), b = lane(x.z[s], l), c = lane(v.z[s], l), d = lane(y.z[s], l);
      const Complex first{set[s][l], set[8 + s][l]}, both{added[s][l], added[8 + s][l]};
      CHECK(near<T>(first, std::conj(a) * b, a, b));
      const Complex sum = first + std::conj(c) * d;
      CHECK(std::abs(both - sum) <= epsilon<T> * (std::abs(first) + std::abs(c) * std::abs(d)));
    }
}

TEMPLATE_TEST_CASE("products are summed over lanes and added", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  fft::Lanes<T> products[16];  // small whole numbers: every sum is exact
  T sums[18], expected[18];
  for (Index s = 0; s < 18; ++s) sums[s] = expected[s] = static_cast<T>(1000 * s + 7);
  for (Index s = 0; s < 16; ++s)
    for (Index l = 0; l < W; ++l) expected[1 + s] += products[s][l] = static_cast<T>(s * W + l * l);
  toeplitz::add_lane_sums<T>(products, sums + 1);
  for (Index s = 0; s < 18; ++s) CHECK(sums[s] == expected[s]);
}

TEMPLATE_TEST_CASE("eight products are summed over lanes and added", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  constexpr Index W = fft::lane_count<T>;
  fft::Lanes<T> products[8];  // small whole numbers: every sum is exact
  T sums[10], expected[10];
  for (Index s = 0; s < 10; ++s) sums[s] = expected[s] = static_cast<T>(1000 * s + 7);
  for (Index s = 0; s < 8; ++s)
    for (Index l = 0; l < W; ++l) expected[1 + s] += products[s][l] = static_cast<T>(s * W + l * l);
  toeplitz::add_lane_sums_of_eight<T>(products, sums + 1);
  for (Index s = 0; s < 10; ++s) CHECK(sums[s] == expected[s]);

  for (Index s = 0; s < 8; ++s)  // different sums
    for (Index l = 0; l < W; ++l) {
      std::fill_n(products, 8, fft::Lanes<T>{});
      products[s][l] = nan_of<T>;
      T of[8] = {};
      toeplitz::add_lane_sums_of_eight<T>(products, of);
      for (Index k = 0; k < 8; ++k) CHECK((k == s ? std::isnan(of[k]) : of[k] == 0));
    }
}

TEMPLATE_TEST_CASE("untwisting multiplies by the conjugate of the twist factor", "[toeplitz]", NPRF_TEST_SCALARS) {
  using T = TestType;
  const Leaf<T> z(1);
  for (Index j = 0; j < 8; ++j) {
    const Complex exact = unit_root(j, 4 * 8);  // e^(pi i j / 2L)
    const T e[2] = {static_cast<T>(exact.real()), static_cast<T>(exact.imag())};
    const fft::ComplexLanes<T> untwisted = toeplitz::untwisted(z.z[j], e);
    const fft::Lanes<T> real = toeplitz::real_part(z.z[j], e);
    for (Index l = 0; l < fft::lane_count<T>; ++l) {
      const Complex value = lane(z.z[j], l), expected = std::conj(pair(e)) * value;
      CHECK(near<T>(lane(untwisted, l), expected, value, pair(e)));
      CHECK(near<T>(real[l], expected.real(), value, pair(e)));
    }
  }
}

}  // namespace nprf::test::toeplitz_fft_spectral_ops
