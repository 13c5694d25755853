// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/residue_classes.hpp"

#include <cmath>
#include <complex>
#include <numbers>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

#if NPRF_USE_FFTW

using namespace nprf;
using namespace nprf::test;
using toeplitz::ResidueTransform;

TEST_CASE("each residue class holds its own bins of the whole transform, and adds its share of the way back",
          "[toeplitz]") {
  // 1, 2, 4 and 8 classes, of 60 and of the whole length
  for (const Index n : {60, 4100, 8200, 16400}) {
    ResidueTransform<double> transform(n);
    const Index N = transform.classes().period(), L = transform.classes().length, points = n - 7;
    const Vector<double> b = normal_vector<double>(points, 1), u1 = normal_vector<double>(points, 2),
                         u2 = normal_vector<double>(points, 3);
    std::vector<std::complex<double>> X(static_cast<std::size_t>(L));
    Vector<double> re = Vector<double>::Zero(points), im = re;
    for (Index q = 0; q < transform.classes().count; ++q) {
      transform.forward(q, points, b.data(), u1.data(), u2.data(), X.data());
      for (const Index s : {Index{0}, L / 3, L - 1}) {
        const Index k = transform.classes().count * s + q;
        std::complex<double> bin = 0;
        for (Index j = 0; j < points; ++j)
          bin += b[j] * std::complex(u1[j], u2[j]) *
                 std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(j * k % N) / static_cast<double>(N));
        INFO("n " << n << " class " << q << " bin " << k);
        // the DFT's own sum of N(0,1) products rounds like the root of its length, the transform like its logarithm's
        CHECK(std::abs(X[static_cast<std::size_t>(s)] - bin) <=
              8 * epsilon<double> * std::sqrt(2.0) * static_cast<double>(points));
      }
      transform.backward(q, points, X.data(), [&](Index j, double x, double y) {
        re[j] += x;
        im[j] += y;
      });
    }
    const double tolerance = 64 * epsilon<double> * std::log2(static_cast<double>(N));
    CHECK(worst_ratio(re / static_cast<double>(N), b.cwiseProduct(u1), tolerance) <= 1);
    CHECK(worst_ratio(im / static_cast<double>(N), b.cwiseProduct(u2), tolerance) <= 1);
  }
}

#endif
