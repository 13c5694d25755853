// SPDX-License-Identifier: MIT
//
// samples OUT.json: how many random vectors an attention row needs, figure 1(b) of Luo et al. 2021. One query and 1024
// keys uniform on the sphere of radius R; the L1 distance of the row of attention weights from softmax's.

#include <array>

#include "bench/support/problem.hpp"
#include "bench/support/write_results.hpp"

namespace nprf::bench {
namespace {

constexpr Index keys = 1024;
constexpr std::uint64_t draws = 20;
constexpr std::array radii{1, 2, 4};
// the last one attends to all keys alike: what a map must be better than
constexpr std::array<const char*, 5> maps{"PRF", "orthogonal PRF", "TRF", "orthogonal hyperbolic", "uniform"};

// one trial: a query (1,d) and keys (1024,d) of norm R, and the row that softmax makes of them
struct Trial {
  Trial(double R, std::uint64_t stream) : q(on_sphere(1, R, 2 * stream)), k(on_sphere(keys, R, 2 * stream + 1)) {
    const Matrix<double> logits = q * k.transpose();  // (1,n)
    softmax = row_of((logits.array() - logits.maxCoeff()).exp());
  }

  static Matrix<double> on_sphere(Index rows, double R, std::uint64_t stream) {
    return R * draw(rows, head_dim, stream).cast<double>().rowwise().normalized();
  }

  static Matrix<double> row_of(const Matrix<double>& scores) { return scores / scores.sum(); }

  template <class F>
  double error(const F& features) const {
    const Matrix<double> scores = features.queries(q) * features.keys(k).transpose();  // (1,n)
    return distance(row_of(scores));
  }
  double error_of_uniform() const { return distance(Matrix<double>::Constant(1, keys, 1 / static_cast<double>(keys))); }

  double distance(const Matrix<double>& row) const { return (row - softmax).lpNorm<1>(); }

  Matrix<double> q, k, softmax;
};

// the mean of some draws, of all maps
std::array<double, maps.size()> errors(double R, Index m) {
  std::array<double, maps.size()> sum{};
  for (std::uint64_t i = 0; i < draws; ++i) {
    const Trial trial(R, i);
    sum[0] += trial.error(prf<double>(head_dim, m, i));
    sum[1] += trial.error(orf<double>(head_dim, m, i));
    sum[2] += trial.error(trf<double>(head_dim, m, i));
    sum[3] += trial.error(hyperbolic<double>(head_dim, m, i));
    sum[4] += trial.error_of_uniform();
  }
  for (double& x : sum) x /= static_cast<double>(draws);
  return sum;
}

nlohmann::json print_samples() {
  std::printf("\nL1 error of an attention row over %td keys, mean of %d draws; d = %td, m random vectors\n\n", keys,
              static_cast<int>(draws), head_dim);
  std::printf("| R | %4s |", "m");
  for (const char* map : maps) std::printf(" %21s |", map);
  std::printf("\n|---|---|---|---|---|---|---|\n");
  nlohmann::json curves;
  for (const int R : radii)
    for (Index m = 4; m <= 1024; m *= 2) {
      const auto error = errors(R, m);
      std::printf("| %d | %4td |", R, m);
      for (std::size_t map = 0; map < maps.size(); ++map) {
        std::printf(" %21.3f |", error[map]);
        curves[std::string(maps[map]) + ", R = " + std::to_string(R)].push_back({m, error[map]});
      }
      std::printf("\n");
    }
  std::fflush(stdout);
  return curves;
}

}  // namespace
}  // namespace nprf::bench

int main(int argc, char** argv) {
  using namespace nprf::bench;
  return write_results(argc, argv, "samples", [] {
    return nlohmann::json{{"pictures", {{"samples", print_samples()}}}};
  });
}
