// labels: sanitizers
// Distillation from logits on a device: the numbers of the host within tolerances, the same bits
// for any launch configuration, over the logits and with anything in masked rows, and exact zeros.
#include <cstring>
#include <gdpo/cuda/logits/device_distill.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"

namespace distill_test {

namespace {

using gdpo::DistillationLoss, gdpo::DistillationResult, gdpo::index_t, gdpo::Rest, gdpo::view;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

template <class T>
struct Data {
  index_t sequences, width, vocabulary, k;
  std::vector<T> logits;
  std::vector<float> logp, weights;
  std::vector<std::int64_t> ids;
  std::vector<unsigned char> mask;
  double temperature = 1;

  index_t rows() const { return sequences * width; }
};
template <class T>
T stored(double x) {
  T t;
  gdpo::store(t, static_cast<float>(x));
  return t;
}
template <class T>
Data<T> random_data(Random& random, index_t vocabulary, bool whole = false) {
  Data<T> d;
  d.sequences = 1 + random.below(3), d.width = 1 + random.below(4), d.vocabulary = vocabulary;
  d.k = whole ? vocabulary : 1 + random.below(static_cast<int>(std::min<index_t>(vocabulary, 70)));
  d.temperature = random.pick({1.0, 0.7});
  for (index_t i = 0; i < d.rows(); ++i) {
    d.mask.push_back(random.chance(0.8));
    d.weights.push_back(static_cast<float>(random.pick({0.0, 1.0, 0.5})));
    std::vector<std::int64_t> order;
    for (index_t j = 0; j < vocabulary; ++j) {
      d.logits.push_back(stored<T>(4 * random.uniform() - 2));
      order.push_back(j);
    }
    random.shuffle(order);
    for (index_t j = 0; j < d.k; ++j) {
      const bool none = !whole && random.chance(0.1);
      d.ids.push_back(none ? -3 : order[at(j)]);
      // k numbers whose powers add up to less than 1.
      d.logp.push_back(
          none ? -std::numeric_limits<float>::infinity()
               : static_cast<float>(-2 * random.uniform() - std::log(static_cast<double>(d.k))));
    }
  }
  if (random.chance(0.5)) d.weights.clear();
  return d;
}
DistillationLoss random_loss(Random& random) {
  DistillationLoss loss;
  loss.beta = random.pick({0.0, 1.0, 0.3});
  loss.rest = random.pick({Rest::Drop, Rest::Renormalize, Rest::Tail});
  if (loss.rest == Rest::Renormalize) loss.teacher_temperature = random.pick({1.0, 1.5});
  if (random.chance(0.2)) loss.min_logp = -4;
  if (random.chance(0.2)) loss.bounds = {0.05, 0.6};
  loss.aggregate =
      random.pick({gdpo::aggregate::token_mean(), gdpo::aggregate::seq_mean_token_mean()});
  return loss;
}

template <class T>
struct Outcome {
  DistillationResult result;
  std::vector<T> gradient;
};
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(static_cast<const void*>(a.data()), b.data(), a.size() * sizeof(T)) == 0;
}
bool same(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }
template <class T>
bool same(const Outcome<T>& a, const Outcome<T>& b) {
  const auto metric = [](const gdpo::Metric& x, const gdpo::Metric& y) {
    return same(x.sum, y.sum) && x.count == y.count && same(x.min, y.min) && same(x.max, y.max) &&
           same(x.row_sum, y.row_sum);
  };
  return same(a.gradient, b.gradient) && same(a.result.loss, b.result.loss) &&
         metric(a.result.metrics.loss, b.result.metrics.loss) &&
         metric(a.result.metrics.student_mass, b.result.metrics.student_mass);
}

/// The arrays of a batch, in memory of the host or of a device.
template <class T, template <class> class Memory>
struct Stored {
  const Data<T>& d;
  Memory<T> logits;
  Memory<float> logp, weights;
  Memory<std::int64_t> ids;
  Memory<unsigned char> mask;

  explicit Stored(const Data<T>& data)
      : d(data),
        logits(data.logits),
        logp(data.logp),
        weights(data.weights),
        ids(data.ids),
        mask(data.mask) {}
  gdpo::LogitBatch<T, 3> batch() {
    gdpo::LogitBatch<T, 3> b;
    b.logits = view(logits.data(), d.sequences, d.width, d.vocabulary);
    b.mask = view(mask.data(), d.sequences, d.width);
    b.temperature = d.temperature;
    return b;
  }
  gdpo::TeacherTopK<3> teacher() {
    gdpo::TeacherTopK<3> t;
    t.logp = view(logp.data(), d.sequences, d.width, d.k);
    t.ids = view(ids.data(), d.sequences, d.width, d.k);
    return t;
  }
  gdpo::TokenBatch<float> tokens() {
    gdpo::TokenBatch<float> b;
    if (!d.weights.empty()) b.weights = view(weights.data(), d.sequences, d.width);
    return b;
  }
};
template <class T>
using OnHost = std::vector<T>;
template <class T>
using InDevice = OnDevice<T>;

template <class T>
Outcome<T> on_host(const DistillationLoss& loss, const Data<T>& d) {
  Stored<T, OnHost> s(d);
  Outcome<T> o{{}, std::vector<T>(d.logits.size())};
  o.result = gdpo::distillation_from_logits(
      loss, s.batch(), s.teacher(), s.tokens(), gdpo::count(s.batch(), s.tokens()),
      view(o.gradient.data(), d.sequences, d.width, d.vocabulary));
  return o;
}
template <class T>
Outcome<T> on_device(const TestDevice& device, const DistillationLoss& loss, const Data<T>& d,
                     bool in_place = false) {
  Stored<T, InDevice> s(d);
  OnDevice<T> gradient(std::vector<T>(d.logits.size(), stored<T>(7)));
  OnDevice<DistillationResult> result(std::vector<DistillationResult>(1));
  OnDevice<gdpo::Normalizer> n(std::vector<gdpo::Normalizer>(1));
  TestScratch scratch(gdpo::cuda::scratch_bytes(loss, s.batch(), s.tokens()));
  gdpo::cuda::count_into(device, s.batch(), s.tokens(), n.data(), scratch());
  OnDevice<T>& out = in_place ? s.logits : gradient;
  gdpo::distillation_from_logits(device, loss, s.batch(), s.teacher(), s.tokens(), n.data(),
                                 view(out.data(), d.sequences, d.width, d.vocabulary),
                                 result.data(), scratch());
  return {result.host()[0], out.host()};
}
gdpo::cuda::Tuning tuned(int blocks, std::size_t shared_bytes) {
  gdpo::cuda::Tuning tuning;
  tuning.blocks = blocks, tuning.shared_bytes = shared_bytes;
  return tuning;
}

/// log q of device and host agree within 1e-6, so losses and gradients do within a few of that, the
/// tail dividing by 1 - Q; 16-bit gradients are rounded by 2^-8 of themselves.
template <class T>
void check(Random& random, unsigned seed) {
  const auto d = random_data<T>(random, 2 + random.below(random.pick({90, 3000})));
  const DistillationLoss loss = random_loss(random);
  const Outcome<T> want = on_host(loss, d), got = on_device(test_device(seed), loss, d);
  CHECK(same(on_device(test_device(seed + 9, tuned(2, 1000)), loss, d), got));
  CHECK(same(on_device(test_device(seed + 7, tuned(1000, 0)), loss, d, true), got));
  const double rounding = sizeof(T) == 2 ? 0x1p-7 : 0;
  const auto near = [](double a, double b, double scale) {
    return std::fabs(a - b) <= 2e-5 * (1 + scale);
  };
  bool all = true;
  for (std::size_t e = 0; e < got.gradient.size(); ++e) {
    const double a = gdpo::load(got.gradient[e]), b = gdpo::load(want.gradient[e]);
    all = all && std::fabs(a - b) <= 2e-5 + rounding * std::fabs(b);
  }
  // Where the bounds of the loss hold one and not the other, the gradients differ.
  const bool bounded = !gdpo::math::is_inf(loss.bounds.hi);
  CHECK((all || bounded));
  CHECK(near(got.result.loss, want.result.loss, std::fabs(want.result.loss)));
  const auto &a = got.result.metrics, &b = want.result.metrics;
  for (const auto metric :
       {&gdpo::DistillationMetrics::loss, &gdpo::DistillationMetrics::student_mass,
        &gdpo::DistillationMetrics::teacher_mass}) {
    const gdpo::Metric &x = a.*metric, &y = b.*metric;
    CHECK(x.count == y.count);
    CHECK(x.rows == y.rows);
    CHECK(near(x.sum, y.sum, y.count));
    CHECK(near(x.row_sum, y.row_sum, y.rows));
    if (y.count > 0) CHECK((near(x.min, y.min, 1) && near(x.max, y.max, 1)));
  }
  CHECK(a.rows == b.rows);
  CHECK(a.empty_rows == b.empty_rows);
  CHECK(a.losses.count == 0);
  CHECK(got.result.over == want.result.over);
  CHECK(got.result.normalizer.tokens == want.result.normalizer.tokens);
}

}  // namespace

TEST_CASE("cuda distill: the numbers of the host, and the same bits for any tuning",
          "[cuda][teacher]") {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    check<float>(random, seed);
    if (seed % 4 == 0) check<gdpo::BFloat16>(random, seed);
    if (seed % 4 == 1) check<double>(random, seed);
  }
}

TEST_CASE("cuda distill: masked rows hold anything", "[cuda][teacher][poison]") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto d = random_data<float>(random, 2 + random.below(200));
    const DistillationLoss loss = random_loss(random);
    auto poisoned = d;
    for (index_t i = 0; i < d.rows(); ++i) {
      if (d.mask[at(i)] != 0) continue;
      for (index_t j = 0; j < d.vocabulary; ++j)
        poisoned.logits[at(i * d.vocabulary + j)] = random.pick({std::nanf(""), 1e30f});
      for (index_t j = 0; j < d.k; ++j) {
        poisoned.logp[at(i * d.k + j)] = std::nanf("");
        poisoned.ids[at(i * d.k + j)] = random.pick({-7, 1 << 30});
      }
      if (!poisoned.weights.empty()) poisoned.weights[at(i)] = std::nanf("");
    }
    CHECK(same(on_device(test_device(seed), loss, poisoned),
               on_device(test_device(seed + 1), loss, d)));
  }
}

TEST_CASE("cuda distill: a teacher that is the policy has loss and gradient 0", "[cuda][teacher]") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    auto d = random_data<float>(random, 2 + random.below(300), true);
    DistillationLoss loss = random_loss(random);
    loss.teacher_temperature = 1, loss.bounds = {}, loss.min_logp = -gdpo::math::infinity;
    const auto device = test_device(seed);
    // The device's own log-probs of the tokens.
    Stored<float, InDevice> s(d);
    for (index_t j = 0; j < d.k; ++j) {
      std::vector<std::int64_t> targets;
      for (index_t i = 0; i < d.rows(); ++i) targets.push_back(d.ids[at(i * d.k + j)]);
      OnDevice<std::int64_t> on_targets(targets);
      OnDevice<float> logp(std::vector<float>(at(d.rows())));
      auto batch = s.batch();
      batch.targets = view(on_targets.data(), d.sequences, d.width);
      gdpo::token_logprobs_into(device, batch, {view(logp.data(), d.sequences, d.width), {}, {}});
      const std::vector<float> host = logp.host();
      for (index_t i = 0; i < d.rows(); ++i) d.logp[at(i * d.k + j)] = host[at(i)];
    }
    const auto got = on_device(device, loss, d);
    CHECK(got.result.loss == 0);
    bool zero = true;
    for (const float g : got.gradient) zero = zero && g == 0;
    CHECK(zero);
  }
}

TEST_CASE("cuda distill: a NaN shows at its row, and weights that are not finite are counted",
          "[cuda][teacher]") {
  Random random(3);
  auto d = random_data<float>(random, 40);
  d.sequences = 2, d.width = 1, d.mask = {1, 1}, d.weights = {1, 1};
  d.logits.resize(80, 0.25f), d.k = 2, d.logp = {-1, -1, -1, -1}, d.ids = {0, 1, 2, 3};
  d.logits[45] = std::nanf("");
  const auto got = on_device(test_device(1), DistillationLoss{}, d);
  CHECK(std::isnan(got.result.loss));
  CHECK(got.result.metrics.losses.count == 1);
  CHECK(got.result.metrics.losses.row == 1);
  for (std::size_t e = 0; e < 40; ++e)
    CHECK((std::isfinite(got.gradient[e]) && std::isnan(got.gradient[40 + e])));
  d.weights[1] = std::numeric_limits<float>::infinity();
  const auto weighed = on_device(test_device(1), DistillationLoss{}, d);
  CHECK(std::isfinite(weighed.result.loss));
  CHECK(weighed.result.metrics.weights.count == 1);
  CHECK(weighed.result.metrics.weights.row == 1);
  for (std::size_t e = 40; e < 80; ++e) CHECK(weighed.gradient[e] == 0);
}

TEST_CASE("cuda distill: what is refused", "[cuda][errors]") {
  std::vector<float> logits(2000, 0.5f), logp(2 * 1025, -9.0f), gradient(2000);
  std::vector<std::int64_t> ids(logp.size());
  gdpo::LogitBatch<float, 3> batch;
  batch.logits = view(logits.data(), 1, 2, 1000);
  gdpo::TeacherTopK<3> teacher{view(logp.data(), 1, 2, 1025), view(ids.data(), 1, 2, 1025)};
  DistillationResult result;
  const gdpo::Normalizer n = gdpo::count(batch);
  const auto said = [&](DistillationResult* to, std::size_t missing) {
    TestScratch scratch(gdpo::cuda::scratch_bytes(DistillationLoss{}, batch, {}));
    auto given = scratch();
    given.bytes -= missing;
    return message_of([&] {
      gdpo::distillation_from_logits(test_device(1), DistillationLoss{}, batch, teacher,
                                     gdpo::TokenBatch<float>{}, n,
                                     view(gradient.data(), 1, 2, 1000), to, given);
    });
  };
  CHECK(said(&result, 0) ==
        "gdpo::distillation_from_logits: teacher.logp: given 1025 tokens a position; needed: at "
        "most 1024 on a device");
  teacher = {view(logp.data(), 1, 2, 3), view(ids.data(), 1, 2, 3)};
  CHECK(said(&result, 0) == "no error");
  CHECK(said(&result, 1).find("scratch: given") != std::string::npos);
  CHECK(said(nullptr, 0).find("result: given no memory") != std::string::npos);
  teacher.ids.extent[1] = 1;
  CHECK(said(&result, 0).find("teacher.ids: given (1, 1, 3); needed: (1, 2, 3)") !=
        std::string::npos);
}

}  // namespace distill_test
