// policy_loss_from_logits on a simulated device: the bits of its parts one by one, whatever the grid, and the host's numbers.
#include <gdpo/cuda/logits_loss.hpp>
#include <gdpo/loss.hpp>

#include "support/catch.hpp"
#include "support/logits.hpp"
#include "support/loss_archetypes.hpp"
#include "support/message.hpp"
#include "support/simulated_grid.hpp"

namespace {

using gdpo::index_t;

/// Four sequences of five tokens, one of them without any; rows that a mask hides hold NaN. Packed: lengths 5, 0, 8, 7.
constexpr index_t sequences = 4, width = 5, tokens = sequences * width;
template <class T, int Rank>
struct Step {
  index_t vocabulary;
  std::vector<T> logits;
  std::vector<std::int64_t> targets, segments;
  std::vector<float> old_logp, ref_logp, weights, token_advantages;
  std::vector<unsigned char> mask;
  std::vector<double> advantages, row_weights;
  std::vector<std::int32_t> offsets{0, 5, 5, 13, 20};

  Step(std::uint64_t seed, index_t entries) : vocabulary(entries) {
    Random random(seed);
    for (int k = 0; k < tokens; ++k) {
      mask.push_back(k / width != 1 && random.chance(0.8));
      targets.push_back(mask.back() ? random.below(static_cast<int>(vocabulary)) : -100);
      const auto row = logit_cases::row(random, logit_cases::Kind::Normal, static_cast<int>(vocabulary));
      double sum = 0;
      for (const float x : row) {
        T element;
        gdpo::store(element, mask.back() ? x : std::nanf(""));
        logits.push_back(element);
        sum += std::exp(static_cast<double>(x));
      }
      const double logp = mask.back()
                              ? static_cast<double>(row[static_cast<std::size_t>(targets.back())]) - std::log(sum)
                              : std::nan("");
      old_logp.push_back(static_cast<float>(logp + 0.3 * logit_cases::normal(random)));  // some are clipped
      ref_logp.push_back(static_cast<float>(logp + 0.3 * logit_cases::normal(random)));
      weights.push_back(static_cast<float>(random.pick({0.0, 0.5, 1.0})));
      token_advantages.push_back(static_cast<float>(logit_cases::normal(random)));
      segments.push_back(k % width < 2);
    }
    for (int i = 0; i < sequences; ++i) {
      advantages.push_back(logit_cases::normal(random));
      row_weights.push_back(random.pick({0.0, 1.0, 2.0}));
    }
  }
  template <class U>
  auto by_token(std::vector<U>& values) const {
    if constexpr (Rank == 2) {
      return gdpo::view(values);
    } else {
      return gdpo::view(values.data(), sequences, width);
    }
  }
  template <class U>
  auto table(std::vector<U>& values) const {
    if constexpr (Rank == 2) {
      return gdpo::view(values.data(), tokens, vocabulary);
    } else {
      return gdpo::view(values.data(), sequences, width, vocabulary);
    }
  }
  gdpo::LogitBatch<T, Rank> table_of() {
    gdpo::LogitBatch<T, Rank> batch;
    batch.logits = table(logits), batch.targets = by_token(targets);
    return batch;
  }
  /// options: bits, one for each array that the loss may have or not.
  gdpo::TokenBatch<float> batch(int options) {
    gdpo::TokenBatch<float> b;
    b.old_logp = by_token(old_logp), b.ref_logp = b.rollout_logp = by_token(ref_logp), b.mask = by_token(mask);
    if (options & 1) {
      b.token_advantages = by_token(token_advantages);
    } else {
      b.advantages = gdpo::view(advantages);
    }
    if (options & 2) b.weights = by_token(weights);
    if (options & 4) b.row_weights = gdpo::view(row_weights);
    if (options & 8) b.segments = by_token(segments);
    if (Rank == 2) b.offsets = gdpo::view(offsets);
    return b;
  }
};

/// Scratch that holds nothing of use.
struct Memory {
  std::vector<unsigned char> bytes;
  explicit Memory(std::size_t n) : bytes(n + 256, 0xff) {}
  gdpo::cuda::Scratch scratch() {
    const auto at = reinterpret_cast<std::uintptr_t>(bytes.data()) % 256;
    return {bytes.data() + (256 - at) % 256, bytes.size() - 256};
  }
};

template <class U>
struct Outcome {
  gdpo::LossResult result;
  std::vector<U> dlogits;
  std::vector<float> logp = std::vector<float>(tokens, 7), entropies = logp, dlogp = logp;
  std::vector<double> logsumexp = std::vector<double>(tokens, 7);
};
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(static_cast<const void*>(a.data()), b.data(), a.size() * sizeof(T)) == 0;
}
template <class U>
bool same(const Outcome<U>& a, const Outcome<U>& b) {
  return same(std::vector<double>{a.result.loss, a.result.kl_loss, a.result.metrics.entropy.sum,
                                  a.result.metrics.ratio.sum},
              {b.result.loss, b.result.kl_loss, b.result.metrics.entropy.sum, b.result.metrics.ratio.sum}) &&
         same(a.dlogits, b.dlogits) && same(a.logp, b.logp) && same(a.entropies, b.entropies) &&
         same(a.dlogp, b.dlogp) && same(a.logsumexp, b.logsumexp);
}

template <class U, class T, int Rank, class Loss>
Outcome<U> on_device(const SimulatedGrid& grid, const Loss& loss, Step<T, Rank> s, int options, bool in_place = false,
                     bool outputs = true) {
  const auto logits = s.table_of();
  const auto batch = s.batch(options);
  Outcome<U> o;
  o.dlogits.resize(s.logits.size());
  Memory memory(gdpo::cuda::scratch_bytes(logits, batch));
  gdpo::Normaliser normaliser;
  gdpo::cuda::count_into(grid, logits, batch, &normaliser, memory.scratch());
  gdpo::cuda::FromLogits out;
  if (outputs) out = {s.by_token(o.logp), s.by_token(o.entropies), s.by_token(o.dlogp), s.by_token(o.logsumexp)};
  if constexpr (std::is_same_v<T, U>) {
    gdpo::policy_loss_from_logits(grid, loss, logits, batch, &normaliser,
                                  in_place ? s.table(s.logits) : s.table(o.dlogits), &o.result, memory.scratch(), out);
    if (in_place) o.dlogits = s.logits;
  } else {
    gdpo::policy_loss_from_logits(grid, loss, logits, batch, &normaliser, s.table(o.dlogits), &o.result,
                                  memory.scratch(), out);
  }
  return o;
}
template <class T, int Rank, class Loss>
Outcome<T> one_by_one(const Loss& loss, Step<T, Rank> s, int options) {
  const SimulatedGrid grid{11};
  Outcome<T> o;
  o.dlogits.resize(s.logits.size());
  auto logits = s.table_of();
  auto batch = s.batch(options);
  logits.mask = batch.mask;
  gdpo::token_logprobs_into(grid, logits, {s.by_token(o.logp), s.by_token(o.entropies), s.by_token(o.logsumexp)});
  batch.logp = s.by_token(o.logp), batch.entropies = s.by_token(o.entropies);
  Memory memory(gdpo::cuda::scratch_bytes(loss, batch));
  loss(grid, batch, gdpo::count(batch), s.by_token(o.dlogp), &o.result, memory.scratch());
  gdpo::token_logprobs_backward(grid, logits, {s.by_token(o.dlogp), {}}, s.by_token(o.logsumexp), s.table(o.dlogits));
  return o;
}

/// Log-probs of both sides are within 1e-6, so are ratios, relative to themselves; dlogp is at most a few tenths. A token at the very
/// edge of the clip would differ by all of its gradient: there is none. 1e-7: what is left where surrogate and KL term cancel.
template <class T, int Rank, class Loss>
void check_loss(const Loss& loss, index_t vocabulary, int step = 1) {
  for (int options = 0; options < 16; options += step) {
    const auto seed = static_cast<std::uint64_t>(400 + options);
    INFO("seed " << seed << ", options " << options << ", rank " << Rank);
    const Step<T, Rank> s(seed, vocabulary);
    SimulatedGrid grid{static_cast<unsigned>(options)};
    grid.chosen.blocks = 3;
    grid.chosen.shared_bytes = options % 2 ? 1000 : 48 * 1024;
    const Outcome<T> one = on_device<T>(grid, loss, s, options);
    CHECK(same(one, one_by_one(loss, s, options)));
    grid.seed += 77, grid.chosen.shared_bytes = 0, grid.chosen.blocks = 1000;
    CHECK(same(on_device<T>(grid, loss, s, options, true), one));
    CHECK(same(on_device<T>(grid, loss, s, options, true, false).dlogits, one.dlogits));

    Step<T, Rank> host = s;
    gdpo::LogitsWorkspace w;
    std::vector<T> dlogits(s.logits.size());
    const auto logits = host.table_of();
    const auto batch = host.batch(options);
    const gdpo::LossResult r = gdpo::policy_loss_from_logits(gdpo::seq, loss, logits, batch, gdpo::count(logits, batch),
                                                             host.table(dlogits), w);
    CHECK(one.result.loss == Approx(r.loss).epsilon(1e-5).margin(1e-6));
    CHECK(one.result.metrics.entropy.mean() == Approx(r.metrics.entropy.mean()).epsilon(1e-6));
    CHECK(one.result.normaliser.tokens == r.normaliser.tokens);
    constexpr double rounding = sizeof(T) == 2 ? 0x1p-7 : 2e-5;  // of a 16-bit gradient one bit
    for (std::size_t k = 0; k < tokens; ++k) {
      CHECK(std::fabs(one.dlogp[k] - w.dlogp[k]) <= 1e-5f * std::fabs(w.dlogp[k]) + 1e-7f);
      CHECK((one.dlogp[k] == 0) == (w.dlogp[k] == 0));
    }
    for (std::size_t j = 0; j < dlogits.size(); ++j) {
      const double x = gdpo::load(dlogits[j]), y = gdpo::load(one.dlogits[j]);
      if (!(std::fabs(x - y) <= rounding * std::fabs(x) + 1e-7)) CHECK(x == y);
    }
  }
}

}  // namespace

TEST_CASE("cuda: one call from logits to dlogits has the bits of its parts, levels of tokens") {
  check_loss<float, 3>(gdpo::GrpoLoss{}, 301);
  check_loss<gdpo::BFloat16, 2>(gdpo::GrpoLoss{}, 704);
  gdpo::PolicyLoss<gdpo::level::Token<gdpo::map::Clamp>, gdpo::surrogate::Ratio, gdpo::Kl<>, gdpo::aggregate::TokenMean>
      mapped;
  mapped.kl.beta = 0.1;
  check_loss<float, 2>(mapped, 40, 3);
  check_loss<float, 3>(gdpo::GrpoLoss{}, 9001,
                       7);  // more than 48 KiB a row, and more than one time four vectors a thread
  // A factor that reads the mean advantage of the row, the reference and the sampling policy.
  check_loss<float, 3>(gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::kl::None,
                                        gdpo::aggregate::TokenMean, gdpo::Factors<archetype::OfTheRow>>{},
                       50);
}
TEST_CASE("cuda: one call from logits to dlogits has the bits of its parts, levels of segments") {
  gdpo::GspoLoss sequence;
  sequence.surrogate.low = 0.5, sequence.surrogate.high = 1;
  check_loss<float, 3>(sequence, 100);
  check_loss<gdpo::BFloat16, 2>(sequence, 333, 3);
}

TEST_CASE("cuda: dlogits in another storage than logits") {
  const Step<gdpo::BFloat16, 3> s(17, 77);
  const auto wide = on_device<float>(SimulatedGrid{1}, gdpo::GrpoLoss{}, s, 0);
  const auto narrow = on_device<gdpo::BFloat16>(SimulatedGrid{2}, gdpo::GrpoLoss{}, s, 0);
  for (std::size_t j = 0; j < wide.dlogits.size(); ++j) {
    gdpo::BFloat16 x;
    gdpo::store(x, wide.dlogits[j]);
    CHECK((x.bits & 0x7fff) == (narrow.dlogits[j].bits & 0x7fff));
  }
}

TEST_CASE("cuda: masks of logits and of the batch, and the ends of packed sequences") {
  Step<float, 2> s(18, 60);
  s.mask.assign(tokens, 1);
  Random random(19);
  for (float& x : s.logits) x = static_cast<float>(logit_cases::normal(random));
  for (std::size_t k = 0; k < tokens; ++k) s.targets[k] = static_cast<std::int64_t>(k);
  s.old_logp.assign(tokens, -4), s.ref_logp.assign(tokens, -4);
  auto logits = s.table_of();
  logits.offsets = gdpo::view(s.offsets);
  std::vector<unsigned char> not_third(tokens, 1);
  not_third[2] = 0;
  logits.mask = gdpo::view(not_third);
  auto batch = s.batch(0);
  batch.offsets = {};  // those of the logits
  s.mask[6] = 0;
  Memory memory(gdpo::cuda::scratch_bytes(logits, batch));
  const SimulatedGrid grid{4};
  gdpo::Normaliser normaliser;
  gdpo::cuda::count_into(grid, logits, batch, &normaliser, memory.scratch());
  const gdpo::Normaliser host = gdpo::count(logits, batch);
  CHECK((normaliser.tokens == 15 && host.tokens == 15));
  CHECK((normaliser.rows == host.rows && normaliser.non_empty_rows == host.non_empty_rows));
  std::vector<float> dlogits(s.logits.size());
  gdpo::LossResult result;
  const auto run = [&](const gdpo::TokenBatch<float>& of) {
    gdpo::policy_loss_from_logits(grid, gdpo::GrpoLoss{}, logits, of, normaliser, s.table(dlogits), &result,
                                  memory.scratch());
    std::vector<index_t> zero;
    for (index_t k = 0; k < tokens; ++k) {
      const auto* row = dlogits.data() + k * 60;
      if (std::all_of(row, row + 60, [](float x) { return x == 0; })) zero.push_back(k);
    }
    return zero;
  };
  CHECK(run(batch) == std::vector<index_t>{2, 4, 6, 12, 19});
  CHECK(result.metrics.entropy.count == 15);

  // Offsets that only the device reads: what no sequence holds counts as masked, and nothing is read elsewhere.
  logits.offsets = {}, logits.mask = {}, batch.mask = {}, batch.offsets = gdpo::view(s.offsets);
  s.offsets = {5, 5, 8, 8, 12};
  CHECK(run(batch) == std::vector<index_t>{0, 1, 2, 3, 4, 12, 13, 14, 15, 16, 17, 18, 19});
  s.offsets = {0, 9, 4, 400, 11};
  CHECK(run(batch).empty());
}

TEST_CASE("cuda: a row of weight 0 has no gradient, whatever stands there") {
  Step<float, 3> s(14, 90);
  s.row_weights = {0, 1, 1, 1};
  for (std::size_t k = 0; k < width; ++k) s.old_logp[k] = std::nanf(""), s.logits[k * 90] = std::nanf("");
  const auto got = on_device<float>(SimulatedGrid{1}, gdpo::GrpoLoss{}, s, 4);
  CHECK(same(got.dlogits, one_by_one(gdpo::GrpoLoss{}, s, 4).dlogits));
  CHECK(std::count(got.dlogits.begin(), got.dlogits.begin() + width * 90, 0.0f) == width * 90);
  s.row_weights[0] = std::numeric_limits<double>::infinity();  // counts as 0
  CHECK(same(on_device<float>(SimulatedGrid{1}, gdpo::GrpoLoss{}, s, 4).dlogits, got.dlogits));
}

TEST_CASE("cuda: what is not finite in one token spoils its row of logits alone") {
  for (int input = 0; input < 4; ++input) {
    Step<float, 3> s(15, 90);
    const auto at = static_cast<std::size_t>(std::find(s.mask.begin(), s.mask.end(), 1) - s.mask.begin());
    (input == 0   ? s.old_logp
     : input == 1 ? s.ref_logp
     : input == 2 ? s.token_advantages
                  : s.logits)[input == 3 ? at * 90 : at] = std::nanf("");
    const auto got = on_device<float>(SimulatedGrid{2}, gdpo::GrpoLoss{}, s, 1);
    CHECK(same(got.dlogits, one_by_one(gdpo::GrpoLoss{}, s, 1).dlogits));
    CHECK(same(got.dlogp, one_by_one(gdpo::GrpoLoss{}, s, 1).dlogp));
    CHECK(std::count_if(got.dlogits.begin(), got.dlogits.end(), [](float x) { return std::isnan(x); }) == 90);
    CHECK(std::isnan(got.dlogits[at * 90]));
  }
}

TEST_CASE("cuda: what is wrong with a call from logits") {
  Step<float, 3> s(20, 30);
  auto logits = s.table_of();
  auto batch = s.batch(0);
  std::vector<float> dlogits(s.logits.size());
  gdpo::LossResult result;
  Memory memory(gdpo::cuda::scratch_bytes(logits, batch));
  auto scratch = memory.scratch();
  const auto both = [&](const auto& loss, gdpo::View<float, 3> out) {
    const SimulatedGrid grid{};
    gdpo::LogitsWorkspace w;
    const std::string on = message_of([&] {
      gdpo::policy_loss_from_logits(grid, loss, logits, batch, gdpo::Normaliser{20, 4, 3, 0}, out, &result, scratch);
    });
    CHECK(grid.launches == 0);
    CHECK(on == message_of([&] {
            gdpo::policy_loss_from_logits(gdpo::seq, loss, logits, batch, gdpo::Normaliser{20, 4, 3, 0}, out, w);
          }));
    CHECK(on != "no error");
  };
  both(gdpo::GrpoLoss{}, gdpo::view(dlogits.data(), sequences, width, index_t{29}));
  gdpo::GrpoLoss bad;
  bad.surrogate.low = -1;
  both(bad, s.table(dlogits));
  batch.advantages = {};
  both(gdpo::GrpoLoss{}, s.table(dlogits));
  batch = s.batch(0), logits.first_token = 1;
  both(gdpo::GrpoLoss{}, s.table(dlogits));
  logits = s.table_of(), logits.temperature = -1;
  both(gdpo::GrpoLoss{}, s.table(dlogits));
  logits = s.table_of();
  std::vector<unsigned char> short_mask(3, 1);
  batch.mask = gdpo::view(short_mask);
  both(gdpo::GrpoLoss{}, s.table(dlogits));
  batch = s.batch(0);

  const auto says = [&](const std::string& part, gdpo::LossResult* to, const gdpo::cuda::FromLogits& out) {
    const SimulatedGrid grid{};
    const std::string message = message_of([&] {
      gdpo::policy_loss_from_logits(grid, gdpo::GrpoLoss{}, logits, batch, gdpo::Normaliser{20, 4, 3, 0},
                                    s.table(dlogits), to, scratch, out);
    });
    CHECK_THAT(message, Catch::Matchers::ContainsSubstring(part));
    CHECK(grid.launches == 0);
  };
  says("result", nullptr, {});
  std::vector<float> short_out(3);
  says("out.logp", &result, {gdpo::view(short_out), {}, {}, {}});
  scratch.bytes -= 1;
  says("scratch", &result, {});
}
