// SPDX-License-Identifier: MIT

#include "nprf/attention/batch/forward_rows.hpp"

#include "nprf/core/workspace.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_forward_rows_saved_storage {

TEST_CASE("storage is the member of what is saved, or scratch memory", "[attention]") {
  Workspace workspace;
  SavedSequence<float> saved;
  const SavedStorage<float> in_saved(&saved, workspace), in_scratch(nullptr, workspace);
  const auto A = in_saved.matrix(3, 5, &SavedSequence<float>::A);
  CHECK((A.data() == saved.A.data() && saved.A.rows() == 3 && saved.A.cols() == 5));
  const auto scale = in_saved.vector(7, &SavedSequence<float>::queries, &SavedSequence<float>::Rows::scale);
  CHECK((scale.data() == saved.queries.scale.data() && saved.queries.scale.size() == 7));
  CHECK(workspace.peak_bytes() == 0);
  const auto B = in_scratch.matrix(2, 4, &SavedSequence<float>::B);
  CHECK((B.rows() == 2 && B.cols() == 4 && saved.B.size() == 0));
  CHECK(in_scratch.vector(6, &SavedSequence<float>::keys, &SavedSequence<float>::Rows::scale).size() == 6);
  CHECK(workspace.peak_bytes() > 0);
}

}  // namespace nprf::test::attention_forward_rows_saved_storage
