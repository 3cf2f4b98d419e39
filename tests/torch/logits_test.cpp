// Losses from logits in tensors: value, gradient and metrics are the library's own, bit for bit.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <gdpo/prepass.hpp>
#include <gdpo/with/torch.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "torch/exact.hpp"

namespace {

using gdpo::index_t;

constexpr int rows = 4, width = 9, vocabulary = 23;
// Packed: four sequences of 36 tokens, as many as those of the padded batch.
const std::vector<std::int64_t> packed_offsets{0, 5, 5, 20, 36};

/// Whole sequences: logits, ids, completion mask.
struct Sequences {
  at::Tensor logits, ids, mask, offsets;
};
Sequences sequences(bool packed, at::ScalarType dtype, std::uint64_t seed) {
  Random random(seed);
  Sequences s;
  s.logits = at::empty({rows * width, vocabulary}, at::kDouble);
  for (int i = 0; i < rows * width * vocabulary; ++i)
    static_cast<double*>(s.logits.data_ptr())[i] = 8 * random.uniform() - 4;
  s.logits = s.logits.to(dtype);
  s.ids = at::empty({rows * width}, at::kLong), s.mask = at::empty({rows * width}, at::kBool);
  for (int i = 0; i < rows * width; ++i) {
    static_cast<std::int64_t*>(s.ids.data_ptr())[i] = random.below(vocabulary);
    static_cast<bool*>(s.mask.data_ptr())[i] = random.chance(0.7);
  }
  if (packed) {
    s.offsets = at::tensor(packed_offsets, at::kLong);
  } else {
    s.logits = s.logits.view({rows, width, vocabulary});
    s.ids = s.ids.view({rows, width}), s.mask = s.mask.view({rows, width});
  }
  return s;
}
/// The arrays beside the logits, in the shape of the targets.
gdpo::TorchBatch arrays(const Sequences& s, std::uint64_t seed) {
  Random random(seed);
  const bool packed = s.offsets.defined();
  const at::IntArrayRef padded{rows, width - 1};
  gdpo::TorchBatch b;
  b.old_logp = packed ? at::empty({rows * width}) : at::empty({rows, width - 1});
  for (std::int64_t i = 0; i < b.old_logp.numel(); ++i)
    static_cast<float*>(b.old_logp.data_ptr())[i] = static_cast<float>(-4 * random.uniform());
  b.ref_logp = b.old_logp - 0.25;
  b.advantages = at::tensor({1.0, -0.5, 0.75, -1.25}, at::kDouble);
  return b;
}

/// The library's own call on whole sequences.
struct Own {
  gdpo::LossResult result;
  at::Tensor gradient;
  std::vector<float> logp;
};
template <class T, class Loss>
Own own(const Loss& loss, const Sequences& s, const gdpo::TorchBatch& b, double temperature) {
  const auto* x = static_cast<const T*>(s.logits.data_ptr());
  const auto* ids = static_cast<const std::int64_t*>(s.ids.data_ptr());
  const auto* mask = static_cast<const bool*>(s.mask.data_ptr());
  const auto* old_logp = static_cast<const float*>(b.old_logp.data_ptr());
  const auto* ref_logp = static_cast<const float*>(b.ref_logp.data_ptr());
  gdpo::TokenBatch<float> batch;
  batch.advantages = gdpo::view(static_cast<const double*>(b.advantages.data_ptr()), rows);
  Own r;
  r.gradient = at::zeros(s.logits.sizes(), s.logits.scalar_type());
  auto* gradient = static_cast<T*>(r.gradient.data_ptr());
  gdpo::LogitsWorkspace workspace;
  const auto run = [&](auto logits, auto dlogits) {
    logits.temperature = temperature;
    r.result = gdpo::policy_loss_from_logits(gdpo::simd, loss, logits, batch,
                                             gdpo::count(logits, batch), dlogits, workspace);
  };
  if (s.offsets.defined()) {
    batch.old_logp = gdpo::view(old_logp, rows * width);
    batch.ref_logp = gdpo::view(ref_logp, rows * width);
    run(gdpo::aligned(gdpo::view(x, rows * width, vocabulary), gdpo::view(ids, rows * width),
                      gdpo::view(packed_offsets), gdpo::view(mask, rows * width)),
        gdpo::view(gradient, rows * width, vocabulary));
  } else {
    batch.old_logp = gdpo::view(old_logp, rows, width - 1);
    batch.ref_logp = gdpo::view(ref_logp, rows, width - 1);
    auto dlogits = gdpo::view(gradient, rows, width, vocabulary);
    --dlogits.extent[1];
    run(gdpo::aligned(gdpo::view(x, rows, width, vocabulary), gdpo::view(ids, rows, width),
                      gdpo::view(mask, rows, width)),
        dlogits);
  }
  r.logp = workspace.logp;
  return r;
}
template <class Loss>
Own own(const Loss& loss, const Sequences& s, const gdpo::TorchBatch& b, double temperature = 1) {
  switch (s.logits.scalar_type()) {
    case at::kHalf:
      return own<gdpo::Float16>(loss, s, b, temperature);
    case at::kBFloat16:
      return own<gdpo::BFloat16>(loss, s, b, temperature);
    case at::kDouble:
      return own<double>(loss, s, b, temperature);
    default:
      return own<float>(loss, s, b, temperature);
  }
}

gdpo::TorchLogits aligned(const Sequences& s) {
  return gdpo::aligned(s.logits, s.ids, s.mask, s.offsets);
}

}  // namespace

TEST_CASE("a loss from logits in tensors is the library's", "[torch]") {
  auto grpo = gdpo::grpo_loss;
  grpo.kl.beta = 0.1;
  for (const bool packed : {false, true}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      const auto check = [&](const char* name, const auto& loss) {
        INFO(name << ", packed " << packed << ", " << c10::toString(dtype));
        const Sequences s = sequences(packed, dtype, 31);
        const gdpo::TorchBatch b = arrays(s, 32);
        s.logits.requires_grad_();
        gdpo::TorchLogits logits = aligned(s);
        logits.temperature = 0.8;
        const Own expected = own(loss, s, b, 0.8);
        REQUIRE(expected.gradient.count_nonzero().item<long>() > 100);
        const gdpo::Normalizer counts = gdpo::count(logits, b);
        CHECK(counts.tokens == expected.result.normalizer.tokens);

        const gdpo::TorchLoss r = gdpo::torch_loss_from_logits(loss, logits, b, counts);
        CHECK(numbers_of(r.result) == numbers_of(expected.result));
        CHECK(same_bits(r.loss.detach(), at::scalar_tensor(expected.result.loss, at::kFloat)));
        r.loss.backward();
        CHECK(same_bits(s.logits.grad(), expected.gradient));
        CHECK(s.logits.grad().is_contiguous());

        // With threads and a workspace, which has the log-probs afterwards; from a TokenBatch too.
        gdpo::LogitsWorkspace workspace;
        for (const bool tensors : {true, false}) {
          s.logits.mutable_grad() = at::Tensor();
          const auto exec = gdpo::parallel(gdpo::TorchThreads{});
          (tensors ? gdpo::torch_loss_from_logits(exec, loss, logits, b, counts, workspace)
                   : gdpo::torch_loss_from_logits(exec, loss, logits, gdpo::token_batch(b), counts,
                                                  workspace))
              .loss.backward();
          CHECK(same_bits(s.logits.grad(), expected.gradient));
          CHECK(workspace.logp == expected.logp);
        }

        // A scaled loss: the product is of float, and rounded once.
        s.logits.mutable_grad() = at::Tensor();
        (gdpo::torch_loss_from_logits(loss, logits, b, counts).loss * 131072).backward();
        const at::Tensor wide =
            dtype == at::kDouble ? expected.gradient : expected.gradient.to(at::kFloat);
        CHECK(same_bits(s.logits.grad(), (wide * 131072).to(dtype)));

        // Without a gradient the loss is the same.
        const at::NoGradGuard guard;
        gdpo::LogitsWorkspace fresh;
        const gdpo::TorchLoss plain =
            gdpo::torch_loss_from_logits(gdpo::simd, loss, logits, b, counts, fresh);
        CHECK_FALSE(plain.loss.requires_grad());
        CHECK(numbers_of(plain.result) == numbers_of(expected.result));
        CHECK(fresh.logp == expected.logp);
      };
      check("grpo", grpo);
      check("gspo", gdpo::gspo_loss);
    }
  }
}

TEST_CASE("targets for every row, strides and a chain of autograd", "[torch]") {
  const Sequences s = sequences(false, at::kFloat, 41);
  const gdpo::TorchBatch b = arrays(s, 42);
  const Own expected = own(gdpo::dapo_loss, s, b);
  const at::Tensor inner = expected.gradient.narrow(1, 0, width - 1);

  // Sliced in LibTorch: targets for every row, and strides that are not those of a whole array.
  const at::Tensor leaf = s.logits.detach().clone().requires_grad_();
  gdpo::TorchLogits logits;
  logits.logits = leaf.narrow(1, 0, width - 1);
  logits.targets = s.ids.narrow(1, 1, width - 1).to(at::kInt);
  logits.mask = s.mask.narrow(1, 1, width - 1).to(at::kFloat);
  REQUIRE_FALSE(logits.logits.is_contiguous());
  gdpo::TorchLoss r =
      gdpo::torch_loss_from_logits(gdpo::dapo_loss, logits, b, gdpo::count(logits, b));
  CHECK(numbers_of(r.result) == numbers_of(expected.result));
  r.loss.backward();
  CHECK(same_bits(leaf.grad(), expected.gradient));
  CHECK(same_bits(leaf.grad().narrow(1, 0, width - 1), inner));

  // A model in front of the logits.
  const at::Tensor w = at::rand({6, vocabulary}).requires_grad_(), x = at::rand({rows, width, 6});
  const gdpo::TorchLogits of_model = gdpo::aligned(at::matmul(x, w), s.ids, s.mask);
  r = gdpo::torch_loss_from_logits(gdpo::dapo_loss, of_model, b, gdpo::count(of_model, b));
  r.loss.backward();
  Sequences detached = s;
  detached.logits = of_model.logits.detach();
  const at::Tensor v = w.detach().clone().requires_grad_();
  at::matmul(x, v).backward(own(gdpo::dapo_loss, detached, b).gradient);
  CHECK(same_bits(w.grad(), v.grad()));

  // Without a mask every target counts.
  const gdpo::TorchLogits all = gdpo::aligned(s.logits, s.ids);
  CHECK_FALSE(all.mask.defined());
  CHECK(gdpo::count(all).tokens == rows * (width - 1));
  CHECK(message_of([&] {
          const at::Tensor twice = s.logits.detach().clone().requires_grad_();
          const auto of = gdpo::aligned(twice, s.ids);
          torch::autograd::grad(
              {gdpo::torch_loss_from_logits(gdpo::dapo_loss, of, b, gdpo::count(of, b)).loss},
              {twice}, {}, true, true);
        }) ==
        "gdpo::torch_loss_from_logits: create_graph: given true; needed: false, because the loss "
        "has a first derivative only");
}

TEST_CASE("logits of a prepared batch", "[torch]") {
  const Sequences s = sequences(false, at::kFloat, 51);
  gdpo::TorchBatch b = arrays(s, 52);
  b.mask = s.mask.narrow(1, 1, width - 1);
  b.truncated = at::tensor({0, 1, 0, 0}, at::kInt);
  gdpo::PrepassMemory<float> memory;
  const auto prepared = gdpo::prepare(gdpo::token_batch(b), memory,
                                      gdpo::prepass::Overlong{gdpo::torch_column(b.truncated)});
  const gdpo::TorchLogits logits = aligned(s);
  s.logits.requires_grad_();
  gdpo::LogitsWorkspace workspace;
  const gdpo::TorchLoss r = gdpo::torch_loss_from_logits(
      gdpo::simd, gdpo::dapo_loss, aligned(s), prepared, gdpo::count(prepared), workspace);
  CHECK(r.result.normalizer.tokens < gdpo::count(logits).tokens);
  r.loss.backward();
  CHECK(s.logits.grad().select(0, 1).count_nonzero().item<long>() == 0);
  CHECK(s.logits.grad().select(0, 0).count_nonzero().item<long>() > 0);
}

TEST_CASE("whole sequences of logits are aligned without a copy", "[torch]") {
  for (const bool packed : {false, true}) {
    const Sequences s = sequences(packed, at::kFloat, 61);
    const gdpo::TorchLogits a = aligned(s);
    CHECK(a.logits.data_ptr() == s.logits.data_ptr());
    CHECK(a.targets.data_ptr() == static_cast<std::int64_t*>(s.ids.data_ptr()) + 1);
    CHECK(a.mask.data_ptr() == static_cast<bool*>(s.mask.data_ptr()) + 1);
    CHECK(a.targets.size(-1) == s.ids.size(-1) - 1);
    CHECK(a.mask.sizes() == a.targets.sizes());
    CHECK(a.offsets.defined() == packed);
  }
  // Before the forward pass; with the mask of the batch; from logits alone; from offsets alone.
  for (const bool packed : {false, true}) {
    const Sequences s = sequences(packed, at::kFloat, 62);
    const double tokens = gdpo::count(aligned(s)).tokens;
    CHECK(tokens > 10);
    CHECK(gdpo::count(gdpo::aligned({}, s.ids, s.mask, s.offsets)).tokens == tokens);
    gdpo::TorchLogits without = aligned(s);
    without.logits = at::Tensor(), without.targets = at::Tensor();
    CHECK(gdpo::count(without).tokens == tokens);
    gdpo::TorchBatch b;
    if (!packed) {
      b.mask = aligned(s).mask;
      CHECK(gdpo::count(gdpo::TorchLogits{}, b).tokens == tokens);
      CHECK(gdpo::count(gdpo::aligned(s.logits, s.ids), b).tokens == tokens);
    }
    gdpo::TorchLogits alone;
    alone.logits = s.logits, alone.offsets = s.offsets;
    // The last row of each packed sequence that has one predicts nothing.
    CHECK(gdpo::count(alone,
                      [&] {
                        gdpo::TorchBatch of;
                        return of;
                      }())
              .tokens == (packed ? rows * width - 3 : rows * width));
  }
  gdpo::TorchLogits offsets;
  offsets.offsets = at::tensor(packed_offsets, at::kInt);
  CHECK(gdpo::count(offsets).tokens == rows * width - 3);
  // Sequences without tokens.
  CHECK(gdpo::count(gdpo::aligned({}, at::zeros({3, 0}, at::kLong))).tokens == 0);
  CHECK(gdpo::count(gdpo::aligned({}, at::zeros({3, 1}, at::kLong))).tokens == 0);
}

TEST_CASE("what losses from logits refuse", "[torch]") {
  const Sequences s = sequences(false, at::kFloat, 71), p = sequences(true, at::kFloat, 72);
  const at::Tensor none;
  const auto message = [](const auto&... arguments) {
    return message_of([&] { gdpo::aligned(arguments...); });
  };
  CHECK(message(s.logits, s.ids, s.mask) == "no error");
  CHECK(message(s.logits, none) ==
        "gdpo::aligned: input_ids: given an undefined tensor; needed: a tensor with elements");
  CHECK(message(s.logits, s.logits) ==
        "gdpo::aligned: input_ids: given (4, 9, 23); needed: (B, T) or (N)");
  CHECK(message(p.logits, p.ids, p.mask) ==
        "gdpo::aligned: offsets: given an undefined tensor; needed: where the sequences begin and "
        "end, (B + 1)");
  CHECK(message(s.logits, s.ids, s.mask, p.offsets) ==
        "gdpo::aligned: offsets: given a tensor, with input_ids (B, T); needed: none, or input_ids "
        "(N)");
  CHECK(message(s.logits, s.ids, p.mask) ==
        "gdpo::aligned: mask: given (36); needed: (4, 9), the shape of input_ids");
  CHECK(message(p.logits, s.ids, s.mask) ==
        "gdpo::aligned: logits: given (36, 23); needed: (4, 9), the shape of input_ids, and "
        "the vocabulary");
  CHECK(message(s.logits.narrow(0, 0, 3), s.ids, s.mask) ==
        "gdpo::aligned: logits: given (3, 9, 23); needed: (4, 9), the shape of input_ids, and "
        "the vocabulary");

  CHECK(message(s.logits.select(2, 0), s.ids, s.mask) ==
        "gdpo::aligned: logits: given (4, 9); needed: (4, 9), the shape of input_ids, and the "
        "vocabulary");

  const gdpo::TorchBatch b = arrays(s, 73);
  const gdpo::TorchLogits good = aligned(s);
  const gdpo::Normalizer counts = gdpo::count(good, b);
  const auto loss = [&](const gdpo::TorchLogits& x) {
    return message_of([&] { gdpo::torch_loss_from_logits(gdpo::dapo_loss, x, b, counts); });
  };
  CHECK(loss(good) == "no error");
  gdpo::TorchLogits x = good;
  x.logits = none;
  CHECK(loss(x) ==
        "gdpo::torch_loss_from_logits: logits: given an undefined tensor; needed: a tensor with "
        "elements");
  x.logits = s.ids.select(0, 0);
  CHECK(loss(x) == "gdpo::torch_loss_from_logits: logits: given (9); needed: (B, T, V) or (N, V)");
  x.logits = s.logits.to(at::kMeta);
  CHECK(loss(x) ==
        "gdpo::torch_loss_from_logits: logits: given a tensor on meta; needed: one on cpu");
  x = good;
  x.targets = good.targets.to(at::kFloat);
  CHECK(loss(x).find("gdpo::torch_loss_from_logits: targets: given float32; needed: one of "
                     "int64, int32") == 0);
  x = good;
  x.mask = good.mask.to(at::kComplexFloat);
  CHECK(loss(x).find("gdpo::torch_loss_from_logits: mask: given dtype ComplexFloat") == 0);
  x = good;
  x.offsets = s.ids;
  CHECK(loss(x) == "gdpo::torch_loss_from_logits: offsets: given (4, 9); needed: rank 1");
  // What the library refuses comes in its words, with and without a gradient.
  for (const bool gradient : {false, true}) {
    x = good;
    x.logits = s.logits.detach().clone().set_requires_grad(gradient);
    x.targets = good.targets + vocabulary;
    CHECK(loss(x).find("targets: given ") != std::string::npos);
    x = good;
    x.logits = s.logits.detach().clone().set_requires_grad(gradient);
    x.temperature = 0;
    CHECK(loss(x).find("temperature: given 0; needed: a number from 1e-37 to 1e37") !=
          std::string::npos);
    x = good;
    x.logits = at::empty({rows, vocabulary, width}).fill_(0).set_requires_grad(gradient);
    x.logits = x.logits.transpose(1, 2);
    CHECK(loss(x).find("logits: given stride 9 between two entries of the vocabulary; needed: 1") !=
          std::string::npos);
  }
  CHECK(message_of([&] { gdpo::count(gdpo::TorchLogits{}); }).find("gdpo::count") == 0);
}
