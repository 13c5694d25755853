// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "nprf/attention/attention_core.hpp"
#include "nprf/attention/batch/batch.hpp"
#include "nprf/attention/batch/check_arrays.hpp"
#include "nprf/attention/batch/head.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/toeplitz/engines.hpp"

namespace nprf {

/// Keeps the scratch memory of finished calls for the next calls. Threads may share the pool: it grows to as many
/// batches as calls run at the same time.
template <Real T>
class BatchPool {
 public:
  /// Takes a batch from the pool for one call; the destructor of the lease returns it.
  class Lease {
   public:
    explicit Lease(BatchPool& pool) : m_pool(pool) {
      const std::scoped_lock lock(pool.m_mutex);
      if (!pool.m_free.empty()) {
        m_batch = std::move(pool.m_free.back());
        pool.m_free.pop_back();
      } else {
        m_batch = std::make_unique<Batch<T>>();
      }
    }
    ~Lease() {
      const std::scoped_lock lock(m_pool.m_mutex);
      try {
        m_pool.m_free.push_back(std::move(m_batch));
      } catch (...) {
        // no memory for the list: m_batch is freed instead of kept
      }
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Batch<T>* operator->() const { return m_batch.get(); }

   private:
    BatchPool& m_pool;
    std::unique_ptr<Batch<T>> m_batch;
  };

  /// Frees the batches that no call uses.
  void clear() {
    const std::scoped_lock lock(m_mutex);
    m_free.clear();
  }

  /// The number of batches that no call uses.
  std::size_t size() const {
    const std::scoped_lock lock(m_mutex);
    return m_free.size();
  }

 private:
  mutable std::mutex m_mutex;
  std::vector<std::unique_ptr<Batch<T>>> m_free;
};

/// Throws InvalidArgument unless the position has no vectors of lags, as the first position, or one for each near lag,
/// of the first position's rank.
template <Real T>
void check_lag_vectors(const PositionView<T>& position, const HeadModels<T>& heads) {
  require(position.rank() == heads.rank(), "positions: expected lag_vectors of rank ", heads.rank(),
          " of all heads, got ", position.rank());
  if (position.rank() == 0) return;
  const AttentionOptions& options = heads.options();
  require(!position.is_placed(), "position: expected none with lag_vectors that assigns slots to tokens, got one");
  require(options.near > 0, "near: expected more than 0 for a position with lag_vectors, got 0");
  // without a sign the width doubled does not overflow
  const std::uint64_t near = static_cast<std::uint64_t>(options.near),
                      lags = options.direction == Direction::causal ? near : 2 * near - 1;
  const Index columns = position.lag_vectors()->cols();
  require(std::cmp_equal(columns, lags), "lag_vectors: expected ", lags,
          " columns (one for each lag of the near field), got ", columns);
}

template <Real T>
AttentionCore<T>::AttentionCore(CompiledFlags<T>) : m_pool(std::make_shared<BatchPool<T>>()) {}

template <Real T>
void AttentionCore<T>::check(const HeadModels<T>& heads) {
  const std::size_t maps = heads.num_feature_maps(), positions = heads.num_positions();
  require(maps > 0, "feature_maps: expected one, or one for each head, got none");
  require(positions > 0, "positions: expected one, or one for each head, got none");
  require(maps == 1 || positions == 1 || maps == positions, "positions: expected 1 or ", maps,
          " (the number of feature maps), got ", positions);
  const FeatureMapView<T> map = heads.feature_map(0);
  for (std::size_t h = 1; h < maps; ++h) {
    const FeatureMapView<T> other = heads.feature_map(static_cast<Index>(h));
    require(other.input_dim() == map.input_dim() && other.output_dim() == map.output_dim(), "feature_maps: expected ",
            map.input_dim(), " -> ", map.output_dim(), " of all heads, got ", other.input_dim(), " -> ",
            other.output_dim());
  }
  toeplitz::require_available(heads.options().engine);
  const auto check_exact = [&](Index count, const char* name) {
    require(count >= 0, name, ": expected 0 or more, got ", count);
    require(count == 0 || (map.estimates_exp() && map.has_log_factors()), name,
            ": expected 0 for a feature map that does not estimate exp or has no log_factor, got ", count);
  };
  check_exact(heads.options().near, "near");
  check_exact(heads.options().sinks, "sinks");
  const Index salient = heads.options().salient;
  check_exact(salient, "salient");
  const std::vector<SalientRule>& rules = heads.options().salient_rules;
  require(salient == 0 || heads.options().direction == Direction::bidirectional || !rules.empty(),
          "salient: expected 0 for causal attention without salient_rules, where later queries would choose keys, got ",
          salient);
  require(rules.size() <= 1 || static_cast<Index>(rules.size()) == heads.count(),
          "salient_rules: expected none, one, or one for each of the ", heads.count(),
          " feature maps or positions, got ", rules.size());
  const auto d = static_cast<std::size_t>(map.input_dim());
  for (const SalientRule& rule : rules)
    require(rule.mean.size() == d && rule.covariance.size() == d * d && !std::isnan(rule.threshold),
            "salient_rules: expected a mean of ", d, " and a covariance of ", d * d, " numbers and a threshold, got ",
            rule.mean.size(), ", ", rule.covariance.size(), " and ", rule.threshold);
  for (std::size_t p = 0; p < positions; ++p) check_lag_vectors(heads.position(p), heads);
}

template <Real T>
void AttentionCore<T>::forward(const HeadModels<T>& heads, const HeadsView<const T>& q, const HeadsView<const T>& k,
                               const HeadsView<const T>& v, const HeadsView<T>& y, const CallOptions& call,
                               Saved<T>* saved, Lengths lengths) const {
  check_attention_arrays<T>(q, k, v, y, heads.feature_map(0).input_dim(), heads.rank(), heads.count());
  const typename BatchPool<T>::Lease batch(*m_pool);
  batch->forward(heads, q, k, v, y, call, saved, lengths);
  if (saved) saved->m_attention = m_identity;
}

template <Real T>
void AttentionCore<T>::backward(const HeadModels<T>& heads, const Saved<T>& saved, const HeadsView<const T>& dy,
                                const HeadsView<T>& dq, const HeadsView<T>& dk, const HeadsView<T>& dv,
                                std::vector<Matrix<T>>& dbias, std::vector<Matrix<T>>* dextra, GradientReport* report,
                                std::vector<Matrix<T>>* dlag_vectors) const {
  check_saved(saved);
  check_gradient_arrays<T>(saved.m_sizes, heads.rank(), saved.m_batch, saved.m_heads, saved.m_kv_heads, dy, dq, dk, dv);
  const typename BatchPool<T>::Lease batch(*m_pool);
  const GradientReport call_report = batch->backward(heads, saved, dy, dq, dk, dv);
  if (report) *report = call_report;
  dbias.resize(static_cast<std::size_t>(saved.m_heads));
  if (dextra) dextra->resize(dbias.size());
  if (dlag_vectors) dlag_vectors->resize(dbias.size());
  for (std::size_t h = 0; h < dbias.size(); ++h) {
    assign(dbias[h], batch->dbias(static_cast<Index>(h)).template cast<T>());
    if (dextra) assign((*dextra)[h], batch->dextra(static_cast<Index>(h)).template cast<T>());
    if (dlag_vectors) assign((*dlag_vectors)[h], batch->dlag_vectors(static_cast<Index>(h)).template cast<T>());
  }
}

template <Real T>
void AttentionCore<T>::check_saved(const Saved<T>& saved) const {
  require(saved.m_attention != nullptr,
          "saved: expected one filled by forward of this attention, got an empty one: call forward first");
  require(saved.m_attention == m_identity, "saved: expected one filled by forward of this attention, got another's");
}

template <Real T>
Matrix<T> AttentionCore<T>::query_features(const HeadModels<T>& heads, const MatrixView<T>& x) {
  return Head<T>{heads.feature_map(0), heads.options().normalization, nullptr}.query_features(x);
}
template <Real T>
Matrix<T> AttentionCore<T>::key_features(const HeadModels<T>& heads, const MatrixView<T>& x) {
  return Head<T>{heads.feature_map(0), heads.options().normalization, nullptr}.key_features(x);
}

template <Real T>
void AttentionCore<T>::free_scratch_memory() const {
  m_pool->clear();
}

}  // namespace nprf
