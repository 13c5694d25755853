// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/cuda/device/device_matrix.hpp"
#include "plan.hpp"

namespace nprf::python {

template <class T>
cuda::DeviceMatrixView<T> device_view(const DeviceArray& x) {
  cuda::DeviceMatrixView<T> all(static_cast<T*>(x.data), x.batch, x.heads, x.tokens, x.channels);
  all.batch_stride = x.batch_stride, all.head_stride = x.head_stride, all.token_stride = x.token_stride;
  return all;
}

}  // namespace nprf::python
