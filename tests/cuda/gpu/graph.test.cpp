// SPDX-License-Identifier: MIT
#include "cuda/decode_case.hpp"
#include "cuda/device_case.hpp"
#include "cuda/plan_case.hpp"
#include "nprf/cuda.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/catch.hpp"
#include "support/error.hpp"
#include "support/random.hpp"

/// Calls that are captured in a CUDA graph, which the stand-in does not support.
namespace nprf::test::cuda_device_graph {

namespace {

/// A graph of the work that `queue` queues. It can be launched repeatedly.
class Graph {
 public:
  template <class Queue>
  Graph(const Stream& stream, Queue&& queue) {
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capturing");
    queue();
    cuda::check(cudaStreamEndCapture(stream, &m_graph), "capturing");
    cuda::check(cudaGraphInstantiate(&m_executable, m_graph, 0), "instantiating a graph");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    cudaGraphExecDestroy(m_executable);
    cudaGraphDestroy(m_graph);
  }

  void launch(const Stream& stream) const { cuda::check(cudaGraphLaunch(m_executable, stream), "launching a graph"); }

 private:
  cudaGraph_t m_graph = nullptr;
  cudaGraphExec_t m_executable = nullptr;
};

}  // namespace

TEST_CASE("a call captured in a graph computes the same as a direct call, also for new inputs", "[cuda]") {
  const Attention attention(orf<float>(16, 32, 7), RelativePosition<float>(normal_vector<float>(41, 5)));
  const Stream stream;
  for (const cuda::Engine engine : cuda_engines)
    for (const bool stream_ordered : {false, true}) {
      PlanCase x{{.n_q = 300, .n_k = 300, .d_v = 64}, {.engine = engine, .stream_ordered = stream_ordered}, 16};
      const auto plan = x.plan(attention);
      const DeviceCase<float> on_device(x);
      const Graph graph(stream, [&] { on_device.queue(*plan, stream); });
      INFO(name(engine) << (stream_ordered ? ", with a workspace of the graph" : ""));
      CHECK(on_device.y(stream).array().isNaN().all());  // captured, but not run yet
      for (int repeat = 0; repeat < 3; ++repeat) {
        graph.launch(stream);
        CHECK(same_bits(on_device.y(stream), x.result(*plan)));
        x.q = normal<float>(300, 16, 40 + static_cast<std::uint64_t>(repeat));
        on_device.set_q(x.q, stream);
      }
    }
}

TEST_CASE("a captured step of a decoder computes the next row each time it is launched", "[cuda]") {
  constexpr Index d = 16, d_v = 64, n = 60;
  const DecodeModel model(std::vector{orf<float>(d, 32, 7)},
                          {{"table", RelativePosition<float>(random_table<float>(20, 5))}}, 1,
                          {.near = 12, .sinks = 4});
  const TokenBatch<float> x(1, 1, 1, n, d, d_v, 7);
  const DecodeCase on_device(x);
  cuda::DecodePlan<float> direct(model.model, on_device.shape()), plan(model.model, on_device.shape());
  on_device.step(direct, 0, n);
  const Matrix<float> expected = on_device.y();
  const DeviceArray<float> q(std::size_t{d}), k(std::size_t{d}), v(std::size_t{d_v}), y(std::size_t{d_v});
  const Stream stream;
  const Graph graph(stream, [&] {
    plan.step({q.data(), 1, d}, {k.data(), 1, d}, {v.data(), 1, d_v}, {y.data(), 1, d_v}, stream);
  });
  const auto set = [&](const DeviceArray<float>& to, const Matrix<float>& from, Index t) {
    cuda::check(cudaMemcpyAsync(to.data(), from.row(t).data(), static_cast<std::size_t>(from.cols()) * sizeof(float),
                                cudaMemcpyHostToDevice, stream),
                "sending");
  };
  for (Index t = 0; t < n; ++t) {
    set(q, x.q.values, t), set(k, x.k.values, t), set(v, x.v.values, t);
    graph.launch(stream);
    stream.wait();
    CHECK(same_bits<float>(as_floats(y.fetch(), 1, d_v), expected.row(t)));
  }
}

TEST_CASE("a captured rollback and a captured reordering read the arrays at each launch", "[cuda]") {
  constexpr Index d = 16, d_v = 64, n = 40, batch = 3;
  const TokenBatch<float> x(batch, 2, 2, n, d, d_v, 7);
  const DecodeModel model(std::vector{orf<float>(d, 32, 7)},
                          {{"table", RelativePosition<float>(random_table<float>(20, 5))}}, batch, {.near = 3});
  const DecodeCase on_device(x);
  cuda::DecodePlan<float> direct(model.model, on_device.shape(0, 4)), plan(model.model, on_device.shape(0, 4));
  const DeviceArray<int> counts(std::size_t{batch}), from(std::size_t{batch});
  const Stream stream;
  const Graph graph(stream, [&] {
    plan.rollback(counts.data(), stream);
    plan.reorder(from.data(), stream);
  });
  const std::vector<std::vector<int>> all_counts{{0, 0, 0}, {1, 0, 4}, {0, 2, 1}},
      all_from{{0, 1, 2}, {2, 2, 0}, {1, 1, 1}};
  for (std::size_t k = 0; k < all_counts.size(); ++k) {
    const DeviceArray<int> new_counts(all_counts[k]), new_from(all_from[k]);
    for (const auto& [to, values] : {std::pair{&counts, &new_counts}, {&from, &new_from}})
      cuda::check(cudaMemcpyAsync(to->data(), values->data(), batch * sizeof(int), cudaMemcpyDeviceToDevice, stream),
                  "sending");
    on_device.step(direct, static_cast<Index>(10 * k), 10);
    direct.rollback(new_counts.data(), nullptr);
    direct.reorder(new_from.data(), nullptr);
    on_device.step(direct, 35, 5);
    const Matrix<float> expected = on_device.y();
    on_device.step(plan, static_cast<Index>(10 * k), 10);
    cuda::check(cudaStreamSynchronize(nullptr), "steps");
    graph.launch(stream);
    cuda::check(cudaStreamSynchronize(stream), "a graph");
    on_device.step(plan, 35, 5);
    CHECK(same_bits<float>(on_device.y(), expected));
  }
}

}  // namespace nprf::test::cuda_device_graph
