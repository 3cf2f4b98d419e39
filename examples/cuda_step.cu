// The step of trainer_step.cpp on a GPU: rewards to advantages, counts over two micro-batches, loss, gradient by the logits
// written over them, optimiser. Everything is enqueued on one stream and nothing waits, so that the whole step is captured into a
// CUDA graph, of which the second step is a replay. Prints what trainer_step prints. 77: there is no GPU.
#include <algorithm>
#include <cstdio>
#include <gdpo/cuda.hpp>
#include <gdpo/presets/textbook.hpp>
#include <initializer_list>

using gdpo::cuda::check;

constexpr int completions = 4, width = 3, vocabulary = 3;
constexpr int of_micro_batch = completions / 2, numbers = completions * width * vocabulary;

/// An array on the device.
template <class T>
class Array {
 public:
  explicit Array(std::size_t n) { check("cudaMalloc", cudaMalloc(&data_, n * sizeof(T))); }
  Array(std::initializer_list<T> values) : Array(values.size()) {
    check("cudaMemcpy",
          cudaMemcpy(data_, values.begin(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
};

/// What the loss is divided by belongs to the whole step. On several ranks an all-reduce of the sum would follow.
__global__ void sum_counts(gdpo::Normaliser* of_micro_batches) {
  of_micro_batches[0] += of_micro_batches[1];
}

__global__ void descend(float* parameters, const float* gradient) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < numbers) parameters[i] -= 0.5f * gradient[i];
}

static int run() {
  const Array<double> rewards{0.9, 0.3, -0.1, 0.7};
  const Array<float> parameters{
      1.1f,  -0.2f, 0.3f, -0.4f, 0.8f,  1.6f, 0.1f, 1.4f, 0.2f,  // three tokens, the others two
      -0.2f, 1.1f,  0.4f, 0.9f,  -0.3f, 0.1f, 0,    0,    0,     //
      0.1f,  0.2f,  1.3f, -0.1f, 0.4f,  1.5f, 0,    0,    0,     //
      1.2f,  -0.4f, 0.1f, -0.3f, 1.5f,  0.2f, 0,    0,    0};
  const Array<int> actions{0, 2, 1, 1, 0, 0, 2, 2, 0, 0, 1, 0};
  const Array<float> old_logp{-0.5f,  -0.61f, -0.92f, -1.2f,  -0.41f, 0,
                              -0.81f, -0.69f, 0,      -0.51f, -1.1f,  0};
  const Array<float> ref_logp{-0.6f,  -0.71f, -0.82f, -1.1f,  -0.51f, 0,
                              -0.91f, -0.79f, 0,      -0.41f, -1,     0};
  const Array<bool> mask{true, true, true, true, true, false, true, true, false, true, true, false};
  const Array<float> logits(numbers);
  const Array<double> advantages(completions);
  const Array<gdpo::Normaliser> counts(2);      // of the micro-batches; then the first is their sum
  const Array<gdpo::LossResult> results(2);     // of the micro-batches
  gdpo::LossResult* results_on_host = nullptr;  // pinned, so that the copy does not wait
  check("cudaMallocHost", cudaMallocHost(&results_on_host, 2 * sizeof(gdpo::LossResult)));

  // Rewards: one group. Textbook GRPO in NumPy takes the population std, + 1e-8.
  const auto estimator = gdpo::textbook::grpo_numpy;
  const gdpo::RewardBatch group{gdpo::view(rewards.data(), completions, 1),
                                gdpo::groups_of(completions)};
  const auto loss =
      gdpo::grpo_loss;  // clip 0.2, beta 0.04, the mean over completions of their token means
  struct MicroBatch {
    gdpo::LogitBatch<float, 3> logits;
    gdpo::View<float, 3> dlogits;  // over the logits
    gdpo::TokenBatch<float> tokens;
  } micro_batches[2];
  for (int m = 0; m < 2; ++m) {
    const int first = m * of_micro_batch;
    const auto rows = [first](const auto& all) {
      return gdpo::view(all.data() + first * width, of_micro_batch, width);
    };
    auto& [batch, dlogits, tokens] = micro_batches[m];
    dlogits =
        gdpo::view(logits.data() + first * width * vocabulary, of_micro_batch, width, vocabulary);
    batch.logits = dlogits;
    batch.targets = rows(actions);
    batch.mask = rows(mask);
    tokens.old_logp = rows(old_logp);
    tokens.ref_logp = rows(ref_logp);
    tokens.advantages = gdpo::view(advantages.data() + first, of_micro_batch);
  }

  // Memory for one call at a time, which calls on one stream are.
  const std::size_t bytes =
      (std::max)(gdpo::cuda::scratch_bytes(estimator, group),
                 gdpo::cuda::scratch_bytes(micro_batches[0].logits, micro_batches[0].tokens));
  const Array<unsigned char> memory(bytes);
  const gdpo::cuda::Scratch scratch{memory.data(), bytes};
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const gdpo::cuda::On on{stream};
  check("arrays", cudaDeviceSynchronize());  // their copies are not of this stream

  const auto enqueue_step = [&] {
    gdpo::advantages_into(on, group, estimator, gdpo::view(advantages.data(), completions),
                          scratch);
    for (int m = 0; m < 2; ++m) {
      const auto& [batch, dlogits, tokens] = micro_batches[m];
      gdpo::cuda::count_into(on, batch, tokens, counts.data() + m, scratch);
    }
    sum_counts<<<1, 1, 0, stream>>>(counts.data());
    // The forward pass of a model that is a table of logits.
    check("forward", cudaMemcpyAsync(logits.data(), parameters.data(), numbers * sizeof(float),
                                     cudaMemcpyDeviceToDevice, stream));
    for (int m = 0; m < 2; ++m) {
      const auto& [batch, dlogits, tokens] = micro_batches[m];
      gdpo::policy_loss_from_logits(on, loss, batch, tokens, counts.data(), dlogits,
                                    results.data() + m, scratch);
    }
    descend<<<1, 64, 0, stream>>>(parameters.data(), logits.data());
    check("step", cudaGetLastError());
    check("results", cudaMemcpyAsync(results_on_host, results.data(), 2 * sizeof(gdpo::LossResult),
                                     cudaMemcpyDeviceToHost, stream));
  };
  const auto print = [&](const char* when) {
    check("step", cudaStreamSynchronize(stream));
    const gdpo::LossMetrics metrics =
        gdpo::merge(results_on_host[0].metrics, results_on_host[1].metrics);
    std::printf("%-6s loss %7.4f  kl %.4f  clipped %.3f  ratio %.3f..%.3f\n", when,
                results_on_host[0].loss + results_on_host[1].loss, metrics.kl.mean(),
                metrics.clip_fraction.mean(), metrics.ratio.min, metrics.ratio.max);
  };

  enqueue_step();  // which loads the kernels as well: drivers before 12.3 cannot while a graph is captured
  print("before");

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  check("capture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue_step();
  check("capture", cudaStreamEndCapture(stream, &graph));
  check("capture", cudaGraphInstantiate(&step, graph, 0));
  check("step", cudaGraphLaunch(step, stream));
  print("after");

  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  cudaFreeHost(results_on_host);
  return 0;
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device: nothing is run");
    return 77;
  }
  try {
    return run();
  } catch (const std::exception& e) {  // gdpo::cuda::error, gdpo::invalid_input
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
