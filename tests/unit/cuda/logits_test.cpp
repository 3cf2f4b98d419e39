// labels: sanitizers
// The kernels from logits to log-probs and back: numbers against seq, and the laws that hold to the
// bit.
#include "support/logits.hpp"

#include <gdpo/cuda/logits/device_logprobs.hpp>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/host_only.hpp"
#include "support/message.hpp"

namespace logits_test {

namespace {

using gdpo::index_t;
using logit_cases::Kind;
const float inf = std::numeric_limits<float>::infinity(), no = std::nanf("");

/// Rows of logits at any alignment and row stride, their targets, and the arrays that a call reads
/// and writes. Array is std::vector or OnDevice.
template <class T, template <class...> class Array>
struct Arrays {
  index_t rows = 0, vocabulary = 0, stride = 0, shift = 0;
  double temperature = 1;
  Array<T> memory;
  Array<int> targets;
  Array<unsigned char> mask;
  Array<float> logp, entropy, g, g_entropy;
  Array<double> logsumexp;

  Arrays() = default;
  /// The same arrays copied into another kind of memory.
  template <template <class...> class Other>
  explicit Arrays(const Arrays<T, Other>& a)
      : rows(a.rows),
        vocabulary(a.vocabulary),
        stride(a.stride),
        shift(a.shift),
        temperature(a.temperature),
        memory(a.memory),
        targets(a.targets),
        mask(a.mask),
        logp(a.logp),
        entropy(a.entropy),
        g(a.g),
        g_entropy(a.g_entropy),
        logsumexp(a.logsumexp) {}

  /// The first logit. It lies `shift` numbers after the start of the memory, which new and
  /// cudaMalloc align to 16 bytes or more.
  T* data() { return memory.data() + shift; }
  gdpo::View<T, 2> view() { return {data(), {rows, vocabulary}, {stride, 1}}; }
  template <class Values>
  auto by_row(Values& values) {
    return gdpo::view(values.data(), rows);
  }
  gdpo::LogitBatch<T, 2> batch() {
    gdpo::LogitBatch<T, 2> b;
    b.logits = view(), b.targets = by_row(targets), b.mask = by_row(mask),
    b.temperature = temperature;
    return b;
  }
  gdpo::TokenLogprobsOut out() { return {by_row(logp), by_row(entropy), by_row(logsumexp)}; }
  template <class Exec, class U>
  void enqueue_backward(const Exec& exec, bool with_entropy, gdpo::View<U, 2> dlogits) {
    gdpo::TokenLogprobsGrad grad{by_row(g), {}};
    if (with_entropy) grad.entropy = by_row(g_entropy);
    gdpo::token_logprobs_backward(exec, batch(), grad, by_row(logsumexp), by_row(entropy), dlogits);
  }
};

/// Arrays in the memory of the host. A call on a device copies them there, and copies back what it
/// has written.
template <class T>
struct Table : Arrays<T, std::vector> {
  using Arrays<T, std::vector>::memory;
  template <class Exec>
  static constexpr bool is_device = std::is_same_v<Exec, TestDevice>;

  Table(index_t n, index_t v, index_t padding = 0, index_t shifted = 0) {
    const auto size = static_cast<std::size_t>(n);
    this->rows = n, this->vocabulary = v, this->stride = v + padding, this->shift = shifted;
    // Behind the last row is only its own padding.
    memory.resize(static_cast<std::size_t>(shifted + n * this->stride));
    this->targets.assign(size, 0), this->mask.assign(size, 1);
    this->logp.assign(size, no), this->entropy.assign(size, no), this->logsumexp.assign(size, no);
    this->g.assign(size, 1), this->g_entropy.assign(size, 0);
  }
  T* row(index_t i) { return this->data() + i * this->stride; }
  void fill(index_t i, const std::vector<float>& x) {
    for (index_t j = 0; j < this->vocabulary; ++j)
      gdpo::store(row(i)[j], x[static_cast<std::size_t>(j)]);
  }

  template <class Exec>
  void forward(const Exec& exec) {
    forward(exec, [](auto&) {});
  }
  /// The forward call on batch() after `change` has altered it.
  template <class Exec, class Change>
  void forward(const Exec& exec, const Change& change) {
    if constexpr (is_device<Exec>) {
      Arrays<T, OnDevice> on(*this);
      auto batch = on.batch();
      change(batch);
      gdpo::token_logprobs_into(exec, batch, on.out());
      this->logp = on.logp.host(), this->entropy = on.entropy.host(),
      this->logsumexp = on.logsumexp.host();
    } else {
      auto batch = this->batch();
      change(batch);
      gdpo::token_logprobs_into(exec, batch, this->out());
    }
  }
  template <class Exec, class U>
  void backward(const Exec& exec, Table<U>& dlogits) {
    if constexpr (is_device<Exec>) {
      Arrays<T, OnDevice> on(*this);
      Arrays<U, OnDevice> to(dlogits);
      on.enqueue_backward(exec, with_entropy(), to.view());
      dlogits.memory = to.memory.host();
    } else {
      this->enqueue_backward(exec, with_entropy(), dlogits.view());
    }
  }
  template <class Exec>
  void backward_in_place(const Exec& exec) {
    if constexpr (is_device<Exec>) {
      Arrays<T, OnDevice> on(*this);
      on.enqueue_backward(exec, with_entropy(), on.view());
      memory = on.memory.host();
    } else {
      this->enqueue_backward(exec, with_entropy(), this->view());
    }
  }

 private:
  bool with_entropy() const {
    return std::any_of(this->g_entropy.begin(), this->g_entropy.end(),
                       [](float x) { return x != 0; });
  }
};

TestDevice device(unsigned seed) { return test_device(seed); }
TestDevice device(unsigned seed, int blocks, std::size_t shared_bytes) {
  gdpo::cuda::Tuning tuning;
  tuning.blocks = blocks, tuning.shared_bytes = shared_bytes;
  return test_device(seed, tuning);
}
/// Relative tolerance of logsumexp: the log of a GPU and that of the host are each within an ulp of
/// the exact one. The simulated grid uses the host's log.
#if defined(GDPO_TEST_ON_GPU)
constexpr double of_logs = 0x1p-51;
#else
constexpr double of_logs = 0;
#endif

template <class T>
Table<T> random_table(Random& random, index_t rows, index_t vocabulary, index_t padding,
                      index_t shift) {
  Table<T> t(rows, vocabulary, padding, shift);
  const double p_masked = random.pick({0.0, 0.3});
  for (index_t i = 0; i < rows; ++i) {
    const Kind kind = logit_cases::all_kinds[random.below(10)];
    t.fill(i, logit_cases::row(random, kind, static_cast<int>(vocabulary)));
    const auto at = static_cast<std::size_t>(i);
    t.targets[at] = random.below(static_cast<int>(vocabulary));
    t.g[at] = static_cast<float>(logit_cases::normal(random));
    if (random.chance(0.2)) t.g[at] = 0;
    if (random.chance(p_masked)) {
      t.mask[at] = 0, t.targets[at] = -7;
      t.fill(i, std::vector<float>(static_cast<std::size_t>(vocabulary), no));
    }
  }
  t.temperature = random.pick({1.0, 1.0, 0.7, 2.5});
  return t;
}
template <class T>
void same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  CHECK(logit_cases::same(a, b));
}
template <class U>
std::vector<double> numbers(const U* x, index_t n) {
  std::vector<double> to;
  for (index_t j = 0; j < n; ++j) to.push_back(gdpo::load(x[j]));
  return to;
}
bool close(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b) || std::isinf(a) || std::isinf(b))
    return (std::isnan(a) && std::isnan(b)) || a == b;
  return std::fabs(a - b) <= tolerance;
}

/// Compares the forward and the backward with seq. Each side has the documented errors, 5e-7 of
/// logsumexp and 1e-6 of the entropy; logp and the entropy are rounded to float on both.
template <class T>
void parity(Random& random, index_t rows, index_t vocabulary, index_t padding, index_t shift,
            bool entropies) {
  Table<T> t = random_table<T>(random, rows, vocabulary, padding, shift);
  if (entropies) {
    for (float& x : t.g_entropy) x = static_cast<float>(logit_cases::normal(random));
  }
  Table<T> u = t;
  const auto seed = static_cast<unsigned>(random.bits());
  const TestDevice grid = device(seed, 1 + random.below(5), 48 * 1024);
  t.forward(gdpo::seq);
  u.forward(grid);
  constexpr bool wide = std::is_same_v<T, double>;
  for (std::size_t i = 0; i < t.logp.size(); ++i) {
    INFO("row " << i << " of " << vocabulary << ", sum " << t.logsumexp[i] << " logp "
                << t.logp[i]);
    const double e = wide ? 2e-12 : 1e-6;
    CHECK(
        close(u.logsumexp[i], t.logsumexp[i], e + (wide ? 1e-15 * std::fabs(t.logsumexp[i]) : 0)));
    CHECK(close(u.logp[i], t.logp[i], e + 1.2e-7 * std::fabs(t.logp[i])));
    CHECK(close(u.entropy[i], t.entropy[i], 2 * e + 1.2e-7 * std::fabs(t.entropy[i])));
  }

  using Wide = logit_cases::Wide<T>;
  u.logsumexp = t.logsumexp, u.entropy = t.entropy;
  Table<Wide> a(rows, vocabulary, padding, shift), b = a;
  t.backward(gdpo::seq, a);
  u.backward(grid, b);
  // The gradient of logit j is p_j / temperature times `by` at most. p_j is an exponential, so its
  // relative error grows with |log p_j|; below 2^-124, near the smallest normal float, it may be 0
  // on one side.
  const double relative = wide ? 1e-13 : 1e-6;
  index_t wrong = 0;
  for (index_t i = 0; i < rows; ++i) {
    const auto at = static_cast<std::size_t>(i);
    for (index_t j = 0; j < vocabulary; ++j) {
      const double log_p = gdpo::load(t.row(i)[j]) / t.temperature - t.logsumexp[at];
      const double by =
          std::fabs(t.g[at]) + std::fabs(t.g_entropy[at]) * (1 + std::fabs(log_p) + t.entropy[at]);
      const double size = std::exp(log_p) / t.temperature * by,
                   vanishing = 0x1p-124 / t.temperature * by;
      const double x = gdpo::load(a.row(i)[j]), y = gdpo::load(b.row(i)[j]);
      const bool is_close =
          x == y || (std::isnan(x) && std::isnan(y)) ||
          std::fabs(x - y) <= relative * (1 + std::fabs(log_p)) * size + vanishing ||
          (j == t.targets[at] && std::fabs(x - y) <= relative * std::fabs(x));
      if (!is_close && ++wrong < 4) {
        INFO(i << ", " << j << ": " << x << " " << y << " log p " << log_p << " target "
               << t.targets[at]);
        CHECK(is_close);
      }
    }
  }
  CHECK(wrong == 0);
}

const index_t some_vocabularies[] = {1, 2, 3, 7, 8, 9, 31, 64, 100, 513, 4096, 4099};

}  // namespace

TEMPLATE_TEST_CASE("cuda: logits forward and backward agree with seq", "[sanitize]", float, double,
                   gdpo::Float16, gdpo::BFloat16) {
  Random random(6001);
  for (const index_t vocabulary : some_vocabularies) {
    for (int turn = 0; turn < 6; ++turn) {
      INFO("vocabulary " << vocabulary << " turn " << turn);
      const index_t rows = 1 + random.below(5), padding = random.below(3), shift = random.below(5);
      parity<TestType>(random, rows, vocabulary, padding, shift, turn % 2 != 0);
    }
  }
  // A thread loads its four vectors more than once.
  parity<TestType>(random, 1, 40000, 0, 0, false);
  parity<TestType>(random, 2, 33003, 5, 1, true);
}

TEMPLATE_TEST_CASE(
    "cuda: the bits of logits do not depend on grid, order, alignment and distance of rows", "",
    float, double, gdpo::Float16, gdpo::BFloat16) {
  using T = TestType;
  Random random(6002);
  for (const index_t vocabulary : {index_t{5}, index_t{64}, index_t{1027}, index_t{17000}}) {
    Table<T> t = random_table<T>(random, 4, vocabulary, 0, 0);
    for (float& x : t.g_entropy) x = static_cast<float>(random.below(2));
    t.forward(device(1));
    std::vector<std::vector<double>> gradients;
    for (int turn = 0; turn < 5; ++turn) {
      INFO("vocabulary " << vocabulary << " turn " << turn);
      Table<T> u(4, vocabulary, turn, turn == 0 ? 0 : 1 + random.below(7));
      for (index_t i = 0; i < 4; ++i) std::copy(t.row(i), t.row(i) + vocabulary, u.row(i));
      u.targets = t.targets, u.mask = t.mask, u.g = t.g, u.g_entropy = t.g_entropy,
      u.temperature = t.temperature;
      const TestDevice grid =
          device(static_cast<unsigned>(turn), 1 + turn, static_cast<std::size_t>(turn) * 20000);
      u.forward(grid);
      same_bits(u.logp, t.logp), same_bits(u.entropy, t.entropy),
          same_bits(u.logsumexp, t.logsumexp);
      Table<T> d(4, vocabulary, turn % 3, turn % 2);
      if (turn % 2 == 0) {
        u.backward(grid, d);
      } else {
        u.backward_in_place(grid);
        d = u;
      }
      std::vector<double> all;
      for (index_t i = 0; i < 4; ++i) {
        const auto row = numbers(d.row(i), vocabulary);
        all.insert(all.end(), row.begin(), row.end());
      }
      gradients.push_back(all);
      same_bits(gradients.back(), gradients.front());
    }
  }
}

TEST_CASE(
    "cuda: masked rows and rows without a gradient are not read, and their gradient is exactly 0",
    "[sanitize]") {
  Random random(6003);
  for (const index_t vocabulary : {index_t{3}, index_t{640}, index_t{20000}}) {
    Table<float> t(3, vocabulary, 1);
    for (index_t i = 0; i < 3; ++i)
      t.fill(i, logit_cases::row(random, Kind::Normal, static_cast<int>(vocabulary)));
    t.fill(1, std::vector<float>(static_cast<std::size_t>(vocabulary), no));
    t.mask = {1, 0, 1}, t.targets = {1, 1 << 30, 0};
    t.forward(device(3));
    CHECK((t.logp[1] == 0 && t.entropy[1] == 0 && t.logsumexp[1] == 0));
    t.g = {1, no, 0};
    t.fill(2, std::vector<float>(static_cast<std::size_t>(vocabulary), no));
    t.logsumexp[1] = no;
    t.memory.back() = 17;
    t.backward_in_place(device(4));
    for (index_t j = 0; j < vocabulary; ++j) {
      CHECK((t.row(1)[j] == 0 && t.row(2)[j] == 0 && !std::signbit(t.row(1)[j]) &&
             !std::signbit(t.row(2)[j])));
      CHECK(t.row(0)[j] != 0);
    }
    CHECK(t.memory.back() == 17);
  }
}

namespace {
struct One {
  float logp, entropy;
  double logsumexp;
  std::vector<float> gradient;
};
template <class Exec>
One one(const Exec& exec, const std::vector<float>& x, int target, double temperature = 1,
        float g_entropy = 0) {
  Table<float> t(1, static_cast<index_t>(x.size()));
  t.fill(0, x);
  t.targets = {target}, t.temperature = temperature, t.g_entropy = {g_entropy};
  t.forward(exec);
  t.backward_in_place(exec);
  return {t.logp[0], t.entropy[0], t.logsumexp[0],
          std::vector<float>(t.row(0), t.row(0) + x.size())};
}
std::vector<float> with(std::size_t n, float all, std::size_t at, float other) {
  std::vector<float> x(n, all);
  x[at] = other;
  return x;
}
bool all_nan(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isnan(v); });
}
}  // namespace

TEST_CASE("cuda: edges of rows of logits", "[sanitize]") {
  const TestDevice grid = device(5);
  for (const float x : {0.0f, -7.5f, 3e38f, -3e38f}) {  // one token in the vocabulary
    for (const double temperature : {1.0, 0.7}) {
      const One r = one(grid, {x}, 0, temperature);
      CHECK(r.logp == 0);
      CHECK(std::fabs(r.entropy) < 1e-6f);
      CHECK(r.logsumexp == static_cast<double>(x) * (1 / temperature));
      CHECK(r.gradient[0] == 0);
    }
  }
  // Equal logits are the uniform distribution.
  for (const std::size_t n : {std::size_t{2}, std::size_t{64}, std::size_t{32768}}) {
    for (const float x : {0.0f, 1.7f, 3e4f, 1e30f}) {
      const One r = one(grid, std::vector<float>(n, x), 1);
      const double log_n = std::log(static_cast<double>(n));
      CHECK(std::fabs(r.logsumexp - (static_cast<double>(x) + log_n)) <=
            of_logs * (std::fabs(x) + log_n));
      CHECK(r.logp == static_cast<float>(-log_n));
      CHECK(r.entropy == Approx(log_n).epsilon(1e-6));
    }
  }
  for (const std::size_t n : {std::size_t{3}, std::size_t{100}, std::size_t{5000}}) {
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      // A logit of -inf has probability exactly 0. As the target, its log-prob has the derivative
      // 1 - p = 1.
      const One r = one(grid, with(n, 0.5f, at, -inf), at == 0 ? 1 : 0),
                s = one(gdpo::seq, with(n, 0.5f, at, -inf), at == 0);
      CHECK(std::fabs(r.logsumexp - s.logsumexp) < 1e-6);
      CHECK(std::fabs(r.entropy - s.entropy) < 2e-6f);
      CHECK(r.gradient[at] == 0);
      CHECK(one(grid, with(n, 0.5f, at, -inf), static_cast<int>(at)).logp == -inf);
      CHECK(one(grid, with(n, 0.5f, at, -inf), static_cast<int>(at)).gradient[at] == 1);
      CHECK(one(grid, with(n, 0.5f, at, -inf), static_cast<int>(at), 1, 0.5f).gradient[at] == 1);
      // A single NaN or +inf spoils every result of its row.
      for (const float bad : {no, inf}) {
        const One b = one(grid, with(n, 0.5f, at, bad), 0);
        CHECK((std::isnan(b.logp) && std::isnan(b.entropy) && std::isnan(b.logsumexp) &&
               all_nan(b.gradient)));
      }
    }
    const One nothing = one(grid, std::vector<float>(n, -inf), 0);
    CHECK((std::isnan(nothing.logp) && std::isnan(nothing.entropy) && nothing.logsumexp == -inf));
    CHECK(all_nan(nothing.gradient));
  }
  // One token has all the probability and the others lie far below: its log-prob is not above 0.
  for (const float x : {3.3f, 11.77f, 1e10f}) {
    const One r = one(grid, with(1000, -200, 500, x), 500);
    CHECK(r.logp == 0);
    CHECK(std::fabs(r.entropy) < 1e-6f);
  }
  // Temperatures at the ends of the allowed range, and logits that are too far apart for float once
  // they are divided by the temperature.
  for (const double temperature : {1e-37, 1e-10, 300.0, 1e37}) {
    std::vector<float> x = {1, 2, 3, -4, 0.5f, 3};
    for (const float scale : {1.0f, static_cast<float>(temperature)}) {
      std::vector<float> y = x;
      for (float& v : y) v *= scale;
      const One r = one(grid, y, 2, temperature, 0.3f), s = one(gdpo::seq, y, 2, temperature, 0.3f);
      INFO(temperature << " " << scale);
      CHECK(r.logsumexp == Approx(s.logsumexp).epsilon(1e-15).margin(1e-6));
      CHECK(r.logp == Approx(s.logp).epsilon(1e-6).margin(1e-6));
      CHECK(r.entropy == Approx(s.entropy).epsilon(1e-6).margin(2e-6));
      for (std::size_t j = 0; j < y.size(); ++j) {
        CHECK(r.gradient[j] == Approx(s.gradient[j]).epsilon(1e-5).margin(1e-6 / temperature));
      }
    }
  }
}

TEMPLATE_TEST_CASE("cuda: halves of logits at the end of their range", "", gdpo::Float16,
                   gdpo::BFloat16) {
  for (const double temperature : {1e-3, 1.0, 100.0, 1000.0}) {
    for (const float offset : {-6e4f, -300.0f, 0.0f, 6e4f}) {
      Table<TestType> t(1, 900);
      std::vector<float> x(900, -inf);
      for (std::size_t j = 0; j < 850; ++j) x[j] = offset + 0.5f * static_cast<float>(j);
      t.fill(0, x);
      t.temperature = temperature, t.g_entropy = {0.5f}, t.targets = {849};
      Table<TestType> u = t;
      t.forward(gdpo::seq), u.forward(device(6));
      INFO(temperature << " " << offset);
      CHECK(close(u.logsumexp[0], t.logsumexp[0], 1e-6 + 1e-15 * std::fabs(t.logsumexp[0])));
      CHECK(close(u.logp[0], t.logp[0], 1e-6));
      CHECK(close(u.entropy[0], t.entropy[0], 2e-6));
    }
  }
}

TEST_CASE("cuda: gradients of logits in every storage", "[sanitize]") {
  Random random(6005);
  const auto to = [&](auto of, auto in, double relative) {
    using T = decltype(of);
    using U = decltype(in);
    for (const index_t vocabulary : {index_t{4}, index_t{37}, index_t{256}}) {
      for (const index_t shift : {index_t{0}, index_t{1}, index_t{2}, index_t{4}}) {
        Table<T> t = random_table<T>(random, 2, vocabulary, 0, 0);
        t.temperature = 1;
        t.forward(gdpo::seq);
        Table<U> a(2, vocabulary, shift, shift), b = a;
        for (U& x : b.memory) gdpo::store(x, 17.0f);
        t.backward(gdpo::seq, a), t.backward(device(7), b);
        for (index_t i = 0; i < 2; ++i) {
          for (index_t j = 0; j < vocabulary; ++j) {
            const double x = gdpo::load(a.row(i)[j]), y = gdpo::load(b.row(i)[j]);
            if (!close(y, x, relative * std::fabs(x) + 1e-7)) CHECK(y == x);
          }
          for (index_t j = 0; j < shift; ++j) CHECK(gdpo::load(b.row(i)[vocabulary + j]) == 17);
        }
      }
    }
  };
  to(float{}, gdpo::BFloat16{}, 0x1p-7), to(float{}, double{}, 1e-4),
      to(gdpo::BFloat16{}, double{}, 1e-4);
  to(gdpo::BFloat16{}, float{}, 1e-4), to(gdpo::Float16{}, gdpo::BFloat16{}, 0x1p-7),
      to(double{}, gdpo::Float16{}, 0x1p-9);
  to(double{}, float{}, 1e-6), to(gdpo::BFloat16{}, gdpo::BFloat16{}, 0x1p-7);
}

TEST_CASE("cuda: logits of rank 3 with strides, and packed sequences", "[sanitize]") {
  Random random(6006);
  const index_t sequences = 3, width = 4, vocabulary = 70;
  std::vector<float> memory(3 * 5 * 80);
  for (float& x : memory) x = static_cast<float>(logit_cases::normal(random));
  std::vector<std::int64_t> targets(3 * 6);
  for (auto& t : targets) t = random.below(70);
  const auto run = [&](const auto& exec, auto memory_of, auto targets_of, auto g, auto logp,
                       auto lse, auto d) {
    gdpo::LogitBatch<float, 3> batch;
    batch.logits = {memory_of.data() + 3, {sequences, width, vocabulary}, {5 * 80, 80, 1}};
    batch.targets = gdpo::View<std::int64_t, 2>{targets_of.data(), {sequences, width}, {6, 1}};
    const gdpo::View<double, 2> sums{lse.data(), {sequences, width}, {8, 2}};
    const auto by_token = [&](auto& values) { return gdpo::view(values.data(), sequences, width); };
    gdpo::token_logprobs_into(exec, batch, {by_token(logp), {}, sums});
    gdpo::token_logprobs_backward(exec, batch, {by_token(g), {}}, sums,
                                  gdpo::view(d.data(), sequences, width, vocabulary));
    std::vector<double> all;
    const auto append = [&](const auto& values) {
      all.insert(all.end(), values.begin(), values.end());
    };
    if constexpr (std::is_same_v<std::decay_t<decltype(exec)>, TestDevice>) {
      append(logp.host()), append(lse.host()), append(d.host());
    } else {
      append(logp), append(lse), append(d);
    }
    return all;
  };
  const std::vector<float> g(12, 0.5f), logp(12), d(12 * 70, 9);
  const std::vector<double> lse(24);
  const auto on =
      run(device(8), OnDevice<float>(memory), OnDevice<std::int64_t>(targets), OnDevice<float>(g),
          OnDevice<float>(logp), OnDevice<double>(lse), OnDevice<float>(d));
  const auto off = run(gdpo::seq, memory, targets, g, logp, lse, d);
  for (std::size_t i = 0; i < on.size(); ++i) CHECK(std::fabs(on[i] - off[i]) <= 1e-6);

  Table<float> t(6, 33);
  for (index_t i = 0; i < 6; ++i) t.fill(i, logit_cases::row(random, Kind::Normal, 33));
  OnDevice<int> offsets(std::vector<int>{0, 2, 2, 5, 6});
  t.forward(device(9), [&](auto& batch) { batch.offsets = gdpo::view(offsets.data(), 5); });
  for (std::size_t i = 0; i < 6; ++i) CHECK((t.logsumexp[i] == 0) == (i == 1 || i == 4 || i == 5));
}

TEST_CASE("cuda: shards of a vocabulary on devices", "[sanitize]") {
  Random random(6007);
  Table<gdpo::BFloat16> t(5, 901);
  for (index_t i = 0; i < 5; ++i) {
    t.fill(i, logit_cases::row(random, logit_cases::all_kinds[i], 901));
    t.targets[static_cast<std::size_t>(i)] = random.below(901);
  }
  t.mask[3] = 0;
  t.forward(device(0));
  const index_t cut = 400;
  Arrays<gdpo::BFloat16, OnDevice> on(t);
  const auto rows_of = [&](unsigned seed, index_t first, index_t last) {
    auto part = on.batch();
    part.logits = {on.data() + first, {5, last - first}, {901, 1}}, part.first_token = first;
    OnDevice<gdpo::LogitRow> rows(std::vector<gdpo::LogitRow>(5));
    gdpo::logit_rows(device(seed), part, gdpo::view(rows.data(), 5));
    return rows.host();
  };
  const auto whole = rows_of(1, 0, 901), left = rows_of(2, 0, cut), right = rows_of(3, cut, 901);
  for (std::size_t i = 0; i < 5; ++i) {
    const bool valid = t.mask[i] != 0;
    CHECK(std::isnan(left[i].target) == (!valid || t.targets[i] >= cut));
    CHECK(std::isnan(right[i].target) == (!valid || t.targets[i] < cut));
    if (!valid) {
      CHECK(whole[i].sum == 0);
      continue;
    }
    CHECK(whole[i].max == gdpo::load(*std::max_element(
                              t.row(static_cast<index_t>(i)), t.row(static_cast<index_t>(i)) + 901,
                              [](auto a, auto b) { return gdpo::load(a) < gdpo::load(b); })));
    const gdpo::LogitRow both = gdpo::merge(left[i], right[i]);
    CHECK(std::fabs(gdpo::logsumexp(both) - t.logsumexp[i]) < 1e-6);
    CHECK(std::fabs(gdpo::entropy(both) - static_cast<double>(t.entropy[i])) < 2e-6);
    CHECK(static_cast<float>(gdpo::logp(whole[i])) == t.logp[i]);
    CHECK(std::fabs(gdpo::logsumexp(whole[i]) - t.logsumexp[i]) <=
          of_logs * std::fabs(t.logsumexp[i]));
  }
}

TEST_CASE("cuda: one launch a call, and nothing by the host") {
  Table<float> t(3, 8);
  const HostOnly nowhere;
  gdpo::token_logprobs_into(nowhere, t.batch(), t.out());
  CHECK(nowhere.launches == 1);
  t.enqueue_backward(nowhere, true, t.view());
  CHECK(nowhere.launches == 2);
  std::vector<gdpo::LogitRow> rows(3);
  gdpo::logit_rows(nowhere, t.batch(), gdpo::view(rows));
  CHECK(nowhere.launches == 3);
  CHECK(std::isnan(t.logp[0]));
}

TEST_CASE("cuda: targets outside the vocabulary, and tables without rows or entries",
          "[sanitize]") {
  Table<float> t(3, 8);
  t.targets = {8, -1, 1 << 20};
  t.forward(device(0));
  for (const float x : t.logp) CHECK(std::isnan(x));
  t.logsumexp = {1, 1, 1};
  t.backward_in_place(device(0));

  Table<double> empty(0, 5);
  empty.forward(device(0)), empty.backward_in_place(device(0));
  Table<float> no_entries(2, 0);
  Arrays<float, OnDevice> on(no_entries);
  auto batch = on.batch();
  batch.targets = {};
  gdpo::token_logprobs_into(device(0), batch, {{}, {}, on.by_row(on.logsumexp)});
  CHECK(on.logsumexp.host()[0] == -inf);
}

}  // namespace logits_test
