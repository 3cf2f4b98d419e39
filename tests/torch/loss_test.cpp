// Losses of tensors: value, gradient and metrics are the library's own, bit for bit, and autograd
// treats them as it treats any function.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <gdpo/prepass.hpp>
#include <gdpo/with/torch/loss.hpp>
#include <gdpo/with/torch/threads.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "torch/exact.hpp"

namespace {

using gdpo::index_t;

constexpr int prompts = 2, completions = 3, rows = prompts * completions, width = 37;
enum class Layout { Padded, Three, Packed };

/// A batch of random tokens with every array, in one layout, its numbers of `dtype`.
gdpo::TorchBatch random_batch(Layout layout, at::ScalarType dtype, std::uint64_t seed) {
  Random random(seed);
  const std::vector<std::int64_t> lengths{5, 37, 0, 12, 1, 30};
  const std::int64_t packed = 85;
  std::vector<std::int64_t> shape{rows, width};
  if (layout == Layout::Three) shape = {prompts, completions, width};
  if (layout == Layout::Packed) shape = {packed};
  const auto of = [&](auto f, at::ScalarType type) {
    const at::Tensor t = at::empty(shape, at::kDouble);
    for (std::int64_t i = 0; i < t.numel(); ++i) static_cast<double*>(t.data_ptr())[i] = f();
    return t.to(type);
  };
  const auto logp = [&] { return of([&] { return -2 * random.uniform(); }, dtype); };
  gdpo::TorchBatch b;
  b.old_logp = logp();
  b.logp = (b.old_logp + of([&] { return random.uniform() - 0.5; }, dtype)).to(dtype);
  b.ref_logp = logp(), b.rollout_logp = logp(), b.teacher_logp = logp();
  b.weights = of([&] { return 2 * random.uniform(); }, dtype);
  b.kl_weights = of([&] { return 2 * random.uniform(); }, dtype);
  b.tags = of([&] { return random.uniform(); }, dtype);
  b.entropies = of([&] { return random.uniform(); }, dtype);
  b.mask = of([&] { return random.chance(0.8); }, at::kBool);
  b.completion_mask = of([&] { return random.chance(0.9); }, at::kByte);
  b.segments = at::arange(b.logp.numel(), at::kInt).div(4, "floor").view(shape);
  b.advantages = at::empty({rows}, at::kDouble), b.row_weights = at::empty({rows}, at::kFloat);
  for (int i = 0; i < rows; ++i) {
    b.advantages[i] = 4 * random.uniform() - 2;
    b.row_weights[i] = random.uniform();
  }
  b.truncated = at::tensor({0, 1, 0, 1, 0, 0}, at::kLong);
  if (layout == Layout::Three) b.advantages = b.advantages.view({prompts, completions});
  if (layout == Layout::Packed) {
    std::vector<std::int64_t> offsets{0};
    for (const std::int64_t n : lengths) offsets.push_back(offsets.back() + n);
    b.offsets = at::tensor(offsets, at::kLong);
  }
  return b;
}

template <class T>
struct Of {
  using type = T;
};
template <class F>
void with_type(at::ScalarType dtype, const F& f) {
  if (dtype == at::kFloat) f(Of<float>{});
  if (dtype == at::kDouble) f(Of<double>{});
  if (dtype == at::kHalf) f(Of<gdpo::Float16>{});
  if (dtype == at::kBFloat16) f(Of<gdpo::BFloat16>{});
}

/// A view of the memory of a contiguous tensor, made without the adapter.
template <class T, class Assign>
void bind(const at::Tensor& t, const Assign& assign) {
  REQUIRE(t.is_contiguous());
  T* data = static_cast<T*>(t.data_ptr());
  if (t.dim() == 1) assign(gdpo::view(data, t.size(0)));
  if (t.dim() == 2) assign(gdpo::view(data, t.size(0), t.size(1)));
  if (t.dim() == 3) assign(gdpo::view(data, t.size(0), t.size(1), t.size(2)));
}

/// The result of the library's own call, and its gradient.
struct Own {
  gdpo::LossResult result;
  at::Tensor gradient;
};
template <class S, class T, class Loss>
Own own(const Loss& loss, const gdpo::TorchBatch& b) {
  gdpo::TokenBatch<S> batch;
#define GDPO_X(name) bind<const T>(b.name, [&](auto v) { batch.name = v; });
  GDPO_X(logp)
  GDPO_X(old_logp)
  GDPO_X(ref_logp)
  GDPO_X(rollout_logp)
  GDPO_X(teacher_logp)
  GDPO_X(weights)
  GDPO_X(kl_weights)
  GDPO_X(tags)
  GDPO_X(entropies)
#undef GDPO_X
  if (b.level_log_weights.defined())  // of losses at levels of segments alone
    bind<const T>(b.level_log_weights, [&](auto v) { batch.level_log_weights = v; });
  bind<const bool>(b.mask, [&](auto v) { batch.mask = v; });
  bind<const unsigned char>(b.completion_mask, [&](auto v) { batch.completion_mask = v; });
  bind<const std::int32_t>(b.segments, [&](auto v) { batch.segments = v; });
  batch.advantages = gdpo::view(static_cast<const double*>(b.advantages.data_ptr()), rows);
  batch.row_weights = gdpo::view(static_cast<const float*>(b.row_weights.data_ptr()), rows);
  batch.truncated = gdpo::view(static_cast<const std::int64_t*>(b.truncated.data_ptr()), rows);
  if (b.offsets.defined())
    batch.offsets = gdpo::view(static_cast<const std::int64_t*>(b.offsets.data_ptr()), rows + 1);
  Own r;
  r.gradient = at::empty(b.logp.sizes(), std::is_same_v<S, double> ? at::kDouble : at::kFloat);
  gdpo::TokenOut<S> out;
  bind<S>(r.gradient, [&](auto v) { out = v; });
  r.result = loss(batch, gdpo::count(batch), out);
  return r;
}
template <class Loss>
Own own(const Loss& loss, const gdpo::TorchBatch& b) {
  Own r;
  with_type(b.logp.scalar_type(), [&](auto of) {
    using T = typename decltype(of)::type;
    r = own<std::conditional_t<std::is_same_v<T, double>, double, float>, T>(loss, b);
  });
  return r;
}

template <class F>
void for_each_loss(const F& f) {
  auto grpo = gdpo::grpo_loss;
  grpo.kl.beta = 0.1;
  f("grpo", grpo);
  f("dapo", gdpo::dapo_loss);
  f("gspo", gdpo::gspo_loss);
  f("gspo_token", gdpo::gspo_token_loss);
}
constexpr at::ScalarType floats[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

gdpo::TorchBatch leaf_batch(std::uint64_t seed = 3) {
  gdpo::TorchBatch b = random_batch(Layout::Padded, at::kFloat, seed);
  b.logp.requires_grad_();
  return b;
}

}  // namespace

TEST_CASE("a loss of tensors is the library's, and so is what backward gives", "[torch]") {
  for (const Layout layout : {Layout::Padded, Layout::Three, Layout::Packed}) {
    for (const at::ScalarType dtype : floats) {
      const std::uint64_t seed = 100 * static_cast<std::uint64_t>(layout) + 7;
      gdpo::TorchBatch b = random_batch(layout, dtype, seed);
      b.logp.requires_grad_();
      const at::Tensor logs = ((b.old_logp - b.rollout_logp) * 0.1).to(dtype);
      for_each_loss([&](const char* name, const auto& loss) {
        INFO(name << ", layout " << static_cast<int>(layout) << ", " << c10::toString(dtype));
        b.level_log_weights = std::decay_t<decltype(loss.level)>::of_segment ? logs : at::Tensor();
        const Own expected = own(loss, b);
        const gdpo::Normalizer counts = gdpo::count(b);
        CHECK(counts.tokens == expected.result.normalizer.tokens);
        const gdpo::TorchLoss r = gdpo::torch_loss(loss, b, counts);
        CHECK(numbers_of(r.result) == numbers_of(expected.result));
        CHECK(r.loss.dim() == 0);
        CHECK(r.loss.scalar_type() == (dtype == at::kDouble ? at::kDouble : at::kFloat));
        CHECK(same_bits(r.loss.detach(),
                        at::scalar_tensor(expected.result.loss, r.loss.scalar_type())));
        b.logp.mutable_grad() = at::Tensor();
        r.loss.backward();
        CHECK(b.logp.grad().scalar_type() == dtype);
        CHECK(same_bits(b.logp.grad(), expected.gradient.to(dtype)));
        CHECK(expected.gradient.count_nonzero().item<long>() > 20);

        // Threads and the reference execution give the same.
        for (const bool threads : {false, true}) {
          const gdpo::TorchLoss other =
              threads ? gdpo::torch_loss(gdpo::parallel(gdpo::TorchThreads{}), loss, b, counts)
                      : gdpo::torch_loss(gdpo::seq, loss, b, counts);
          b.logp.mutable_grad() = at::Tensor();
          other.loss.backward();
          CHECK(same_bits(b.logp.grad(), expected.gradient.to(dtype)));
        }
        // A factor beyond the range of half: the product is of float.
        for (const double factor : {-3.0, 0.0, 65536.0 * 4}) {
          b.logp.mutable_grad() = at::Tensor();
          (gdpo::torch_loss(loss, b, counts).loss * factor).backward();
          CHECK(same_bits(b.logp.grad(), (expected.gradient * factor).to(dtype)));
        }
      });
    }
  }
}

TEST_CASE("tensors are read where they stand", "[torch]") {
  for (const Layout layout : {Layout::Padded, Layout::Three, Layout::Packed}) {
    for (const at::ScalarType dtype : floats) {
      const gdpo::TorchBatch b = random_batch(layout, dtype, 5);
      const auto check = [&](const auto& batch) {
      // mask and completion_mask are read by bytes, the others by their own types.
#define GDPO_X(name, ...) \
  CHECK(batch.name.data() == (b.name.defined() ? b.name.data_ptr() : nullptr));
        GDPO_TOKEN_ARRAYS(GDPO_X)
        GDPO_TOKEN_MARKS(GDPO_X)
        GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
        CHECK(batch.offsets.data() == (b.offsets.defined() ? b.offsets.data_ptr() : nullptr));
        const bool direct =
            dtype ==
            (std::is_same_v<decltype(batch), const gdpo::TokenBatch<float>&> ? at::kFloat
                                                                             : at::kDouble);
        CHECK(batch.logp.in_place() == direct);
        CHECK(batch.mask.in_place());
        CHECK(batch.logp.rank() == b.logp.dim());
        CHECK(batch.advantages.size() == rows);
      };
      if (dtype != at::kDouble) check(gdpo::token_batch(b));
      check(gdpo::token_batch<double>(b));
    }
  }
  const gdpo::TorchBatch none;
  CHECK_FALSE(gdpo::token_batch(none).logp);
  CHECK_FALSE(gdpo::token_batch(none).offsets);
}

TEST_CASE("strides of the tensors change no bit", "[torch]") {
  const gdpo::TorchBatch dense = random_batch(Layout::Padded, at::kFloat, 17);
  gdpo::TorchBatch strided = dense;
  for (at::Tensor* t : {&strided.logp, &strided.old_logp, &strided.mask, &strided.segments}) {
    *t = at::empty({width, rows}, t->options()).copy_(t->t()).t();
    REQUIRE_FALSE(t->is_contiguous());
  }
  strided.ref_logp = at::stack({dense.ref_logp, dense.ref_logp}, 2).select(2, 1);
  strided.advantages = at::stack({dense.advantages, dense.advantages}, 1).select(1, 0);
  strided.logp.requires_grad_();
  for_each_loss([&](const char* name, const auto& loss) {
    INFO(name);
    const Own expected = own(loss, dense);
    const gdpo::TorchLoss r = gdpo::torch_loss(loss, strided, gdpo::count(strided));
    CHECK(numbers_of(r.result) == numbers_of(expected.result));
    strided.logp.mutable_grad() = at::Tensor();
    r.loss.backward();
    CHECK(same_bits(strided.logp.grad(), expected.gradient));
  });

  // Elements that repeat are read as such.
  gdpo::TorchBatch one = dense, repeated = dense;
  one.old_logp = at::full({rows, width}, -1.25),
  repeated.old_logp = at::full({}, -1.25).expand({rows, width});
  CHECK(numbers_of(gdpo::torch_loss(gdpo::dapo_loss, one, gdpo::count(one)).result) ==
        numbers_of(gdpo::torch_loss(gdpo::dapo_loss, repeated, gdpo::count(repeated)).result));
}

TEST_CASE("a loss of tensors in a graph of autograd", "[torch]") {
  gdpo::TorchBatch b = leaf_batch();
  const gdpo::Normalizer counts = gdpo::count(b);
  const auto loss = gdpo::dapo_loss;
  const at::Tensor gradient = own(loss, b).gradient, leaf = b.logp;

  SECTION("the chain rule goes on") {
    const at::Tensor x = leaf.detach().clone().requires_grad_();
    b.logp = at::log_softmax(x, 1);
    gdpo::torch_loss(loss, b, counts).loss.backward();
    const at::Tensor own_gradient = own(loss, b).gradient, y = x.detach().clone().requires_grad_();
    at::log_softmax(y, 1).backward(own_gradient);
    CHECK(same_bits(x.grad(), y.grad()));
  }
  SECTION("gradients add up") {
    (gdpo::torch_loss(loss, b, counts).loss + gdpo::torch_loss(loss, b, counts).loss).backward();
    CHECK(same_bits(leaf.grad(), gradient + gradient));
    gdpo::torch_loss(loss, b, counts).loss.backward();
    CHECK(same_bits(leaf.grad(), gradient + gradient + gradient));
  }
  SECTION("backward can be repeated") {
    const at::Tensor value = gdpo::torch_loss(loss, b, counts).loss;
    for (int i = 0; i < 2; ++i) {
      leaf.mutable_grad() = at::Tensor();
      value.backward({}, true);
      CHECK(same_bits(leaf.grad(), gradient));
      leaf.mutable_grad().zero_();  // what the caller does to its gradient does not reach the graph
    }
  }
  SECTION("other tensors get no gradient") {
    b.old_logp.requires_grad_(), b.ref_logp.requires_grad_(), b.advantages.requires_grad_();
    gdpo::torch_loss(loss, b, counts).loss.backward();
    CHECK(same_bits(leaf.grad(), gradient));
    CHECK_FALSE(b.old_logp.grad().defined());
    CHECK_FALSE(b.ref_logp.grad().defined());
    CHECK_FALSE(b.advantages.grad().defined());
    b.logp = leaf.detach();
    CHECK_FALSE(gdpo::torch_loss(loss, b, counts).loss.requires_grad());
  }
  SECTION("no gradient is computed where none is wanted") {
    const std::string expected = numbers_of(own(loss, b).result);
    {
      const at::NoGradGuard guard;
      const gdpo::TorchLoss r = gdpo::torch_loss(loss, b, counts);
      CHECK_FALSE(r.loss.requires_grad());
      CHECK_FALSE(r.loss.grad_fn());
      CHECK(numbers_of(r.result) == expected);
    }
    CHECK(gdpo::torch_loss(loss, b, counts).loss.grad_fn());
    b.logp = leaf.detach();
    const gdpo::TorchLoss r = gdpo::torch_loss(loss, b, counts);
    CHECK_FALSE(r.loss.grad_fn());
    CHECK(same_bits(r.loss, at::scalar_tensor(r.result.loss, at::kFloat)));
  }
  SECTION("there is no second derivative") {
    const at::Tensor value = gdpo::torch_loss(loss, b, counts).loss;
    CHECK(message_of([&] {
            torch::autograd::grad({value}, {leaf}, {}, /*retain_graph=*/true,
                                  /*create_graph=*/true);
          }) ==
          "gdpo::torch_loss: create_graph: given true; needed: false, because the loss has a first "
          "derivative only");
    CHECK_FALSE(leaf.grad().defined());
    value.backward();
    CHECK(same_bits(leaf.grad(), gradient));
  }
}

TEST_CASE("a prepared batch and a workspace", "[torch]") {
  const gdpo::TorchBatch b = leaf_batch();
  gdpo::PrepassMemory<float> memory;
  const auto prepared = gdpo::prepare(gdpo::token_batch(b), memory,
                                      gdpo::prepass::Overlong{gdpo::torch_column(b.truncated)});
  const gdpo::Normalizer counts = gdpo::count(prepared);
  REQUIRE(counts.tokens < gdpo::count(b).tokens);
  const at::Tensor expected = at::empty({rows, width});
  const gdpo::LossResult own_result =
      gdpo::dapo_loss(prepared, counts, gdpo::view<float, 2>(expected));
  gdpo::LossWorkspace<float> workspace;
  for (int step = 0; step < 2; ++step) {
    b.logp.mutable_grad() = at::Tensor();
    // The log-probs are those of the tensor.
    auto batch = prepared;
    batch.logp = batch.old_logp;
    const gdpo::TorchLoss r =
        gdpo::torch_loss(gdpo::simd, gdpo::dapo_loss, b.logp, batch, counts, workspace);
    r.loss.backward();
    CHECK(numbers_of(r.result) == numbers_of(own_result));
    CHECK(same_bits(b.logp.grad(), expected));
  }

  const auto message = [&](const at::Tensor& logp) {
    return message_of(
        [&] { gdpo::torch_loss(gdpo::simd, gdpo::dapo_loss, logp, prepared, counts, workspace); });
  };
  CHECK(message(b.logp.detach().to(at::kDouble)) ==
        "gdpo::torch_loss: logp: given float64; needed: one of float32, bfloat16, float16, int64, "
        "int32, int16, int8, uint8 or bool");
  CHECK(message(at::Tensor()).find("gdpo::PolicyLoss: batch.logp: given no array") == 0);
}

TEST_CASE("counts of tensors", "[torch]") {
  gdpo::TorchBatch b;
  b.mask = at::tensor({1, 0, 1, 1, 0, 0}, at::kInt).view({3, 2});
  CHECK(gdpo::count(b).tokens == 3);
  CHECK(gdpo::count(b).non_empty_rows == 2);
  gdpo::TorchBatch packed;
  packed.offsets = at::tensor({0, 4, 9}, at::kInt);
  CHECK(gdpo::count(packed).tokens == 9);
  packed.offsets = at::tensor({0, 1, 4, 1, 9}, at::kLong).slice(0, 0, 5, 2);
  CHECK(gdpo::count(packed).tokens == 9);
  CHECK(gdpo::count(packed).rows == 2);
  gdpo::TorchBatch of_double;
  of_double.logp = at::zeros({2, 4}, at::kDouble);
  CHECK(gdpo::count(of_double).tokens == 8);
}

TEST_CASE("a batch without rows or tokens", "[torch]") {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{0, 4}, {3, 0}, {0, 0}}) {
    gdpo::TorchBatch b;
    b.logp = at::empty(shape).requires_grad_();
    b.advantages = at::ones({shape[0]});
    const gdpo::TorchLoss r = gdpo::torch_loss(gdpo::dapo_loss, b, gdpo::count(b));
    CHECK(r.loss.item<float>() == 0);
    r.loss.backward();
    CHECK(b.logp.grad().sizes() == b.logp.sizes());
  }
}

TEST_CASE("what a loss of tensors refuses", "[torch]") {
  const gdpo::TorchBatch good = leaf_batch();
  const gdpo::Normalizer counts = gdpo::count(good);
  const auto message = [&](const gdpo::TorchBatch& b) {
    return message_of([&] { gdpo::torch_loss(gdpo::dapo_loss, b, counts); });
  };
  CHECK(message(good) == "no error");
  const at::Tensor complex = at::zeros({rows, width}, at::kComplexFloat);
  const at::Tensor cube = at::zeros({1, 1, 1, 1});
  const std::string integers = "int64, int32, int16, int8, uint8 or bool",
                    numbers = "one of float32, float64, bfloat16, float16, " + integers,
                    narrow = "one of float32, bfloat16, float16, " + integers,
                    tokens = "(rows, tokens), (prompts, completions, tokens) or packed (tokens)";
  // Every tensor, by the call that reads it: whatever is wrong with it is said with its name.
  const auto check = [&](const std::string& name, at::Tensor gdpo::TorchBatch::*of,
                         const std::string& dtypes, const std::string& ranks) {
    INFO(name);
    const auto wrong = [&](const at::Tensor& t) {
      gdpo::TorchBatch b = good;
      b.*of = t;
      const std::string own = message(b);
      CHECK(message_of([&] { gdpo::token_batch(b); }) ==
            "gdpo::token_batch" + own.substr(own.find(':', 6)));
      return own.substr(0, own.find(": batch.")) + " " +
             own.substr(("gdpo::torch_loss: batch." + name + ": ").size());
    };
    CHECK(wrong(complex.select(1, 0)) ==
          "gdpo::torch_loss given dtype ComplexFloat; needed: " + dtypes);
    CHECK(wrong(cube) == "gdpo::torch_loss given (1, 1, 1, 1); needed: " + ranks);
    CHECK(wrong(at::zeros({2, 2}).to_sparse()).find("given layout Sparse; needed: a dense") !=
          std::string::npos);
    CHECK(wrong(at::zeros({2, 2}, at::kMeta)) ==
          "gdpo::torch_loss given a tensor on meta; needed: one on cpu");
  };
#define GDPO_X(name, ...) check(#name, &gdpo::TorchBatch::name, narrow, tokens);
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
  check("mask", &gdpo::TorchBatch::mask, numbers, tokens);
  check("completion_mask", &gdpo::TorchBatch::completion_mask, numbers, tokens);
  check("segments", &gdpo::TorchBatch::segments, "one of " + integers, tokens);
#define GDPO_X(name, ...) \
  check(#name, &gdpo::TorchBatch::name, numbers, "(rows) or (prompts, completions)");
  GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  check("offsets", &gdpo::TorchBatch::offsets, "one of " + integers, "rank 1");

  gdpo::TorchBatch b = good;
  b.logp = at::Tensor();
  CHECK(message(b) ==
        "gdpo::PolicyLoss: batch.logp: given no array; needed: the log-probs of the policy being "
        "trained");
}
