// SPDX-License-Identifier: MIT
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
  for (const cuda::Engine engine : cuda_engines) {
    PlanCase x{{.n_q = 300, .n_k = 300, .d_v = 64}, {.engine = engine}, 16};
    const auto plan = x.plan(attention);
    const DeviceCase<float> on_device(x);
    const Graph graph(stream, [&] { on_device.queue(*plan, stream); });
    INFO(name(engine));
    CHECK(on_device.y(stream).array().isNaN().all());  // captured, but not run yet
    for (int repeat = 0; repeat < 3; ++repeat) {
      graph.launch(stream);
      CHECK(same_bits(on_device.y(stream), x.result(*plan)));
      x.q = normal<float>(300, 16, 40 + static_cast<std::uint64_t>(repeat));
      on_device.set_q(x.q, stream);
    }
  }
}

}  // namespace nprf::test::cuda_device_graph
