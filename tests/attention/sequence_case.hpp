// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

#include "nprf/attention/batch/backward_pass.hpp"
#include "nprf/attention/batch/forward_pass.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"

/// Forward and backward of one head over one short sequence.
namespace nprf::test::sequence_case {

constexpr Index d = 3, m = 6, d_v = 2, n_q = 9, n_k = 12, offset = 2;
constexpr double tolerance = 1e-10;
const AttentionOptions options{.direction = Direction::causal, .engine = Engine::direct};

struct Fixture {
  PositiveFeatures<double> features = orf<double>(d, m, 7);
  RelativePosition<double> position{random_table<double>(5, 3)};
  Workspace workspace;
  Team team{workspace};
  PreparedPosition<double> prepared{position, options, {n_q, n_k, m, d_v + 1}, offset, Pass::forward, team};
  Head<double> head{features, options.normalization, &prepared};
  Tokens<double> x = random_tokens<double>(n_q, n_k, d, d_v);
  Matrix<double> dy = normal<double>(n_q, d_v, 77);
  Mask mask = (normal_vector<double>(n_k, 90).array() > -0.5).eval();

  void forward(std::span<const bool> of_keys, Index length, MatrixRef<double> y, SavedSequence<double>* saved,
               Report& report) {
    const SequenceInputs<double> inputs{x.q, x.k, x.v, of_keys, length, tolerance};
    ForwardPass<double>(head, inputs, y, saved, team).run(report);
  }
  void backward(const SavedSequence<double>& saved, const SequenceGradients<double>& out, std::span<double> db,
                GradientReport& report) {
    const MatrixView<double> rows = dy;
    BackwardPass<double>(head, saved, rows, tolerance, team).run(out, {db, {}}, report);
  }
  std::vector<double> zero_db() const { return std::vector<double>(num_lags(), 0); }
  std::size_t num_lags() const { return static_cast<std::size_t>(prepared.problem().lags.size()); }
};

/// A block inside a larger matrix, to check that nothing around it is written.
struct Framed {
  Framed(Index n, Index p) : all(Matrix<double>::Constant(n + 4, p + 3, 5)), rows(n), cols(p) {}
  auto block() { return all.block(3, 1, rows, cols); }
  bool frame_is_unchanged() {
    Matrix<double> rest = all;
    rest.block(3, 1, rows, cols).setConstant(5);
    return (rest.array() == 5).all();
  }
  Matrix<double> all;
  Index rows, cols;
};

}  // namespace nprf::test::sequence_case
