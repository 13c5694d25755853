// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/attention/attention_core.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/attention/segments.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// An attention of any feature map and position, for a decoder.
template <Real T>
class DecoderModel {
 public:
  virtual ~DecoderModel() = default;

  /// As MultiHeadAttention::operator(), but CallOptions::lengths are also the numbers of queries: later rows of y are
  /// not set.
  virtual void attend(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v,
                      const HeadsView<T>& y, const CallOptions& call) const = 0;
  virtual HeadModels<T> heads() const = 0;
};

/// Holds a copy of an attention. The copy and the attention share scratch memory.
template <class F, class P>
class DecoderModelOf final : public DecoderModel<typename F::Scalar> {
 public:
  using T = typename F::Scalar;

  explicit DecoderModelOf(const MultiHeadAttention<F, P>& attention) : m_attention(attention) {}

  void attend(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v,
              const HeadsView<T>& y, const CallOptions& call) const override {
    m_attention.m_core.forward(heads(), q, k, v, y, call, nullptr, Lengths::of_queries_and_keys);
  }
  HeadModels<T> heads() const override { return m_attention.heads(); }

 private:
  MultiHeadAttention<F, P> m_attention;
};

}  // namespace nprf
