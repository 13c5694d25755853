// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <utility>
#include <vector>

#include "nprf/attention/options.hpp"
#include "nprf/core/compiled_flags.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/decoder/decoder_model.hpp"
#include "nprf/decoder/head_state.hpp"
#include "nprf/decoder/model.hpp"
#include "nprf/decoder/new_tokens.hpp"
#include "nprf/decoder/options.hpp"
#include "nprf/decoder/sequence_states.hpp"
#include "nprf/decoder/state_stream.hpp"
#include "nprf/toeplitz/cost.hpp"

namespace nprf {

template <OnlyReal T>
class Decoder<T>::Implementation {
 public:
  Implementation(std::unique_ptr<const DecoderModel<T>> model, const DecoderOptions& options);

  void prefill(const NewTokens<T>& tokens, const CallOptions& call);
  void step(const NewTokens<T>& tokens, const CallOptions& call);

  const DecoderOptions& options() const { return m_options; }
  Index batch() const { return m_options.batch; }
  void rollback(Index sequence, Index tokens) {
    check_sequence(sequence, "sequence");
    const Index most = this->tokens(sequence);
    require(0 <= tokens && tokens <= most, "tokens: expected 0 to ", most, " (those of the sequence), got ", tokens);
    require(m_states.can_roll_back_to(sequence, most - tokens), "tokens: expected at most ", m_options.rollback,
            " (DecoderOptions::rollback) less than the sequence ever had, got ", tokens, " less than ", most);
    m_states.roll_back_to(sequence, most - tokens);
  }
  void reorder(std::span<const Index> from) {
    require(!from.empty(), "from: expected at least 1 sequence, got 0");
    for (const Index sequence : from) check_sequence(sequence, "from");
    if (static_cast<Index>(from.size()) != batch()) m_accepted.reset();  // its arrays are of the batch
    m_states.reorder(from);
    m_options.batch = m_states.batch();
  }
  void fork(Index from, Index to) {
    check_sequence(from, "from");
    check_sequence(to, "to");
    m_states.copy(from, to);
  }
  void reset(Index sequence) {
    check_sequence(sequence, "sequence");
    m_states.clear(sequence);
  }
  void reset() {
    for (Index b = 0; b < batch(); ++b) reset(b);
  }
  Index tokens(Index sequence) const {
    check_sequence(sequence, "sequence");
    return m_states.tokens(sequence);
  }
  std::size_t bytes() const { return m_states.bytes(); }
  void save(std::ostream& stream) const {
    StateWriter out;
    out(version);
    m_states.save(out);
    out.write(stream);
  }
  void load(std::istream& stream) {
    StateReader in(stream);
    const auto saved = in.next<std::uint64_t>();
    require(saved == version, "state: expected version ", version, ", got ", saved);
    m_states.load(in);
    m_accepted.reset();
  }

 private:
  enum class Pass { append, attend };
  static constexpr Index tile = 64;  // the most keys, of all states of a task, whose features are computed together
  static constexpr std::uint64_t version = 5;

  void check_sequence(Index sequence, const char* name) const {
    require(0 <= sequence && sequence < batch(), name, ": expected 0 to ", batch() - 1,
            " (a sequence of the batch), got ", sequence);
  }

  // arrays laid out as in the last call are not checked again: the checks take longer than a step of one head
  void check(const NewTokens<T>& tokens, const CallOptions& call) {
    if (!m_accepted || !tokens.has_layout_of(*m_accepted)) tokens.check_layout(m_states);
    tokens.check(m_states, call);
    m_accepted = tokens;
  }
  void prepare(const NewTokens<T>& tokens, const CallOptions& call);
  void run(const NewTokens<T>& tokens, const CallOptions& call, Pass pass);
  // the states first..first+states-1 of a sequence, which have one model: their features are computed together
  struct Task {
    Index sequence, first, states;
    Index begin, end;  // the tokens begin..end-1 of the call
  };
  void run_states(const Task& task, const NewTokens<T>& tokens, const CallOptions& call, Pass pass, Workspace& scratch);
  // as many states as have `tile` keys together; with several threads fewer, so that each thread gets several tasks
  Index states_of_task(Index n, Index threads) const {
    if (!m_states.has_one_model() || n == 0) return 1;
    const Index most = std::clamp<Index>(tile / n, 1, m_states.count());
    return threads == 1 ? most : std::clamp<Index>(batch() * m_states.count() / (4 * threads), 1, most);
  }
  void take_back();

  Team make_team(Index n, void (*poll)()) {
    const StepModel<T>& model = m_states.model(0);
    const TokenShape x = model.shape(m_states.shape().d_v);
    const Index longest = n + *std::max_element(m_before.begin(), m_before.end()),
                token = x.r * (x.d_v + 1) + std::min(longest, model.kept_tokens()) * (x.r + x.d_v);
    // the time of an operation, in operations of a matrix product: a step reads each number of a state only once
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
  std::optional<NewTokens<T>> m_accepted;  // the arrays of the last call
  std::vector<Index> m_before;             // (batch)  the number of tokens before the call
  std::vector<Report> m_reports;           // (batch,states)
  std::vector<Workspace> m_workspaces;
};

template <OnlyReal T>
Decoder<T>::Implementation::Implementation(std::unique_ptr<const DecoderModel<T>> model, const DecoderOptions& options)
    : m_model(std::move(model)),
      m_options(options),
      m_states(step_models<T>(*m_model, options.rollback,
                              options.most_tokens > 0 ? std::min(options.most_tokens, StepBias<T>::unlimited)
                                                      : StepBias<T>::unlimited),
               options.batch) {}

template <OnlyReal T>
void Decoder<T>::Implementation::prefill(const NewTokens<T>& tokens, const CallOptions& call) {
  bool all_empty = true;
  for (Index b = 0; b < batch(); ++b) all_empty = all_empty && this->tokens(b) == 0;
  if (!all_empty) return step(tokens, call);
  check(tokens, call);
  // before the states change, because it throws for wrong options, also for softmax_samples, which steps do not have
  m_model->attend(tokens.q, tokens.k, tokens.v, tokens.y, call);
  prepare(tokens, call);
  run(tokens, call, Pass::append);
}

template <OnlyReal T>
void Decoder<T>::Implementation::step(const NewTokens<T>& tokens, const CallOptions& call) {
  check(tokens, call);
  require(call.softmax_samples == 0, "softmax_samples: expected 0 for steps, got ", call.softmax_samples);
  prepare(tokens, call);
  run(tokens, call, Pass::attend);
}

// allocates all memory that the states need for the tokens of the call
template <OnlyReal T>
void Decoder<T>::Implementation::prepare(const NewTokens<T>& tokens, const CallOptions& call) {
  if (m_states.count() == 0) m_states.make(tokens.shape());
  m_before.resize(static_cast<std::size_t>(batch()));
  m_reports.assign(static_cast<std::size_t>(batch() * m_states.count()), Report{});
  for (Index b = 0; b < batch(); ++b) {
    m_before[static_cast<std::size_t>(b)] = m_states.tokens(b);
    m_states.reserve(b, m_states.tokens(b) + tokens.count(call, b));
  }
}

template <OnlyReal T>
void Decoder<T>::Implementation::run(const NewTokens<T>& tokens, const CallOptions& call, Pass pass) {
  const Index states = m_states.count();
  try {
    const Index n = tokens.q.tokens;
    const Team team = make_team(n, pass == Pass::append ? call.poll : nullptr);
    const Index each = states_of_task(n, team.size()),
                tasks = (states + each - 1) / each;  // tasks of each sequence
    // the most tokens between two polls
    const Index most = call.poll ? tile : std::max<Index>(n, 1);
    for (Index begin = 0; begin == 0 || begin < n; begin += most) {
      // not before the first tokens: `poll` must end no step of at most `tile` tokens, which might reset its sequences
      if (call.poll && begin > 0) call.poll();
      team.run(batch() * tasks, [&](Index task, Workspace& scratch) {
        const Index first = task % tasks * each;
        run_states({task / tasks, first, std::min(each, states - first), begin, std::min(n, begin + most)}, tokens,
                   call, pass, scratch);
      });
    }
    if (call.report && pass == Pass::attend) *call.report = report(team);
  } catch (...) {
    take_back();
    throw;
  }
}

template <OnlyReal T>
void Decoder<T>::Implementation::run_states(const Task& task, const NewTokens<T>& tokens, const CallOptions& call,
                                            Pass pass, Workspace& scratch) {
  const auto [b, first_state, states, begin, end] = task;
  const StepModel<T>& model = m_states.model(first_state);
  const Index group = m_states.queries_of_state(), heads = states * group, head = first_state * group,
              kv_head = m_states.kv_head(first_state), length = tokens.count(call, b),
              most = std::max<Index>(tile / states, 1);
  const Index last = std::min(end, length);
  for (Index first = begin; first < last; first += most) {
    const Workspace::Scope scope(scratch);
    const Index count = std::min(most, last - first);
    const TokenRows<T> keys = rows_of_tokens(tokens.k, b, kv_head, states, first, count);
    TokenRows<T> queries = rows_of_tokens(tokens.q, b, head, heads, first, count);
    if (pass == Pass::append) queries.tokens = 0;
    const FeatureRows<T> rows = model.features(keys, queries, scratch);
    for (Index s = 0; s < states; ++s) {
      HeadState<T>& state = m_states(b, first_state + s);
      Report& report = m_reports[static_cast<std::size_t>(b * m_states.count() + first_state + s)];
      for (Index t = 0; t < count; ++t) {
        state.append(model, rows(t * states + s), token_of(tokens.v, b, kv_head + s, first + t), scratch);
        if (pass == Pass::attend || first + t + 1 == length) state.advance(model, scratch);
        if (pass == Pass::append) continue;
        const Index query = count * states + t * heads + s * group;
        state.attend(
            model,
            {rows, query, group, token_of(tokens.y, b, head + s * group, first + t), tokens.y.all_strides().head},
            report, scratch);
      }
    }
  }
  if (end < tokens.q.tokens) return;
  for (Index h = head; h < head + heads; ++h)
    for (Index t = length; t < end; ++t) std::fill_n(token_of(tokens.y, b, h, t), tokens.y.channels, T(0));
}

// takes back the tokens of the call; a sequence that cannot take them back is reset
template <OnlyReal T>
void Decoder<T>::Implementation::take_back() {
  for (Index b = 0; b < batch(); ++b)
    if (const Index before = m_before[static_cast<std::size_t>(b)]; m_states.can_roll_back_to(b, before))
      m_states.roll_back_to(b, before);
    else
      m_states.clear(b);
}

template <OnlyReal T>
Decoder<T>::Decoder(std::unique_ptr<const DecoderModel<T>> model, const DecoderOptions& options, CompiledFlags<T>)
    : m_implementation(std::make_unique<Implementation>(std::move(model), options)) {}
template <OnlyReal T>
Decoder<T>::Decoder(Decoder&&) noexcept = default;
template <OnlyReal T>
Decoder<T>& Decoder<T>::operator=(Decoder&&) noexcept = default;
template <OnlyReal T>
Decoder<T>::~Decoder() = default;
template <OnlyReal T>
const DecoderOptions& Decoder<T>::options() const {
  return m_implementation->options();
}
template <OnlyReal T>
Index Decoder<T>::batch() const {
  return m_implementation->batch();
}
template <OnlyReal T>
void Decoder<T>::rollback(Index sequence, Index tokens) {
  m_implementation->rollback(sequence, tokens);
}
template <OnlyReal T>
void Decoder<T>::reorder(std::span<const Index> from) {
  m_implementation->reorder(from);
}
template <OnlyReal T>
void Decoder<T>::fork(Index from, Index to) {
  m_implementation->fork(from, to);
}
template <OnlyReal T>
void Decoder<T>::reset(Index sequence) {
  m_implementation->reset(sequence);
}
template <OnlyReal T>
void Decoder<T>::reset() {
  m_implementation->reset();
}
template <OnlyReal T>
Index Decoder<T>::tokens(Index sequence) const {
  return m_implementation->tokens(sequence);
}
template <OnlyReal T>
std::size_t Decoder<T>::bytes() const {
  return m_implementation->bytes();
}
template <OnlyReal T>
void Decoder<T>::save(std::ostream& stream) const {
  m_implementation->save(stream);
}
template <OnlyReal T>
void Decoder<T>::load(std::istream& stream) {
  m_implementation->load(stream);
}
template <OnlyReal T>
void Decoder<T>::prefill(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
                         const CallOptions& call) {
  m_implementation->prefill({q, k, v, y}, call);
}
template <OnlyReal T>
void Decoder<T>::step(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> y,
                      const CallOptions& call) {
  m_implementation->step({q, k, v, y}, call);
}

}  // namespace nprf
