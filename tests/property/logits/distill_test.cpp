// labels: lanes
// Distillation from logits: values and gradients against the formulas in long double, and what may
// not change a bit.
#include <cstring>
#include <gdpo/logits/distill.hpp>
#include <gdpo/with/thread_pool.hpp>
#include <reference/naive_distill.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"

namespace distill_test {

namespace {

using gdpo::DistillationLoss, gdpo::DistillationResult, gdpo::index_t, gdpo::Rest;
constexpr double inf = std::numeric_limits<double>::infinity();

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// (B, T) positions of V logits of T with K tokens of a teacher of S each.
template <class T, class S>
struct Data {
  index_t sequences, width, vocabulary, k;
  std::vector<T> logits;
  std::vector<S> logp;
  std::vector<std::int64_t> ids;
  std::vector<unsigned char> mask;
  std::vector<float> weights;
  double temperature = 1;

  index_t rows() const { return sequences * width; }
  gdpo::LogitBatch<T, 3> batch() const {
    gdpo::LogitBatch<T, 3> b;
    b.logits = gdpo::view(logits.data(), sequences, width, vocabulary);
    b.mask = gdpo::view(mask.data(), sequences, width);
    b.temperature = temperature;
    return b;
  }
  gdpo::TeacherTopK<3, S> teacher() const {
    return {gdpo::view(logp.data(), sequences, width, k),
            gdpo::view(ids.data(), sequences, width, k)};
  }
  gdpo::TokenBatch<float> tokens() const {
    gdpo::TokenBatch<float> b;
    if (!weights.empty()) b.weights = gdpo::view(weights.data(), sequences, width);
    return b;
  }
};

/// `k` 0: any number of tokens. The teacher is a policy near that of the logits.
template <class T, class S>
Data<T, S> random_data(Random& random, index_t vocabulary, index_t k = 0, double gap = 1) {
  Data<T, S> d;
  d.sequences = 1 + random.below(3), d.width = 1 + random.below(5), d.vocabulary = vocabulary;
  d.k = k > 0 ? k : 1 + random.below(static_cast<int>(std::min<index_t>(vocabulary, 9)));
  d.temperature = random.pick({1.0, 0.7, 2.0});
  for (index_t i = 0; i < d.rows(); ++i) {
    d.mask.push_back(random.chance(0.8));
    std::vector<long double> of_teacher;
    for (index_t j = 0; j < vocabulary; ++j) {
      d.logits.push_back(static_cast<T>(static_cast<float>(6 * random.uniform() - 3)));
      of_teacher.push_back(d.logits.back() + gap * (2 * random.uniform() - 1));
    }
    const naive::Softmax p = naive::softmax(of_teacher, of_teacher.size(), d.temperature);
    std::vector<std::int64_t> order;
    for (index_t j = 0; j < vocabulary; ++j) order.push_back(j);
    random.shuffle(order);
    for (index_t j = 0; j < d.k; ++j) {
      d.ids.push_back(order[at(j)]);
      d.logp.push_back(static_cast<S>(p.logp(at(order[at(j)]))));
    }
    d.weights.push_back(static_cast<float>(random.pick({0.0, 1.0, 0.5, 2.0})));
  }
  if (random.chance(0.5)) d.weights.clear();
  return d;
}

DistillationLoss random_loss(Random& random) {
  DistillationLoss loss;
  loss.beta = random.pick({0.0, 1.0, 0.5, 0.1 + 0.8 * random.uniform()});
  loss.rest = random.pick({Rest::Drop, Rest::Renormalize, Rest::Tail});
  if (loss.rest == Rest::Renormalize) loss.teacher_temperature = random.pick({1.0, 1.7});
  loss.aggregate =
      random.pick({gdpo::aggregate::token_mean(), gdpo::aggregate::seq_mean_token_mean(),
                   gdpo::aggregate::token_sum()});
  return loss;
}
naive::Distill settings_of(const DistillationLoss& loss) {
  return {loss.beta, static_cast<naive::RestOf>(loss.rest), loss.teacher_temperature,
          static_cast<long double>(loss.min_logp)};
}

template <class T>
struct Outcome {
  DistillationResult result;
  std::vector<T> gradient;
  std::vector<double> losses;
};
template <class Exec, class T, class S>
Outcome<T> run(const Exec& exec, const DistillationLoss& loss, const Data<T, S>& d) {
  Outcome<T> o{{}, std::vector<T>(d.logits.size(), T(-77)), {}};
  gdpo::DistillationWorkspace workspace;
  o.result = gdpo::distillation_from_logits(
      exec, loss, d.batch(), d.teacher(), d.tokens(), gdpo::count(d.batch(), d.tokens()),
      gdpo::view(o.gradient.data(), d.sequences, d.width, d.vocabulary), workspace);
  o.losses = workspace.loss;
  return o;
}

/// Compares bytes, so NaN is compared too.
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(static_cast<const void*>(a.data()), b.data(), a.size() * sizeof(T)) == 0;
}
bool same(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// The weight of each position, 0 where masked.
template <class T, class S>
std::vector<long double> weights_of(const gdpo::Aggregate& a, const Data<T, S>& d) {
  std::vector<long double> weights;
  long double tokens = 0;
  for (const unsigned char m : d.mask) tokens += m;
  for (index_t i = 0; i < d.sequences; ++i) {
    long double of_row = 0;
    for (index_t t = 0; t < d.width; ++t) of_row += d.mask[at(i * d.width + t)];
    for (index_t t = 0; t < d.width; ++t) {
      const std::size_t place = at(i * d.width + t);
      const long double w = a.mode == gdpo::Aggregate::Mode::TokenMean ? 1 / tokens
                            : a.mode == gdpo::Aggregate::Mode::TokenSum
                                ? 1
                                : 1 / (of_row * static_cast<long double>(d.sequences));
      weights.push_back(d.mask[place] == 0 ? 0 : w * (d.weights.empty() ? 1 : d.weights[place]));
    }
  }
  return weights;
}

/// Compares a call with the formulas: numbers within `tolerance`, gradients within
/// `of_gradient`, both absolute for weights of 1.
template <class T, class S>
void compare(const DistillationLoss& loss, const Data<T, S>& d, double tolerance,
             double of_gradient) {
  const Outcome<T> got = run(gdpo::simd, loss, d);
  const std::vector<long double> weights = weights_of(loss.aggregate, d);
  long double total = 0, most = 0;
  for (index_t i = 0; i < d.rows(); ++i) {
    INFO("row " << i);
    const long double w = weights[at(i)];
    std::vector<long double> x;
    for (index_t j = 0; j < d.vocabulary; ++j)
      x.push_back(static_cast<long double>(d.logits[at(i * d.vocabulary + j)]));
    naive::Listed teacher;
    for (index_t j = 0; j < d.k; ++j) {
      teacher.ids.push_back(at(d.ids[at(i * d.k + j)]));
      teacher.logp.push_back(static_cast<long double>(d.logp[at(i * d.k + j)]));
    }
    const naive::Distill s = settings_of(loss);
    if (d.mask[at(i)] == 0) {
      CHECK(got.losses[at(i)] == 0);
      for (index_t j = 0; j < d.vocabulary; ++j) CHECK(got.gradient[at(i * d.vocabulary + j)] == 0);
      continue;
    }
    const long double value = naive::distilled(s, x, d.temperature, teacher);
    CHECK(std::fabs(got.losses[at(i)] - value) <= tolerance);
    total += w * value, most += w;
    const auto gradient = naive::distilled_gradient(s, x, d.temperature, teacher);
    long double sum = 0;
    for (index_t j = 0; j < d.vocabulary; ++j) {
      const long double g = static_cast<long double>(got.gradient[at(i * d.vocabulary + j)]);
      CHECK(std::fabs(g - w * gradient[at(j)]) <= of_gradient * w);
      sum += g;
    }
    // A shift of all logits changes nothing.
    CHECK(std::fabs(sum) <= of_gradient * w * static_cast<double>(d.vocabulary));
  }
  CHECK(std::fabs(got.result.loss - total) <= tolerance * (1 + most));
}

/// The policy's own log-probs of some tokens.
template <class T, class S>
void copy_policy(Data<T, S>& d) {
  const auto batch = d.batch();
  std::vector<gdpo::LogitRow> rows(at(d.rows()));
  gdpo::logit_rows(gdpo::simd, batch, gdpo::view(rows));
  for (index_t i = 0; i < d.rows(); ++i) {
    for (index_t j = 0; j < d.k; ++j) {
      const double x = static_cast<double>(d.logits[at(i * d.vocabulary + d.ids[at(i * d.k + j)])]);
      gdpo::LogitRow row = rows[at(i)];
      row.target = x * (1 / d.temperature);
      d.logp[at(i * d.k + j)] = static_cast<S>(gdpo::logp(row));  // as token_logprobs has it
    }
  }
}

}  // namespace

TEST_CASE("distillation: logits of double against the formulas", "[logits][teacher]") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto d = random_data<double, double>(random, 2 + random.below(40));
    // The sums of a row are in double. A difference quotient of step 1e-5 is off by 1e-10 / 6 of
    // the third derivative, which is below 100 here.
    compare(random_loss(random), d, 1e-13, 1e-8);
  }
}

TEST_CASE("distillation: logits of float against the formulas", "[logits][teacher]") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto d = random_data<float, float>(random, 2 + random.below(150));
    // logsumexp is off by 5e-7, log q is rounded to float by 2^-24 of up to 16 nats; probabilities
    // add up to at most 1, and the tail divides by 1 - Q, which is at least 1e-2 here or is held.
    compare(random_loss(random), d, 4e-6, 4e-6);
  }
}

TEST_CASE("distillation: log-probs that are held, and the bounds of a loss", "[logits][teacher]") {
  int held = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    auto d = random_data<double, double>(random, 2 + random.below(20));
    DistillationLoss loss = random_loss(random);
    loss.min_logp = -2.5 - 0.1234567 * random.uniform();
    compare(loss, d, 1e-13, 1e-8);
    const Outcome<double> free = run(gdpo::seq, loss, d);
    loss.bounds = {0.01, 0.2};
    const Outcome<double> bounded = run(gdpo::seq, loss, d);
    for (index_t i = 0; i < d.rows(); ++i) {
      if (d.mask[at(i)] == 0) continue;
      const double value = free.losses[at(i)];
      CHECK(bounded.losses[at(i)] == std::min(std::max(value, 0.01), 0.2));
      const bool outside = value < 0.01 || value > 0.2;
      held += outside;
      for (index_t j = 0; j < d.vocabulary; ++j) {
        const std::size_t place = at(i * d.vocabulary + j);
        CHECK(bounded.gradient[place] == (outside ? 0 : free.gradient[place]));
      }
    }
  }
  CHECK(held > 100);
}

TEST_CASE("distillation: a teacher that is the policy has loss 0", "[logits][teacher]") {
  const auto check = [](auto d, const DistillationLoss& loss) {
    copy_policy(d);
    const auto got = run(gdpo::simd, loss, d);
    const bool whole = d.k == d.vocabulary;
    // With Rest::Renormalize the policy's logits are normalized, and not its rounded log-probs.
    if (whole || loss.rest != Rest::Renormalize) {
      CHECK(got.result.loss == 0);
      for (const double l : got.losses) CHECK(l == 0);
    }
    if (!whole) return;
    for (const auto g : got.gradient) CHECK(g == 0);
  };
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    DistillationLoss loss = random_loss(random);
    loss.teacher_temperature = 1;
    const index_t vocabulary = 2 + random.below(100), k = random.chance(0.5) ? vocabulary : 0;
    check(random_data<float, float>(random, vocabulary, k), loss);
    check(random_data<double, double>(random, vocabulary, k), loss);
  }
}

TEST_CASE("distillation: the same bits on seq, simd and parallel, and over the logits",
          "[logits][teacher]") {
  gdpo::ThreadPool pool(3);
  const auto check = [&](const auto& d, const DistillationLoss& loss) {
    const auto want = run(gdpo::simd, loss, d);
    for (const auto& got : {run(gdpo::seq, loss, d), run(gdpo::parallel(pool), loss, d)}) {
      CHECK(same(got.gradient, want.gradient));
      CHECK(same(got.losses, want.losses));
      CHECK(same(got.result.loss, want.result.loss));
      CHECK(same(got.result.metrics.student_mass.sum, want.result.metrics.student_mass.sum));
    }
    auto in_place = d;
    gdpo::DistillationWorkspace workspace;
    const DistillationResult r =
        gdpo::distillation_from_logits(gdpo::simd, loss, d.batch(), d.teacher(), d.tokens(),
                                       gdpo::count(d.batch()), gdpo::View<float, 3>{}, workspace);
    CHECK(same(r.loss, want.result.loss));
    gdpo::distillation_from_logits(
        gdpo::simd, loss, in_place.batch(), d.teacher(), d.tokens(), gdpo::count(d.batch()),
        gdpo::view(in_place.logits.data(), d.sequences, d.width, d.vocabulary), workspace);
    CHECK(same(in_place.logits, want.gradient));
  };
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const DistillationLoss loss = random_loss(random);
    check(random_data<float, float>(random, 2 + random.below(random.pick({60, 9000}))), loss);
    check(random_data<double, float>(random, 2 + random.below(60)), loss);
  }
}

TEST_CASE("distillation: masked rows hold anything", "[logits][teacher][poison]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto d = random_data<float, float>(random, 2 + random.below(80));
    const DistillationLoss loss = random_loss(random);
    const auto want = run(gdpo::simd, loss, d);
    auto poisoned = d;
    for (index_t i = 0; i < d.rows(); ++i) {
      if (d.mask[at(i)] != 0) continue;
      for (index_t j = 0; j < d.vocabulary; ++j)
        poisoned.logits[at(i * d.vocabulary + j)] =
            static_cast<float>(random.pick({nan, inf, -inf, 1e30}));
      for (index_t j = 0; j < d.k; ++j) {
        poisoned.logp[at(i * d.k + j)] = static_cast<float>(random.pick({nan, inf, 7.0}));
        poisoned.ids[at(i * d.k + j)] = random.pick({-7, 1 << 30});
      }
      if (!poisoned.weights.empty()) poisoned.weights[at(i)] = static_cast<float>(nan);
    }
    const auto got = run(gdpo::simd, loss, poisoned);
    CHECK(same(got.gradient, want.gradient));
    CHECK(same(got.losses, want.losses));
    CHECK(same(got.result.loss, want.result.loss));
    CHECK(got.result.metrics.losses.count == 0);
    CHECK(got.result.metrics.weights.count == 0);
  }
}

TEST_CASE("distillation: places without a token are as if they were not there",
          "[logits][teacher]") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto d = random_data<float, float>(random, 12 + random.below(80));
    const DistillationLoss loss = random_loss(random);
    auto longer = d;
    longer.k = d.k + 2;
    longer.ids.clear(), longer.logp.clear();
    for (index_t i = 0; i < d.rows(); ++i) {
      longer.ids.push_back(-5), longer.logp.push_back(static_cast<float>(-inf));
      for (index_t j = 0; j < d.k; ++j) {
        longer.ids.push_back(d.ids[at(i * d.k + j)]),
            longer.logp.push_back(d.logp[at(i * d.k + j)]);
      }
      longer.ids.push_back(1 << 30), longer.logp.push_back(static_cast<float>(-inf));
    }
    const auto a = run(gdpo::simd, loss, d), b = run(gdpo::simd, loss, longer);
    CHECK(same(a.gradient, b.gradient));
    CHECK(same(a.losses, b.losses));
  }
}

TEST_CASE("distillation: packed rows as padded ones", "[logits][teacher]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto d = random_data<float, float>(random, 2 + random.below(80));
    const DistillationLoss loss = random_loss(random);
    const auto want = run(gdpo::simd, loss, d);
    // A sequence of packed logits ends with a row that predicts nothing.
    const index_t length = d.width + 1, rows = d.sequences * length;
    std::vector<float> logits, logp, gradient(at(rows * d.vocabulary)), weights;
    std::vector<std::int64_t> ids;
    std::vector<unsigned char> mask;
    std::vector<index_t> offsets{0};
    for (index_t i = 0; i < d.sequences; ++i) {
      for (index_t t = 0; t < length; ++t) {
        const index_t from = i * d.width + std::min(t, d.width - 1);
        for (index_t j = 0; j < d.vocabulary; ++j)
          logits.push_back(d.logits[at(from * d.vocabulary + j)]);
        for (index_t j = 0; j < d.k; ++j)
          logp.push_back(d.logp[at(from * d.k + j)]), ids.push_back(d.ids[at(from * d.k + j)]);
        mask.push_back(d.mask[at(from)]);
        if (!d.weights.empty()) weights.push_back(d.weights[at(from)]);
      }
      offsets.push_back((i + 1) * length);
    }
    gdpo::LogitBatch<float, 2> batch;
    batch.logits = gdpo::view(logits.data(), rows, d.vocabulary);
    batch.mask = gdpo::view(mask), batch.offsets = gdpo::view(offsets);
    batch.temperature = d.temperature;
    gdpo::TokenBatch<float> tokens;
    if (!weights.empty()) tokens.weights = gdpo::view(weights);
    const gdpo::TeacherTopK<2> teacher{gdpo::view(logp.data(), rows, d.k),
                                       gdpo::view(ids.data(), rows, d.k)};
    const DistillationResult got =
        gdpo::distillation_from_logits(loss, batch, teacher, tokens, gdpo::count(batch, tokens),
                                       gdpo::view(gradient.data(), rows, d.vocabulary));
    CHECK(same(got.loss, want.result.loss));
    for (index_t i = 0; i < d.sequences; ++i) {
      for (index_t e = 0; e < d.width * d.vocabulary; ++e)
        CHECK(gradient[at(i * length * d.vocabulary + e)] ==
              want.gradient[at(i * d.width * d.vocabulary + e)]);
      for (index_t j = 0; j < d.vocabulary; ++j)
        CHECK(gradient[at((i * length + d.width) * d.vocabulary + j)] == 0);
    }
  }
}

TEST_CASE("distillation: a vocabulary in shards", "[logits][teacher]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto d = random_data<float, float>(random, 20 + random.below(5000));
    const DistillationLoss loss = random_loss(random);
    const auto want = run(gdpo::simd, loss, d);
    std::vector<int> cuts{0, static_cast<int>(d.vocabulary)};  // 1 to 5 shards, some of them empty
    for (int n = random.below(5); n > 0; --n)
      cuts.push_back(random.below(static_cast<int>(d.vocabulary) + 1));
    std::sort(cuts.begin(), cuts.end());
    const auto shard_of = [&](std::size_t s) {
      auto shard = d.batch();
      shard.logits.data += cuts[s], shard.logits.extent[2] = cuts[s + 1] - cuts[s];
      shard.first_token = cuts[s];
      return shard;
    };
    std::vector<gdpo::LogitRow> merged(at(d.rows())), part(merged.size());
    std::vector<double> topk(at(d.rows() * d.k), 0.0), of_shard(topk.size(), -7.0);
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
      gdpo::logit_rows(gdpo::simd, shard_of(s), gdpo::view(part));
      gdpo::topk_logits(gdpo::simd, shard_of(s), d.teacher(),
                        gdpo::view(of_shard.data(), d.rows(), d.k));
      for (std::size_t i = 0; i < merged.size(); ++i) merged[i] = gdpo::merge(merged[i], part[i]);
      for (std::size_t i = 0; i < topk.size(); ++i) topk[i] += of_shard[i];
    }
    const gdpo::DistillationSums sums{gdpo::view(merged), gdpo::view(topk.data(), d.rows(), d.k)};
    std::vector<float> gradient(d.logits.size(), -77.0f);
    double first = 0;
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
      gdpo::View<float, 3> out{gradient.data(),
                               {d.sequences, d.width, cuts[s + 1] - cuts[s]},
                               {d.width * d.vocabulary, d.vocabulary, 1}};
      out.data += cuts[s];
      gdpo::DistillationWorkspace workspace;
      const double value =
          gdpo::distillation_from_sums(gdpo::simd, loss, shard_of(s), sums, d.teacher(), d.tokens(),
                                       gdpo::count(d.batch(), d.tokens()), out, workspace)
              .loss;
      if (s == 0) first = value;
      CHECK(same(first, value));
    }
    // The merged logsumexp is off by up to 5e-7, as that of the whole, and then rounded with log q.
    const std::vector<long double> weights = weights_of(loss.aggregate, d);
    long double total = 0;
    for (const long double w : weights) total += w;
    CHECK(std::fabs(first - want.result.loss) <= 4e-6 * (1 + total));
    for (std::size_t e = 0; e < gradient.size(); ++e)
      CHECK(std::fabs(gradient[e] - want.gradient[e]) <= 4e-6L * weights[e / at(d.vocabulary)]);
  }
}

TEST_CASE("distillation: micro-batches add up, and their results merge", "[logits][teacher]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    auto d = random_data<double, double>(random, 2 + random.below(30));
    const DistillationLoss loss = random_loss(random);
    const auto want = run(gdpo::simd, loss, d);
    const gdpo::Normalizer n = gdpo::count(d.batch(), d.tokens());
    DistillationResult merged;
    std::vector<double> gradient(d.logits.size());
    for (index_t i = 0; i < d.sequences; ++i) {
      auto one = d;
      const auto cut = [&](auto& v, index_t each) {
        if (v.empty()) return;
        v.erase(v.begin(), v.begin() + i * d.width * each), v.resize(at(d.width * each));
      };
      one.sequences = 1;
      cut(one.logits, d.vocabulary), cut(one.logp, d.k), cut(one.ids, d.k);
      cut(one.mask, 1), cut(one.weights, 1);
      merged = gdpo::merge(merged, gdpo::distillation_from_logits(
                                       loss, one.batch(), one.teacher(), one.tokens(), n,
                                       gdpo::view(gradient.data() + i * d.width * d.vocabulary, 1,
                                                  d.width, d.vocabulary)));
    }
    CHECK(same(gradient, want.gradient));
    CHECK(std::fabs(merged.loss - want.result.loss) <= 1e-14 * (1 + std::fabs(merged.loss)));
    CHECK(merged.metrics.loss.count == want.result.metrics.loss.count);
    CHECK(merged.metrics.loss.max == want.result.metrics.loss.max);
    CHECK(merged.metrics.rows == d.sequences);
    CHECK(merged.normalizer.tokens == n.tokens);
  }
}

}  // namespace distill_test
