// labels: lanes
// What is not read may hold anything: NaN, inf and 1e38 there change no bit of loss, gradient and
// metrics. There is no tolerance.
#include "support/catch.hpp"
#include "support/loss_product.hpp"

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

namespace poison_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;
using naive_loss::Settings;

constexpr double infinite = std::numeric_limits<double>::infinity();
const double poisons[] = {std::nan(""), infinite, -infinite, 1e38, -1e38};
using loss_product::token_arrays;

/// A batch with every optional array, gaps in the mask, and a row without tokens.
Data masked_data(Random& random, bool single) {
  Data d = loss_product::random_tokens(random, 5, 8, 0.3, single);
  const std::size_t n = d.logp.size();
  const auto fill = [&](std::vector<double>& x, std::size_t count, double scale) {
    while (x.size() < count)
      x.push_back(static_cast<double>(static_cast<float>(scale * random.uniform())));
  };
  fill(d.old_logp, n, -2), fill(d.weights, n, 1), fill(d.kl_weights, n, 1), fill(d.tags, n, 1),
      fill(d.row_weights, 5, 1);
  d.mask.clear();
  for (std::size_t k = 0; k < n; ++k) d.mask.push_back(k / 8 == 2 ? 0 : random.chance(0.6));
  d.mask[0] = 1;
  d.segments.clear();
  long long id = 3;
  for (std::size_t k = 0; k < n; ++k)
    d.segments.push_back(random.chance(0.2) ? id = random.below(4) : id);
  return d;
}

/// Poisons one array or all of them where the mask is 0; for the row without tokens also the arrays
/// of rows.
template <class Run>
void check_poison(Random& random, const Data& clean, const Run& run) {
  const Outcome expected = run(clean);
  for (std::size_t k = 0; k < clean.mask.size(); ++k) {
    if (clean.mask[k] == 0 && !same_bits(expected.gradient[k], 0)) CHECK(expected.gradient[k] == 0);
  }
  for (const double poison : poisons) {
    // `array` chooses what is poisoned: one array of numbers, the arrays of rows, those and the
    // segments, or everything.
    constexpr int numbers = static_cast<int>(loss_product::arrays_of_numbers), all = numbers + 2;
    for (int array = 0; array <= all; ++array) {
      Data d = clean;
      for (std::size_t k = 0; k < d.mask.size(); ++k) {
        if (d.mask[k] != 0) continue;
        for (int a = 0; a < numbers; ++a) {
          std::vector<double>& values = d.*token_arrays[a];
          if (!values.empty() && (array == a || array == all)) values[k] = poison;
        }
        if (array > numbers) d.segments[k] = random.pick({-1LL, 3LL, 0LL, 1LL << 40});
      }
      if (array >= numbers) d.row_weights[2] = poison;
      if (array >= numbers && !d.advantages.empty()) d.advantages[2] = poison;
      const std::string difference = loss_product::difference_of(expected, run(d));
      if (difference.empty()) continue;
      INFO("poison " << poison << " in array " << array);
      CHECK(difference == "");
    }
  }
}

#if defined(MAP_ANONYMOUS)
/// Memory that must not be read: the process dies if it is.
class Forbidden {
 public:
  Forbidden() : page_(mmap(nullptr, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Forbidden() { munmap(page_, 65536); }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;
  template <class S>
  gdpo::View<const S, 2> view(gdpo::index_t rows, gdpo::index_t width) const {
    return gdpo::view(static_cast<const S*>(page_), rows, width);
  }

 private:
  void* page_;
};
#else
/// The same where memory cannot be protected: it holds signaling NaN.
class Forbidden {
 public:
  template <class S>
  gdpo::View<const S, 2> view(gdpo::index_t rows, gdpo::index_t width) const {
    static const std::vector<S> garbage(65536 / sizeof(S), std::numeric_limits<S>::signaling_NaN());
    return gdpo::view(garbage.data(), rows, width);
  }
};
#endif

}  // namespace

TEST_CASE("poison behind the mask changes no bit of any output, in any composition",
          "[loss][poison]") {
  std::uint64_t seed = 0;
  loss_product::for_each_type(-1, [&](Settings s) {
    Random random(++seed);
    INFO("seed " << seed << ": " << loss_product::describe(s));
    loss_product::random_settings(random, s);
    if (s.over == naive_loss::Over::Given) s.over = naive_loss::Over::Tokens;
    check_poison(random, masked_data(random, false),
                 [&](const Data& d) { return loss_product::run(s, d); });
  });
}

TEST_CASE("poison behind the mask changes no bit in float, padded and packed", "[loss][poison]") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Data d = masked_data(random, true);
    auto grpo = gdpo::grpo_loss;
    auto gspo = gdpo::gspo_loss;
    auto gspo_token = gdpo::gspo_token_loss;
    auto dapo = gdpo::dapo_loss;
    gspo.kl.beta = dapo.kl.beta = 0.1;
    const std::vector<int> lengths(5, 8);
    const auto check = [&](const auto& loss) {
      check_poison(random, d, [&](const Data& x) { return loss_product::call<float>(loss, x); });
      check_poison(random, d, [&](const Data& x) {
        return loss_product::call_packed<float, std::int32_t>(loss, x, lengths);
      });
    };
    check(grpo), check(gspo), check(gspo_token), check(dapo);
    using Gate = gdpo::Factors<gdpo::factor::TeacherGate>;
    const gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeightedK2, Gate> gated{0.1};
    const auto divided = gdpo::with_aggregate(gated, gdpo::aggregate::token_mean());
    check(gdpo::with_kl(grpo, divided)), check(gdpo::with_kl(gspo, divided));
  }
}

TEST_CASE("a mask selects by any byte that is not 0, with the same bits", "[loss][mask]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data ones = loss_product::random_tokens(random, 3, 40, 0.3), bytes = ones;
    if (ones.mask.empty()) continue;
    for (int& m : bytes.mask) m = m ? random.pick({1, 2, 64, 128, 255}) : 0;
    const auto check = [&](const auto& loss) {
      const gdpo::Normalizer n{100, 3, 3, 100};
      CHECK(difference_of(loss_product::call<float>(loss, ones, &n),
                          loss_product::call<float>(loss, bytes, &n)) == "");
      CHECK(difference_of(loss_product::call<double>(loss, ones, &n),
                          loss_product::call<double>(loss, bytes, &n)) == "");
    };
    check(gdpo::grpo_loss);
    check(gdpo::gspo_loss);
  }
}

TEST_CASE("a row of weight 0 gives nothing, whatever its tokens hold", "[loss][poison]") {
  Random random(5);
  Data d = masked_data(random, false);
  const gdpo::Normalizer n = loss_product::normalizer_of(naive_loss::count(d));
  d.row_weights = {1, 0, 1, 0.5, 1};
  gdpo::PolicyLoss<gdpo::level::Sequence<>> loss;
  const Outcome clean = loss_product::call<double>(loss, d, &n);
  for (const double poison : poisons) {
    for (int t = 0; t < d.width; ++t) d.logp[d.at(1, t)] = d.ref_logp[d.at(1, t)] = poison;
    const Outcome o = loss_product::call<double>(loss, d, &n);
    CHECK(difference(clean.gradient, o.gradient) == "");
    CHECK(same_bits(clean.result.loss, o.result.loss));
  }
}

TEST_CASE(
    "a token of weight 0 gives nothing to the surrogate, of kl weight 0 nothing to the KL terms",
    "[loss][poison]") {
  Random random(6);
  Data d = masked_data(random, false);
  auto loss = gdpo::grpo_loss;
  for (const std::size_t k : {std::size_t{0}, std::size_t{9}})
    d.mask[k] = 1, d.weights[k] = d.kl_weights[k] = 0;
  const Outcome clean = loss_product::call<double>(loss, d);
  for (const double poison : poisons) {
    for (const std::size_t k : {std::size_t{0}, std::size_t{9}})
      d.logp[k] = d.old_logp[k] = d.ref_logp[k] = poison;
    const Outcome o = loss_product::call<double>(loss, d);
    CHECK(difference(clean.gradient, o.gradient) == "");
    CHECK(same_bits(clean.result.loss, o.result.loss));
    CHECK(same_bits(clean.result.kl_loss, o.result.kl_loss));
  }
}

TEST_CASE("with beta 0 the reference is not read; nor is what no policy asks for",
          "[loss][poison]") {
  Random random(7);
  const Forbidden forbidden;
  const Data d = loss_product::random_tokens(random, 4, 6, 0.3, true);
  const auto check = [&](auto loss, auto scalar) {
    using S = decltype(scalar);
    const loss_product::Arrays<S> arrays(d);
    gdpo::TokenBatch<S> without = arrays.batch(), with = arrays.batch();
    without.ref_logp = without.rollout_logp = without.teacher_logp = without.tags =
        gdpo::TokenView<S>{};
    with.ref_logp = with.rollout_logp = with.teacher_logp = with.tags = forbidden.view<S>(4, 6);
    loss.kl.beta = 0;
    std::vector<S> a(d.logp.size()), b(d.logp.size());
    Outcome x, y;
    x.result = loss(without, gdpo::count(without), gdpo::view(a.data(), 4, 6));
    y.result = loss(with, gdpo::count(with), gdpo::view(b.data(), 4, 6));
    x.gradient.assign(a.begin(), a.end()), y.gradient.assign(b.begin(), b.end());
    CHECK(loss_product::difference_of(x, y) == "");
    CHECK(x.result.kl_loss == 0);
    CHECK(x.result.metrics.kl.count == 0);
  };
  check(gdpo::grpo_loss, 1.0f);
  check(gdpo::grpo_loss, 1.0);
  check(gdpo::gspo_loss, 1.0f);
  check(gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Reinforce,
                         gdpo::Kl<gdpo::kl::K1, gdpo::kl::ImportanceWeighted>>{},
        1.0f);
}

TEST_CASE("a KL term reads the policy that it is against and no other", "[loss][poison]") {
  Random random(9);
  const Forbidden forbidden;
  const Data d = loss_product::random_tokens(random, 4, 6, 0.3);
  const loss_product::Arrays<double> arrays(d);
  for (const gdpo::Against against :
       {gdpo::Against::Ref, gdpo::Against::Teacher, gdpo::Against::Rollout, gdpo::Against::Old}) {
    auto loss = gdpo::grpo_loss;
    loss.kl.against = against;
    gdpo::TokenBatch<double> batch = arrays.batch(), absent = batch;
    absent.tags = gdpo::TokenView<double>{};
    batch.tags = forbidden.view<double>(4, 6);
    if (against != gdpo::Against::Ref)
      batch.ref_logp = forbidden.view<double>(4, 6), absent.ref_logp = {};
    if (against != gdpo::Against::Teacher)
      batch.teacher_logp = forbidden.view<double>(4, 6), absent.teacher_logp = {};
    if (against != gdpo::Against::Rollout)
      batch.rollout_logp = forbidden.view<double>(4, 6), absent.rollout_logp = {};
    const gdpo::LossResult a = loss(batch, gdpo::count(batch)),
                           b = loss(absent, gdpo::count(absent));
    CHECK(difference(loss_product::numbers(a), loss_product::numbers(b)) == "");
  }
}

TEST_CASE("without old_logp the ratio is exactly 1 and the gradient exactly -A W",
          "[loss][on_policy]") {
  Random random(8);
  Data d = loss_product::random_tokens(random, 6, 7, 0.3, true);
  d.old_logp.clear(), d.weights.clear(), d.row_weights.clear(), d.mask.clear(), d.segments.clear(),
      d.token_advantages.clear();
  d.advantages = {1.5, -0.7f, 0.3f, -1e-3f, 2.25, 0};
  const auto check = [&](auto loss, auto scalar, double expected_weight) {
    using S = decltype(scalar);
    loss.kl.beta = 0;
    const Outcome o = loss_product::call<S>(loss, d);
    CHECK(o.result.metrics.ratio.min == 1);
    CHECK(o.result.metrics.ratio.max == 1);
    CHECK(o.result.metrics.approx_kl_k3.max == 0);
    CHECK(o.result.metrics.clip_fraction_any.sum == 0);
    std::vector<double> expected;
    for (std::size_t k = 0; k < d.logp.size(); ++k)
      expected.push_back(static_cast<double>(static_cast<S>(expected_weight) *
                                             -static_cast<S>(d.advantages[k / 7])));
    CHECK(deviation(o.gradient, expected, 0) == "");
  };
  check(gdpo::grpo_loss, 1.0f, 1.0 / 6 / 7);
  check(gdpo::grpo_loss, 1.0, 1.0 / 6 / 7);
  check(gdpo::dapo_loss, 1.0f, 1.0 / 42);
  check(gdpo::gspo_token_loss, 1.0, 1.0 / 6 / 7);
}

}  // namespace poison_test
