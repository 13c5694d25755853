// SPDX-License-Identifier: MIT
#include "nprf/attention/batch/attention_core_definition.hpp"

#include "support/catch.hpp"

namespace nprf::test::attention_batch_pool {

TEST_CASE("a pool gives a finished call's batch to the next call", "[multi_head]") {
  BatchPool<float> pool;
  const Batch<float>* first = nullptr;
  {
    const BatchPool<float>::Lease lease(pool);
    first = lease.operator->();
    CHECK(pool.size() == 0);
    const BatchPool<float>::Lease other(pool);  // at the same time
    CHECK(other.operator->() != first);
  }
  CHECK(pool.size() == 2);
  const BatchPool<float>::Lease again(pool);
  CHECK(again.operator->() == first);  // the last to be returned
  CHECK(pool.size() == 1);
}

TEST_CASE("a cleared pool keeps the batches that are in use", "[multi_head]") {
  BatchPool<double> pool;
  { const BatchPool<double>::Lease lease(pool); }
  CHECK(pool.size() == 1);
  pool.clear();
  CHECK(pool.size() == 0);
  {
    const BatchPool<double>::Lease lease(pool);
    pool.clear();
  }
  CHECK(pool.size() == 1);
}

}  // namespace nprf::test::attention_batch_pool
