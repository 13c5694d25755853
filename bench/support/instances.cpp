// SPDX-License-Identifier: MIT

#include "nprf/attention/batch.hpp"
#include "nprf/toeplitz/contract.hpp"

template class nprf::Batch<float>;
template void nprf::toeplitz::contract<float>(nprf::Engine, const nprf::LagWeights<float>&,
                                              const nprf::MatrixView<float>&, const nprf::MatrixView<float>&,
                                              const nprf::MatrixView<float>&, nprf::MatrixRef<float>);
