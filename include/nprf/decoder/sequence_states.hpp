// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/head_state.hpp"
#include "nprf/decoder/model.hpp"
#include "nprf/decoder/state_stream.hpp"

namespace nprf {

/// Identifies a model, so that load() refuses the states of another one: a hash of sizes and biases, and numbers from
/// the features of a query and a key, which have a tolerance, because processors may round features differently.
template <Real T>
class Fingerprint {
 public:
  explicit Fingerprint(const StepModel<T>& model) {
    const FeatureMapView<T>& map = model.features.map();
    Checksum sum;
    if (model.has_salient_keys()) {
      sum.add(model.most_exact), sum.add(model.salient_threshold);
      for (const Vector<T>& x : {model.salient_mean, model.salient_covariance})
        for (const T each : x) sum.add(static_cast<double>(each));
    }
    for (const Index size : {map.input_dim(), map.output_dim(), model.near, model.sinks, model.rollback,
                             model.most_tokens, model.bias.table()})
      sum.add(size);
    // without the parameters of fitted decays: processors may round a fit differently
    const Index decays = static_cast<Index>(model.bias.tail().size()), is_fit = decays > 1;
    sum.add(decays), sum.add(is_fit ? 0 : model.bias.slope()), sum.add(model.features.normalization().radius());
    for (Index age = 0; age <= model.bias.table() - is_fit; ++age) sum.add(model.bias(age));
    for (Index at = 0; model.lag_vectors && at < model.lag_vectors->size(); ++at)
      sum.add(model.lag_vectors->data()[at]);
    m_hash = sum.value();

    Workspace scratch;
    const Index d = map.input_dim(), r = map.output_dim();
    T* x = scratch.take<T>(d);
    for (Index l = 0; l < d; ++l) x[l] = static_cast<T>(std::sin(static_cast<double>(l + 1)));
    const TokenRows<T> one{x, 1, d};
    const FeatureRows<T> key_and_query = model.features(one, one, scratch);
    for (const bool is_query : {true, false}) {
      const FeatureRow<T> row = key_and_query(is_query ? 1 : 0);
      double of_features = 0;
      for (Index k = 0; k < r; ++k)
        of_features += std::cos(static_cast<double>(k + 1)) * static_cast<double>(row.phi[k]);
      m_values[is_query ? 0 : 2] = row.log_factor, m_values[is_query ? 1 : 3] = of_features;
    }
    m_tolerance = 1e3 * static_cast<double>(std::numeric_limits<T>::epsilon()) * std::sqrt(static_cast<double>(r));
  }

  void save(StateWriter& out) const {
    out(m_hash);
    out(m_values);
  }
  /// Throws InvalidArgument if the model that was saved is not this one.
  void require_same(StateReader& in) const {
    require(in.next<std::uint64_t>() == m_hash,
            "state: expected one of this attention, got one of other sizes, biases or options");
    for (const double value : m_values) {
      const double saved = in.next<double>();
      require(std::abs(saved - value) <= m_tolerance * (1 + std::abs(value)),
              "state: expected one of this attention, got one of another feature map");
    }
  }

 private:
  std::uint64_t m_hash = 0;
  std::array<double, 4> m_values{};  // log-factors, and sums of features, of a query and of a key
  double m_tolerance = 0;
};

/// The numbers of heads, and of channels of values, of a decoder's sequences. The first call sets them; before it they
/// are 0.
struct DecoderShape {
  Index heads = 0, kv_heads = 0, d_v = 0;

  /// The number of heads of queries that share one head of keys and values.
  Index group() const { return heads / kv_heads; }
  bool operator==(const DecoderShape&) const = default;
};

/// The states of all heads of all sequences of a decoder. Heads of queries that share keys share a state, unless
/// each head has its own model.
template <Real T>
class SequenceStates {
 public:
  /// For one model of all heads, or one model for each head.
  SequenceStates(std::vector<StepModel<T>> models, Index batch)
      : m_models(std::move(models)), m_place(static_cast<std::size_t>(batch)) {
    std::iota(m_place.begin(), m_place.end(), Index{0});
  }

  Index batch() const { return static_cast<Index>(m_place.size()); }
  const std::vector<StepModel<T>>& models() const { return m_models; }
  bool has_one_model() const { return m_models.size() == 1; }
  const StepModel<T>& model(Index s) const { return m_models[has_one_model() ? 0 : static_cast<std::size_t>(s)]; }
  const DecoderShape& shape() const { return m_shape; }
  /// The number of states of a sequence.
  Index count() const { return count(m_shape); }
  /// The number of query heads that share a state, and the head of keys and values of state s.
  Index queries_of_state() const { return has_one_model() ? m_shape.group() : 1; }
  Index kv_head(Index s) const { return has_one_model() ? s : s / m_shape.group(); }
  HeadState<T>& operator()(Index sequence, Index s) { return m_states[index(sequence, s)]; }
  const HeadState<T>& operator()(Index sequence, Index s) const { return m_states[index(sequence, s)]; }

  /// Makes the states, without tokens. Throws std::bad_alloc, and then changes nothing.
  void make(const DecoderShape& shape) {
    std::vector<StepModel<T>> models = models_for(shape);
    m_states = empty_states(models, shape);
    m_models = std::move(models);
    m_shape = shape;
  }

  Index tokens(Index sequence) const { return count() == 0 ? 0 : (*this)(sequence, 0).tokens(); }
  /// Allocates memory for `tokens` tokens of a sequence.
  void reserve(Index sequence, Index tokens) {
    for (StepModel<T>& one : m_models) one.reserve(tokens);
    for (Index s = 0; s < count(); ++s) (*this)(sequence, s).reserve(model(s), tokens);
  }
  /// Whether the sequence can take back its last tokens so that `tokens` tokens are left.
  bool can_roll_back_to(Index sequence, Index tokens) const {
    for (Index s = 0; s < count(); ++s)
      if (const HeadState<T>& x = (*this)(sequence, s); !x.can_roll_back(model(s), x.tokens() - tokens)) return false;
    return true;
  }
  /// Leaves `tokens` tokens. Requires can_roll_back_to(). After an interrupted call the states of a sequence may have
  /// different numbers of tokens.
  void roll_back_to(Index sequence, Index tokens) {
    for (Index s = 0; s < count(); ++s)
      if (HeadState<T>& x = (*this)(sequence, s); x.tokens() > tokens) x.roll_back(x.tokens() - tokens);
  }
  void clear(Index sequence) {
    for (Index s = 0; s < count(); ++s) (*this)(sequence, s).clear();
  }

  /// Sequence `to` becomes a copy of sequence `from`. Throws std::bad_alloc if memory runs out; then `to` has no
  /// tokens.
  void copy(Index from, Index to) {
    if (from != to) copy_place(m_place[static_cast<std::size_t>(from)], m_place[static_cast<std::size_t>(to)]);
  }
  /// Sequence b becomes what sequence from[b] was, for as many sequences as `from` has. If a sequence is selected more
  /// than once, its states are copied over states that are not selected. Throws std::bad_alloc if memory runs out; then
  /// there are as many sequences as before, and those that are not selected may have no tokens.
  void reorder(std::span<const Index> from) {
    const auto had = static_cast<std::size_t>(batch()), places = std::max(had, from.size());
    std::vector<HeadState<T>> selected;  // of another number of sequences
    if (from.size() != had) selected.reserve(from.size() * static_cast<std::size_t>(count()));
    add_empty_states(m_states, m_models, m_shape, static_cast<Index>(places));
    std::vector<Index> place(from.size(), -1);
    std::vector<bool> used(places, false);
    for (std::size_t b = 0; b < place.size(); ++b)
      if (const auto at = static_cast<std::size_t>(m_place[static_cast<std::size_t>(from[b])]); !used[at])
        used[at] = true, place[b] = static_cast<Index>(at);
    std::size_t unused = 0;
    for (std::size_t b = 0; b < place.size(); ++b) {
      if (place[b] >= 0) continue;
      while (used[unused]) ++unused;
      used[unused] = true, place[b] = static_cast<Index>(unused);
      copy_place(m_place[static_cast<std::size_t>(from[b])], place[b]);
    }
    m_place = std::move(place);
    if (from.size() == had) return;
    for (const Index at : m_place) std::ranges::move(at_place(at), std::back_inserter(selected));
    m_states = std::move(selected);
    std::iota(m_place.begin(), m_place.end(), Index{0});
  }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const HeadState<T>& one : m_states) sum += one.bytes();
    return sum;
  }

  void save(StateWriter& out) const {
    for (const Index size : {scalar_bytes, batch(), num_models(), m_shape.heads, m_shape.kv_heads, m_shape.d_v})
      out(size);
    for (const StepModel<T>& one : m_models) Fingerprint<T>(one).save(out);
    // transfer() also reads, so that it is not const; with a StateWriter it changes nothing
    for (Index b = 0; b < batch(); ++b)
      for (Index s = 0; s < count(); ++s) const_cast<HeadState<T>&>((*this)(b, s)).transfer(model(s), out);
  }

  /// Replaces all states. Throws InvalidArgument if the file is of another decoder; then it changes nothing.
  void load(StateReader& in) {
    const auto check = [&](Index expected, const char* of) {
      const auto saved = in.next<Index>();
      require(saved == expected, "state: expected ", expected, " ", of, ", got ", saved);
    };
    check(scalar_bytes, "bytes of a scalar");
    check(batch(), "sequences (DecoderOptions::batch)");
    check(num_models(), "feature maps or positions");
    DecoderShape shape;
    in(shape.heads), in(shape.kv_heads), in(shape.d_v);
    for (const StepModel<T>& one : m_models) Fingerprint<T>(one).require_same(in);
    check_shape(shape, static_cast<Index>(in.rest()));
    std::vector<StepModel<T>> models = models_for(shape);
    std::vector<HeadState<T>> states = empty_states(models, shape);
    const Index of_sequence = count(shape);
    for (std::size_t at = 0; at < states.size(); ++at) {
      states[at].transfer(models[has_one_model() ? 0 : at % static_cast<std::size_t>(of_sequence)], in);
      const Index tokens = states[at - at % static_cast<std::size_t>(of_sequence)].tokens();
      require(states[at].tokens() == tokens, "state: expected ", tokens,
              " tokens, as of the sequence's first head, got ", states[at].tokens());
    }
    require(in.rest() == 0, "state: expected no further bytes, got ", in.rest());
    for (const HeadState<T>& state : states)
      for (StepModel<T>& one : models) one.reserve(state.tokens());
    m_shape = shape, m_models = std::move(models), m_states = std::move(states);
    std::iota(m_place.begin(), m_place.end(), Index{0});
  }

 private:
  std::size_t index(Index sequence, Index s) const {
    return static_cast<std::size_t>(m_place[static_cast<std::size_t>(sequence)] * count() + s);
  }

  static constexpr Index scalar_bytes = sizeof(T);

  Index num_models() const { return static_cast<Index>(m_models.size()); }
  Index count(const DecoderShape& shape) const { return has_one_model() ? shape.kv_heads : shape.heads; }

  // checks the sizes that a file states. `rest` is the number of its further bytes: no memory must be allocated for
  // sizes that need more
  void check_shape(const DecoderShape& x, Index rest) const {
    const bool is_empty = x == DecoderShape{};
    require(is_empty || (0 < x.kv_heads && x.kv_heads <= x.heads && x.heads <= rest && x.heads % x.kv_heads == 0 &&
                         0 <= x.d_v && x.d_v <= rest && (has_one_model() || x.heads == num_models())),
            "state: expected heads and channels of this attention, got ", x.heads, ", ", x.kv_heads, " and ", x.d_v);
  }

  // a copy of the models, with chunks for values of shape.d_v columns
  std::vector<StepModel<T>> models_for(const DecoderShape& shape) const {
    std::vector<StepModel<T>> models = m_models;
    for (StepModel<T>& one : models) one.set_chunks(shape.d_v);
    return models;
  }
  std::vector<HeadState<T>> empty_states(const std::vector<StepModel<T>>& models, const DecoderShape& shape) const {
    std::vector<HeadState<T>> all;
    add_empty_states(all, models, shape, batch());
    return all;
  }
  // so that there are at least those of `places` sequences
  void add_empty_states(std::vector<HeadState<T>>& all, const std::vector<StepModel<T>>& models,
                        const DecoderShape& shape, Index places) const {
    const auto states = static_cast<std::size_t>(places * count(shape)),
               of_sequence = static_cast<std::size_t>(count(shape));
    all.reserve(states);
    while (all.size() < states) all.emplace_back(models[has_one_model() ? 0 : all.size() % of_sequence], shape.d_v);
  }

  // if memory runs out, the states at `to` have no tokens afterwards
  void copy_place(Index from, Index to) {
    const std::span<HeadState<T>> target = at_place(to);
    try {
      for (std::size_t s = 0; s < target.size(); ++s) {
        const HeadState<T>& source = at_place(from)[s];
        if (source.bytes() == target[s].bytes())
          target[s] = source;  // into the same memory
        else
          target[s] = HeadState<T>(source);
      }
    } catch (...) {
      for (HeadState<T>& state : target) state.clear();
      throw;
    }
  }
  std::span<HeadState<T>> at_place(Index place) {
    return std::span(m_states).subspan(static_cast<std::size_t>(place * count()), static_cast<std::size_t>(count()));
  }

  std::vector<StepModel<T>> m_models;
  DecoderShape m_shape;
  std::vector<HeadState<T>> m_states;  // (batch,count)  place by place
  std::vector<Index> m_place;          // (batch)  the place of the states of each sequence
};

}  // namespace nprf
