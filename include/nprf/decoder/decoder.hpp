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
/// them. A step computes the rows of the new tokens alone: those that the attention would compute for the whole
/// sequence, up to rounding errors within both error bounds.
///
///     MultiHeadAttention attention(orf<float>(64, 32), positions, {.direction = Direction::causal});
///     Decoder decoder(attention, {.batch = 2, .rollback = 8});   // Decoder<float>
///     decoder.prefill(q, k, v, y);                               // the prompts: [batch, heads, tokens, channels]
///     decoder.step(q, k, v, y);                                  // one token, or a few, of each sequence
///     decoder.rollback(0, 3);                                    // sequence 0 takes back its last 3 tokens
///
/// The state. Each head of each sequence stores its last tokens in a ring, and sums over the older ones. Let K be the
/// reach of the position (step_bias.hpp): for keys that are K or more tokens old, b is a straight line of their age, so
/// that a step changes all of their weights by one factor. With S (r,d_v), z (r) and R = DecoderOptions::rollback:
///
///     append     phi(k), v and the log-scale of the new token go to the ring.
///     commit     Tokens that are K + R or more tokens old leave the ring, 8 at a time, from a multiple of 8 on:
///                    S += w phi(k)^T v     z += w phi(k)     w = exp(log-scale + b - s)
///                If b is -infinity from K on, they are dropped.
///     attend     N = phi(q) (u S + sum_ring c phi(k)^T v)     c = exp(log-scale + b - a)     y = N / D
///                D = phi(q).(u z + sum_ring c phi(k))         u = exp(s - a)
///                The last `near` tokens and the attention sinks (AttentionOptions), the first tokens, which the state
///                keeps, have the weights exp(q.k + b) instead of c phi(q).phi(k).
///     rollback   The number of tokens decreases. The ring has all tokens that are less than K old for the shorter
///                sequence. Nothing is subtracted from S and z.
///
/// phi(k) is stored without a factor, whose logarithm is its log-scale. b is the bias for the present query, and a is
/// near the largest log-scale + b of the row. s is at least the largest log-scale + b of the tokens in S and z. When a
/// token with a larger one is committed, s grows by a multiple of ln 2, and S and z are multiplied by that power of
/// 1/2, which is exact. The rounding error of each addition to S and z is added with the next token, so that errors do
/// not grow with the number of tokens.
///
/// Time of a step and memory of the state of a head after t tokens, with r features and p = d_v + 1:
///
///     position                             time                                    memory
///     none, ALiBi                          r (d + p) + R (r + p)                   r p + R (r + p)
///     T5, clipped table                    r (d + p) + (K + R) (r + p)             r p + (K + R) (r + p)
///     table whose outer part is near a     r (d + p) + (K + R) (r + p)             r p + (K + R) (r + p)
///     line from K tokens on
///     any other table                      r d + t (r + p)                         t (r + p)
///     the same in windows of M             r d + M (r + p) + (t / M) r p log M     t (r + p) + 2 M r p
///
/// A near field and sinks add near d + sinks (d + d_v) to the time, and (K + R) d + sinks (d + d_v) to the memory.
///
/// The outer part of a table with positive features is replaced by a line that changes no bias by more than a quarter
/// of the default tolerance. Ages beyond the table have its last bias, which the line would pass; so
/// DecoderOptions::most_tokens must exclude these ages.
///
/// Where the memory grows with t, it is allocated in blocks, each as large as all before; t is at most K + R there.
///
/// Windows (DecoderOptions::windows): for long tables the sums over keys of M and more tokens ago come from an online
/// convolution by FFTs (far_window.hpp), for M queries at once, before these are known. Its work is divided evenly over
/// the M steps before. By default M is the size of least cost of those with which windows take no more memory than the
/// tokens; it grows with the position, and short sequences have no windows. A row whose bound of the FFT's error
/// exceeds half of CallOptions::tolerance is computed from the tokens, and counts in repaired_rows. The first step
/// after load(), and the first one after a rollback by more than R tokens, take longer: they compute a window at once.
/// Tables with b = -infinity, or with biases that are more than 80 apart, have no windows.
///
/// Bits: the same tokens give the same bits of the rows of steps, however they were divided between prefill and steps,
/// and for any other sequences beside them and any number of threads. After a rollback S and z may contain tokens that
/// would otherwise still be in the ring: then rows agree within their error bounds. Rows of prefill are those of the
/// attention.
///
/// Report (CallOptions::report) of a step: error_bound, empty_rows and indefinite_rows as of the attention, with the
/// engine `recurrence`. A row that the attention would recompute, because its denominator underflowed or, for a series
/// or with a near field or sinks, because its terms cancel, needs all keys. With one of these the ring has them: while
/// no token has left it, the row is recomputed by exact softmax, and counts in repaired_rows. Otherwise it is returned
/// as it is, NaN if its denominator is 0, and counts in failing_rows.
///
/// Non-finite tokens: as in the formula, a query changes its own row, and a key or a value the rows that attend to it.
/// If b is finite from K on, these are all later rows until the sequence is reset, or until a rollback takes the token
/// back. Non-finite keys and entries of values are not added to S and z, but recorded beside them. Numerators are not
/// scaled: in float values above 1e30 may overflow.
///
/// A step of the same shapes as an earlier one allocates nothing, except where a state grows. A decoder can be moved,
/// but not copied. Threads must not share it during a call.
template <OnlyReal T>
class Decoder {
 public:
  using Scalar = T;

  /// Keeps a copy of the attention. Throws InvalidArgument as DecoderOptions::checked(), and if a position assigns
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
  /// numbers of heads and d_v are those of the first call. Of empty sequences: the time of the attention, and
  /// O(b h_k n r (d + p)) for the states.
  ///
  /// Throws InvalidArgument for other shapes, for more tokens than most_tokens, for a key_mask, packed sequences or
  /// an offset, for lengths out of range, a negative tolerance, softmax_samples that the attention refuses or any
  /// unless all sequences are empty, and with check_finite for non-finite inputs; then it changes nothing. If memory
  /// runs out, or if `poll` or a user's own feature map throws, sequences take back the tokens of the call if they can,
  /// and are reset if they cannot.
  void prefill(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
               const CallOptions& call = {});
  template <class Q, class K, class V, class Y>
    requires detail::MixedScalars<T, Q, K, V, Y>
  void prefill(const Q&, const K&, const V&, const Y&, const CallOptions& = {}) {
    detail::reject_mixed_scalars<T, Q, K, V, Y>();
  }

  /// The same by steps, for one token or a few: the rows do not depend on later tokens. Calls `poll` after every 64
  /// tokens, so that it never ends a step of fewer. The table above has the time for each token of each head.
  void step(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
            const CallOptions& call = {});
  template <class Q, class K, class V, class Y>
    requires detail::MixedScalars<T, Q, K, V, Y>
  void step(const Q&, const K&, const V&, const Y&, const CallOptions& = {}) {
    detail::reject_mixed_scalars<T, Q, K, V, Y>();
  }

  /// Takes back the last tokens of a sequence. O(heads). Throws InvalidArgument if there is no such sequence or it has
  /// fewer tokens. Throws, too, if the sequence would have more than DecoderOptions::rollback tokens less than it had
  /// at most since it was empty, unless that was at most K + R, so that no token has left the ring.
  void rollback(Index sequence, Index tokens);

  /// Sequence b becomes a copy of what sequence from[b] was, for all b, as beam search selects beams. Copies only the
  /// states that are selected more than once: O(batch + bytes of these copies). Throws InvalidArgument unless `from`
  /// has one sequence for each. If memory runs out, sequences that are not selected may be reset.
  void reorder(std::span<const Index> from);
  /// Sequence `to` becomes a copy of sequence `from`. O(bytes of its state). Throws InvalidArgument if one of them does
  /// not exist. If memory runs out, `to` is reset.
  void fork(Index from, Index to);

  /// Removes all tokens of a sequence; of all sequences. O(bytes of the sums); the memory of rings is kept.
  void reset(Index sequence);
  void reset();

  /// The number of tokens of a sequence.
  Index tokens(Index sequence) const;

  /// The memory of the states of all sequences, in bytes.
  std::size_t bytes() const;

  /// Writes the states of all sequences in binary form, for a machine of the same byte order. O(bytes()). Throws
  /// InvalidArgument if the stream fails.
  void save(std::ostream& stream) const;
  /// Replaces the states by those of a file that a decoder of the same attention and options saved. O(bytes()).
  /// Throws InvalidArgument if the file is of another decoder, was cut or has changed; then it changes nothing.
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
