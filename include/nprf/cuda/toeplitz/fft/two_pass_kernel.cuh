// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/fft/block.cuh"
#include "nprf/cuda/fft/columns.cuh"
#include "nprf/cuda/position/toeplitz_weights.cuh"
#include "nprf/cuda/toeplitz/fft/shared_memory_kernel.cuh"

namespace nprf::cuda {

/// Computes Y = ((A B^T) o C) [V 1] by FFTs that are too long for shared memory. Residue classes q are as in
/// SharedMemoryTask. The L = L1 L2 points z[] of each class are transformed in two passes through memory. Values are
/// numbered j1 L2 + j2, and frequencies k1 + L1 k2:
///
///     Z[k1][j2] = sum_j1 z[j1 L2 + j2] exp(-2 pi i j1 k1 / L1)                              columns kernel
///     frequency = sum_j2 Z[k1][j2] exp(-2 pi i k1 j2 / L) exp(-2 pi i j2 k2 / L2)           rows kernel, with inverse
///
/// A slab holds Z of some pairs of columns, which are counted over all matrices z, and of some features. A block of the
/// last kernel has all residue classes of its queries, and adds them up by Horner's rule:
///
///     y[j] = sum_q Y_q[j] exp(+pi i q j / N)
///
/// O(r (p + 1) N log N) time. Memory traffic per point of a slab: 32 bytes, 8 * folds bytes for A and B, and
/// 8 (folds + 1) / (features of the slab) bytes for U and Y.
struct TwoPassTask {
  const float *A, *B;      // [z / group, r, N], zero from n_q and n_k on
  const float2* spectrum;  // [head, residue, L1, L2]; each row is in the order of BlockTransform's output
  std::ptrdiff_t stride;   // of the spectrum, from head to head; 0: all share one
  const float2* roots;     // (L1,L2): exp(-2 pi i k1 j2 / L)
  int heads, r, n_q, p, residues, pairs_of_z, all_pairs;
  int first_pair, first_feature, features;  // of the slab
  float2* U;                                // [pair, residue, N]: u_q
  float2* slab;                             // [pair, residue, feature, L1, L2]
  float2* Y;                                // [pair, N]: sums over the features of previous slabs
  float *out, *sums;                        // [z, n_q, p] [z, n_q]
  int group_of_A = 1, group_of_B = 1;       // how many consecutive z share A, and share B
};

/// Minimum number of blocks per multiprocessor. It limits a thread to 128 registers if it has few values, else to 255.
template <class Shape, int folds>
constexpr int column_blocks = (folds * Shape::R <= 24 ? 512 : 256) / Shape::threads;

/// First pass: slab = the FFTs of the columns of the folded B_f u_q. blockIdx.x: tile of columns j2, blockIdx.y: pair
/// and residue class.
template <class Shape, int L2, int folds>
__global__ void __launch_bounds__(Shape::threads, (column_blocks<Shape, folds>))
    two_pass_columns_kernel(TwoPassTask task) {
  start_kernel();
  constexpr int R = Shape::R, L = Shape::L * L2, step = R * L2;
  const fft::ColumnTransform<Shape> transform(shared_memory<float2>());
  const int slot = static_cast<int>(blockIdx.y), pair = task.first_pair + slot / (2 * folds);
  if (pair >= task.all_pairs) return;
  // value s of this thread is token first_token + s step
  const int first_token = transform.t * L2 + static_cast<int>(blockIdx.x) * Shape::columns + transform.column;
  const float2* U = task.U + static_cast<std::ptrdiff_t>(slot) * folds * L + first_token;
  float2 u[folds * R];
  fft::unrolled<folds * R>([&](auto s) { u[s] = U[s * step]; });

  const int matrix = pair / task.pairs_of_z / task.group_of_B;
  const float* B =
      task.B + (static_cast<std::ptrdiff_t>(matrix) * task.r + task.first_feature) * folds * L + first_token;
  float2* Z = task.slab + static_cast<std::ptrdiff_t>(slot) * task.features * L + first_token;
  const int features = min(task.features, task.r - task.first_feature);
#pragma unroll 1
  for (int f = 0; f < features; ++f, B += folds * L, Z += L) {
    float2 v[R];
    fft::unrolled<folds * R>([&](auto s) {
      constexpr int i = decltype(s)::value % R;
      const float b = __ldg(B + s * step);
      if constexpr (R > decltype(s)::value)
        v[i] = b * u[s];
      else
        v[i] = make_float2(fmaf(b, u[s].x, v[i].x), fmaf(b, u[s].y, v[i].y));
    });
    transform.forward(v);
    fft::unrolled<R>([&](auto s) { Z[s * step] = v[s]; });
  }
}

/// Second pass: transforms the rows of the slab, multiplies them by the spectrum of the weights, and transforms them
/// back, in place. Pairs and residue classes are processed in reverse order, since the ones that were written last may
/// still be in the cache. blockIdx.x: row k1, blockIdx.y: pair and residue class.
template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 512 / Shape::threads) two_pass_rows_kernel(TwoPassTask task) {
  start_kernel();
  constexpr int P = Shape::P, L2 = Shape::L;
  const int thread = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.x);
  const int L1 = static_cast<int>(gridDim.x), slot = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const int q = slot % task.residues, pair = task.first_pair + slot / task.residues;
  if (pair >= task.all_pairs) return;
  const fft::BlockTransform<Shape> transform(shared_memory<float2>());
  const float2* roots = task.roots + static_cast<std::ptrdiff_t>(row) * L2;
  const float2* spectrum = task.spectrum + pair / task.pairs_of_z % task.heads * task.stride +
                           (static_cast<std::ptrdiff_t>(q) * L1 + row) * L2;
  float2* Z = task.slab + (static_cast<std::ptrdiff_t>(slot) * task.features * L1 + row) * L2;
  const int features = min(task.features, task.r - task.first_feature);
#pragma unroll 1
  for (int f = 0; f < features; ++f, Z += static_cast<std::ptrdiff_t>(L1) * L2) {
    float2 v[P];
    prevent_hoisting(roots);
    prevent_hoisting(spectrum);
    fft::unrolled<P>([&](auto i) {
      const int at = Shape::template index<1>(thread, i);
      v[i] = multiply(Z[at], __ldg(roots + at));
    });
    transform.forward(v);
    fft::unrolled<P>([&](auto i) { v[i] = multiply(v[i], __ldg(spectrum + i * Shape::threads + thread)); });
    transform.inverse(v);
    fft::unrolled<P>([&](auto i) {
      const int at = Shape::template index<1>(thread, i);
      Z[at] = multiply_conjugate(v[i], __ldg(roots + at));
    });
  }
}

template <class Shape, int folds>
constexpr std::size_t two_pass_inverse_bytes =
    sizeof(float2) * (fft::ColumnTransform<Shape>::shared + folds * Shape::R);

/// Last pass: Y += sum_f A_f v_f, where v_f are the inverse FFTs of the slab's columns, summed over residue classes.
/// After the last feature, writes N and D instead. blockIdx.x: tile of columns j2, blockIdx.y: pair.
template <class Shape, int L2, int folds>
__global__ void __launch_bounds__(Shape::threads, (column_blocks<Shape, folds>))
    two_pass_inverse_kernel(TwoPassTask task) {
  start_kernel();
  constexpr int R = Shape::R, L = Shape::L * L2, step = R * L2, values = folds * R;
  const fft::ColumnTransform<Shape> transform(shared_memory<float2>());
  float2* roots = shared_memory<float2>() + fft::ColumnTransform<Shape>::shared;  // (values)
  // exp(-pi i s step / N), by which the factor of value s of a thread differs from the factor of its value 0
  for (int s = static_cast<int>(threadIdx.x); s < values; s += Shape::threads) roots[s] = fft::root(s, 2 * values);
  __syncthreads();
  const int slot = static_cast<int>(blockIdx.y), pair = task.first_pair + slot, z = pair / task.pairs_of_z;
  if (pair >= task.all_pairs) return;
  const int first_token = transform.t * L2 + static_cast<int>(blockIdx.x) * Shape::columns + transform.column;
  const float2 root = fft::root(first_token, 2 * folds * L);
  const int matrix = z / task.group_of_A;
  const float* A =
      task.A + (static_cast<std::ptrdiff_t>(matrix) * task.r + task.first_feature) * folds * L + first_token;
  const int features = min(task.features, task.r - task.first_feature);
  float2 y[values];
  fft::unrolled<values>([&](auto s) { y[s] = make_float2(0, 0); });
#pragma unroll 1
  for (int q = 2 * folds - 1; q >= 0; --q) {
    const float2* Z = task.slab + (static_cast<std::ptrdiff_t>(slot) * 2 * folds + q) * task.features * L + first_token;
    const float* a = A;
#pragma unroll 1
    for (int f = 0; f < features; ++f, a += folds * L, Z += L) {
      float2 v[R];
      fft::unrolled<R>([&](auto s) { v[s] = Z[s * step]; });
      transform.inverse(v);
      fft::unrolled<values>([&](auto s) {
        constexpr int i = decltype(s)::value % R;
        const float weight = __ldg(a + s * step);
        y[s] = make_float2(fmaf(weight, v[i].x, y[s].x), fmaf(weight, v[i].y, y[s].y));
      });
    }
    if (q > 0)
      fft::unrolled<values>([&](auto s) { y[s] = multiply_conjugate(multiply_conjugate(y[s], roots[s]), root); });
  }

  const bool last = task.first_feature + features == task.r;
  const int column = 2 * (pair % task.pairs_of_z), p = task.p;
  float2* Y = task.Y + static_cast<std::ptrdiff_t>(slot) * folds * L + first_token;
  fft::unrolled<values>([&](auto s) {
    const int token = first_token + s * step;
    if (token >= task.n_q) return;
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * task.n_q + token;
    const float2 sum = task.first_feature > 0 ? Y[s * step] + y[s] : y[s];
    if (!last) Y[s * step] = sum;
    if (last && column < p) task.out[row * p + column] = sum.x;
    if (last && column + 1 < p) task.out[row * p + column + 1] = sum.y;
    if (last && column == p) task.sums[row] = sum.x;
    if (last && column + 1 == p) task.sums[row] = sum.y;
  });
}

/// Computes TwoPassTask::spectrum, the spectrum of the weights of each head divided by 2 N, by the same two passes.
struct TwoPassSpectrumTask {
  DeviceWeights c;
  int L2, residues;
  float2* roots;     // (L1,L2)
  float2* spectrum;  // [head, residue, L1, L2]
};

/// Computes TwoPassTask::roots. blockIdx.x and threadIdx.x: column j2, blockIdx.y: row k1.
template <int threads>
__global__ void __launch_bounds__(threads) two_pass_roots_kernel(TwoPassSpectrumTask task) {
  start_kernel();
  const int j2 = static_cast<int>(blockIdx.x * threads + threadIdx.x), k1 = static_cast<int>(blockIdx.y);
  if (j2 < task.L2) task.roots[k1 * task.L2 + j2] = fft::root(k1 * j2, static_cast<int>(gridDim.y) * task.L2);
}

/// First pass of the spectrum: transforms the columns of the folded weights. blockIdx.x: tile of columns j2,
/// blockIdx.y: residue class, blockIdx.z: head.
template <class Shape, int L2, int folds>
__global__ void __launch_bounds__(Shape::threads) two_pass_weights_kernel(TwoPassSpectrumTask task) {
  start_kernel();
  constexpr int R = Shape::R, L = Shape::L * L2, step = R * L2;
  const fft::ColumnTransform<Shape> transform(shared_memory<float2>());
  const int q = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.z);
  const int first_token = transform.t * L2 + static_cast<int>(blockIdx.x) * Shape::columns + transform.column;
  float2 v[R];
  fft::unrolled<R>([&](auto s) { v[s] = folded_weight<2 * folds, L>(task.c, head, q, first_token + s * step); });
  transform.forward(v);
  float2* Z = task.spectrum + (static_cast<std::ptrdiff_t>(head) * 2 * folds + q) * L + first_token;
  fft::unrolled<R>([&](auto s) { Z[s * step] = v[s]; });
}

/// Second pass of the spectrum: transforms the rows. blockIdx.x: row k1, blockIdx.y: residue class, blockIdx.z: head.
template <class Shape>
__global__ void __launch_bounds__(Shape::threads) two_pass_weight_rows_kernel(TwoPassSpectrumTask task) {
  start_kernel();
  const fft::BlockTransform<Shape> transform(shared_memory<float2>());
  const int thread = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.x);
  const std::ptrdiff_t slot = static_cast<std::ptrdiff_t>(blockIdx.z) * task.residues + blockIdx.y;
  float2* Z = task.spectrum + (slot * gridDim.x + row) * Shape::L;
  const float2* roots = task.roots + static_cast<std::ptrdiff_t>(row) * Shape::L;
  float2 v[Shape::P];
  fft::unrolled<Shape::P>([&](auto i) {
    const int at = Shape::template index<1>(thread, i);
    v[i] = multiply(Z[at], roots[at]);
  });
  transform.forward(v);
  fft::unrolled<Shape::P>([&](auto i) { Z[i * Shape::threads + thread] = v[i]; });
}

}  // namespace nprf::cuda
