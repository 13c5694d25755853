// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "differential/check.hpp"
#include "differential/inputs.hpp"
#include "differential/life.hpp"
#include "differential/reference.hpp"
#include "differential/run.hpp"
#include "nprf/nprf.hpp"
#include "support/held_position.hpp"

namespace nprf::test::differential {

/// Makes the decoder of a life, with any map and position. Refers to the life.
template <Real T>
std::function<std::unique_ptr<Decoder<T>>()> decoder_maker(const Life& life, const Inputs<T>& x) {
  const Case& c = life.of;
  const AttentionOptions options{.direction = Direction::causal,
                                 .normalization = c.radius > 0 ? Normalization::unit(c.radius) : Normalization::none(),
                                 .near = c.near,
                                 .sinks = c.sinks};
  std::vector<HeldPosition<T>> positions;
  for (const auto& any : x.positions)
    positions.push_back(std::visit([](const auto& position) { return HeldPosition<T>{position.bias()}; }, any));
  return std::visit(
      [&]<class F>(const F&) -> std::function<std::unique_ptr<Decoder<T>>()> {
        return [attention = MultiHeadAttention<F, HeldPosition<T>>(detail::of_type<F>(x.maps), positions, options),
                &life] { return std::make_unique<Decoder<T>>(attention, life.options); };
      },
      x.maps[0]);
}

/// Runs a life, and compares all rows with the reference.
///
/// A row is that of the formula, within the bound that its call reports. Where rows may be those of exact softmax, it
/// may also be one of these, if the call has counted it (Report::repaired_rows). Other rows must be counted as failing
/// (Report::failing_rows), as those must whose terms cancel.
template <Real T>
class LifeRun {
 public:
  LifeRun(const Life& life, Tally& tally)
      : m(life),
        m_tally(tally),
        m_inputs(life.of),
        m_tokens(m_inputs.problem()),
        m_make(decoder_maker(life, m_inputs)),
        m_decoder(m_make()),
        m_sequences(static_cast<std::size_t>(life.options.batch)) {}

  /// The failures, of each kind the worst.
  std::vector<Failure> operator()() {
    for (const Event& event : m.events) {
      act(event);
      for (Index b = 0; b < batch(); ++b)
        if (const Index tokens = m_decoder->tokens(b), expected = at(b).size(); tokens != expected)
          fail({Kind::tokens, static_cast<double>(tokens), static_cast<double>(expected), "sequence"});
    }
    check_rows();
    for (const Call& call : m_calls) check_call(call);
    return m_failures;
  }

 private:
  using Limits = std::numeric_limits<T>;

  // one that adds tokens
  struct Call {
    Report report;
    Index empty = 0, unchecked = 0;  // rows
    Index failing = 0, counted = 0;  // of neither formula; those, and others that a report must count
    // of the last: the farthest from both formulas
    Failure worst{Kind::y, -std::numeric_limits<double>::infinity(), 0, {}};
  };

  // what a sequence of the decoder has
  struct Sequence {
    struct Row {
      std::size_t call;
      std::vector<T> y;  // [heads, d_v]
    };
    Index size() const { return static_cast<Index>(tokens.size()); }

    std::vector<Index> tokens;  // of the life
    Index most = 0;             // since it was empty
    std::vector<Row> rows;      // of the last tokens: those that have not been checked
  };

  const Case& c() const { return m.of; }
  Index batch() const { return m.options.batch; }
  Sequence& at(Index b) { return m_sequences[static_cast<std::size_t>(b)]; }

  void fail(const Failure& failure) {
    const auto same = std::ranges::find(m_failures, failure.kind, &Failure::kind);
    if (same == m_failures.end())
      m_failures.push_back(failure);
    else if (failure.error - failure.bound > same->error - same->bound)
      *same = failure;
  }

  void act(const Event& x) {
    using What = Event::Kind;
    switch (x.kind) {
      case What::prefill:
      case What::step: return add_tokens(x);
      case What::rollback: return take_back(x.sequence, std::min(x.count, promised(x.sequence)));
      case What::any_rollback: return take_back_or_be_refused(x.sequence, std::min(x.count, at(x.sequence).size()));
      case What::reorder: return reorder(x.sequences);
      case What::fork:
        check_rows();
        m_decoder->fork(x.from, x.sequence);
        at(x.sequence) = Sequence(at(x.from));
        return;
      case What::save_and_load: return save_and_load();
      case What::move: m_decoder = std::make_unique<Decoder<T>>(std::move(*m_decoder)); return;
      case What::reset:
        check_rows(at(x.sequence));
        m_decoder->reset(x.sequence);
        at(x.sequence) = {};
        return;
    }
  }

  // how many tokens can be taken back, whatever the position
  Index promised(Index b) { return std::min(at(b).size(), m.options.rollback - (at(b).most - at(b).size())); }
  void take_back(Index b, Index count) {
    if (count <= 0) return;
    check_rows(at(b));
    m_decoder->rollback(b, count);
    at(b).tokens.resize(static_cast<std::size_t>(at(b).size() - count));
  }
  void take_back_or_be_refused(Index b, Index count) {
    try {
      take_back(b, count);
    } catch (const InvalidArgument&) {
      if (count <= promised(b)) throw;
    }
  }

  void reorder(const std::vector<Index>& from) {
    check_rows();
    m_decoder->reorder(from);
    std::vector<Sequence> selected;
    for (const Index b : from) selected.push_back(at(b));
    m_sequences = std::move(selected);
  }

  void save_and_load() {
    std::stringstream file, again;
    m_decoder->save(file);
    m_decoder = m_make();
    m_decoder->load(file);
    m_decoder->save(again);
    if (file.str() != again.str()) fail({Kind::repeat, 1, 0, "a decoder that was saved and loaded"});
  }

  // of a call; what is padding remains NaN
  struct Array {
    Array(Index of_batch, Index of_heads, Index of_tokens, Index of_channels)
        : batch(of_batch),
          heads(of_heads),
          tokens(of_tokens),
          channels(of_channels),
          numbers(static_cast<std::size_t>(batch * heads * tokens * channels), Limits::quiet_NaN()) {}
    T* row(Index b, Index h, Index t) { return numbers.data() + ((b * heads + h) * tokens + t) * channels; }
    HeadsView<T> view() { return {numbers.data(), batch, heads, tokens, channels}; }

    Index batch, heads, tokens, channels;
    std::vector<T> numbers;
  };

  // as many as the sequences may have
  std::vector<Index> counts_of(const Event& x) {
    std::vector<Index> counts = x.tokens;
    for (Index b = 0; b < batch(); ++b) {
      Index& count = counts[static_cast<std::size_t>(b)];
      count = std::min(count, m.longest - at(b).size());
    }
    return counts;
  }

  void add_tokens(const Event& x) {
    const std::vector<Index> counts = counts_of(x);
    const Index n = *std::ranges::max_element(counts), heads = c().heads;
    Array q(batch(), heads, n, c().d), k(batch(), m.kv_heads, n, c().d), v(batch(), m.kv_heads, n, c().d_v),
        y(batch(), heads, n, c().d_v);
    for (Index b = 0; b < batch(); ++b)
      for (Index t = 0; t < counts[static_cast<std::size_t>(b)]; ++t) put_next_token(b, t, q, k, v);
    Report report;
    const CallOptions options{.lengths = counts, .report = &report};
    if (x.kind == Event::Kind::prefill)
      m_decoder->prefill(q.view(), k.view(), v.view(), y.view(), options);
    else
      m_decoder->step(q.view(), k.view(), v.view(), y.view(), options);
    for (Index b = 0; b < batch(); ++b) keep_rows(b, counts[static_cast<std::size_t>(b)], y);
    m_calls.push_back({report});
  }

  // the next one of the life becomes token t of a call
  void put_next_token(Index b, Index t, Array& q, Array& k, Array& v) {
    const Index token = m_next++ % c().n_k;
    at(b).tokens.push_back(token);
    at(b).most = std::max(at(b).most, at(b).size());
    for (const auto& [from, to] : {std::pair(&m_inputs.q, &q), std::pair(&m_inputs.k, &k), std::pair(&m_inputs.v, &v)})
      for (Index h = 0; h < to->heads; ++h)
        std::copy_n(from->data() + (h * c().n_k + token) * to->channels, to->channels, to->row(b, h, t));
  }

  // the first `count` rows of a sequence, to be checked; the others are padding
  void keep_rows(Index b, Index count, Array& y) {
    for (Index t = 0; t < y.tokens; ++t) {
      std::vector<T> row;
      for (Index h = 0; h < y.heads; ++h) row.insert(row.end(), y.row(b, h, t), y.row(b, h, t) + y.channels);
      if (t < count)
        at(b).rows.push_back({m_calls.size(), std::move(row)});
      else if (!all_zero(row.data(), static_cast<Index>(row.size())))
        fail({Kind::zero, 1, 0, "a row of padding"});
    }
  }

  void check_rows() {
    for (Sequence& sequence : m_sequences) check_rows(sequence);
  }
  // before the tokens of their history change
  void check_rows(Sequence& sequence) {
    if (sequence.rows.empty()) return;
    Problem problem = problem_of(sequence);
    const Truth truth = solve(problem);
    m_extremes.longest_row = std::max(m_extremes.longest_row, truth.longest_row);
    m_extremes.longest_w = std::max(m_extremes.longest_w, truth.longest_w);
    m_extremes.largest_bias = std::max(m_extremes.largest_bias, truth.largest_bias);
    for (Index i = 0; i < problem.n_q; ++i)
      for (Index h = 0; h < problem.heads; ++h) {
        const auto& [call, y] = sequence.rows[static_cast<std::size_t>(i)];
        check_row(call, truth, h * problem.n_q + i, y.data() + h * c().d_v,
                  "call " + std::to_string(call) + " token " + std::to_string(problem.offset + i));
      }
    sequence.rows.clear();
  }

  // the rows of a sequence that have not been checked; if they are many, only some of them, the first and the last
  Problem problem_of(const Sequence& sequence) const {
    Problem x;
    x.heads = c().heads, x.d = c().d, x.d_v = c().d_v;
    x.n_k = sequence.size(), x.n_q = static_cast<Index>(sequence.rows.size());
    x.causal = true, x.offset = x.n_k - x.n_q, x.near = c().near, x.sinks = c().sinks;
    x.radius = m_tokens.radius, x.root = m_tokens.root, x.models = m_tokens.models;
    x.takes_part.assign(static_cast<std::size_t>(x.n_k), true);
    x.sequences.push_back({0, x.n_q, 0, x.n_k});
    const Index stride = x.n_q / 12 + 1;
    for (Index i = 0; i < x.n_q; ++i) x.is_checked.push_back(i < 4 || i + 6 > x.n_q || (x.n_k + i) % stride == 0);
    const Index group = x.heads / m.kv_heads;
    const auto append = [&](std::vector<Exact>& to, const std::vector<Exact>& from, Index h, Index channels,
                            Index first) {
      for (Index t = first; t < x.n_k; ++t) {
        const auto row = from.begin() + (h * c().n_k + sequence.tokens[static_cast<std::size_t>(t)]) * channels;
        to.insert(to.end(), row, row + channels);
      }
    };
    for (Index h = 0; h < x.heads; ++h) {
      append(x.q, m_tokens.q, h, x.d, x.offset);
      append(x.k, m_tokens.k, h / group, x.d, 0);
      append(x.v, m_tokens.v, h / group, x.d_v, 0);
    }
    x.dy.assign(static_cast<std::size_t>(x.heads * x.n_q * x.d_v), 0);
    // the other formula is compared, too
    x.may_fall_back = c().falls_back_to_softmax();
    x.is_softmax.assign(static_cast<std::size_t>(x.heads * x.n_q), false);
    return x;
  }

  static bool all_zero(const T* y, Index n) {
    return std::all_of(y, y + n, [](T each) { return each == 0; });
  }
  // of the columns that are finite by a formula
  Exact error_of(const T* y, const Exact* exact) const {
    Exact most = 0;
    for (Index p = 0; p < c().d_v; ++p)
      if (std::isfinite(exact[p]))
        most = std::max(most, std::isfinite(y[p]) ? std::abs(y[p] - exact[p]) : -minus_infinity);
    return most;
  }

  void check_row(std::size_t at_call, const Truth& truth, Index row, const T* y, const std::string& where) {
    Call& call = m_calls[at_call];
    const auto of_row = static_cast<std::size_t>(row);
    const Row is = truth.rows[of_row];
    const Exact* exact = truth.y.data() + row * c().d_v;
    const Exact v_max = truth.y_size[of_row], condition = truth.y_condition[of_row];
    call.unchecked += is == Row::unknown, call.empty += is == Row::empty;
    if (is == Row::unknown) return;
    if (is == Row::empty) {
      if (!all_zero(y, c().d_v)) fail({Kind::zero, 1, 0, where});
      return;
    }
    double bound = call.report.error_bound;
    if (!std::isfinite(bound)) {  // a row fails
      if (c().has_signs()) return;
      bound = largest_bound<T>(c(), truth);
    }
    const Exact tolerance = bound * v_max + Limits::min(), error = error_of(y, exact);
    for (Index p = 0; p < c().d_v; ++p)
      if (!std::isfinite(exact[p]) && std::isfinite(y[p]))
        fail({Kind::not_finite, static_cast<double>(y[p]), 0, where});
    if (is == Row::non_finite && (c().has_signs() || !std::isfinite(tolerance))) return;
    const bool may_be_softmax = c().replaces_cancelled_rows() || c().falls_back_to_softmax(),
               cancels = is != Row::non_finite && c().replaces_cancelled_rows() &&
                         condition > 1.01L * detail::worst_sum_of_features;
    if (is == Row::ill_conditioned && !may_be_softmax && !(condition < 1e-2 / Limits::epsilon())) return;
    ++m_tally.rows;
    const bool is_of_formula = error <= tolerance;
    if (is_of_formula && !cancels) {
      double& worst = m_tally.worst[static_cast<std::size_t>(Kind::y)];
      worst = std::max(worst, static_cast<double>(error / tolerance));
      return;
    }
    const Exact other_error = may_be_softmax ? error_of(y, truth.other_y.data() + row * c().d_v) : -minus_infinity;
    const bool is_softmax = other_error <= tolerance;
    m_tally.softmax_rows += is_softmax;
    ++call.counted;
    call.failing += !is_softmax && !is_of_formula;
    const double by = static_cast<double>(std::min(error, other_error)), most = static_cast<double>(tolerance);
    if (by - most >= call.worst.error - call.worst.bound)
      call.worst = {is_of_formula ? Kind::cancelled : Kind::y, by, most, where};
  }

  void check_call(const Call& call) {
    const Report& report = call.report;
    const auto check = [&](Kind kind, auto got, auto most, const char* what) {
      if (!(got <= most)) fail({kind, static_cast<double>(got), static_cast<double>(most), what});
    };
    if (call.unchecked == 0 && report.empty_rows != call.empty)
      fail({Kind::empty_rows, static_cast<double>(report.empty_rows), static_cast<double>(call.empty), "report"});
    // a failing row can be near that of softmax by chance
    if (call.failing > report.failing_rows || call.counted > report.failing_rows + report.repaired_rows)
      fail(call.worst);
    if (c().has_signs() || c().non_finite_in != NonFiniteIn::none || report.failing_rows > 0) return;
    check(Kind::indefinite_rows, report.indefinite_rows, Index{0}, "report");
    check(Kind::bound, report.error_bound, largest_bound<T>(c(), m_extremes), "report");
  }

  const Life& m;
  Tally& m_tally;
  Inputs<T> m_inputs;
  Problem m_tokens;  // all tokens of the life
  std::function<std::unique_ptr<Decoder<T>>()> m_make;
  std::unique_ptr<Decoder<T>> m_decoder;
  std::vector<Sequence> m_sequences;
  std::vector<Call> m_calls;
  Index m_next = 0;  // token
  Truth m_extremes;  // of all rows
  std::vector<Failure> m_failures;
};

}  // namespace nprf::test::differential
