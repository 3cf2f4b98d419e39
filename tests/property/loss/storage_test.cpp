// labels: lanes
// The same numbers give the same bits, whatever type stores a batch and however it lies in memory.
#include <gdpo/with/eigen.hpp>

#include "support/catch.hpp"
#include "support/loss_calls.hpp"

namespace storage_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;

constexpr int rows = 4, width = 6, size = rows * width;

/// Numbers that every 16-bit format holds exactly: multiples of 1/16 up to 4, which need at most 7
/// bits.
Data small_numbers() {
  Random random(12);
  Data d;
  d.rows = rows, d.width = width;
  const auto number = [&](int sixteenths) { return -random.below(sixteenths) / 16.0; };
  for (int k = 0; k < size; ++k) {
    d.logp.push_back(number(32));
    d.old_logp.push_back(number(32));
    d.ref_logp.push_back(number(32));
    d.token_advantages.push_back(number(64) + 2);
    d.weights.push_back(0.5 * random.below(3));
    d.kl_weights.push_back(0.5 * random.below(3));
    d.entropies.push_back(-number(32));
    d.mask.push_back(random.chance(0.7));
    d.segments.push_back(k / 3 % 4);
  }
  d.row_weights = {1, 0.5, 2, 1};
  d.truncated = {0, 1, 1, 0};
  return d;
}

using Loss = gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<>>;

template <class S, class L = Loss>
Outcome run(const gdpo::TokenBatch<S>& batch, const L& loss = {}) {
  std::vector<S> gradient(size);
  Outcome o;
  o.result = batch.logp.rank() == 3
                 ? loss(batch, gdpo::count(batch), gdpo::view(gradient.data(), 2, rows / 2, width))
                 : loss(batch, gdpo::count(batch), gdpo::view(gradient.data(), rows, width));
  o.gradient.assign(gradient.begin(), gradient.end());
  return o;
}

/// x in a 16-bit format that holds it exactly.
template <class T>
T half_bits(double x);
template <>
gdpo::BFloat16 half_bits(double x) {
  const float value = static_cast<float>(x);
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return {static_cast<std::uint16_t>(bits >> 16)};
}
template <>
Eigen::half half_bits(double x) {
  return Eigen::half(static_cast<float>(x));
}
template <>
Eigen::bfloat16 half_bits(double x) {
  return Eigen::bfloat16(static_cast<float>(x));
}
template <>
gdpo::Float16 half_bits(double x) {
  return {half_bits<Eigen::half>(x).x};
}

template <class T>
std::vector<T> converted(const std::vector<double>& from) {
  std::vector<T> to;
  for (const double x : from) to.push_back(half_bits<T>(x));
  return to;
}

template <class T>
void check_half(const Data& d, const Outcome& expected) {
  const auto logp = converted<T>(d.logp), old_logp = converted<T>(d.old_logp),
             ref = converted<T>(d.ref_logp), advantages = converted<T>(d.token_advantages),
             weights = converted<T>(d.weights), kl = converted<T>(d.kl_weights),
             entropies = converted<T>(d.entropies), row_weights = converted<T>(d.row_weights),
             truncated = converted<T>(d.truncated),
             mask = converted<T>(std::vector<double>(d.mask.begin(), d.mask.end()));
  const loss_product::Arrays<float> arrays(d);
  gdpo::TokenBatch<float> batch = arrays.batch();
  const auto set = [](auto& to, const auto& from) { to = gdpo::view(from.data(), rows, width); };
  set(batch.logp, logp), set(batch.old_logp, old_logp), set(batch.ref_logp, ref),
      set(batch.token_advantages, advantages);
  set(batch.weights, weights), set(batch.kl_weights, kl), set(batch.entropies, entropies),
      set(batch.mask, mask);
  batch.row_weights = gdpo::view(row_weights);
  batch.truncated = gdpo::view(truncated);
  CHECK(loss_product::difference_of(run(batch), expected) == "");
}

/// Every second column of every second row of an array, backwards in both directions.
template <class T>
struct Strided {
  std::vector<T> memory;
  gdpo::View<const T, 2> view;
  explicit Strided(const std::vector<double>& from) : memory(4 * size, T(77)) {
    T* last = memory.data() + 2 * width * (2 * rows - 1) + 2 * width - 1;
    for (int i = 0; i < rows; ++i) {
      for (int t = 0; t < width; ++t)
        last[-i * 4 * width - 2 * t] =
            static_cast<T>(from[static_cast<std::size_t>(i * width + t)]);
    }
    view = {last, {rows, width}, {-4 * width, -2}};
  }
};

}  // namespace

TEST_CASE("16-bit storage is read as the float it is", "[loss][storage]") {
  const Data d = small_numbers();
  const loss_product::Arrays<float> arrays(d);
  const Outcome expected = run(arrays.batch());
  check_half<gdpo::Float16>(d, expected);
  check_half<gdpo::BFloat16>(d, expected);
  check_half<Eigen::half>(d, expected);
  check_half<Eigen::bfloat16>(d, expected);
}

TEST_CASE("a batch of double reads arrays of float", "[loss][storage]") {
  const Data d = small_numbers();
  const loss_product::Arrays<double> expected(d);
  const loss_product::Arrays<double, float> arrays(d);
  CHECK(loss_product::difference_of(run(arrays.batch()), run(expected.batch())) == "");
}

TEST_CASE("strides of any sign, column-major arrays and rank 3 give the same bits",
          "[loss][storage]") {
  const Data d = small_numbers();
  const loss_product::Arrays<float> arrays(d);
  const auto check = [&](const auto& loss) {
    const Outcome expected = run(arrays.batch(), loss);
    CHECK(loss_product::difference_of(run(arrays.grouped_batch(2), loss), expected) == "");

    const Strided<float> logp(d.logp), old_logp(d.old_logp), ref(d.ref_logp),
        advantages(d.token_advantages), weights(d.weights);
    const Strided<unsigned char> mask(std::vector<double>(d.mask.begin(), d.mask.end()));
    const Strided<std::int32_t> segments(std::vector<double>(d.segments.begin(), d.segments.end()));
    gdpo::TokenBatch<float> batch = arrays.batch();
    batch.logp = logp.view, batch.old_logp = old_logp.view, batch.ref_logp = ref.view;
    batch.token_advantages = advantages.view, batch.weights = weights.view, batch.mask = mask.view,
    batch.segments = segments.view;
    CHECK(loss_product::difference_of(run(batch, loss), expected) == "");

    using Columns = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
    using Rows = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const auto columns = [](const std::vector<double>& from) -> Columns {
      return Eigen::Map<const Rows>(from.data(), rows, width).cast<float>();
    };
    const Columns l = columns(d.logp), o = columns(d.old_logp), r = columns(d.ref_logp),
                  a = columns(d.token_advantages), w = columns(d.weights);
    batch.logp = gdpo::view(l), batch.old_logp = gdpo::view(o), batch.ref_logp = gdpo::view(r);
    batch.token_advantages = gdpo::view(a), batch.weights = gdpo::view(w);
    Columns gradient = Columns::Constant(rows, width, -77.0f);
    Outcome eigen;
    eigen.result = loss(batch, gdpo::count(batch), gdpo::view(gradient));
    for (int i = 0; i < rows; ++i) {
      for (int t = 0; t < width; ++t) eigen.gradient.push_back(static_cast<double>(gradient(i, t)));
    }
    CHECK(loss_product::difference_of(eigen, expected) == "");
  };
  check(Loss{});
  check(gdpo::gspo_loss);
  check(gdpo::gspo_token_loss);
}

TEST_CASE("one number for all tokens: a stride of 0", "[loss][storage]") {
  Data d = small_numbers();
  d.weights.assign(size, 0.5);
  const loss_product::Arrays<float> arrays(d);
  gdpo::TokenBatch<float> batch = arrays.batch();
  const float half = 0.5f;
  batch.weights = gdpo::View<const float, 2>{&half, {rows, width}, {0, 0}};
  CHECK(loss_product::difference_of(run(batch), run(arrays.batch())) == "");
}

TEST_CASE("masks of any arithmetic type, 0 against the rest", "[loss][storage]") {
  const Data d = small_numbers();
  const loss_product::Arrays<float> arrays(d);
  const Outcome expected = run(arrays.batch());
  const auto check = [&](auto sample, auto yes) {
    using T = decltype(sample);
    T mask[size];
    for (int k = 0; k < size; ++k)
      mask[k] = d.mask[static_cast<std::size_t>(k)] ? static_cast<T>(yes) : T(0);
    gdpo::TokenBatch<float> batch = arrays.batch();
    batch.mask = gdpo::view(static_cast<const T*>(mask), rows, width);
    CHECK(loss_product::difference_of(run(batch), expected) == "");
  };
  check(bool{}, true);
  check(std::uint8_t{}, 255);
  check(std::int8_t{}, -1);
  check(std::int32_t{}, 1);
  check(std::int32_t{}, 256);  // its low byte is 0
  check(std::int64_t{}, std::int64_t{1} << 40);
  check(float{}, 1);
  check(float{}, 1e-30);
  check(double{}, 1e-300);  // it would be 0 as a float
}

TEST_CASE("columns of the rows in any type", "[loss][storage]") {
  Data d = small_numbers();
  d.token_advantages.clear();
  d.advantages = {1, -2, 3, 0};
  d.row_weights = {1, 0, 2, 1};
  const loss_product::Arrays<float> arrays(d);
  const Outcome expected = run(arrays.batch());
  const auto check = [&](auto sample) {
    using T = decltype(sample);
    const T advantages[] = {T(1), T(-2), T(3), T(0)}, row_weights[] = {T(1), T(0), T(2), T(1)},
            truncated[] = {T(0), T(1), T(1), T(0)};
    gdpo::TokenBatch<float> batch = arrays.batch();
    batch.advantages = gdpo::view(advantages, rows);
    batch.row_weights = gdpo::view(row_weights, rows);
    batch.truncated = gdpo::view(truncated, rows);
    CHECK(loss_product::difference_of(run(batch), expected) == "");
  };
  check(float{}), check(double{}), check(std::int32_t{}), check(std::int64_t{}),
      check(Eigen::half{});
}

TEST_CASE("a workspace is used again, for batches of any size, and changes no bit",
          "[loss][storage]") {
  const Data d = small_numbers();
  const loss_product::Arrays<float> large(d);
  const Data part = loss_product::rows_of(d, 1, 3);
  const loss_product::Arrays<float> small(part);
  gdpo::LossWorkspace<float> workspace;
  for (int round = 0; round < 2; ++round) {
    for (const loss_product::Arrays<float>* arrays : {&small, &large, &small}) {
      const gdpo::TokenBatch<float> batch = arrays->batch();
      std::vector<float> a(size), b(size);
      const gdpo::index_t n = batch.logp.extent(0);
      Outcome x, y;
      x.result = gdpo::gspo_loss(gdpo::seq, batch, gdpo::count(batch),
                                 gdpo::view(a.data(), n, width), workspace);
      y.result = gdpo::gspo_loss(batch, gdpo::count(batch), gdpo::view(b.data(), n, width));
      x.gradient.assign(a.begin(), a.end()), y.gradient.assign(b.begin(), b.end());
      CHECK(loss_product::difference_of(x, y) == "");
    }
  }
}

TEST_CASE("without a gradient the result is the same", "[loss][storage]") {
  const loss_product::Arrays<double> arrays(small_numbers());
  const gdpo::TokenBatch<double> batch = arrays.batch();
  const auto check = [&](const auto& loss) {
    CHECK(difference(loss_product::numbers(loss(batch, gdpo::count(batch))),
                     loss_product::numbers(run(batch, loss).result)) == "");
  };
  check(gdpo::grpo_loss);
  check(gdpo::gspo_loss);
  check(gdpo::gspo_token_loss);
}

}  // namespace storage_test
