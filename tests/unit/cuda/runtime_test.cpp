// labels: sanitizers
// Losses by name on a device: every name at every level gives what seq gives, bit for bit at
// level::Token.
#include <gdpo/runtime.hpp>

#include "support/catch.hpp"
#include "support/cuda_loss.hpp"

namespace runtime_test {

namespace {

namespace runtime = gdpo::runtime;
using cuda_loss::Data;

/// Sets what a name leaves to the caller, and sometimes a KL term that no named loss has.
template <class Loss>
void complete(Random& random, Loss& loss) {
  using Mode = gdpo::Aggregate::Mode;
  if (loss.aggregate.mode == Mode::SeqMeanTokenSumNorm && !loss.aggregate.padded_width)
    loss.aggregate.constant = 64;
  if (random.chance(0.5)) return;
  const char* const names[] = {"k1", "abs", "k2", "k3", "k1+", "low_var_kl+"};
  loss.kl = runtime::kl(names[random.below(6)], loss.kl);
  loss.kl.beta = random.pick({0.0, 0.04});
}

/// Returns "" if the device gives what seq gives for a random batch, packed or padded.
template <class Loss>
std::string against_seq(Random& random, const Loss& loss, unsigned seed) {
  const int rows = 1 + random.below(5), width = 1 + random.below(90);
  Data d = cuda_loss::random_batch(random, rows, width, seed % 5 == 0 ? 0.03 : 0);
  if (random.chance(0.5))
    d.weights.clear(), d.kl_weights.clear(), d.entropies.clear(), d.segments.clear();
  std::vector<int> lengths;
  if (!loss.aggregate.padded_width && random.chance(0.4))
    lengths = cuda_loss::random_lengths(random, rows, width);
  const gdpo::Normalizer n = cuda_loss::count(d, lengths);
  const auto got =
      cuda_loss::run<float>(test_device(seed), loss, d,
                            lengths.empty() ? cuda_loss::dense : cuda_loss::packed, lengths, n);
  const auto expected = cuda_loss::on_seq<float>(loss, d, lengths, n);
  if (d.mask.empty()) d.mask.assign(d.logp.size(), 1);
  for (int i = 0; i < rows && !lengths.empty(); ++i) {
    for (int t = lengths[static_cast<std::size_t>(i)]; t < width; ++t) d.mask[d.at(i, t)] = 0;
  }
  return cuda_loss::mismatch<float>(loss, d, got, expected);
}

}  // namespace

TEST_CASE("on a device: every loss by name, at every level", "[cuda][loss][runtime]") {
  unsigned seed = 0;
  for (const std::string& name : runtime::loss_names()) {
    for (const char* level : {"", "token", "sequence", "sequence_token"}) {
      Random random(++seed);
      INFO(name << " at level '" << level << "', seed " << seed);
      runtime::Loss loss = runtime::loss(name, level);
      CHECK(std::visit(
                [&](auto& l) {
                  complete(random, l);
                  return against_seq(random, l, seed);
                },
                loss) == "");
    }
  }
}

TEST_CASE("on a device: every aggregate by name", "[cuda][loss][runtime][sanitize]") {
  unsigned seed = 1000;
  for (const char* mode : {"token-mean", "token-sum", "seq-mean-token-sum",
                           "seq-mean-token-sum-norm", "seq-mean-token-mean"}) {
    for (const char* level : {"token", "sequence"}) {
      Random random(++seed);
      INFO(mode << " at level " << level << ", seed " << seed);
      runtime::Loss loss = runtime::loss("verl::vanilla", level);
      CHECK(std::visit(
                [&](auto& l) {
                  l.aggregate = runtime::aggregate(mode);
                  return against_seq(random, l, seed);
                },
                loss) == "");
    }
  }
}

}  // namespace runtime_test
