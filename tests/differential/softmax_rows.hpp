// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "nprf/attention/saved.hpp"
#include "nprf/attention/segments.hpp"
#include "nprf/core/types.hpp"

namespace nprf::test::differential {

namespace detail {

// private members of Saved: an explicit instantiation may name them
const std::vector<SavedSequence<float>>& sequences_of(const Saved<float>& saved);
const std::vector<SavedSequence<double>>& sequences_of(const Saved<double>& saved);
const std::vector<Segment>& segments_of(const Saved<float>& saved);
const std::vector<Segment>& segments_of(const Saved<double>& saved);

template <Real T, auto sequences, auto segments>
struct SavedAccess {
  friend const std::vector<SavedSequence<T>>& sequences_of(const Saved<T>& saved) { return saved.*sequences; }
  friend const std::vector<Segment>& segments_of(const Saved<T>& saved) { return saved.*segments; }
};
template struct SavedAccess<float, &Saved<float>::m_sequences, &Saved<float>::m_segments>;
template struct SavedAccess<double, &Saved<double>::m_sequences, &Saved<double>::m_segments>;

}  // namespace detail

/// [items, n_q]  Whether forward computed a row by exact softmax, for the items [batch, heads] of a call.
template <Real T>
std::vector<char> softmax_rows(const Saved<T>& saved, Index items, Index n_q) {
  std::vector<char> rows(static_cast<std::size_t>(items * n_q), false);
  const std::vector<SavedSequence<T>>& sequences = detail::sequences_of(saved);
  const std::vector<Segment>& segments = detail::segments_of(saved);
  for (std::size_t at = 0; at < sequences.size(); ++at) {
    const Index first = static_cast<Index>(at / segments.size()) * n_q + segments[at % segments.size()].q_begin;
    for (const Index i : sequences[at].softmax_rows) rows[static_cast<std::size_t>(first + i)] = true;
  }
  return rows;
}

}  // namespace nprf::test::differential
