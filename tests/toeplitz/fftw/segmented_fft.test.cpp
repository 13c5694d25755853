// SPDX-License-Identifier: MIT
#include "nprf/toeplitz/fftw/segmented_fft.hpp"

#include <cmath>
#include <complex>
#include <numbers>
#include <vector>

#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

#if NPRF_USE_FFTW

namespace nprf::test::toeplitz_fftw_segmented_fft {

using toeplitz::SegmentedTransform;

TEST_CASE("each residue class has its bins of the whole transform, and adds its share of the inverse", "[toeplitz]") {
  // 1, 2, 4 and 8 classes, of 60 and of the whole length
  for (const Index n : {60, 4100, 8200, 16400}) {
    Workspace workspace;
    const SegmentedTransform<double> transform(n, Team(workspace));
    const Index N = transform.classes().period(), L = transform.classes().length, points = n - 7;
    const Vector<double> b = normal_vector<double>(points, 1), u1 = normal_vector<double>(points, 2),
                         u2 = normal_vector<double>(points, 3);
    auto *const X = workspace.take<std::complex<double>>(L), *const z = workspace.take<std::complex<double>>(L);
    Vector<double> re = Vector<double>::Zero(points), im = re;
    for (Index q = 0; q < transform.classes().count; ++q) {
      transform.forward(q, points, b.data(), u1.data(), u2.data(), z, X);
      for (const Index s : {Index{0}, L / 3, L - 1}) {
        const Index k = transform.classes().count * s + q;
        std::complex<double> bin = 0;
        for (Index j = 0; j < points; ++j)
          bin += b[j] * std::complex(u1[j], u2[j]) *
                 std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(j * k % N) / static_cast<double>(N));
        INFO("n " << n << " class " << q << " bin " << k);
        // the DFT's own sum of N(0,1) products rounds like the root of its length, the transform like its logarithm's
        CHECK(std::abs(X[s] - bin) <= 8 * epsilon<double> * std::sqrt(2.0) * static_cast<double>(points));
      }
      transform.backward(q, points, X, z, [&](Index j, double x, double y) {
        re[j] += x;
        im[j] += y;
      });
    }
    const double tolerance = 64 * epsilon<double> * std::log2(static_cast<double>(N));
    CHECK(worst_ratio(re / static_cast<double>(N), b.cwiseProduct(u1), tolerance) <= 1);
    CHECK(worst_ratio(im / static_cast<double>(N), b.cwiseProduct(u2), tolerance) <= 1);
  }
}

TEST_CASE("a transform's tables do not depend on the number of threads", "[toeplitz]") {
  const Index n = 9000;
  std::vector<std::complex<double>> first;
  for (const std::size_t size : {1u, 2u, 3u, 5u}) {
    std::vector<Workspace> workspaces(size);
    const Team team(workspaces);
    const SegmentedTransform<double> transform(n, team);
    const Index L = transform.classes().length;
    const Vector<double> x = normal_vector<double>(n, 1), ones = Vector<double>::Ones(n);
    auto *const X = team.workspace().take<std::complex<double>>(L), *const z =
                                                                        team.workspace().take<std::complex<double>>(L);
    std::vector<std::complex<double>> bins;
    for (Index q = 0; q < transform.classes().count; ++q) {
      transform.forward(q, n, ones.data(), x.data(), ones.data(), z, X);
      bins.insert(bins.end(), X, X + L);
    }
    if (size == 1) first = bins;
    INFO(size << " threads");
    CHECK(bins == first);
  }
}

#endif

}  // namespace nprf::test::toeplitz_fftw_segmented_fft
