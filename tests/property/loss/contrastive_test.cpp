// labels: lanes, sanitizers
// ContrastiveLoss against its formula in long double, whose gradient is taken by differences, and
// its laws: layouts, executors, masks, groups of one side, large S, micro-batches, order of rows.
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/ms_swift.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace contrastive_test {

namespace {

using gdpo::LossResult;
using Loss = gdpo::ContrastiveLoss<>;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Rows of one width, with a group id each.
struct Data {
  int rows = 0, width = 0;
  std::vector<double> logp, old_logp, ref_logp, kl_weights, advantages, token_advantages;
  std::vector<unsigned char> mask;
  std::vector<int> ids;  // ascending

  std::size_t place(int i, int t) const { return at(i * width + t); }
  int tokens(int i) const {
    int n = 0;
    for (int t = 0; t < width; ++t) n += mask[place(i, t)] != 0;
    return n;
  }
  int groups() const { return ids.empty() ? 0 : ids.back() + 1; }
};

/// Groups of 1 to 5 rows. Log-probs and advantages are multiples of 2^-6 and 2^-3, so that floats
/// hold them; some advantages are 0. `largest` bounds the log ratios of tokens, in nats.
Data random_data(Random& random, int groups, int width, double masked, double largest = 1) {
  Data d;
  d.width = width;
  for (int g = 0; g < groups; ++g) d.ids.insert(d.ids.end(), at(1 + random.below(5)), g);
  d.rows = static_cast<int>(d.ids.size());
  for (int k = 0; k < d.rows * width; ++k) {
    const double logp = -random.below(200) / 64.0;
    d.logp.push_back(logp);
    d.old_logp.push_back(logp + (random.below(129) - 64) / 64.0 * largest);
    d.ref_logp.push_back(logp + (random.below(129) - 64) / 64.0);
    d.kl_weights.push_back(random.below(3) / 2.0);
    d.mask.push_back(!random.chance(masked));
  }
  for (int i = 0; i < d.rows; ++i) d.advantages.push_back((random.below(9) - 4) / 8.0);
  return d;
}

/// Which rows of a batch are where: padded as (rows, width) or (rows, 1, width), or packed.
enum class Form { Padded, Rank3, Packed };

/// The arrays of a Data as S in some form.
template <class S>
struct Arrays {
  std::vector<S> logp, old_logp, ref_logp, kl_weights, token_advantages, gradient;
  std::vector<unsigned char> mask;
  std::vector<std::int64_t> offsets{0};
  gdpo::TokenBatch<S> batch;
  gdpo::TokenOut<S> out;

  /// Packed rows end with their last valid token.
  Arrays(const Data& d, Form form) {
    for (int i = 0; i < d.rows; ++i) {
      int length = d.width;
      while (form == Form::Packed && length > 0 && !d.mask[d.place(i, length - 1)]) --length;
      for (int t = 0; t < length; ++t) {
        const std::size_t k = d.place(i, t);
        const auto store = [k](std::vector<S>& to, const std::vector<double>& from) {
          if (!from.empty()) to.push_back(static_cast<S>(from[k]));
        };
        store(logp, d.logp), store(old_logp, d.old_logp), store(ref_logp, d.ref_logp);
        store(kl_weights, d.kl_weights), store(token_advantages, d.token_advantages);
        mask.push_back(d.mask[k]);
      }
      offsets.push_back(static_cast<std::int64_t>(mask.size()));
    }
    gradient.assign(mask.size(), gdpo::math::nan<S>());
    const auto bind = [&](auto& to, auto& from) {
      if (from.empty() && !mask.empty()) return;
      if (form == Form::Packed) to = gdpo::view(from);
      if (form == Form::Padded) to = gdpo::view(from.data(), d.rows, d.width);
      if (form == Form::Rank3) to = gdpo::view(from.data(), d.rows, 1, d.width);
    };
    bind(batch.logp, logp), bind(batch.old_logp, old_logp), bind(batch.ref_logp, ref_logp);
    bind(batch.kl_weights, kl_weights), bind(batch.token_advantages, token_advantages);
    bind(batch.mask, mask), bind(out, gradient);
    if (form == Form::Packed) batch.offsets = gdpo::view(offsets);
    if (d.token_advantages.empty()) batch.advantages = gdpo::view(d.advantages);
  }
  Arrays(const Arrays&) = delete;

  /// The gradient as (rows, width), 0 where a packed batch has no token.
  std::vector<double> padded(const Data& d) const {
    std::vector<double> all;
    for (int i = 0; i < d.rows; ++i) {
      for (int t = 0; t < d.width; ++t) {
        const std::int64_t k = offsets[at(i)] + t;
        all.push_back(k < offsets[at(i + 1)]
                          ? static_cast<double>(gradient[static_cast<std::size_t>(k)])
                          : 0.0);
      }
    }
    return all;
  }
};

struct Outcome {
  LossResult result;
  std::vector<double> gradient;
};
template <class S = double, class L, class Groups, class Exec = gdpo::Simd>
Outcome call(const L& loss, const Data& d, const Groups& groups, const gdpo::Normalizer& n,
             Form form = Form::Padded, const Exec& exec = {}) {
  Arrays<S> arrays(d, form);
  gdpo::ContrastiveWorkspace<S> workspace;
  Outcome o;
  o.result = loss(exec, arrays.batch, groups, n, arrays.out, workspace);
  o.gradient = arrays.padded(d);
  return o;
}
template <class Groups>
gdpo::Normalizer counts(const Data& d, const Groups& groups) {
  return gdpo::count(Arrays<double>(d, Form::Padded).batch, groups);
}
template <class S = double, class L>
Outcome call(const L& loss, const Data& d) {
  const auto groups = gdpo::by_id(d.ids);
  return call<S>(loss, d, groups, counts(d, groups));
}
std::string difference_of(const Outcome& a, const Outcome& b) {
  std::string text = difference(a.gradient, b.gradient);
  if (!same_bits(a.result.loss, b.result.loss)) text += " loss";
  if (!same_bits(a.result.policy_loss, b.result.policy_loss)) text += " policy_loss";
  if (!same_bits(a.result.kl_loss, b.result.kl_loss)) text += " kl_loss";
  if (!same_bits(a.result.metrics.ratio.sum, b.result.metrics.ratio.sum)) text += " ratio";
  return text;
}

/// log(1 + sum of e^x) from its definition, with the largest exponent taken out.
long double log_one_plus(const std::vector<long double>& x) {
  long double largest = 0, sum = 0;
  for (const long double e : x) largest = std::max(largest, e);
  for (const long double e : x) sum += std::exp(e - largest);
  return largest + std::log(std::exp(-largest) + sum);
}
/// The loss from its definition, with a KL term K3 divided by the tokens.
long double formula(const Loss& loss, const Data& d, const std::vector<long double>& logp) {
  long double sum = 0, kl = 0, tokens = 0;
  for (int g = 0; g < d.groups(); ++g) {
    std::vector<long double> good, bad;
    for (int i = 0; i < d.rows; ++i) {
      if (d.ids[at(i)] != g) continue;
      long double log_ratio = 0, advantage = 0, n = 0;
      for (int t = 0; t < d.width; ++t) {
        const std::size_t k = d.place(i, t);
        if (!d.mask[k]) continue;
        // Without old_logp it is logp, without the gradient of it.
        log_ratio +=
            logp[k] - static_cast<long double>((d.old_logp.empty() ? d.logp : d.old_logp)[k]);
        advantage += d.token_advantages.empty() ? d.advantages[at(i)] : d.token_advantages[k];
        const long double x = static_cast<long double>(d.ref_logp[k]) - logp[k];
        kl += static_cast<long double>(d.kl_weights.empty() ? 1 : d.kl_weights[k]) *
              (std::exp(x) - 1 - x);
        n += 1;
      }
      tokens += n;
      if (n == 0 && !loss.count_empty_rows) continue;
      const long double s = n > 0 ? log_ratio / n / static_cast<long double>(loss.tau) : 0;
      (advantage > 0 ? good : bad).push_back(advantage > 0 ? -s : s);
    }
    if (!good.empty() && !bad.empty()) sum += log_one_plus(good) + log_one_plus(bad);
  }
  const long double share = sum / d.groups();
  return static_cast<long double>(loss.aggregate.scale) *
         (share + (tokens > 0 ? static_cast<long double>(loss.kl.beta) * kl / tokens : 0));
}
/// Its gradient by central differences. With h = 2^-20 they are off by h^2 / 6 times the third
/// derivative, below 8 / tau^3 here, and by 2^-64 / h times the loss: together less than 1e-10.
std::vector<double> differences(const Loss& loss, const Data& d) {
  const long double h = 0x1p-20L;
  std::vector<long double> logp(d.logp.begin(), d.logp.end());
  std::vector<double> gradient(d.logp.size());
  for (std::size_t k = 0; k < logp.size(); ++k) {
    if (!d.mask[k]) continue;
    const long double middle = logp[k];
    logp[k] = middle + h;
    const long double above = formula(loss, d, logp);
    logp[k] = middle - h;
    gradient[k] = static_cast<double>((above - formula(loss, d, logp)) / (2 * h));
    logp[k] = middle;
  }
  return gradient;
}
double formula(const Loss& loss, const Data& d) {
  return static_cast<double>(
      formula(loss, d, std::vector<long double>(d.logp.begin(), d.logp.end())));
}

Loss random_loss(Random& random) {
  Loss loss;
  loss.tau = random.pick({0.5, 0.8, 1.0, 3.0});
  loss.count_empty_rows = random.chance(0.5);
  loss.kl.beta = random.pick({0.0, 0.04, 0.5});
  loss.aggregate.scale = random.pick({1.0, 4.0});
  return loss;
}
/// Variants of a batch: without old_logp, without weights of the KL term, advantages of tokens.
void vary(Random& random, Data& d) {
  if (random.chance(0.15)) d.old_logp.clear();
  if (random.chance(0.5)) d.kl_weights.clear();
  if (!random.chance(0.3)) return;
  for (int k = 0; k < d.rows * d.width; ++k)
    d.token_advantages.push_back((random.below(17) - 8) / 8.0);
}

}  // namespace

TEST_CASE("the loss is its formula and the gradient that of differences", "[loss][contrastive]") {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Loss loss = random_loss(random);
    const int width = random.pick({1, 5, 21});
    Data d = random_data(random, 1 + random.below(5), width, random.pick({0.0, 0.3, 0.8}));
    vary(random, d);
    const double wanted = formula(loss, d);
    const std::vector<double> slopes = differences(loss, d);
    const Outcome got = call(loss, d), in_float = call<float>(loss, d);
    // A few dozen roundings of 2^-53 in sums of at most 8.
    CHECK(std::fabs(got.result.loss - wanted) <= 1e-13 * (1 + std::fabs(wanted)));
    CHECK(deviation(got.gradient, slopes, 1e-9) == "");
    CHECK(got.result.loss == got.result.policy_loss + got.result.kl_loss);
    // KL terms in float; without them one rounding of each gradient, which is at most 4 / tau.
    CHECK(std::fabs(in_float.result.loss - wanted) <= 2e-6 * (1 + std::fabs(wanted)));
    CHECK(deviation(in_float.gradient, slopes, 2e-6) == "");
    CHECK(same_bits(in_float.result.policy_loss, got.result.policy_loss));
  }
}

TEST_CASE("groups of one size, by offsets and by id are the same groups", "[loss][contrastive]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Loss loss = random_loss(random);
    Data d = random_data(random, 4, 6, 0.3);
    std::vector<int> offsets{0};
    for (int i = 1; i <= d.rows; ++i)
      if (i == d.rows || d.ids[at(i)] != d.ids[at(i - 1)]) offsets.push_back(i);
    // by_id sums by TwoSum, so the last bits may differ.
    const auto groups = gdpo::by_offsets(offsets);
    const Outcome by_offsets = call(loss, d, groups, counts(d, groups)), by_id = call(loss, d);
    CHECK(by_offsets.result.loss == Approx(by_id.result.loss).epsilon(1e-14));
    CHECK(deviation(by_offsets.gradient, by_id.gradient, 1e-14) == "");

    const int size = random.pick({1, 2, 4});
    while (d.rows % size != 0) {
      d.rows -= 1;
      d.ids.pop_back(), d.advantages.pop_back();
    }
    std::vector<int> equal;
    for (int i = 0; i <= d.rows; i += size) equal.push_back(i);
    const auto of_size = gdpo::groups_of(size);
    CHECK(difference_of(call(loss, d, of_size, counts(d, of_size)),
                        call(loss, d, gdpo::by_offsets(equal), counts(d, of_size))) == "");
  }
}

TEST_CASE("layouts and masked places change no bit", "[loss][contrastive]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Loss loss = random_loss(random);
    Data d = random_data(random, 1 + random.below(5), random.pick({4, 19, 33}), 0.4);
    vary(random, d);
    const auto groups = gdpo::by_id(d.ids);
    const gdpo::Normalizer n = counts(d, groups);
    Data poisoned = d;
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      if (d.mask[k]) continue;
      const double poison = random.pick({std::nan(""), gdpo::math::infinity, -1e38});
      for (auto* array : {&poisoned.logp, &poisoned.old_logp, &poisoned.ref_logp,
                          &poisoned.kl_weights, &poisoned.token_advantages})
        if (!array->empty()) (*array)[k] = poison;
    }
    const auto check = [&](auto scalar) {
      using S = decltype(scalar);
      const Outcome padded = call<S>(loss, d, groups, n);
      for (std::size_t k = 0; k < d.mask.size(); ++k)
        if (!d.mask[k]) CHECK(same_bits(padded.gradient[k], 0));
      CHECK(difference_of(padded, call<S>(loss, d, groups, n, Form::Rank3)) == "");
      CHECK(difference_of(padded, call<S>(loss, d, groups, n, Form::Packed)) == "");
      CHECK(difference_of(padded, call<S>(loss, poisoned, groups, n)) == "");
      CHECK(difference_of(padded, call<S>(loss, poisoned, groups, n, Form::Packed)) == "");
    };
    check(double{}), check(float{});
  }
}

TEST_CASE("every executor gives the same bits", "[loss][contrastive]") {
  for (const int width : {3, 64}) {
    Random random(static_cast<std::uint64_t>(width));
    // With 64 tokens, enough for several workers (detail::worth_a_thread).
    const Data d = random_data(random, width == 64 ? 400 : 20, width, 0.2);
    const auto groups = gdpo::by_id(d.ids);
    const gdpo::Normalizer n = counts(d, groups);
    const Loss loss = gdpo::ms_swift::real_loss;
    const auto check = [&](auto scalar) {
      using S = decltype(scalar);
      const Outcome expected = call<S>(loss, d, groups, n, Form::Padded, gdpo::seq);
      executors::for_each_target([&](const auto& exec, const std::string& name) {
        INFO(name);
        CHECK(difference_of(expected, call<S>(loss, d, groups, n, Form::Padded, exec)) == "");
      });
    };
    check(double{}), check(float{});
  }
}

TEST_CASE("a group with rows on one side adds exactly 0", "[loss][contrastive]") {
  Random random(1);
  Loss loss;
  loss.kl.beta = 0;
  for (const double advantage : {1.0, 0.0, -1.0}) {
    Data d = random_data(random, 6, 5, 0.2);
    d.advantages.assign(at(d.rows), advantage);
    const Outcome o = call(loss, d);
    CHECK(same_bits(o.result.loss, 0));
    CHECK(all_zero(o.gradient));
    // One group of both sides: the others still count, and keep their zeros.
    const int last = d.rows - 1;
    d.ids[at(last)] = d.ids[at(last - 1)];
    d.advantages[at(last)] = advantage > 0 ? -1 : 1;
    for (int t = 0; t < d.width; ++t) d.mask[d.place(last, t)] = d.mask[d.place(last - 1, t)] = 1;
    const Outcome other = call(loss, d);
    CHECK(other.result.loss == Approx(formula(loss, d)).epsilon(1e-14));
    CHECK(other.result.loss > 0);
    for (int i = 0; i < d.rows; ++i)
      if (d.ids[at(i)] != d.ids.back())
        for (int t = 0; t < d.width; ++t) CHECK(same_bits(other.gradient[d.place(i, t)], 0));
  }
}

TEST_CASE("a row without tokens stands for a bad one only where it is counted",
          "[loss][contrastive]") {
  Random random(2);
  Data d = random_data(random, 1, 4, 0);
  d.rows = 2, d.ids = {0, 0}, d.advantages = {1, -1};
  for (auto* array : {&d.logp, &d.old_logp, &d.ref_logp, &d.kl_weights}) array->resize(8, -0.5);
  d.mask = {1, 1, 1, 1, 0, 0, 0, 0};
  Loss loss;
  loss.kl.beta = 0;
  CHECK(same_bits(call(loss, d).result.loss, 0));
  loss.count_empty_rows = true;
  CHECK(call(loss, d).result.loss == Approx(formula(loss, d)).epsilon(1e-14));
  CHECK(call(loss, d).result.loss > std::log(2.0));
  d.advantages = {-1, 1};  // the side of an empty row does not depend on its advantage
  CHECK(same_bits(call(loss, d).result.loss, 0));
}

TEST_CASE("large S neither overflow nor lose the small ones", "[loss][contrastive]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Loss loss = random_loss(random);
    loss.kl.beta = 0;
    const Data d = random_data(random, 3, 3, 0.2, random.pick({100.0, 2000.0, 1e6, 1e30}));
    const double wanted = formula(loss, d);
    const Outcome o = call(loss, d), in_float = call<float>(loss, d);
    // Log ratios of this size are rounded in proportion.
    CHECK(std::fabs(o.result.loss - wanted) <= 1e-13 * (1 + std::fabs(wanted)));
    CHECK(!gdpo::math::not_finite(in_float.result.loss));
    for (const double g : o.gradient) CHECK(std::fabs(g) <= 4 / loss.tau);
    for (const double g : in_float.gradient) CHECK(std::fabs(g) <= 4 / loss.tau);
  }
  // A good row with S = 60 has a loss of e^-60, of which log(1 + e^-60) keeps all digits.
  Data d;
  d.rows = 2, d.width = 1, d.ids = {0, 0}, d.mask = {1, 1};
  d.logp = {-1, -61}, d.old_logp = {-61, -1}, d.ref_logp = d.logp, d.advantages = {1, -1};
  Loss loss;
  loss.tau = 1, loss.kl.beta = 0;
  CHECK(call(loss, d).result.loss == Approx(2 * std::exp(-60.0)).epsilon(1e-13));
}

TEST_CASE("micro-batches that cut no group add up", "[loss][contrastive]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Loss loss = random_loss(random);
    const Data d = random_data(random, 6, 7, 0.3);
    const auto all = gdpo::by_id(d.ids);
    gdpo::Normalizer n;
    std::vector<Data> parts;
    const int cut = 1 + random.below(5);
    for (const bool second : {false, true}) {
      Data part;
      part.width = d.width;
      for (int i = 0; i < d.rows; ++i) {
        if ((d.ids[at(i)] >= cut) != second) continue;
        part.rows += 1;
        part.ids.push_back(d.ids[at(i)] - (second ? cut : 0));
        part.advantages.push_back(d.advantages[at(i)]);
        for (int t = 0; t < d.width; ++t) {
          const std::size_t k = d.place(i, t);
          part.logp.push_back(d.logp[k]), part.old_logp.push_back(d.old_logp[k]);
          part.ref_logp.push_back(d.ref_logp[k]), part.kl_weights.push_back(d.kl_weights[k]);
          part.mask.push_back(d.mask[k]);
        }
      }
      n += counts(part, gdpo::by_id(part.ids));
      parts.push_back(part);
    }
    const Outcome whole = call(loss, d, all, n);
    Outcome sum;
    for (const Data& part : parts) {
      const Outcome o = call(loss, part, gdpo::by_id(part.ids), n);
      sum.gradient.insert(sum.gradient.end(), o.gradient.begin(), o.gradient.end());
      sum.result = merge(sum.result, o.result);
    }
    CHECK(n.given == 6);
    CHECK(difference(whole.gradient, sum.gradient) == "");
    CHECK(sum.result.loss == Approx(whole.result.loss).epsilon(1e-13));
    CHECK(sum.result.metrics.rows == d.rows);
  }
}

TEST_CASE("by id, neither the order of rows nor that of ids changes a bit", "[loss][contrastive]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Loss loss = random_loss(random);
    const Data d = random_data(random, 5, 6, 0.3);
    std::vector<int> order(at(d.rows));
    for (int i = 0; i < d.rows; ++i) order[at(i)] = i;
    random.shuffle(order);
    const std::vector<long long> names = random_ids(random, 5);
    Data shuffled = d;
    std::vector<long long> ids;
    for (int i = 0; i < d.rows; ++i) {
      const int from = order[at(i)];
      ids.push_back(names[at(d.ids[at(from)])]);
      shuffled.advantages[at(i)] = d.advantages[at(from)];
      for (int t = 0; t < d.width; ++t) {
        const std::size_t to = d.place(i, t), k = d.place(from, t);
        shuffled.logp[to] = d.logp[k], shuffled.old_logp[to] = d.old_logp[k];
        shuffled.ref_logp[to] = d.ref_logp[k], shuffled.kl_weights[to] = d.kl_weights[k];
        shuffled.mask[to] = d.mask[k];
      }
    }
    const auto groups = gdpo::by_id(ids);
    const Outcome before = call(loss, d), after = call(loss, shuffled, groups, counts(d, groups));
    CHECK(same_bits(before.result.policy_loss, after.result.policy_loss));
    for (int i = 0; i < d.rows; ++i)
      for (int t = 0; t < d.width; ++t)
        CHECK(same_bits(after.gradient[d.place(i, t)], before.gradient[d.place(order[at(i)], t)]));
  }
}

TEST_CASE("NaN spoils its own group alone, and is counted", "[loss][contrastive]") {
  Random random(3);
  const Data d = random_data(random, 4, 5, 0);
  const int spoiled = 1;
  Loss loss;
  const Outcome before = call(loss, d);
  const auto check = [&](const Data& other, const auto& counter) {
    const Outcome o = call(loss, other);
    CHECK(gdpo::math::is_nan(o.result.loss));
    CHECK(gdpo::math::is_nan(o.result.policy_loss));
    for (int i = 0; i < d.rows; ++i) {
      for (int t = 0; t < d.width; ++t) {
        const double g = o.gradient[d.place(i, t)];
        if (d.ids[at(i)] == spoiled)
          CHECK(gdpo::math::is_nan(g));
        else
          CHECK(same_bits(g, before.gradient[d.place(i, t)]));
      }
    }
    CHECK((o.result.metrics.non_finite.*counter).count > 0);
  };
  int row = 0;
  while (d.ids[at(row)] != spoiled) ++row;
  using Inputs = gdpo::NonFiniteInputs;
  Data other = d;
  other.logp[d.place(row, 2)] = std::nan("");
  check(other, &Inputs::logp);
  other = d;
  other.old_logp[d.place(row, 0)] = std::nan("");
  check(other, &Inputs::old_logp);
  other = d;
  other.advantages[at(row)] = std::nan("");
  check(other, &Inputs::advantages);
  // On-policy, where the log ratio does not show it.
  other = d;
  other.old_logp.clear(), other.logp[d.place(row, 2)] = std::nan("");
  CHECK(gdpo::math::is_nan(call(loss, other).result.policy_loss));
}

TEST_CASE("metrics, and what exchanges parts of the loss", "[loss][contrastive]") {
  Random random(4);
  const Data d = random_data(random, 4, 5, 0.2);
  const Loss loss = gdpo::ms_swift::real_loss;
  CHECK(loss.count_empty_rows);
  CHECK(loss.kl.output.hi == 10);
  const Outcome all = call(loss, d), none = call(gdpo::with_metrics<gdpo::metrics::None>(loss), d);
  CHECK(difference(all.gradient, none.gradient) == "");
  CHECK(same_bits(all.result.loss, none.result.loss));
  CHECK(all.result.metrics.kl.count == all.result.normalizer.tokens);
  CHECK(all.result.metrics.ratio.count > 0);
  CHECK(all.result.metrics.surrogate.count == 0);
  CHECK(all.result.metrics.loss.count == 0);
  CHECK(all.result.over == static_cast<gdpo::index_t>(gdpo::Over::Given));
  // Two terms of half the beta are one.
  using Twice = gdpo::Kls<gdpo::Kl<>, gdpo::Kl<>>;
  Twice halves{loss.kl, {loss.kl, {}}};
  halves.first.beta = halves.rest.first.beta = loss.kl.beta / 2;
  const Outcome two = call(gdpo::with_kl(loss, halves), d);
  CHECK(two.result.loss == Approx(all.result.loss).epsilon(1e-13));
  CHECK(deviation(two.gradient, all.gradient, 1e-15) == "");
  // A term's own aggregate divides it in the place of that of the loss.
  auto rows = loss;
  rows.aggregate = gdpo::aggregate::seq_mean_token_sum();
  const Outcome own =
      call(gdpo::with_kl(rows, gdpo::with_aggregate(loss.kl, gdpo::aggregate::token_mean())), d);
  CHECK(own.result.kl_loss == Approx(all.result.kl_loss).epsilon(1e-13));
  CHECK(same_bits(own.result.policy_loss, all.result.policy_loss));
  CHECK(deviation(own.gradient, all.gradient, 1e-15) == "");
  const Outcome without = call(gdpo::with_kl<gdpo::kl::None>(loss), d);
  CHECK(same_bits(without.result.loss, all.result.policy_loss));
  CHECK(same_bits(call(loss, d).result.loss, all.result.loss));
}

TEST_CASE("a batch whose rows a pre-pass has masked", "[loss][contrastive]") {
  Random random(5);
  Data d = random_data(random, 4, 5, 0.2);
  std::vector<unsigned char> truncated(at(d.rows), 0);
  truncated[1] = truncated[at(d.rows - 1)] = 1;
  const Arrays<double> arrays(d, Form::Padded);
  gdpo::PrepassMemory<double> memory;
  const auto prepared =
      gdpo::prepare(arrays.batch, memory, gdpo::prepass::Overlong{gdpo::view(truncated)});
  const auto groups = gdpo::by_id(d.ids);
  const Loss loss;
  const LossResult got = loss(prepared, groups, gdpo::count(prepared, groups));
  for (int i = 0; i < d.rows; ++i)
    for (int t = 0; truncated[at(i)] && t < d.width; ++t) d.mask[d.place(i, t)] = 0;
  CHECK(same_bits(got.loss, call(loss, d).result.loss));
}

TEST_CASE("a call allocates nothing after the first of its shape", "[loss][contrastive]") {
  Random random(6);
  const Data d = random_data(random, 8, 40, 0.2);
  Arrays<float> arrays(d, Form::Padded);
  const auto groups = gdpo::by_id(d.ids);
  const gdpo::Normalizer n = counts(d, groups);
  gdpo::ContrastiveWorkspace<float> workspace;
  const Loss loss;
  for (const bool with_gradient : {true, false}) {
    const gdpo::TokenOut<float> out = with_gradient ? arrays.out : gdpo::TokenOut<float>{};
    const LossResult first = loss(gdpo::simd, arrays.batch, groups, n, out, workspace);
    const long before = counted::allocations;
    const LossResult second = loss(gdpo::simd, arrays.batch, groups, n, out, workspace);
    CHECK(counted::allocations == before);
    CHECK(same_bits(first.loss, second.loss));
  }
}

TEST_CASE("a workspace keeps nothing of another batch", "[loss][contrastive]") {
  Random random(8);
  gdpo::ContrastiveWorkspace<double> workspace;
  for (int round = 0; round < 20; ++round) {
    INFO("round " << round);
    const Loss loss = random_loss(random);
    const Data d = random_data(random, 1 + random.below(6), 1 + random.below(4), 0.6);
    const auto groups = gdpo::by_id(d.ids);
    const gdpo::Normalizer n = counts(d, groups);
    Arrays<double> arrays(d, Form::Padded);
    Outcome kept;
    kept.result = loss(gdpo::seq, arrays.batch, groups, n, arrays.out, workspace);
    kept.gradient = arrays.padded(d);
    CHECK(difference_of(kept, call(loss, d)) == "");
  }
}

TEST_CASE("what a contrastive loss refuses, before anything is written",
          "[loss][contrastive][errors]") {
  Random random(7);
  Data d = random_data(random, 3, 4, 0);
  const auto groups = gdpo::by_id(d.ids);
  const gdpo::Normalizer n = counts(d, groups);
  Arrays<double> arrays(d, Form::Padded);
  const auto message = [&](const auto& change) {
    Loss loss;
    gdpo::TokenBatch<double> batch = arrays.batch;
    gdpo::Normalizer given = n;
    change(loss, batch, given);
    const std::string text = message_of([&] { loss(batch, groups, given, arrays.out); });
    for (const double g : arrays.gradient) CHECK(gdpo::math::is_nan(g));
    return text;
  };
  const auto begins = [](const std::string& text, const char* begin) {
    INFO(text);
    CHECK(text.rfind(std::string("gdpo::ContrastiveLoss: ") + begin, 0) == 0);
  };
  for (const double tau : {0.0, -1.0, gdpo::math::infinity, std::nan("")})
    begins(message([=](auto& loss, auto&, auto&) { loss.tau = tau; }), "tau: given ");
  begins(message([](auto& loss, auto&, auto&) { loss.kl.beta = -1; }), "kl.beta: given -1");
  begins(message([](auto& loss, auto&, auto&) { loss.aggregate.over = gdpo::Over::Given; }),
         "aggregate.over: given given; needed: tokens, rows or non_empty_rows");
  begins(message([](auto& loss, auto&, auto&) { loss.aggregate.scale = std::nan(""); }),
         "aggregate.scale: given nan");
  begins(message([&](auto&, auto& batch, auto&) { batch.weights = batch.logp; }),
         "batch.weights: given an array; needed: none");
  begins(message([&](auto&, auto& batch, auto&) { batch.row_weights = batch.advantages; }),
         "batch.row_weights: given an array; needed: none");
  const std::vector<std::int64_t> segments(arrays.logp.size(), 1);
  begins(message([&](auto&, auto& batch, auto&) {
           batch.segments = gdpo::view(segments.data(), d.rows, d.width);
         }),
         "batch.segments: given an array; needed: none");
  begins(message([](auto&, auto& batch, auto&) { batch.advantages = {}; }),
         "batch.advantages, batch.token_advantages: given neither");
  begins(message([](auto&, auto& batch, auto&) { batch.ref_logp = {}; }), "batch.ref_logp: given");
  begins(message([](auto&, auto&, auto& counts) { counts.given = 2; }),
         "normalizer.given: given 2, for 3 groups with tokens; needed: the number of groups");
  begins(message([](auto&, auto&, auto& counts) { counts.given = 0; }),
         "normalizer.given: given 0");
  begins(message([](auto&, auto&, auto& counts) { counts.given = -1; }),
         "normalizer.given: given -1");
  begins(message([](auto&, auto&, auto& counts) { counts.tokens = 0; }), "normalizer.tokens: ");
  begins(message_of([&] {
           const auto own = gdpo::aggregate::token_mean(gdpo::Over::Given);
           gdpo::with_kl(Loss{}, gdpo::with_aggregate(gdpo::Kl<>{}, own))(arrays.batch, groups, n,
                                                                          arrays.out);
         }),
         "kl.aggregate.over: given given; needed: tokens, rows or non_empty_rows");
  begins(message_of([&] { Loss{}(arrays.batch, gdpo::groups_of(d.rows + 1), n, arrays.out); }),
         "groups: given ");
  CHECK(message_of([&] {
          gdpo::count(arrays.batch, gdpo::groups_of(d.rows + 1));
        }).rfind("gdpo::count: groups: ", 0) == 0);
  // Where no row has tokens, nothing is divided.
  d.mask.assign(d.mask.size(), 0);
  const Outcome empty = call(Loss{}, d, groups, gdpo::Normalizer{});
  CHECK(same_bits(empty.result.loss, 0));
  CHECK(all_zero(empty.gradient));
}

}  // namespace contrastive_test
