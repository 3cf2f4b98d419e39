// labels: sanitizers
// The mismatch report on a device: the bytes of the host's, launches, and what is refused.
#include "support/mismatch.hpp"

#include <cmath>
#include <cstring>
#include <gdpo/cuda/mismatch/device_mismatch.hpp>
#include <gdpo/mismatch/mismatch.hpp>
#include <limits>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/generators.hpp"
#include "support/host_only.hpp"
#include "support/message.hpp"

namespace cuda_mismatch_test {

namespace {

using gdpo::index_t, gdpo::MismatchReport, gdpo::MismatchSettings, gdpo::TokenBatch;
using mismatch_support::differs;

constexpr double nan_ = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();

enum class Kind { Padded, Grouped, Packed };

/// The numbers of a batch, position by position; optional arrays may be empty. Masked places hold
/// nonsense.
struct Numbers {
  Kind kind = Kind::Padded;
  index_t rows = 0, width = 0;
  std::vector<index_t> offsets{0};
  std::vector<double> old_logp, logp, rollout_logp, weights;
  std::vector<unsigned char> mask, completion;
};

/// How a batch is drawn: up to `rows` rows of up to `longest` tokens. A share of `wild` of the
/// numbers is NaN, infinite or so large that sums overflow.
struct Draw {
  int rows = 12, longest = 300;
  double wild = 0.02;
};

Numbers random_numbers(Random& random, const Draw& draw) {
  Numbers d;
  d.kind = random.pick({Kind::Padded, Kind::Grouped, Kind::Packed});
  d.rows = 1 + random.below(draw.rows), d.width = 1 + random.below(draw.longest);
  if (d.kind == Kind::Grouped) d.rows += d.rows % 2;
  for (index_t i = 0; i < d.rows; ++i) {
    const int width = static_cast<int>(d.width);
    const bool full = d.kind != Kind::Packed || random.chance(0.3);
    d.offsets.push_back(d.offsets.back() + (full ? width : random.below(width + 1)));
  }
  const bool of_old = random.chance(0.7), weights = random.chance(0.6), mask = random.chance(0.8),
             completion = random.chance(0.6), ties = random.chance(0.3);
  const double kept = random.pick({0.0, 0.5, 0.95}), spread = random.pick({0.1, 3.0, 90.0}),
               wild = random.pick({0.0, draw.wild});
  const auto number = [&] { return ties ? 0.25 * random.below(5) : random.uniform(); };
  for (index_t k = 0; k < d.offsets.back(); ++k) {
    double old = -3 * number(), rollout = old + spread * (number() - 0.5),
           weight = random.pick({0.0, -0.0, 1.0, 2 * number()});
    const bool extreme = random.chance(0.3);
    if (random.chance(wild)) rollout = extreme ? -1e308 : random.pick({nan_, nan_, inf, -inf});
    if (random.chance(wild)) old = extreme ? 1e308 : random.pick({nan_, -inf});
    if (random.chance(wild)) weight = extreme ? -1e300 : random.pick({nan_, inf});
    if (mask) d.mask.push_back(random.chance(kept));
    if (completion) d.completion.push_back((mask && d.mask.back()) || random.chance(0.5));
    if (mask && !d.mask.back()) old = rollout = weight = random.pick({nan_, inf, 1e300, 7.0});
    (of_old ? d.old_logp : d.logp).push_back(old);
    if (of_old && random.chance(0.5)) d.logp.resize(d.old_logp.size(), nan_);
    d.rollout_logp.push_back(rollout);
    if (weights) d.weights.push_back(weight);
  }
  if (of_old) d.logp.resize(random.chance(0.5) ? d.old_logp.size() : 0, nan_);
  return d;
}

/// The same numbers with other nonsense at masked places.
Numbers poisoned(Numbers d) {
  for (std::size_t k = 0; k < d.mask.size(); ++k) {
    for (auto* array : {&d.old_logp, &d.logp, &d.rollout_logp, &d.weights})
      if (!d.mask[k] && !array->empty()) (*array)[k] = k % 2 ? -0.5 : nan_;
  }
  return d;
}

/// A batch of S whose arrays are of Memory: std::vector on the host, OnDevice on a device.
template <class S, template <class...> class Memory>
class Stored {
 public:
  TokenBatch<S> batch;

  explicit Stored(const Numbers& d) : d_(d) {
    set(d.old_logp, old_, batch.old_logp), set(d.logp, logp_, batch.logp);
    set(d.rollout_logp, rollout_, batch.rollout_logp), set(d.weights, weights_, batch.weights);
    set(d.mask, mask_, batch.mask), set(d.completion, completion_, batch.completion_mask);
    offsets_ = Memory<index_t>(d.offsets);
    if (d.kind == Kind::Packed) batch.offsets = gdpo::view(offsets_.data(), d.rows + 1);
  }
  Stored(const Stored&) = delete;

 private:
  template <class From, class T>
  void set(const std::vector<From>& from, Memory<T>& to, gdpo::TokenView<T>& in) {
    if (from.empty() && d_.offsets.back() > 0) return;
    std::vector<T> stored(from.begin(), from.end());
    to = Memory<T>(stored);
    if (d_.kind == Kind::Packed) in = gdpo::view(to.data(), d_.offsets.back());
    if (d_.kind == Kind::Padded) in = gdpo::view(to.data(), d_.rows, d_.width);
    if (d_.kind == Kind::Grouped) in = gdpo::view(to.data(), d_.rows / 2, 2, d_.width);
  }
  const Numbers d_;
  Memory<S> old_, logp_, rollout_, weights_;
  Memory<unsigned char> mask_, completion_;
  Memory<index_t> offsets_;
};
template <class... T>
using OnHost = std::vector<typename std::tuple_element<0, std::tuple<T...>>::type>;
template <class... T>
using InDevice = OnDevice<typename std::tuple_element<0, std::tuple<T...>>::type>;

/// The bytes of a report in memory that held something else.
using Bytes = std::vector<unsigned char>;

template <class S, class Device>
Bytes bytes_on(const Device& device, const TokenBatch<S>& batch, const MismatchSettings& settings,
               index_t first_row) {
  OnDevice<double> before(std::vector<double>(sizeof(MismatchReport) / sizeof(double), nan_));
  TestScratch scratch(gdpo::cuda::mismatch_bytes(batch));
  auto* const out = reinterpret_cast<MismatchReport*>(before.data());
  gdpo::cuda::mismatch_into(device, batch, out, scratch(), settings, first_row);
  const std::vector<double> words = before.host();
  Bytes bytes(sizeof(MismatchReport));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}
MismatchReport report_in(const Bytes& bytes) {
  MismatchReport report;
  std::memcpy(&report, bytes.data(), bytes.size());
  return report;
}
/// The bytes of a report of the host. Those of its settings that mean nothing are 0.
Bytes bytes_of(const MismatchReport& report) {
  Bytes bytes(sizeof report);
  std::memcpy(bytes.data(), &report, bytes.size());
  const std::size_t last = offsetof(MismatchSettings, empty_rows) + 1;
  std::fill(bytes.begin() + last, bytes.begin() + sizeof(MismatchSettings), 0);
  return bytes;
}

MismatchSettings random_settings(Random& random) {
  MismatchSettings s;
  s.token_low = random.pick({0.0, 0.5, 0.9}), s.token_high = random.pick({1.2, 2.0, inf});
  s.row_low = random.pick({0.0, 0.5, 0.9}), s.row_high = random.pick({1.1, 2.0});
  s.clamp = random.pick({20.0, 0.1, 1.0, inf});
  s.count_eps = random.pick({0.0, 1e-8, 0.5}), s.ess_eps = random.pick({0.0, 1e-8});
  s.empty_rows = random.chance(0.5);
  return s;
}

template <class S>
void check(unsigned seed, const Draw& draw) {
  INFO("seed " << seed << ", " << sizeof(S) << " bytes");
  Random random(seed);
  const Numbers d = random_numbers(random, draw);
  const MismatchSettings settings = random_settings(random);
  const index_t first_row = random.pick({0, 0, 1000});
  const Stored<S, OnHost> host(d);
  const MismatchReport wanted = gdpo::mismatch(host.batch, settings, first_row);
  const Stored<S, InDevice> on(d), other(poisoned(d));
  const Bytes got = bytes_on(test_device(seed), on.batch, settings, first_row);
  CHECK(differs(report_in(got), wanted) == "");
  CHECK(got == bytes_of(wanted));
  gdpo::cuda::Tuning few;
  few.blocks = 1 + random.below(4);
  CHECK(bytes_on(test_device(seed + 1, few), other.batch, settings, first_row) == got);
}

/// Two rows of three tokens, on a device.
struct Step {
  OnDevice<double> old_logp{std::vector<double>{-1, -2, -3, -0.5, -1, -1}},
      rollout_logp{std::vector<double>{-1.5, -2, -1, -0.5, nan_, -3}};

  TokenBatch<double> batch() {
    TokenBatch<double> b;
    b.old_logp = gdpo::view(old_logp.data(), 2, 3);
    b.rollout_logp = gdpo::view(rollout_logp.data(), 2, 3);
    return b;
  }
};

}  // namespace

TEST_CASE("cuda mismatch: the bytes of the host's report", "[cuda][mismatch]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    check<float>(seed, {});
    check<double>(seed + 1000, {});
    check<double>(seed + 2000, {40, 9, 0.1});
  }
}

TEST_CASE("cuda mismatch: rows that are added in parts", "[cuda][mismatch]") {
  for (unsigned seed = 0; seed < 4; ++seed) check<float>(seed, {20000, 2, 0.01});
}

TEST_CASE("cuda mismatch: tiles of rows, and rows about their length", "[cuda][mismatch]") {
  for (const index_t length : {0, 1, 95, 96, 97, 191, 192, 193, 400}) {
    INFO(length << " tokens");
    Numbers d;
    d.rows = 3, d.width = length;
    Random random(static_cast<std::uint64_t>(length));
    for (index_t k = 0; k < d.rows * length; ++k) {
      d.old_logp.push_back(-random.uniform());
      d.rollout_logp.push_back(-random.uniform());
    }
    d.offsets.back() = d.rows * length;
    for (const Kind kind : {Kind::Padded, Kind::Packed}) {
      d.kind = kind;
      if (kind == Kind::Packed) d.offsets = {0, length, 2 * length, 3 * length};
      const Stored<double, OnHost> host(d);
      const Stored<double, InDevice> on(d);
      CHECK(bytes_on(test_device(3), on.batch, {}, 0) == bytes_of(gdpo::mismatch(host.batch)));
    }
  }
}

TEST_CASE("cuda mismatch: empty batches", "[cuda][mismatch]") {
  for (const bool empty_rows : {false, true}) {
    MismatchSettings settings;
    settings.empty_rows = empty_rows;
    TokenBatch<float> batch;
    float nothing = 0;
    batch.old_logp = batch.rollout_logp = gdpo::view(&nothing, 0, 5);
    CHECK(bytes_on(test_device(), batch, settings, 0) == bytes_of(gdpo::mismatch(batch, settings)));
    batch.old_logp = batch.rollout_logp = gdpo::view(&nothing, 3, 0);
    CHECK(bytes_on(test_device(), batch, settings, 0) == bytes_of(gdpo::mismatch(batch, settings)));
  }
}

TEST_CASE("cuda mismatch: reports of a device and of the host merge", "[cuda][mismatch]") {
  Random random(5);
  const Numbers d = random_numbers(random, {});
  const Stored<float, OnHost> host(d);
  const Stored<float, InDevice> on(d);
  const MismatchReport a = gdpo::mismatch(host.batch),
                       b = report_in(bytes_on(test_device(), on.batch, {}, d.rows));
  CHECK(differs(merge(a, b), merge(a, gdpo::mismatch(host.batch, {}, d.rows))) == "");
}

TEST_CASE("cuda mismatch: launches, and what is refused before them", "[cuda][mismatch]") {
  const HostOnly device;
  MismatchReport* const out = static_cast<MismatchReport*>(unused_scratch().data);
  Step step;
  const auto message = [&](const TokenBatch<double>& batch, const MismatchSettings& settings = {}) {
    return message_of(
        [&] { gdpo::cuda::mismatch_into(device, batch, out, unused_scratch(), settings); });
  };
  CHECK(message(step.batch()) == "no error");
  CHECK(device.launches == 2);
  device.launches = 0;
  TokenBatch<double> many;
  many.old_logp = gdpo::view(step.old_logp.data(), 8192, 1);
  many.rollout_logp = gdpo::view(step.rollout_logp.data(), 8192, 1);
  CHECK(message(many) == "no error");
  CHECK(device.launches == 3);
  device.launches = 0;

  TokenBatch<double> batch = step.batch();
  batch.rollout_logp = {};
  CHECK(message(batch) ==
        "gdpo::mismatch: batch.rollout_logp: given no array; needed: the sampling policy's "
        "log-probs");
  batch = step.batch(), batch.old_logp = {};
  CHECK(message(batch) ==
        "gdpo::mismatch: batch.old_logp, batch.logp: given neither; needed: one of them, to "
        "compare with rollout_logp");
  batch = {}, batch.offsets = gdpo::view(reinterpret_cast<index_t*>(step.old_logp.data()), 3);
  CHECK(message(batch) ==
        "gdpo::mismatch: batch.rollout_logp: given no array; needed: the sampling policy's "
        "log-probs");
  batch = step.batch(), batch.rollout_logp = gdpo::view(step.rollout_logp.data(), 3, 2);
  CHECK(message(batch).find("gdpo::mismatch: batch.rollout_logp: given (3, 2)") == 0);
  MismatchSettings settings;
  settings.token_low = 3;
  CHECK(message(step.batch(), settings) ==
        "gdpo::mismatch: settings.token_low: given 3; needed: at most settings.token_high");
  CHECK(message_of([&] {
          gdpo::cuda::mismatch_into(device, step.batch(), out, {unused_scratch().data, 100});
        }).find("gdpo::mismatch: scratch: given 100 bytes") == 0);
  CHECK(device.launches == 0);
}

}  // namespace cuda_mismatch_test
