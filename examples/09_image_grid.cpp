// SPDX-License-Identifier: MIT

// Attention over a picture whose pixels are tokens, with a bias for their distance in two dimensions. If weights depend
// on similar colours and on distance, this is the bilateral filter (Tomasi and Manduchi 1998), which smooths fur and
// keeps edges. If they depend on distance alone, it is a blur.
//
//     09_image_grid [PICTURE.ppm [FOLDER]]     writes smooth.ppm, blurred.ppm and weights.pgm
//
// pictures/image_grid.png has the picture, smooth.ppm and blurred.ppm side by side, four times as large.

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nprf/nprf.hpp>

#include "examples/support/pnm.hpp"

using namespace nprf;

namespace {

bool filter(const std::filesystem::path& source, const std::filesystem::path& folder) {
  const pnm::Picture picture = pnm::read_ppm(source);
  const auto& [height, width, colours] = picture;  // colours: (H W,3), token r W + c is pixel (r, c)

  // on the sphere of radius 3, exp(q.k) is exp(-|q-k|^2 / 2) up to a factor; 1/2 keeps the mean colour from being zero
  const Normalization sphere = Normalization::unit(3);
  Matrix<float> x(colours.rows(), 4);
  x << colours.rowwise() - colours.colwise().mean(), Vector<float>::Constant(colours.rows(), 0.5f);

  // b(dr + H - 1, dc + W - 1) = -(dr^2 + dc^2) / (2 3^2)
  Matrix<float> b(2 * height - 1, 2 * width - 1);
  for (Index r = 0; r < b.rows(); ++r)
    for (Index c = 0; c < b.cols(); ++c) b(r, c) = -Eigen::Vector2f(r - height + 1, c - width + 1).squaredNorm() / 18;

  // trigonometric features estimate exp(-|q-k|^2 / 2), with an error that matters little where it is large
  const Attention attention(trf<float>(4, 256), GridPosition<float>(height, width, b), {.normalization = sphere});
  Report report;
  const Matrix<float> smooth = attention(x, x, colours, {.report = &report});
  const Matrix<float> blurred = attention(0 * x, 0 * x, colours);  // all colours are alike
  const Matrix<float> exact =
      reference::softmax_attention<float>(x, x, colours, attention.position(), Direction::bidirectional, sphere);

  pnm::write_ppm(folder / "smooth.ppm", {height, width, smooth});
  pnm::write_ppm(folder / "blurred.ppm", {height, width, blurred});
  pnm::write_pgm(folder / "weights.pgm", b.array().exp());
  std::printf("smooth.ppm, blurred.ppm and weights.pgm are in %s\n", std::filesystem::absolute(folder).c_str());

  // the part that is left of the differences between a pixel and the one below it, weighted by these differences
  const auto edges = [&](const Matrix<float>& y) -> Matrix<float> {
    return y.bottomRows(y.rows() - picture.width) - y.topRows(y.rows() - picture.width);
  };
  const Matrix<float> before = edges(colours);
  const float with = edges(smooth).cwiseProduct(before).sum() / before.squaredNorm();
  const float without = edges(blurred).cwiseProduct(before).sum() / before.squaredNorm();
  const Matrix<float> error = 255 * (smooth - exact);
  const float rms = std::sqrt(error.cwiseAbs2().mean()), largest = error.cwiseAbs().maxCoeff();

  std::printf("%d pixels, engine %s\n", static_cast<int>(colours.rows()), name(report.engine).data());
  std::printf("edges kept: %.0f %%; without colours %.0f %%\n", 100 * with, 100 * without);
  std::printf("difference from exact softmax, in steps of 1/255: rms %.2f, at most %.1f\n", rms, largest);
  return with > 3 * without && rms < 1.5f;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return filter(argc > 1 ? argv[1] : NPRF_DEMO_DATA "/cat.ppm", argc > 2 ? argv[2] : ".") ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "09_image_grid: error: %s\n", error.what());
    return 1;
  }
}
