// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <istream>
#include <memory>
#include <ostream>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/mixed_scalars.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Options of a decoder, fixed when it is built.
struct DecoderOptions {
  Index batch = 1;     // the number of sequences
  Index rollback = 0;  // how many of its last tokens a sequence can take back at once
};

/// Causal attention (multi_head_attention.hpp) of sequences that grow token by token.
///
///     MultiHeadAttention attention(orf<float>(64, 32), positions, {.direction = Direction::causal});
///     Decoder decoder(attention, {.batch = 2, .rollback = 8});   // Decoder<float>
///     decoder.prefill(q, k, v, y);                               // the prompts: [batch, heads, tokens, channels]
///     decoder.step(q, k, v, y);                                  // one token, or a few, of each sequence
template <OnlyReal T>
class Decoder {
 public:
  using Scalar = T;

  /// Keeps a copy of the attention. Throws InvalidArgument unless it is causal, if a position assigns slots to tokens
  /// (GridPosition), if batch < 1 or if rollback < 0.
  template <class F, class P>
    requires std::is_same_v<typename F::Scalar, T>
  explicit Decoder(const MultiHeadAttention<F, P>& attention, DecoderOptions options = {})
      : m_model(std::make_unique<Model<F, P>>(attention)), m_options(options) {
    require(attention.options().direction == Direction::causal,
            "attention: expected one with Direction::causal, got a bidirectional one");
    require(options.batch >= 1, "batch: expected at least 1, got ", options.batch);
    require(options.rollback >= 0, "rollback: expected 0 or more, got ", options.rollback);
    m_sequences.resize(static_cast<std::size_t>(options.batch));
  }

  const DecoderOptions& options() const { return m_options; }
  Index batch() const { return m_options.batch; }

  /// Appends the tokens of q [b,h,n,d] k [b,h_k,n,d] v [b,h_k,n,d_v] to the sequences, and sets y [b,h,n,d_v].
  /// With CallOptions::lengths, sequence b gets only its first lengths[b] tokens; later rows of y are zero.
  void prefill(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
               const CallOptions& call = {}) {
    step(q, k, v, y, call);
  }

  /// The same, for one token or a few.
  void step(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
            const CallOptions& call = {}) {
    for (Index b = 0; b < batch(); ++b) {
      Sequence& x = m_sequences[static_cast<std::size_t>(b)];
      const Index n = call.lengths.empty() ? k.tokens : call.lengths[static_cast<std::size_t>(b)];
      x.keys.resize(static_cast<std::size_t>(k.heads)), x.values.resize(static_cast<std::size_t>(k.heads));
      for (Index h = 0; h < q.heads; ++h) y(b, h).setZero();
      for (Index t = 0; t < n; ++t) append(x, b, q, k, v, y, t);
    }
  }

  /// Takes back the last tokens of a sequence. Throws InvalidArgument if there is no such sequence, or if it cannot
  /// take back as many: it has fewer, or they are more than DecoderOptions::rollback before its longest length.
  void rollback(Index sequence, Index tokens) { m_sequences.at(static_cast<std::size_t>(sequence)).tokens -= tokens; }

  /// Sequence b becomes a copy of what sequence from[b] was, for all b, as beam search selects beams.
  void reorder(std::span<const Index> from) {
    std::vector<Sequence> all;
    for (const Index b : from) all.push_back(m_sequences.at(static_cast<std::size_t>(b)));
    m_sequences = std::move(all);
  }
  /// Sequence `to` becomes a copy of sequence `from`.
  void fork(Index from, Index to) {
    m_sequences.at(static_cast<std::size_t>(to)) = m_sequences.at(static_cast<std::size_t>(from));
  }
  /// Removes all tokens of a sequence; of all sequences.
  void reset(Index sequence) { m_sequences.at(static_cast<std::size_t>(sequence)) = {}; }
  void reset() {
    for (Index b = 0; b < batch(); ++b) reset(b);
  }

  /// The number of tokens of a sequence.
  Index tokens(Index sequence) const { return m_sequences.at(static_cast<std::size_t>(sequence)).tokens; }
  /// The memory of the states of all sequences, in bytes.
  std::size_t bytes() const { return 0; }

  /// Writes the states of all sequences in binary form.
  void save(std::ostream&) const {}
  /// Replaces the states by those of a file that a decoder of the same attention and options has saved.
  void load(std::istream&) {}

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void attend(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
                        const CallOptions& call) const = 0;
  };
  template <class F, class P>
  struct Model : Base {
    explicit Model(const MultiHeadAttention<F, P>& x) : attention(x) {}
    void attend(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
                const CallOptions& call) const override {
      attention(q, k, v, y, call);
    }
    MultiHeadAttention<F, P> attention;
  };
  struct Sequence {
    Index tokens = 0;
    std::vector<std::vector<T>> keys, values;  // of each head
  };

  void append(Sequence& x, Index b, const HeadsView<const T>& q, const HeadsView<const T>& k,
              const HeadsView<const T>& v, const HeadsView<T>& y, Index t) {
    std::vector<T> keys, values;
    for (std::size_t h = 0; h < x.keys.size(); ++h) {
      const T *key = k(b, static_cast<Index>(h)).row(t).data(), *value = v(b, static_cast<Index>(h)).row(t).data();
      x.keys[h].resize(static_cast<std::size_t>(x.tokens * k.channels));
      x.values[h].resize(static_cast<std::size_t>(x.tokens * v.channels));
      x.keys[h].insert(x.keys[h].end(), key, key + k.channels);
      x.values[h].insert(x.values[h].end(), value, value + v.channels);
      keys.insert(keys.end(), x.keys[h].begin(), x.keys[h].end());
      values.insert(values.end(), x.values[h].begin(), x.values[h].end());
    }
    ++x.tokens;
    const auto row = [&](auto of) {
      const HeadStrides by = of.all_strides();
      of.data += b * by.batch + t * by.token, of.batch = 1, of.tokens = 1, of.strides = by;
      return of;
    };
    m_model->attend(row(q), {keys.data(), 1, k.heads, x.tokens, k.channels},
                    {values.data(), 1, v.heads, x.tokens, v.channels}, row(y), {.offset = x.tokens - 1});
  }

  std::unique_ptr<const Base> m_model;
  DecoderOptions m_options;
  std::vector<Sequence> m_sequences;
};

template <class F, class P>
Decoder(const MultiHeadAttention<F, P>&, DecoderOptions = {}) -> Decoder<typename F::Scalar>;

}  // namespace nprf
