// SPDX-License-Identifier: MIT
//
// head_errors [FOLDER]: how far attention is from exact softmax on the heads of a trained model: queries.npy, keys.npy
// and values.npy (heads, tokens, channels) of FOLDER, or the demo's. Constants and maps are from the first half of the
// text, errors over its second half, in per cent by the Frobenius norm over all heads. The bias falls by 0.08 a token
// up to a distance of 40.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nprf/nprf.hpp>
#include <span>
#include <utility>
#include <vector>

#include "examples/support/head_arrays.hpp"

namespace nprf::bench {
namespace {

constexpr std::uint64_t seeds = 3;

class Heads {
 public:
  Heads(const std::filesystem::path& folder, Normalization normalization)
      : m_q(folder / "queries.npy"),
        m_k(folder / "keys.npy"),
        m_v(folder / "values.npy"),
        m_normalization(normalization) {}

  Index channels() const { return m_q.channels(); }

  // the mean over seeds of the error of maps for all heads: make(q, k, seed) from the first half of a head
  template <class Make>
  void print_random(const char* name, const Make& make) const {
    double sum = 0;
    Index features = 0, recomputed = 0;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      std::vector<decltype(make(Matrix<float>(), Matrix<float>(), seed))> maps;
      for (Index h = 0; h < m_q.heads(); ++h)
        maps.push_back(make(first_half(m_q, h), first_half(m_k, h), seed * 100 + static_cast<std::uint64_t>(h)));
      features = maps[0].output_dim();
      const Report report = error(std::move(maps), 0);
      sum += report.softmax_error, recomputed += report.repaired_rows;
    }
    print(name, features, 0, sum / static_cast<double>(seeds), recomputed / static_cast<Index>(seeds));
  }

  template <class F>
  void print_of(const char* name, std::vector<F> maps, Index near) const {
    const Index features = maps[0].output_dim();
    const Report report = error(std::move(maps), near);
    print(name, features, near, report.softmax_error, report.repaired_rows);
  }

  std::vector<CalibratedFeatures<float>> calibrated(Index num_features, Index near) const {
    const RelativePosition<float> position = demo::falling_bias();
    return calibrate_heads<float>(m_q.from(0), m_k.from(0), m_v.from(0), std::span(&position, 1),
                                  {.num_features = num_features, .near = near, .normalization = m_normalization})
        .features;
  }

  // the error of the mean of the values in place of each row
  double error_of_mean_value() const {
    double difference = 0, size = 0;
    const Index half = m_q.tokens() / 2;
    for (Index h = 0; h < m_q.heads(); ++h) {
      const auto rows = [&](const demo::HeadArray& x) { return x.from(half)(0, h); };
      const Matrix<float> exact = reference::softmax_attention<float>(
          rows(m_q), rows(m_k), rows(m_v), demo::falling_bias(), Direction::bidirectional, m_normalization);
      const Matrix<float> mean = Matrix<float>(rows(m_v)).colwise().mean().replicate(exact.rows(), 1);
      difference += static_cast<double>((mean - exact).squaredNorm()), size += static_cast<double>(exact.squaredNorm());
    }
    return std::sqrt(difference / size);
  }

  static void print(const char* name, Index features, Index near, double error, Index recomputed) {
    std::printf("| %-36s | %4td | %3td | %7.2f | %td |\n", name, features, near, 100 * error, recomputed);
  }

 private:
  // normalised as attention normalises them
  Matrix<float> first_half(const demo::HeadArray& x, Index h) const {
    const Matrix<float> rows = Matrix<float>(x.from(0)(0, h)).topRows(x.tokens() / 2);
    return rows.array().colwise() * m_normalization.row_scale<float>(rows).array();
  }

  template <class F>
  Report error(std::vector<F> maps, Index near) const {
    const Index half = m_q.tokens() / 2, rest = m_q.tokens() - half;
    const MultiHeadAttention attention(std::move(maps), demo::falling_bias(),
                                       {.normalization = m_normalization, .near = near});
    Matrix<float> y(m_q.heads() * rest, m_v.channels());
    Report report;
    attention(m_q.from(half), m_k.from(half), m_v.from(half), {y.data(), 1, m_q.heads(), rest, m_v.channels()},
              {.report = &report, .softmax_samples = rest});
    return report;
  }

  demo::HeadArray m_q, m_k, m_v;
  Normalization m_normalization;
};

PositiveFeatures<float> positive(Index d, Index m, Projection projection, std::uint64_t seed, Tilt tilt = {}) {
  return PositiveFeatures<float>(
      {.input_dim = d, .num_features = m, .projection = projection, .seed = seed, .tilt = std::move(tilt)});
}

// the map F of queries and keys that are centred and balanced
template <class Make>
auto centred(const Matrix<float>& q, const Matrix<float>& k, const Make& make) {
  const Centring<float> constants = balance<float>(q, k).constants;
  const Matrix<float> z_q = (q.rowwise() - constants.query_mean.transpose()) * constants.query_axes.transpose(),
                      z_k = (k.rowwise() - constants.key_mean.transpose()) * constants.key_axes.transpose();
  return Centred(make(z_q, z_k), constants);
}

void print_table(const std::filesystem::path& folder, const char* title, Normalization normalization) {
  const Heads heads(folder, normalization);
  const Index d = heads.channels();
  std::printf("\n%s\n\n| %-36s | features | near | error | recomputed rows |\n|---|---|---|---|---|\n", title, "map");
  using Projection::orthogonal, Projection::simplex;
  heads.print_random("orthogonal",
                     [&](const auto&, const auto&, auto seed) { return positive(d, d, orthogonal, seed); });
  heads.print_random("simplex", [&](const auto&, const auto&, auto seed) { return positive(d, d, simplex, seed); });
  heads.print_random("simplex, centred", [&](const auto& q, const auto& k, auto seed) {
    return centred(q, k, [&](const auto&, const auto&) { return positive(d, d, simplex, seed); });
  });
  heads.print_random("simplex, SDERF, centred", [&](const auto& q, const auto& k, auto seed) {
    return centred(q, k, [&](const auto& z_q, const auto& z_k) {
      return positive(d, d, simplex, seed, sderf_tilt<float>(z_q, z_k));
    });
  });
  for (const Index near : {0, 32}) heads.print_of("Taylor", std::vector{TaylorFeatures<float>({.input_dim = d})}, near);
  for (const Index near : {0, 32, 64})
    for (const Index features : {d + 1, d + 37}) heads.print_of("calibrated", heads.calibrated(features, near), near);
  Heads::print("mean of the values", 0, 0, heads.error_of_mean_value(), 0);
}

}  // namespace
}  // namespace nprf::bench

int main(int argc, char** argv) {
  using nprf::Normalization, nprf::bench::print_table;
  const std::filesystem::path folder = argc > 1 ? argv[1] : NPRF_DEMO_DATA;
  try {
    print_table(folder, "Queries and keys of norm 1", Normalization::unit(1));
    print_table(folder, "Queries and keys of norm 2", Normalization::unit(2));
    print_table(folder, "Queries and keys of the model, q.k / sqrt(d)", Normalization::none());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "head_errors: %s\n", error.what());
    return 1;
  }
}
