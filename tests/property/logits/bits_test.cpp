// labels: lanes
// What must not change a bit of log-probs and gradients: the execution target, the threads and
// their order, the layout, whether the gradient is written over the logits, what masked rows hold,
// and the other rows.
#include <cstring>
#include <gdpo/with/eigen.hpp>

#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/logits.hpp"
#include "support/tolerance.hpp"

namespace bits_test {

namespace {

using logit_cases::Kind, logit_cases::stored;

/// Compares bytes, so NaN is compared too.
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(static_cast<const void*>(a.data()), b.data(), a.size() * sizeof(T)) == 0;
}

/// Rows of every kind, some of them with NaN or infinities; targets; a mask; and gradients, of
/// which some are 0.
template <class T>
struct Table {
  int rows, vocabulary;
  std::vector<T> logits;
  std::vector<std::int64_t> targets;
  std::vector<unsigned char> mask;
  std::vector<float> g, g_entropy;

  Table(std::uint64_t seed, int vocabulary_) : rows(0), vocabulary(vocabulary_) {
    Random random(seed);
    std::vector<float> x;
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (const Kind kind : logit_cases::all_kinds) {
        const std::vector<float> row = logit_cases::row(random, kind, vocabulary);
        x.insert(x.end(), row.begin(), row.end());
        if (repeat && random.chance(0.3)) {
          x[x.size() - 1 - static_cast<std::size_t>(random.below(vocabulary))] =
              random.pick({std::nanf(""), std::numeric_limits<float>::infinity()});
        }
        targets.push_back(random.below(vocabulary));
        mask.push_back(random.chance(0.8));
        g.push_back(random.chance(0.2) ? 0.0f : static_cast<float>(random.uniform() - 0.5));
        g_entropy.push_back(random.chance(0.5) ? 0.0f : static_cast<float>(random.uniform() - 0.5));
        ++rows;
      }
    }
    logits = stored<T>(x);
  }
  gdpo::LogitBatch<T, 2> batch(double temperature = 0.9) const {
    gdpo::LogitBatch<T, 2> b;
    b.logits = gdpo::view(logits.data(), rows, vocabulary);
    b.targets = gdpo::view(targets);
    b.mask = gdpo::view(mask);
    b.temperature = temperature;
    return b;
  }
};

template <class T>
struct Outcome {
  gdpo::TokenLogprobs forward;
  std::vector<T> gradient;
};
template <class T, class Exec>
Outcome<T> run(const Exec& exec, const Table<T>& t, const gdpo::LogitBatch<T, 2>& batch) {
  Outcome<T> o{gdpo::token_logprobs(exec, batch), std::vector<T>(t.logits.size())};
  gdpo::token_logprobs_backward(exec, batch, {gdpo::view(t.g), gdpo::view(t.g_entropy)},
                                gdpo::view(o.forward.logsumexp), gdpo::view(o.forward.entropy),
                                gdpo::view(o.gradient.data(), t.rows, t.vocabulary));
  return o;
}
template <class T>
void check_same(const Outcome<T>& a, const Outcome<T>& b) {
  CHECK(same(a.forward.logp, b.forward.logp));
  CHECK(same(a.forward.entropy, b.forward.entropy));
  CHECK(same(a.forward.logsumexp, b.forward.logsumexp));
  CHECK(same(a.gradient, b.gradient));
}

template <class T>
void check_targets() {
  for (const int vocabulary : {1, 17, 100, 513, 4200, 9001}) {
    const std::uint64_t seed = 500 + static_cast<std::uint64_t>(vocabulary);
    INFO("seed " << seed << ", vocabulary " << vocabulary);
    const Table<T> t(seed, vocabulary);
    const Outcome<T> expected = run(gdpo::seq, t, t.batch());
    check_same(expected, run(gdpo::simd, t, t.batch()));
    check_same(expected, run(gdpo::parallel(executors::Backwards{}), t, t.batch()));
    for (const int threads : {1, 2, 3, 7}) {
      check_same(expected, run(gdpo::parallel(executors::Threads{threads}), t, t.batch()));
    }
  }
}

}  // namespace

TEST_CASE("seq, simd and parallel give the same bits") {
  check_targets<float>();
  check_targets<double>();
  check_targets<gdpo::BFloat16>();
  check_targets<gdpo::Float16>();
}

TEST_CASE("the gradient in place of the logits has the bits of the one beside them") {
  const auto check = [](auto scalar) {
    using T = decltype(scalar);
    for (const int vocabulary : {3, 100, 4200}) {
      Table<T> t(600, vocabulary);
      const Outcome<T> expected = run(gdpo::simd, t, t.batch());
      gdpo::token_logprobs_backward(
          gdpo::simd, t.batch(), {gdpo::view(t.g), gdpo::view(t.g_entropy)},
          gdpo::view(expected.forward.logsumexp), gdpo::view(expected.forward.entropy),
          gdpo::view(t.logits.data(), t.rows, t.vocabulary));
      CHECK(same(t.logits, expected.gradient));
    }
  };
  check(float{}), check(double{}), check(gdpo::BFloat16{}), check(gdpo::Float16{});
}

TEST_CASE("a masked row may hold anything, and is 0") {
  Table<float> t(700, 600);
  const Outcome<float> expected = run(gdpo::simd, t, t.batch());
  Random random(701);
  for (int i = 0; i < t.rows; ++i) {
    if (t.mask[static_cast<std::size_t>(i)]) continue;
    t.targets[static_cast<std::size_t>(i)] =
        random.pick({std::int64_t{-100}, std::int64_t{1} << 40});
    t.g[static_cast<std::size_t>(i)] = std::nanf("");
    for (int j = 0; j < t.vocabulary; ++j) {
      t.logits[static_cast<std::size_t>(i * t.vocabulary + j)] =
          random.pick({std::nanf(""), std::numeric_limits<float>::infinity(), 1e38f});
    }
  }
  const Outcome<float> got = run(gdpo::simd, t, t.batch());
  check_same(expected, got);
  for (std::size_t i = 0; i < t.mask.size(); ++i) {
    if (t.mask[i]) continue;
    CHECK(got.forward.logp[i] == 0);
    CHECK(got.forward.entropy[i] == 0);
    CHECK(got.forward.logsumexp[i] == 0);
    for (int j = 0; j < t.vocabulary; ++j)
      CHECK(bits_of(got.gradient[i * 600 + static_cast<std::size_t>(j)]) == 0);
  }
}

TEST_CASE("rows do not know of each other, and strides between them change nothing") {
  const Table<float> t(800, 700);
  const Outcome<float> expected = run(gdpo::simd, t, t.batch());
  // Logits (rows / 4, 4, V) with gaps of NaN after every row and after every four rows; int32
  // targets with a stride of 3.
  const int pairs = t.rows / 4;
  const gdpo::index_t row_stride = t.vocabulary + 13, outer = 4 * row_stride + 29;
  const auto size = static_cast<std::size_t>(pairs * outer);
  std::vector<float> logits(size, std::nanf("")), gradient(size, 42.0f);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(3 * t.rows), -7);
  std::vector<float> logp(static_cast<std::size_t>(t.rows));
  std::vector<double> logsumexp(logp.size());
  for (int i = 0; i < t.rows; ++i) {
    std::memcpy(&logits[static_cast<std::size_t>(i / 4 * outer + i % 4 * row_stride)],
                &t.logits[static_cast<std::size_t>(i * t.vocabulary)],
                static_cast<std::size_t>(t.vocabulary) * sizeof(float));
    targets[static_cast<std::size_t>(3 * i)] =
        static_cast<std::int32_t>(t.targets[static_cast<std::size_t>(i)]);
  }
  gdpo::LogitBatch<float, 3> batch;
  batch.logits = {logits.data(), {pairs, 4, t.vocabulary}, {outer, row_stride, 1}};
  batch.targets = gdpo::View<const std::int32_t, 2>{targets.data(), {pairs, 4}, {12, 3}};
  batch.mask = gdpo::view(t.mask.data(), pairs, 4);
  batch.temperature = 0.9;
  gdpo::token_logprobs_into(
      gdpo::simd, batch,
      {gdpo::view(logp.data(), pairs, 4), {}, gdpo::view(logsumexp.data(), pairs, 4)});
  CHECK(same(logp, expected.forward.logp));
  CHECK(same(logsumexp, expected.forward.logsumexp));
  gdpo::token_logprobs_backward(
      gdpo::simd, batch,
      {gdpo::view(t.g.data(), pairs, 4), gdpo::view(t.g_entropy.data(), pairs, 4)},
      gdpo::view(logsumexp.data(), pairs, 4), gdpo::view(expected.forward.entropy.data(), pairs, 4),
      gdpo::View<float, 3>{gradient.data(), {pairs, 4, t.vocabulary}, {outer, row_stride, 1}});
  std::size_t written = 0;
  for (int i = 0; i < t.rows; ++i) {
    const auto from = static_cast<std::size_t>(i / 4 * outer + i % 4 * row_stride);
    const std::vector<float> row(&gradient[from], &gradient[from] + t.vocabulary);
    const float* other = &expected.gradient[static_cast<std::size_t>(i * t.vocabulary)];
    CHECK(same(row, std::vector<float>(other, other + t.vocabulary)));
    written += static_cast<std::size_t>(t.vocabulary);
  }
  CHECK(static_cast<std::size_t>(std::count(gradient.begin(), gradient.end(), 42.0f)) ==
        size - written);
}

TEST_CASE("Eigen arrays, and its 16-bit floats, are read as raw memory is") {
  const auto check = [](auto eigen, auto raw) {
    using E = decltype(eigen);
    using T = decltype(raw);
    const Table<T> t(900, 300);
    const Outcome<T> expected = run(gdpo::simd, t, t.batch());
    Eigen::Array<E, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> logits(t.rows, t.vocabulary),
        gradient(t.rows, t.vocabulary);
    std::memcpy(static_cast<void*>(logits.data()), t.logits.data(), t.logits.size() * sizeof(T));
    gdpo::LogitBatch<E, 2> batch;
    batch.logits = gdpo::view(logits);
    batch.targets = gdpo::view(t.targets);
    batch.mask = gdpo::view(t.mask);
    batch.temperature = 0.9;
    const gdpo::TokenLogprobs got = gdpo::token_logprobs(batch);
    CHECK(same(got.logp, expected.forward.logp));
    CHECK(same(got.logsumexp, expected.forward.logsumexp));
    gdpo::token_logprobs_backward(gdpo::seq, batch, {gdpo::view(t.g), gdpo::view(t.g_entropy)},
                                  gdpo::view(got.logsumexp), gdpo::view(got.entropy),
                                  gdpo::view(gradient));
    CHECK(std::memcmp(static_cast<const void*>(gradient.data()), expected.gradient.data(),
                      t.logits.size() * sizeof(T)) == 0);
  };
  check(float{}, float{});
  check(Eigen::bfloat16{}, gdpo::BFloat16{});
  check(Eigen::half{}, gdpo::Float16{});
}

TEST_CASE("no allocation") {
  const Table<gdpo::BFloat16> t(1000, 500);
  Outcome<gdpo::BFloat16> o = run(gdpo::simd, t, t.batch());
  const auto n = static_cast<std::size_t>(t.rows);
  std::vector<float> logp(n), entropy(n);
  std::vector<double> logsumexp(n);
  const long before = counted::allocations;
  gdpo::token_logprobs_into(gdpo::simd, t.batch(),
                            {gdpo::view(logp), gdpo::view(entropy), gdpo::view(logsumexp)});
  gdpo::token_logprobs_backward(gdpo::simd, t.batch(), {gdpo::view(t.g), gdpo::view(t.g_entropy)},
                                gdpo::view(logsumexp), gdpo::view(entropy),
                                gdpo::view(o.gradient.data(), t.rows, t.vocabulary));
  CHECK(counted::allocations == before);
  CHECK(same(logp, o.forward.logp));
}

}  // namespace bits_test
