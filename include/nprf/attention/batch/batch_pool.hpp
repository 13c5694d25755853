// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "nprf/attention/batch/batch.hpp"

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

}  // namespace nprf
