// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
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

/// Feature maps, one for all heads or one for each, and positions likewise, for the CPU and for a plan.
struct DecodeModel {
  cuda::AttentionModel model;
  Decoder<float> decoder;

  template <class F>
  DecodeModel(const std::vector<F>& maps, const std::vector<DecodePosition>& positions, Index batch = 1,
              Normalization normalization = Normalization::unit())
      : model(model_of(maps, positions, normalization)),
        decoder(MultiHeadAttention(maps, on_cpu(positions),
                                   {.direction = Direction::causal, .normalization = normalization}),
                {.batch = batch}) {}

 private:
  template <class F>
  static cuda::AttentionModel model_of(const std::vector<F>& maps, const std::vector<DecodePosition>& positions,
                                       const Normalization& normalization) {
    cuda::AttentionModel model{Direction::causal, normalization.is_unit() ? normalization.radius() : 0, {}, {}};
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
        m_tokens(x.q.view.tokens),
        m_d(x.q.view.channels),
        m_d_v(x.v.view.channels) {}

  cuda::DecodeShape shape(Index max_tokens = 0) const { return {m_batch, m_heads, m_d_v, max_tokens}; }

  /// Queues the tokens first..first+count-1.
  void append(cuda::DecodePlan<float>& plan, Index first, Index count, const cuda::DecodeCall& call = {}) const {
    plan.append(view(m_k, m_d, first, count), view(m_v, m_d_v, first, count), call, nullptr);
  }
  void step(cuda::DecodePlan<float>& plan, Index first, Index count, const cuda::DecodeCall& call = {}) const {
    plan.step(view(m_q, m_d, first, count), view(m_k, m_d, first, count), view(m_v, m_d_v, first, count),
              view(m_y, m_d_v, first, count), call, nullptr);
  }
  /// (batch heads tokens,d_v)
  Matrix<float> y() const { return as_floats(m_y.fetch(), m_batch * m_heads * m_tokens, m_d_v); }

 private:
  cuda::DeviceMatrixView<float> view(const DeviceArray<float>& x, Index channels, Index first, Index count) const {
    cuda::DeviceMatrixView<float> part(x.data(), m_batch, m_heads, m_tokens, channels);
    part.data += first * channels;
    part.tokens = count;
    return part;
  }

  DeviceArray<float> m_q, m_k, m_v, m_y;
  Index m_batch, m_heads, m_tokens, m_d, m_d_v;
};

/// The rows of a batch by a decoder and by a plan: first appended, then steps of one token.
struct ComparedSteps {
  Index rows = 0, different = 0;  // those of steps, and those whose difference exceeds both error bounds
  Index special = 0;              // that the CPU recomputes, or reports as failing
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
    const Matrix<float> got = on_device.y();
    for (Index z = 0; z < y.batch * y.heads; ++z)
      for (Index t = first; t < y.tokens; ++t, ++rows) {
        const Index row = z * y.tokens + t;
        const double error = static_cast<double>((got.row(row) - x.y.values.row(row)).cwiseAbs().maxCoeff());
        different += !(error <= bounds[static_cast<std::size_t>(t - first)]) || !got.row(row).allFinite();
      }
  }
};

}  // namespace nprf::test
