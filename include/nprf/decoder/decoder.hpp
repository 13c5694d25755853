// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <span>
#include <type_traits>

#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/core/compiled_flags.hpp"
#include "nprf/core/mixed_scalars.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/decoder_model.hpp"
#include "nprf/decoder/options.hpp"

namespace nprf {

/// Causal attention (multi_head_attention.hpp) of sequences that grow token by token, as a language model generates
/// them. A step computes the rows of the new tokens alone. Such a row and the same row of the attention of the whole
/// sequence differ by at most the sum of the error bounds that the step and the attention report.
///
///     MultiHeadAttention attention(orf<float>(64, 32), positions, {.direction = Direction::causal});
///     Decoder decoder(attention, {.batch = 2, .rollback = 8});   // Decoder<float>
///     decoder.prefill(q, k, v, y);                               // the prompts: [batch, heads, tokens, channels]
///     decoder.step(q, k, v, y);                                  // one token, or a few, of each sequence
///     decoder.rollback(0, 3);                                    // sequence 0 takes back its last 3 tokens
///
/// Each head of each sequence has a state: a ring of its last tokens, and sums over the older ones, whose biases all
/// change by the same amount in each step. README.md beside this header has the formulas, and a table of time and
/// memory. For ALiBi a token of a head takes time O(r (d + p)), and the state of a head O(r p) memory, with r features
/// and p = d_v + 1. If the biases of a position are a straight line from some distance on, neither the time nor the
/// memory depends on the number of tokens. Nor do they if the biases are near the logarithm of a sum of up to 16
/// decays, and no sequence outgrows the table (DecoderOptions::most_tokens; StepBias). Of other smooth tables a state
/// sums older tokens by chunks (ChunkModel): it grows with the logarithm of the number of tokens. For all other tables
/// a state keeps all tokens.
///
/// Bits: the same tokens give the same bits of the rows of steps, however they were divided between prefill and steps,
/// whatever the other sequences are, and for any number of threads. After a rollback the sums may contain tokens that
/// would otherwise still be in the ring: then rows agree only within their error bounds. If all sequences are empty,
/// prefill returns the same bits as the attention.
///
/// Report (CallOptions::report) of a step: error_bound, empty_rows and indefinite_rows are as in that of the attention,
/// and the engine is `recurrence`. For a map that is a series (is_series()), and with exact pairs (AttentionOptions),
/// the ring stores the keys. Then a row whose denominator underflowed or whose terms cancel is recomputed by exact
/// softmax, and counts in repaired_rows, as long as the ring has all keys that it attends to. Otherwise, and for other
/// maps if the denominator underflowed, the row is returned as it is, NaN if its denominator is 0, and counts in
/// failing_rows.
///
/// Non-finite tokens: as in the formula, a non-finite query affects its own row, and a non-finite key or value the rows
/// that attend to it. If the bias is finite at all distances, these are all later rows, until the sequence is reset or
/// a rollback takes the token back. The sums do not contain non-finite keys and entries of values; the state records
/// them separately. Numerators are not scaled: in float values above 1e30 may overflow.
///
/// A step of the same shapes as an earlier one allocates nothing, except where a state grows. A decoder can be moved,
/// but not copied. Only one thread at a time may call a decoder.
template <OnlyReal T>
class Decoder {
 public:
  using Scalar = T;

  /// Keeps a copy of the attention. Throws InvalidArgument as DecoderOptions::checked() does, and if a position assigns
  /// slots to tokens (GridPosition).
  template <class F, class P>
    requires std::is_same_v<typename F::Scalar, T>
  explicit Decoder(const MultiHeadAttention<F, P>& attention, DecoderOptions options = {})
      : Decoder(std::make_unique<DecoderModelOf<F, P>>(attention), options.checked(attention.options()), {}) {}
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  const DecoderOptions& options() const;
  Index batch() const;

  /// Appends the tokens of q [b,h,n,d] k [b,h_k,n,d] v [b,h_k,n,d_v] to the sequences, and sets y [b,h,n,d_v], by the
  /// attention's engines if all sequences are empty, and otherwise by steps. With CallOptions::lengths sequence b gets
  /// only its first lengths[b] tokens; later rows of y are zero. h is a multiple of h_k, as in MultiHeadAttention; the
  /// numbers of heads and d_v must be those of the first call. For empty sequences it takes the time of the attention,
  /// and O(b h_k n r (d + p)) for the states.
  ///
  /// Throws InvalidArgument for other shapes, for more tokens than most_tokens, for a key_mask, packed sequences or an
  /// offset, for lengths out of range, for a negative tolerance, for softmax_samples that the attention refuses, for
  /// any softmax_samples if a sequence has tokens, and, with check_finite, for non-finite inputs. A call that throws
  /// InvalidArgument changes nothing. If memory runs out, or if `poll` or a user's own feature map throws, each
  /// sequence takes back the tokens of the call if it can, and is reset if it cannot.
  void prefill(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
               const CallOptions& call = {});
  template <class Q, class K, class V, class Y>
    requires detail::MixedScalars<T, Q, K, V, Y>
  void prefill(const Q&, const K&, const V&, const Y&, const CallOptions& = {}) {
    detail::reject_mixed_scalars<T, Q, K, V, Y>();
  }

  /// As prefill(), but always by steps, for one token or a few of each sequence. A row does not depend on later tokens.
  /// softmax_samples must be 0. Calls `poll` after every 64 tokens if more follow, so that `poll` never ends a step of
  /// at most 64 tokens. README.md has a table of the times.
  void step(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
            const CallOptions& call = {});
  template <class Q, class K, class V, class Y>
    requires detail::MixedScalars<T, Q, K, V, Y>
  void step(const Q&, const K&, const V&, const Y&, const CallOptions& = {}) {
    detail::reject_mixed_scalars<T, Q, K, V, Y>();
  }

  /// Takes back the last `tokens` tokens of a sequence. O(heads). Throws InvalidArgument if there is no such sequence
  /// or it has fewer tokens. Let `most` be the largest number of tokens that the sequence has had since it was last
  /// reset: also throws InvalidArgument if fewer than most - DecoderOptions::rollback tokens would be left, unless
  /// `most` <= K + R (README.md), so that no token has left the ring.
  void rollback(Index sequence, Index tokens);

  /// Sequence b becomes a copy of what sequence from[b] was, for all b, as beam search selects beams; there are as many
  /// sequences afterwards as `from` has entries. Copies only the states that are selected more than once: O(batch +
  /// bytes of these copies). Throws InvalidArgument unless `from` has at least one entry, each of them a sequence. If
  /// memory runs out, there are as many sequences as before, and those that are not selected may be reset.
  void reorder(std::span<const Index> from);
  /// Sequence `to` becomes a copy of sequence `from`. O(bytes of its state). Throws InvalidArgument if one of them does
  /// not exist. If memory runs out, `to` is reset.
  void fork(Index from, Index to);

  /// Removes all tokens of one sequence, or of all sequences; the memory of rings is kept. O(bytes of their sums).
  /// Throws InvalidArgument if there is no such sequence.
  void reset(Index sequence);
  void reset();

  /// The number of tokens of a sequence. Throws InvalidArgument if there is no such sequence.
  Index tokens(Index sequence) const;

  /// The memory of the states of all sequences, in bytes.
  std::size_t bytes() const;

  /// Writes the states of all sequences in binary form, for a machine of the same byte order. O(bytes()). Throws
  /// InvalidArgument if the stream fails.
  void save(std::ostream& stream) const;
  /// Replaces the states by those of a file that a decoder of the same attention and options saved. O(bytes()),
  /// and what the first call takes to plan the sums of the biases. Throws InvalidArgument if the file is of another
  /// decoder, was cut or has changed; then it changes nothing.
  void load(std::istream& stream);

 private:
  class Implementation;

  Decoder(std::unique_ptr<const DecoderModel<T>> model, const DecoderOptions& options, CompiledFlags<T>);

  std::unique_ptr<Implementation> m_implementation;
};

template <class F, class P>
Decoder(const MultiHeadAttention<F, P>&, DecoderOptions = {}) -> Decoder<typename F::Scalar>;

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/decoder/decoder_definition.hpp"
#endif
