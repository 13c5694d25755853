// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <memory>
#include <ostream>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/attention/batch/check_finite.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/attention/options.hpp"
#include "nprf/core/compiled_flags.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/mixed_scalars.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/head_state.hpp"
#include "nprf/decoder/model.hpp"
#include "nprf/decoder/sequence_states.hpp"
#include "nprf/decoder/state_stream.hpp"
#include "nprf/toeplitz/cost.hpp"

namespace nprf {

/// Options of a decoder, fixed when it is built.
struct DecoderOptions {
  Index batch = 1;             // the number of sequences
  Index rollback = 0;          // how many of its last tokens a sequence can take back
  WindowOptions windows = {};  // of the online convolution, for tables with a bias for every lag
};

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
/// The state. Each head of each sequence has the sums over its old tokens and a ring of its last ones. Let K be the
/// reach of the position (step_bias.hpp): from K tokens on, b is a straight line of the distance, and the weights of
/// two old keys keep their ratio. With S (r,d_v), z (r) and R = DecoderOptions::rollback:
///
///     append     phi(k), v and log-scale of the new token go to the ring.
///     commit     Tokens that are K + R tokens old leave the ring:  S += w phi(k)^T v,  z += w phi(k). They leave 8 at
///                a time, at positions that 8 divides. Without a tail, b = -infinity from K on, they are dropped.
///     attend     N = phi(q) (S w_S + sum_ring c phi(k)^T v),  D likewise with z, and y = N / D.
///                Of the near field (AttentionOptions), the last `near` tokens, and of the attention sinks, the first
///                tokens, which the state keeps, the weights are exp(q.k + b).
///     rollback   The number of tokens decreases; the ring still has all tokens that are less than K old for the
///                shorter sequence. Nothing is subtracted from the sums.
///
/// Weights are relative to the largest of a row, and w to a running maximum, which S and z follow by powers of two. The
/// error of each addition to S and z goes to the next one, so that errors do not grow with the number of tokens. A head
/// takes, with p = d_v + 1 and r features,
///
///     position                          time of a step               memory of a state
///     none, ALiBi                       O(r (d + p) + R (r + p))     r p + R (r + p)
///     T5, clipped table                 the same with K + R for R    the same
///     table of which a line             the same, for the K of       the same
///     approximates the outer part       that line
///     any other table                   O(r d + t (r + p)) for t     t (r + p), which grows; it is allocated in
///                                       tokens, at most K + R        blocks, each as large as all before
///     the same with windows of M        O(r d + M (r + p) +          the same and 2 M r p
///                                       (t / M) r p log M)
///
/// Windows (DecoderOptions::windows): for long tables the sums over keys of M and more tokens ago come from an online
/// convolution by FFTs (far_window.hpp), for M queries at once, before these are known. Its work is divided evenly over
/// the M steps before. By default M is chosen by cost for each position, and is 0 for short sequences, such that
/// windows take no more memory than the tokens. A row whose bound of the FFT's error exceeds half of
/// CallOptions::tolerance is computed from the tokens, and counts in repaired_rows. The first step after load(), and
/// the first one after a rollback by more than R tokens, where the ring still has them, take longer: they compute a
/// window at once. Tables with b = -infinity, or with biases that are more than 80 apart, have no windows.
///
/// Bits: the same tokens give the same bits of the rows of steps, however they were divided between prefill and steps,
/// and for any other sequences beside them and any number of threads. After a rollback sums may have tokens that they
/// would not have otherwise: then rows agree within their error bounds. Rows of prefill are those of the attention.
///
/// Report (CallOptions::report) of a step: error_bound, empty_rows and indefinite_rows as of the attention, with the
/// engine `recurrence`. A row that the attention would recompute, because its denominator underflowed or, for a series
/// or with a near field or sinks, because its terms cancel, needs all keys. With one of these the ring has them: while
/// no token has left it, the row is recomputed by exact softmax, and counts in repaired_rows. Otherwise it is returned
/// as it is, NaN if its denominator is 0, and counts in failing_rows.
///
/// Non-finite tokens: as in the formula, a query changes its own row, and a key or a value the rows that attend to it.
/// If the position has a tail, these are all later rows until the sequence is reset, or until a rollback takes the
/// token back. Sums stay finite: of a non-finite token only that there was one is stored. Numerators are not scaled:
/// in float values above 1e30 may overflow.
///
/// A step of the same shapes as an earlier one allocates nothing, except where a state grows. A decoder can be moved,
/// but not copied. Threads must not share it during a call.
template <OnlyReal T>
class Decoder {
 public:
  using Scalar = T;

  /// Keeps a copy of the attention. Throws InvalidArgument unless it is causal, if a position assigns slots to tokens
  /// (GridPosition), if batch < 1 or if rollback is not in 0..2^24.
  template <class F, class P>
    requires std::is_same_v<typename F::Scalar, T>
  explicit Decoder(const MultiHeadAttention<F, P>& attention, DecoderOptions options = {})
      : m_model(std::make_unique<DecoderModelOf<F, P>>(attention)),
        m_options(checked(options, attention.options())),
        m_states(step_models<T>(*m_model, options.rollback), options.batch, options.windows) {}

  const DecoderOptions& options() const { return m_options; }
  Index batch() const { return m_options.batch; }

  /// Appends the tokens of q [b,h,n,d] k [b,h_k,n,d] v [b,h_k,n,d_v] to the sequences, and sets y [b,h,n,d_v], by the
  /// attention's engines if all sequences are empty, and otherwise by steps. With CallOptions::lengths sequence b gets
  /// only its first lengths[b] tokens; later rows of y are zero. h is a multiple of h_k, as in MultiHeadAttention; the
  /// numbers of heads and d_v are those of the first call.
  ///
  /// Throws InvalidArgument for other shapes, for a key_mask, packed sequences or an offset, and with check_finite for
  /// non-finite inputs; then it changes nothing. If memory runs out, or if `poll` or a user's own feature map throws,
  /// sequences take back the tokens of the call if they can, and are reset if they cannot.
  void prefill(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
               const CallOptions& call = {}) {
    bool all_empty = true;
    for (Index b = 0; b < batch(); ++b) all_empty = all_empty && tokens(b) == 0;
    if (!all_empty) return step(q, k, v, y, call);
    check(q, k, v, y, call);
    prepare(q, k, v, call);
    m_model->attend(q, k, v, y, call);
    run(q, k, v, y, call, Pass::append);
  }
  template <class Q, class K, class V, class Y>
    requires detail::MixedScalars<T, Q, K, V, Y>
  void prefill(const Q&, const K&, const V&, const Y&, const CallOptions& = {}) {
    detail::reject_mixed_scalars<T, Q, K, V, Y>();
  }

  /// The same by steps, for one token or a few: the rows do not depend on later tokens. Does not call `poll`.
  void step(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
            const CallOptions& call = {}) {
    check(q, k, v, y, call);
    require(call.softmax_samples == 0, "softmax_samples: expected 0 for steps, got ", call.softmax_samples);
    prepare(q, k, v, call);
    run(q, k, v, y, call, Pass::attend);
  }
  template <class Q, class K, class V, class Y>
    requires detail::MixedScalars<T, Q, K, V, Y>
  void step(const Q&, const K&, const V&, const Y&, const CallOptions& = {}) {
    detail::reject_mixed_scalars<T, Q, K, V, Y>();
  }

  /// Takes back the last tokens of a sequence. O(heads). Throws InvalidArgument if there is no such sequence, or if it
  /// has fewer tokens, or if they are more than DecoderOptions::rollback before the most that it had, and old ones
  /// have left the ring since.
  void rollback(Index sequence, Index tokens) {
    check_sequence(sequence, "sequence");
    const Index most = this->tokens(sequence);
    require(0 <= tokens && tokens <= most, "tokens: expected 0 to ", most, " (those of the sequence), got ", tokens);
    require(m_states.can_roll_back_to(sequence, most - tokens), "tokens: expected at most ", m_options.rollback,
            " (DecoderOptions::rollback) less than the sequence ever had, got ", tokens, " less than ", most);
    m_states.roll_back_to(sequence, most - tokens);
  }

  /// Sequence b becomes a copy of what sequence from[b] was, for all b, as beam search selects beams. Copies only the
  /// states that are selected more than once. Throws InvalidArgument unless `from` has one sequence for each. If memory
  /// runs out, sequences that are not selected may be reset.
  void reorder(std::span<const Index> from) {
    require(static_cast<Index>(from.size()) == batch(), "from: expected ", batch(), " sequences (the batch), got ",
            from.size());
    for (const Index sequence : from) check_sequence(sequence, "from");
    m_states.reorder(from);
  }
  /// Sequence `to` becomes a copy of sequence `from`. Throws InvalidArgument if one of them does not exist. If memory
  /// runs out, `to` is reset.
  void fork(Index from, Index to) {
    check_sequence(from, "from");
    check_sequence(to, "to");
    m_states.copy(from, to);
  }

  /// Removes all tokens of a sequence; of all sequences.
  void reset(Index sequence) {
    check_sequence(sequence, "sequence");
    m_states.clear(sequence);
  }
  void reset() {
    for (Index b = 0; b < batch(); ++b) reset(b);
  }

  /// The number of tokens of a sequence.
  Index tokens(Index sequence) const {
    check_sequence(sequence, "sequence");
    return m_states.tokens(sequence);
  }

  /// The memory of the states of all sequences, in bytes.
  std::size_t bytes() const { return m_states.bytes(); }

  /// Writes the states of all sequences in binary form, for a machine of the same byte order. Throws InvalidArgument
  /// if the stream fails.
  void save(std::ostream& stream) const {
    StateWriter out;
    out(version);
    m_states.save(out);
    out.write(stream);
  }
  /// Replaces the states by those of a file that a decoder of the same attention and options saved. Throws
  /// InvalidArgument if the file is of another decoder, was cut or has changed; then it changes nothing.
  void load(std::istream& stream) {
    StateReader in(stream);
    const auto saved = in.next<std::uint64_t>();
    require(saved == version, "state: expected version ", version, ", got ", saved);
    m_states.load(in);
  }

 private:
  enum class Pass { append, attend };
  static constexpr Index tile = 64;  // tokens whose features are computed together
  static constexpr std::uint64_t version = 2;

  static const DecoderOptions& checked(const DecoderOptions& options, const AttentionOptions& attention) {
    constexpr Index most_rollback = Index{1} << 24;
    require(attention.direction == Direction::causal,
            "attention: expected one with Direction::causal, got a bidirectional one");
    require(options.batch >= 1, "batch: expected at least 1, got ", options.batch);
    require(0 <= options.rollback && options.rollback <= most_rollback, "rollback: expected 0 to ", most_rollback,
            ", got ", options.rollback);
    const WindowOptions& windows = options.windows;
    const Index least = std::max({Index{16}, attention.near, options.rollback + 1}), most = Index{1} << 24;
    require(windows.size == -1 || windows.size == 0 ||
                (least <= windows.size && windows.size <= most &&
                 std::has_single_bit(static_cast<std::uint64_t>(windows.size))),
            "windows.size: expected -1, 0 or a power of two of at least ", least,
            " (16, AttentionOptions::near and 1 + ", "DecoderOptions::rollback) and at most ", most, ", got ",
            windows.size);
    require(windows.memory >= 0, "windows.memory: expected 0 or more, got ", windows.memory);
    return options;
  }

  void check_sequence(Index sequence, const char* name) const {
    require(0 <= sequence && sequence < batch(), name, ": expected 0 to ", batch() - 1,
            " (a sequence of the batch), got ", sequence);
  }

  void check(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v,
             const HeadsView<T>& y, const CallOptions& call) const;
  void prepare(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v,
               const CallOptions& call);
  void run(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v, const HeadsView<T>& y,
           const CallOptions& call, Pass pass);
  void take_back();

  static Index length_of(const CallOptions& call, Index b, Index n) {
    return call.lengths.empty() ? n : call.lengths[static_cast<std::size_t>(b)];
  }
  Team make_team(Index n, void (*poll)()) {
    const StepModel<T>& model = m_states.model(0);
    const TokenShape x = model.shape(m_states.shape().d_v);
    const Index token = x.r * (x.d_v + 1) + (model.pending() + RunningSums<T>::block) * (x.r + x.d_v);
    // a state is read once in a step, so that an operation takes longer than one of a product of matrices
    constexpr double of_memory = 4;
    const double operations =
        of_memory * static_cast<double>(token) * static_cast<double>(batch() * m_states.shape().heads * n);
    return team_of(m_workspaces, toeplitz::worthwhile_threads(operations), poll);
  }
  Report report(const Team& team) const {
    Report sum{.engine = Engine::recurrence};
    for (const Report& one : m_reports) sum.add_rows(one);
    sum.workspace_bytes = team.peak_bytes();
    return sum;
  }

  std::unique_ptr<const DecoderModel<T>> m_model;
  DecoderOptions m_options;
  SequenceStates<T> m_states;
  std::vector<Index> m_before;    // (batch)  the tokens before the call
  std::vector<Report> m_reports;  // of each state
  std::vector<Workspace> m_workspaces;
};

template <class F, class P>
Decoder(const MultiHeadAttention<F, P>&, DecoderOptions = {}) -> Decoder<typename F::Scalar>;

template <OnlyReal T>
void Decoder<T>::check(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v,
                       const HeadsView<T>& y, const CallOptions& call) const {
  const Index input_dim = m_states.model(0).features.map().input_dim(),
              models = static_cast<Index>(m_states.models().size());
  check_heads(q, "queries", batch(), q.heads, q.tokens, input_dim);
  require(q.heads >= 1 && (models == 1 || q.heads == models), "queries: expected ", models == 1 ? 1 : models,
          models == 1 ? " head at least" : " heads (the number of feature maps or positions)", ", got ", q.heads);
  require(k.heads >= 1 && q.heads % k.heads == 0, "keys: expected a number of heads that ", q.heads,
          " (of queries) is a multiple of, got ", k.heads);
  check_heads(k, "keys", batch(), k.heads, q.tokens, input_dim);
  check_heads(v, "values", batch(), k.heads, q.tokens, v.channels);
  check_output(y, "y", batch(), q.heads, q.tokens, v.channels);
  require(!detail::may_overlap(y, q) && !detail::may_overlap(y, k) && !detail::may_overlap(y, v),
          "y: expected an array that shares no memory with queries, keys and values, got one that does");
  const DecoderShape& x = m_states.shape();
  require(m_states.count() == 0 || x == DecoderShape{q.heads, k.heads, v.channels},
          "queries, keys and values: expected ", x.heads, " and ", x.kv_heads, " heads and ", x.d_v,
          " channels of values (as in the first call), got ", q.heads, ", ", k.heads, " and ", v.channels);
  require(call.key_mask.empty(), "key_mask: expected none for a decoder, whose padding is at the end (lengths), got ",
          call.key_mask.size(), " entries");
  require(call.cumulative_lengths.empty() && call.key_cumulative_lengths.empty(),
          "cumulative_lengths: expected none for a decoder, got some");
  require(call.tolerance >= 0, "tolerance: expected 0 or more, got ", call.tolerance);
  require(call.offset == 0, "offset: expected 0 for a decoder, got ", call.offset);
  require(call.lengths.empty() || static_cast<Index>(call.lengths.size()) == batch(), "lengths: expected ", batch(),
          " entries (one a sequence), got ", call.lengths.size());
  for (std::size_t b = 0; b < call.lengths.size(); ++b)
    require(0 <= call.lengths[b] && call.lengths[b] <= q.tokens, "lengths[", b, "]: expected 0 to ", q.tokens,
            " (the number of tokens), got ", call.lengths[b]);
  if (call.check_finite) {
    Workspace workspace;
    require_finite<T>(q, k, v, call, Team(workspace));
  }
}

// allocates all memory of the states
template <OnlyReal T>
void Decoder<T>::prepare(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v,
                         const CallOptions& call) {
  if (m_states.count() == 0) m_states.make({q.heads, k.heads, v.channels});
  m_before.resize(static_cast<std::size_t>(batch()));
  m_reports.assign(static_cast<std::size_t>(batch() * m_states.count()), Report{});
  for (Index b = 0; b < batch(); ++b) {
    m_before[static_cast<std::size_t>(b)] = tokens(b);
    m_states.reserve(b, tokens(b) + length_of(call, b, q.tokens));
  }
}

template <OnlyReal T>
void Decoder<T>::run(const HeadsView<const T>& q, const HeadsView<const T>& k, const HeadsView<const T>& v,
                     const HeadsView<T>& y, const CallOptions& call, Pass pass) {
  const Index n = q.tokens, states = m_states.count();
  const bool shared = m_states.has_one_model();  // a state serves all query heads of its group
  const Index group = shared ? m_states.shape().group() : 1;
  const auto one_state = [&](Index item, Workspace& scratch) {
    const Index b = item / states, s = item % states, length = length_of(call, b, n);
    const Index head = s * group, kv_head = shared ? s : s / m_states.shape().group();
    const auto of_q = q(b, head);
    const auto of_k = k(b, kv_head), of_v = v(b, kv_head);
    auto of_y = y(b, head);
    const StepModel<T>& model = m_states.model(s);
    HeadState<T>& state = m_states(b, s);
    for (Index first = 0; first < length; first += tile) {
      const Workspace::Scope scope(scratch);
      const Index count = std::min(tile, length - first);
      const TokenRows<T> keys{of_k.row(first).data(), count, k.all_strides().token};
      TokenRows<T> queries{of_q.row(first).data(), count, q.all_strides().token, group, q.all_strides().head};
      if (pass == Pass::append) queries.tokens = 0;
      const FeatureRows<T> rows = model.features(keys, queries, scratch);
      for (Index t = 0; t < count; ++t) {
        state.append(model, rows(t), of_v.row(first + t).data(), scratch);
        if (pass == Pass::attend || first + t + 1 == length) state.advance(model, scratch);
        if (pass == Pass::attend)
          state.attend(
              model, {rows, count + t * group, group, of_y.row(first + t).data(), y.all_strides().head, call.tolerance},
              m_reports[static_cast<std::size_t>(item)], scratch);
      }
    }
    for (Index g = 0; g < group; ++g) y(b, head + g).bottomRows(n - length).setZero();
  };
  try {
    const Team team = make_team(n, pass == Pass::append ? call.poll : nullptr);
    team.run(batch() * states, one_state);
    if (call.report && pass == Pass::attend) *call.report = report(team);
  } catch (...) {
    take_back();
    throw;
  }
}

// to the tokens before the call; a sequence that cannot is reset
template <OnlyReal T>
void Decoder<T>::take_back() {
  for (Index b = 0; b < batch(); ++b)
    if (const Index before = m_before[static_cast<std::size_t>(b)]; m_states.can_roll_back_to(b, before))
      m_states.roll_back_to(b, before);
    else
      m_states.clear(b);
}

}  // namespace nprf
