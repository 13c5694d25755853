// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "call.hpp"
#include "models.hpp"
#include "nprf/attention/attention.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/cuda/plan/model_of.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "references.hpp"

namespace nprf::python {

template <Real T>
cuda::PositionModel model_of(const SequencePosition<T>& position) {
  require(position.lag_vectors().size() == 0, "position: expected one without lag_vectors on a GPU, got one with them");
  return std::visit([](const auto& each) { return cuda::model_of(each); }, position.any());
}
template <Real T>
cuda::PositionModel model_of(const GridPosition<T>& position) {
  return cuda::model_of(position);
}

/// A MultiHeadAttention of any feature map and position. All of one scalar share the scratch memory of their calls, so
/// that one that is built for one step of training allocates nothing that an earlier one had.
template <Real T>
class AnyAttention {
 public:
  virtual ~AnyAttention() = default;

  virtual void run(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y, Saved<T>* saved,
                   const CallOptions& call) const = 0;
  /// `dextra` gets the gradients of extra tokens, or those of vectors of lags.
  virtual void backward(const Saved<T>& saved, HeadsView<const T> dy, HeadsView<T> dq, HeadsView<T> dk, HeadsView<T> dv,
                        std::vector<Matrix<T>>& dbias, std::vector<Matrix<T>>& dextra,
                        GradientReport& report) const = 0;
  /// For sequences that grow token by token.
  virtual Decoder<T> decoder(const DecoderOptions& options) const = 0;
  /// What a plan for a GPU is made from.
  virtual cuda::AttentionModel cuda_model() const = 0;
  /// MultiHeadAttention::heads_of_model().
  virtual Index heads_of_model() const = 0;
  /// MultiHeadAttention::rank().
  virtual Index rank() const = 0;
  /// The formula as two plain loops, for head h and the keys that are not padding.
  virtual Matrix<T> reference(Index h, const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v,
                              Index offset, const KeptKeys& kept) const = 0;
};

/// The attention whose scratch memory all others use.
template <Real T>
const MultiHeadAttention<EluFeatures<T>, NoPosition<T>>& scratch_memory() {
  static const MultiHeadAttention<EluFeatures<T>, NoPosition<T>> owner{EluFeatures<T>(1)};
  return owner;
}

template <FeatureMap F, Position P>
class AttentionOf : public AnyAttention<typename F::Scalar> {
 public:
  using T = typename F::Scalar;

  AttentionOf(std::vector<F> features, std::vector<P> positions, const AttentionOptions& options)
      : m_attention(std::move(features), std::move(positions), options) {
    m_attention.share_scratch_memory(scratch_memory<T>());
  }

  void run(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y, Saved<T>* saved,
           const CallOptions& call) const override {
    if (saved)
      m_attention.forward(q, k, v, y, *saved, call);
    else
      m_attention(q, k, v, y, call);
  }

  void backward(const Saved<T>& saved, HeadsView<const T> dy, HeadsView<T> dq, HeadsView<T> dk, HeadsView<T> dv,
                std::vector<Matrix<T>>& dbias, std::vector<Matrix<T>>& dextra, GradientReport& report) const override {
    const bool has_vectors = m_attention.rank() > 0;  // these positions have no extra tokens
    m_attention.backward(saved, dy, dq, dk, dv, dbias, has_vectors ? nullptr : &dextra, &report,
                         has_vectors ? &dextra : nullptr);
  }

  Decoder<T> decoder(const DecoderOptions& options) const override { return Decoder<T>(m_attention, options); }

  cuda::AttentionModel cuda_model() const override {
    const AttentionOptions& options = m_attention.options();
    cuda::check_options(options);
    cuda::AttentionModel model{
        options.direction, options.normalization.is_unit() ? options.normalization.radius() : 0, {}, {}, options.near,
        options.sinks};
    for (const F& map : m_attention.features()) model.features.push_back(cuda::model_of(map));
    for (const P& position : m_attention.positions()) model.positions.push_back(model_of(position));
    return model;
  }

  Index heads_of_model() const override { return m_attention.heads_of_model(); }
  Index rank() const override { return m_attention.rank(); }

  Matrix<T> reference(Index h, const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v, Index offset,
                      const KeptKeys& kept) const override {
    const auto of_head = [&](const auto& all) { return all[all.size() == 1 ? 0 : static_cast<std::size_t>(h)]; };
    const Attention<F, P> one(of_head(m_attention.features()), of_head(m_attention.positions()), m_attention.options());
    const auto attends = [&](Index, Index j) {
      if (j == 0) detail::poll_signals();  // before each row
      return kept.contains(j);
    };
    return nprf::reference::kernelized_attention(one, q, k, v, offset, attends);
  }

 private:
  MultiHeadAttention<F, P> m_attention;
};

template <Real T>
std::shared_ptr<const AnyAttention<T>> make_attention(const Features<T>& features, const Positions<T>& positions,
                                                      const AttentionOptions& options) {
  return std::visit(
      [&](const auto& maps, const auto& all) -> std::shared_ptr<const AnyAttention<T>> {
        using F = typename std::remove_cvref_t<decltype(maps)>::value_type;
        using P = typename std::remove_cvref_t<decltype(all)>::value_type;
        return std::make_shared<const AttentionOf<F, P>>(maps, all, options);
      },
      features.maps, positions.positions);
}

}  // namespace nprf::python
