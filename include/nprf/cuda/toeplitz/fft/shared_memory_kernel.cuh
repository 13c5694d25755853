// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "nprf/cuda/device/launch.cuh"
#include "nprf/cuda/device/value_columns.cuh"
#include "nprf/cuda/fft/block.cuh"
#include "nprf/cuda/position/toeplitz_weights.cuh"

namespace nprf::cuda {

/// exp(-pi i q j / N), for q j < 2^31.
__device__ __forceinline__ float2 residue_root(int q, int j, int N) {
  return fft::root(q * j % (2 * N), 2 * N);  // reduces the angle modulo 2 pi exactly, in integers
}

/// Computes u_q[j] = u[j] exp(-pi i q j / N) for all residue classes q and some pairs u of columns of U = [V 1]. Pairs
/// are numbered through all matrices z.
template <Storage S>
struct TwiddleTask {
  Columns<S> U;  // (n_k,p + 1)
  int N, residues;
  int pairs_of_z, all_pairs, first_pair, pairs;  // `pairs` pairs from first_pair on, of all_pairs
  float2* to;                                    // [pair / group, residue, pair % group, N]
  int group;                                     // how many pairs are contiguous for one residue class
};

/// A block has a tile of tokens and pairs, which it transposes in shared memory: in V the columns of a token are
/// contiguous, in the results the tokens of a pair.
struct TwiddleShape {
  static constexpr int tokens = 32, pairs = 16, threads = 256, stride = 2 * pairs + 1;
  static constexpr std::size_t shared = sizeof(float) * tokens * stride;
};

/// blockIdx.x: tile of pairs, blockIdx.y: tile of tokens.
template <Storage S>
__global__ void __launch_bounds__(TwiddleShape::threads) twiddle_kernel(TwiddleTask<S> task) {
  start_kernel();
  using Shape = TwiddleShape;
  float* tile = shared_memory<float>();  // (tokens, 2 pairs)
  const int thread = static_cast<int>(threadIdx.x), j0 = static_cast<int>(blockIdx.y) * Shape::tokens;
  const int slot0 = static_cast<int>(blockIdx.x) * Shape::pairs;
  const int pairs = min(Shape::pairs, min(task.pairs, task.all_pairs - task.first_pair) - slot0);
  const bool along_tokens = task.U.V.token_stride == 1;
  for (int e = thread; e < Shape::tokens * 2 * Shape::pairs; e += Shape::threads) {
    const int a = e % 32, b = e / 32, t = along_tokens ? a : b, column = along_tokens ? b : a;
    const int pair = task.first_pair + slot0 + column / 2;
    tile[t * Shape::stride + column] =
        column < 2 * pairs ? task.U.of(pair / task.pairs_of_z)(j0 + t, 2 * (pair % task.pairs_of_z) + column % 2)
                           : 0.0f;
  }
  __syncthreads();
  static_assert(Shape::tokens == 32 && 2 * Shape::pairs == 32);
  const int t = thread % 32, j = j0 + t;
  if (j >= task.N) return;
  for (int q = 0; q < task.residues; ++q) {
    const float2 root = residue_root(q, j, task.N);
    for (int k = thread / 32; k < pairs; k += Shape::threads / 32) {
      const int slot = slot0 + k;
      const float2 u = make_float2(tile[t * Shape::stride + 2 * k], tile[t * Shape::stride + 2 * k + 1]);
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(slot / task.group) * task.residues + q;
      task.to[(row * task.group + slot % task.group) * task.N + j] = multiply(u, root);
    }
  }
}

template <Storage S>
void queue_twiddles(const TwiddleTask<S>& task, cudaStream_t stream) {
  launch("FFT: twiddles", twiddle_kernel<S>,
         dim3{blocks_of<TwiddleShape::pairs>(task.pairs), blocks_of<TwiddleShape::tokens>(task.N), 1},
         dim3{TwiddleShape::threads, 1, 1}, TwiddleShape::shared, stream, task);
}

/// Computes Y = ((A B^T) o C) [V 1] by FFTs that stay in shared memory. C is part of a circulant matrix of length 2 N,
/// where N = folds * L. A block computes one residue class of its 2 N frequencies: those equal to q modulo 2 * folds.
/// It folds the input, and transforms L points:
///
///     z_l    = sum_f B_r[l + L f] u_q[l + L f]                      u_q[j] = u[j] exp(-pi i q j / N)
///     v      = inverse(spectrum_q forward(z)) / 2 N
///     Y_q[j] = sum_r A_r[j] v[j mod L]
///     y[j]   = sum_q Y_q[j] exp(+pi i q j / N)
///
/// where f counts the folds, r the features, and u is a pair: two columns of [V 1] as one complex column. Blocks
/// exchange no data. A block computes a pair, a residue class and a group of features; the groups are added up in
/// order. O(r (p + 1) N log N) time. No array of r p n numbers is stored in global memory.
struct SharedMemoryTask {
  const float *A, *B;                     // [z / group, r, N], zero from n_q and n_k on
  const float2* U;                        // [z, residue, pair, N]: u_q, zero from n_k on
  const float2* spectrum;                 // [head, residue, L], in the order of BlockTransform's output
  std::ptrdiff_t stride;                  // of the spectrum, from head to head; 0: all share one
  int heads, r, pairs, groups, features;  // features: of each group
  float2* Y;                              // [z, group of features, residue, pair, N]
  int group_of_A = 1, group_of_B = 1;     // how many consecutive z share A, and share B
};

/// Computes y from the sums Y of all groups and residue classes.
struct CollectTask {
  const float2* Y;  // as in SharedMemoryTask
  int N, residues, pairs, groups, n_q, p;
  float *out, *sums;  // [z, n_q, p] [z, n_q]
};

/// blockIdx.x and threadIdx.x: query, blockIdx.y: pair of columns, blockIdx.z: z.
template <int threads>
__global__ void __launch_bounds__(threads) collect_kernel(CollectTask task) {
  start_kernel();
  const int i = static_cast<int>(blockIdx.x * threads + threadIdx.x), pair = static_cast<int>(blockIdx.y);
  const int z = static_cast<int>(blockIdx.z);
  if (i >= task.n_q) return;
  float2 y = make_float2(0, 0);
  for (int q = 0; q < task.residues; ++q) {
    float2 part = make_float2(0, 0);
    for (int g = 0; g < task.groups; ++g) {
      const std::ptrdiff_t block = (static_cast<std::ptrdiff_t>(z) * task.groups + g) * task.residues + q;
      part = part + task.Y[(block * task.pairs + pair) * task.N + i];
    }
    y = y + multiply_conjugate(part, residue_root(q, i, task.N));
  }
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(z) * task.n_q + i;
  const auto put = [&](int column, float value) {
    if (column < task.p) task.out[row * task.p + column] = value;
    if (column == task.p) task.sums[row] = value;
  };
  put(2 * pair, y.x);
  put(2 * pair + 1, y.y);
}

/// Computes the spectrum / 2 N of folded weights, for each head and residue class.
struct SharedMemorySpectrumTask {
  DeviceWeights c;
  float2* spectrum;  // [head, residue, L]
};

// Entry k < L of the folded weights of residue class q: a sum over the entries k, k + L, .. of the circulant matrix's
// first column, which has classes * L entries. Not inlined, because inlining it at every use would dominate the compile
// time
template <int classes, int L>
[[gnu::noinline]] __device__ float2 folded_weight(const DeviceWeights& c, int head, int q, int k) {
  float2 sum = make_float2(0, 0);
  for (; k < classes * L; k += L)
    sum = sum +
          c.in_circulant(head, k, classes * L) / static_cast<float>(classes * L) * residue_root(q, k, classes * L / 2);
  return sum;
}

/// blockIdx.x: residue class, blockIdx.y: head.
template <class Shape, int folds>
__global__ void __launch_bounds__(Shape::threads) shared_memory_spectrum_kernel(SharedMemorySpectrumTask task) {
  start_kernel();
  using Transform = fft::BlockTransform<Shape>;
  const Transform transform(shared_memory<float2>());
  const int q = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
            thread = static_cast<int>(threadIdx.x);
  float2 v[Shape::P];
  fft::unrolled<Shape::P>(
      [&](auto i) { v[i] = folded_weight<2 * folds, Shape::L>(task.c, head, q, Shape::template index<1>(thread, i)); });
  transform.forward(v);
  float2* spectrum = task.spectrum + (static_cast<std::ptrdiff_t>(head) * 2 * folds + q) * Shape::L;
  fft::unrolled<Shape::P>([&](auto i) { spectrum[i * Shape::threads + thread] = v[i]; });
}

// Hides from the compiler that the loads from `pointer` do not depend on the feature. If it moves them out of the loop
// over features, the registers spill
template <class T>
__device__ __forceinline__ void prevent_hoisting(T*& pointer) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(pointer));
#else
  (void)pointer;
#endif
}

/// Where a block stores its columns u_q, and its sums over features.
enum class FftMemory { in_registers, in_shared_memory, in_global_memory };

template <class Shape, int folds, FftMemory columns, FftMemory sums>
constexpr std::size_t shared_memory_bytes() {
  const std::size_t held = (columns == FftMemory::in_shared_memory) + (sums == FftMemory::in_shared_memory);
  return sizeof(float2) * (fft::BlockTransform<Shape>::shared + held * folds * Shape::L);
}

/// Minimum number of blocks per multiprocessor. It limits a thread to 128 registers if it has few values, else to 255.
template <class Shape, int folds>
constexpr int shared_memory_blocks = (folds * Shape::P <= 16 ? 512 : 256) / Shape::threads;

/// The columns u_q and the sums Y_q over features of a block. A thread writes and reads the entries of its own indices
/// alone, so that no barrier is needed between its writes and its reads.
template <class Shape, int folds, FftMemory columns, FftMemory sums>
class FoldedColumns {
 public:
  static constexpr int P = Shape::P, L = Shape::L, N = folds * L;

  /// `kept` is shared memory: (folds,L) for the columns if they are kept there, then (folds,L) for the sums if they
  /// are.
  __device__ __forceinline__ FoldedColumns(const float2* U, float2* kept)
      : m_U(U), m_kept(kept), m_sum_shared(kept + (columns == FftMemory::in_shared_memory ? N : 0)) {
    for_each([&](auto f, auto i, int at) {
      if constexpr (columns == FftMemory::in_shared_memory) m_kept[at] = m_U[at];
      sum(f, i, at) = make_float2(0, 0);
    });
  }

  /// v_l = sum_f B_r[l + L f] u_q[l + L f]
  __device__ __forceinline__ void fold(const float* B, float2 (&v)[P]) {
    prevent_hoisting(m_U);
    for_each([&](auto f, auto i, int at) {
      const float b = __ldg(B + at);
      const float2 u = columns == FftMemory::in_shared_memory ? m_kept[at] : __ldg(m_U + at);
      if constexpr (decltype(f)::value == 0)
        v[i] = b * u;
      else
        v[i] = make_float2(fmaf(b, u.x, v[i].x), fmaf(b, u.y, v[i].y));
    });
  }

  /// Y_q[j] += A_r[j] v[j mod L]
  __device__ __forceinline__ void add_product(const float* A, const float2 (&v)[P]) {
    for_each([&](auto f, auto i, int at) {
      const float a = __ldg(A + at);
      float2& y = sum(f, i, at);
      y = make_float2(fmaf(a, v[i].x, y.x), fmaf(a, v[i].y, y.y));
    });
  }

  __device__ __forceinline__ void store_sums(float2* Y) {
    for_each([&](auto f, auto i, int at) { Y[at] = sum(f, i, at); });
  }

 private:
  // calls f(fold, i, index) for each index of this thread, where the index is that of value i of the fold
  template <class F>
  __device__ __forceinline__ static void for_each(F&& f) {
    const int thread = static_cast<int>(threadIdx.x);
    fft::unrolled<folds>([&](auto fold) {
      fft::unrolled<P>([&](auto i) { f(fold, i, fold * L + Shape::template index<1>(thread, i)); });
    });
  }
  template <class Fold, class I>
  __device__ __forceinline__ float2& sum(Fold fold, I i, int at) {
    if constexpr (sums == FftMemory::in_shared_memory)
      return m_sum_shared[at];
    else
      return m_sum[fold * P + i];
  }

  const float2* m_U;
  float2 *m_kept, *m_sum_shared;
  float2 m_sum[sums == FftMemory::in_registers ? folds * P : 1];
};

/// blockIdx.x: pair of columns, blockIdx.y: residue class and group of features, blockIdx.z: z.
template <class Shape, int folds, FftMemory columns, FftMemory sums>
__global__ void __launch_bounds__(Shape::threads, (shared_memory_blocks<Shape, folds>))
    shared_memory_kernel(SharedMemoryTask task) {
  start_kernel();
  constexpr int P = Shape::P, N = folds * Shape::L;
  using Transform = fft::BlockTransform<Shape>;
  const int thread = static_cast<int>(threadIdx.x), z = static_cast<int>(blockIdx.z),
            pair = static_cast<int>(blockIdx.x);
  const int q = static_cast<int>(blockIdx.y) % (2 * folds), group = static_cast<int>(blockIdx.y) / (2 * folds);
  const Transform transform(shared_memory<float2>());
  const float2* spectrum = task.spectrum + z % task.heads * task.stride + static_cast<std::ptrdiff_t>(q) * Shape::L;
  FoldedColumns<Shape, folds, columns, sums> signals(
      task.U + ((static_cast<std::ptrdiff_t>(z) * 2 * folds + q) * task.pairs + pair) * N,
      shared_memory<float2>() + Transform::shared);

  const int r = task.r, begin = group * task.features, end = min(r, begin + task.features);
  const float* A = task.A + (static_cast<std::ptrdiff_t>(z / task.group_of_A) * r + begin) * N;
  const float* B = task.B + (static_cast<std::ptrdiff_t>(z / task.group_of_B) * r + begin) * N;
#pragma unroll 1
  for (int feature = begin; feature < end; ++feature, A += N, B += N) {
    float2 v[P];
    prevent_hoisting(spectrum);
    signals.fold(B, v);
    transform.forward(v);
    fft::unrolled<P>([&](auto i) { v[i] = multiply(v[i], __ldg(spectrum + i * Shape::threads + thread)); });
    transform.inverse(v);
    signals.add_product(A, v);
  }
  signals.store_sums(
      task.Y + (((static_cast<std::ptrdiff_t>(z) * task.groups + group) * 2 * folds + q) * task.pairs + pair) * N);
}

}  // namespace nprf::cuda
