// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_array.hpp"
#include "decoder/tokens.hpp"
#include "nprf/cuda/plan/decode_plan.cuh"
#include "nprf/cuda/plan/model_of.hpp"
#include "nprf/decoder/decoder.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test {

/// A position for the CPU and for a plan.
struct DecodePosition {
  const char* name;
  HeldPosition<float> on_cpu;
  cuda::PositionModel model;

  template <class P>
  DecodePosition(const char* name_, const P& position)
      : name(name_), on_cpu{position.bias()}, model(cuda::model_of(position)) {}
};

/// Causal positions; the window has weights up to the age `reach`.
inline DecodePosition of_t5() {
  return {"T5", t5_position<float>(normal<float>(1, 16, 2).row(0), Direction::causal, 20)};
}
inline DecodePosition of_alibi(float slope) { return {"ALiBi", AlibiPosition<float>(slope)}; }
inline DecodePosition of_window(Index reach) {
  Vector<float> table = 0.5f * random_table<float>(reach + 2, 3);
  table.head(2).setConstant(-std::numeric_limits<float>::infinity());
  return {"window", RelativePosition<float>(table)};
}

/// How many of the last and of the first keys have the weights of softmax.
struct ExactTokens {
  Index near, sinks;
};
inline std::string text(const DecodePosition& position, const ExactTokens& x) {
  return std::string(position.name) + ", near " + std::to_string(x.near) + ", sinks " + std::to_string(x.sinks);
}

/// Feature maps, one for all heads or one for each, and positions likewise, for the CPU and for a plan.
struct DecodeModel {
  cuda::AttentionModel model;
  Decoder<float> decoder;

  template <class F>
  DecodeModel(const std::vector<F>& maps, const std::vector<DecodePosition>& positions, Index batch = 1,
              const AttentionOptions& options = {}, Index rollback = 0)
      : model(model_of(maps, positions, options)),
        decoder(MultiHeadAttention(maps, on_cpu(positions), causal(options)), {.batch = batch, .rollback = rollback}) {}

 private:
  static AttentionOptions causal(AttentionOptions options) {
    options.direction = Direction::causal;
    return options;
  }
  template <class F>
  static cuda::AttentionModel model_of(const std::vector<F>& maps, const std::vector<DecodePosition>& positions,
                                       const AttentionOptions& options) {
    const Normalization& normalization = options.normalization;
    cuda::AttentionModel model{Direction::causal, normalization.is_unit() ? normalization.radius() : 0, {}, {}};
    model.near = options.near, model.sinks = options.sinks;
    for (const F& map : maps) model.features.push_back(cuda::model_of(map));
    for (const DecodePosition& position : positions) model.positions.push_back(position.model);
    return model;
  }
  static std::vector<HeldPosition<float>> on_cpu(const std::vector<DecodePosition>& positions) {
    std::vector<HeldPosition<float>> all;
    for (const DecodePosition& position : positions) all.push_back(position.on_cpu);
    return all;
  }
};

/// The arrays of a batch of sequences, on the CPU and on the device. y is NaN there before the first call.
class DecodeCase {
 public:
  explicit DecodeCase(const TokenBatch<float>& x)
      : m_q(stored<float>(x.q.values)),
        m_k(stored<float>(x.k.values)),
        m_v(stored<float>(x.v.values)),
        m_y(stored<float>(
            Matrix<float>::Constant(x.y.values.rows(), x.y.values.cols(), std::numeric_limits<float>::quiet_NaN()))),
        m_batch(x.q.view.batch),
        m_heads(x.q.view.heads),
        m_heads_k(x.k.view.heads),
        m_tokens(x.q.view.tokens),
        m_d(x.q.view.channels),
        m_d_v(x.v.view.channels) {}

  cuda::DecodeShape shape(Index max_tokens = 0, Index rollback = 0) const {
    return {m_batch, m_heads, m_d_v, max_tokens, m_heads_k, rollback};
  }

  /// Queues the tokens first..first+count-1.
  void append(cuda::DecodePlan<float>& plan, Index first, Index count, const cuda::DecodeCall& call = {}) const {
    plan.append(view(m_k, m_heads_k, m_d, first, count), view(m_v, m_heads_k, m_d_v, first, count), call, nullptr);
  }
  void step(cuda::DecodePlan<float>& plan, Index first, Index count, const cuda::DecodeCall& call = {}) const {
    plan.step(view(m_q, m_heads, m_d, first, count), view(m_k, m_heads_k, m_d, first, count),
              view(m_v, m_heads_k, m_d_v, first, count), view(m_y, m_heads, m_d_v, first, count), call, nullptr);
  }
  /// (batch heads tokens,d_v)
  Matrix<float> y() const { return as_floats(m_y.fetch(), m_batch * m_heads * m_tokens, m_d_v); }

 private:
  cuda::DeviceMatrixView<float> view(const DeviceArray<float>& x, Index heads, Index channels, Index first,
                                     Index count) const {
    cuda::DeviceMatrixView<float> part(x.data(), m_batch, heads, m_tokens, channels);
    part.data += first * channels;
    part.tokens = count;
    return part;
  }

  DeviceArray<float> m_q, m_k, m_v, m_y;
  Index m_batch, m_heads, m_heads_k, m_tokens, m_d, m_d_v;
};

/// The rows of a batch by a decoder and by a plan: first appended, then steps of one token.
struct ComparedSteps {
  Index rows = 0, different = 0;  // those of steps, and those whose difference exceeds both error bounds
  Index special = 0;              // that the CPU recomputes, or reports as failing
  Index failing = 0;              // that the plan counts as failing
  double bound = 0;               // the largest error bound of the CPU

  /// The plan's arithmetic is float with the same formula, so that its errors have the same bound as the CPU's, which
  /// is relative to the largest |v|: the difference is at most twice the bound.
  ComparedSteps(DecodeModel& model, cuda::DecodePlan<float>& plan, const DecodeCase& on_device, TokenBatch<float>& x,
                Index first) {
    const HeadsView<float>& y = x.y.view;
    const float largest = x.v.values.cwiseAbs().maxCoeff();
    std::vector<double> bounds;
    for (Index t = first; t < y.tokens; ++t) {
      Report report;
      x.step(model.decoder, t, 1, {.report = &report});
      on_device.step(plan, t, 1);
      special += report.repaired_rows + report.failing_rows;
      if (report.failing_rows == 0) bound = std::max(bound, report.error_bound);
      bounds.push_back(2 * report.error_bound * static_cast<double>(largest));
    }
    failing = plan.host_counts().failing_rows;
    const Matrix<float> got = on_device.y();
    for (Index z = 0; z < y.batch * y.heads; ++z)
      for (Index t = first; t < y.tokens; ++t, ++rows) {
        const Index row = z * y.tokens + t;
        const double error = static_cast<double>((got.row(row) - x.y.values.row(row)).cwiseAbs().maxCoeff());
        different += !(error <= bounds[static_cast<std::size_t>(t - first)]) || !got.row(row).allFinite();
      }
  }
};

/// Checks that all sequences have as many tokens as those of the CPU.
inline void check_tokens(const DecodeModel& model, const cuda::DecodePlan<float>& plan) {
  std::vector<int> tokens(static_cast<std::size_t>(plan.shape().batch * plan.shape().heads));
  cuda::check(
      cudaMemcpyAsync(tokens.data(), plan.tokens(), tokens.size() * sizeof(int), cudaMemcpyDeviceToHost, nullptr),
      "tokens");
  cuda::check(cudaStreamSynchronize(nullptr), "tokens");
  for (std::size_t z = 0; z < tokens.size(); ++z)
    CHECK(tokens[z] == model.decoder.tokens(static_cast<Index>(z) / plan.shape().heads));
}

/// Appends prompts of different numbers of tokens to the sequences, and compares all steps after them.
inline ComparedSteps compare_after_prompts(DecodeModel model, TokenBatch<float>& x, const std::vector<Index>& lengths) {
  const DecodeCase on_device(x);
  cuda::DecodePlan<float> plan(model.model, on_device.shape());
  Index prompt = 0;
  for (const Index length : lengths) prompt = std::max(prompt, length);
  if (prompt > 0) {
    x.prefill(model.decoder, 0, prompt, {.lengths = lengths});
    const DeviceArray<int> on_plan(std::vector<int>(lengths.begin(), lengths.end()));
    on_device.append(plan, 0, prompt, {.lengths = on_plan.data()});
  }
  const ComparedSteps compared(model, plan, on_device, x, prompt);
  check_tokens(model, plan);
  CHECK(compared.bound < 1e-3);
  return compared;
}

/// The rows of all tokens by one call of steps.
inline Matrix<float> rows_of_steps(const cuda::AttentionModel& model, const TokenBatch<float>& x) {
  const DecodeCase on_device(x);
  cuda::DecodePlan<float> plan(model, on_device.shape());
  on_device.step(plan, 0, x.q.view.tokens);
  return on_device.y();
}

/// Checks the rows of one head if token `at` is not finite: those of the tokens at..last are not, in the channels c
/// with is_changed(c), all others are, and those of earlier tokens have the bits of `finite`, the rows without the
/// change.
template <class IsChanged>
void check_nonfinite_rows(const cuda::AttentionModel& model, const TokenBatch<float>& x, const Matrix<float>& finite,
                          Index at, Index last, IsChanged&& is_changed) {
  const Matrix<float> y = rows_of_steps(model, x);
  for (Index t = 0; t < y.rows(); ++t)
    for (Index c = 0; c < y.cols(); ++c) {
      INFO("non-finite token " << at << ", last row " << last << ", token " << t << ", channel " << c);
      CHECK(std::isfinite(y(t, c)) == !(t >= at && t <= last && is_changed(c)));
    }
  CHECK(same_bits<float>(y.topRows(at), finite.topRows(at)));
}

}  // namespace nprf::test
