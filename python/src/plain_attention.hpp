// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "jax/plain_call.hpp"
#include "models.hpp"
#include "nprf/core/types.hpp"
#include "saved_call.hpp"

namespace nprf::python {

/// PlainAttention by nprf's classes. It computes forward again in backward.
template <Real T>
class PlainAttentionOf : public PlainAttention {
 public:
  /// The parameters of the positions are replaced in each call, but for positions without parameters.
  PlainAttentionOf(Features<T> features, Positions<T> positions, const AttentionOptions& options)
      : m_features(std::move(features)), m_positions(std::move(positions)), m_options(options) {}

  void forward(const PlainShape& s, const PlainInputs& x, void* y) const override {
    evaluate(*with_biases(s, x), s, x, static_cast<T*>(y), nullptr);
  }

  void backward(const PlainShape& s, const PlainInputs& x, const void* dy, const PlainGradients& g) const override {
    const auto attention = with_biases(s, x);
    const SavedCall<T> call;
    std::vector<T> y(static_cast<std::size_t>(s.batch * s.heads * s.n_q * s.d_v));
    evaluate(*attention, s, x, y.data(), call.saved.get());
    std::vector<Matrix<T>> dbias, dextra;
    GradientReport report;
    attention->backward(*call.saved, view(static_cast<const T*>(dy), s.batch, s.heads, s.n_q, s.d_v),
                        view(static_cast<T*>(g.q), s.batch, s.heads, s.n_q, s.d),
                        view(static_cast<T*>(g.k), s.batch, s.kv_heads, s.n_k, s.d),
                        view(static_cast<T*>(g.v), s.batch, s.kv_heads, s.n_k, s.d_v), dbias, dextra, report);
    Eigen::Map<Matrix<T>> sums(static_cast<T*>(g.bias), s.bias_rows, s.parameters);
    sums.setZero();
    for (std::size_t h = 0; h < dbias.size() && s.parameters > 0; ++h)
      sums.row(s.bias_rows == 1 ? 0 : static_cast<Index>(h)) += dbias[h].transpose().reshaped(1, s.parameters);
  }

 private:
  template <class S>
  static HeadsView<S> view(S* data, Index batch, Index heads, Index tokens, Index channels) {
    return {data, batch, heads, tokens, channels};
  }

  std::shared_ptr<const AnyAttention<T>> with_biases(const PlainShape& s, const PlainInputs& x) const {
    if (s.parameters == 0) return make_attention<T>(m_features, m_positions, m_options);
    const Matrix<T> rows = Eigen::Map<const Matrix<T>>(static_cast<const T*>(x.bias), s.bias_rows, s.parameters);
    return make_attention<T>(m_features, with_parameters<T>(m_positions, rows), m_options);
  }

  static void evaluate(const AnyAttention<T>& attention, const PlainShape& s, const PlainInputs& x, T* y,
                       Saved<T>* saved) {
    CallOptions options;
    options.offset = s.offset;
    if (x.key_mask) options.key_mask = std::span(x.key_mask, static_cast<std::size_t>(s.batch * s.n_k));
    attention.run(view(static_cast<const T*>(x.q), s.batch, s.heads, s.n_q, s.d),
                  view(static_cast<const T*>(x.k), s.batch, s.kv_heads, s.n_k, s.d),
                  view(static_cast<const T*>(x.v), s.batch, s.kv_heads, s.n_k, s.d_v),
                  view(y, s.batch, s.heads, s.n_q, s.d_v), saved, options);
  }

  Features<T> m_features;
  Positions<T> m_positions;
  AttentionOptions m_options;
};

}  // namespace nprf::python
