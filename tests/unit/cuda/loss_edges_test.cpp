// labels: sanitizers
// Edge cases of the loss on a device: empty batches, every storage type, alignments, prepared
// batches, data that is not finite, wrong offsets, normalizers on the device, and every mistake
// that only a device refuses.
#include <gdpo/prepass.hpp>

#include "support/catch.hpp"
#include "support/cuda_loss.hpp"
#include "support/host_only.hpp"
#include "support/message.hpp"

namespace loss_edges_test {

namespace {

/// A user's own 16-bit float, the upper half of a float. LayoutOf tells the library what KnownUpper
/// is in memory; about Upper it knows nothing.
struct Upper {
  std::uint16_t bits = 0;
  Upper() = default;
  explicit Upper(float x) : bits(static_cast<std::uint16_t>(gdpo::math::bits_of(x) >> 16)) {}
  explicit operator float() const {
    return gdpo::math::from_bits(static_cast<std::uint32_t>(bits) << 16);
  }
};
struct KnownUpper : Upper {
  using Upper::Upper;
};

}  // namespace

}  // namespace loss_edges_test

template <>
struct gdpo::LayoutOf<loss_edges_test::KnownUpper> {
  using type = gdpo::BFloat16;
};

namespace loss_edges_test {

namespace {

using cuda_loss::Data;
using cuda_loss::DeviceOutcome;
using cuda_loss::index_t;
using cuda_loss::Layout;
using cuda_loss::OnTheDevice;
using cuda_loss::Outcome;

const double no = std::nan(""), inf = std::numeric_limits<double>::infinity();

Data some_tokens(std::uint64_t seed, int rows, int width) {
  Random random(seed);
  Data d = cuda_loss::random_batch(random, rows, width);
  d.token_advantages.clear(), d.advantages.clear();
  for (int i = 0; i < rows; ++i) d.advantages.push_back(static_cast<float>(1 - i % 3));
  return d;
}
/// Tokens with log-probs, advantages and a mask alone: the kernels read such rows four tokens at a
/// time.
Data simple_tokens(std::uint64_t seed, int rows, int width) {
  Data d = some_tokens(seed, rows, width);
  d.weights.clear(), d.kl_weights.clear(), d.entropies.clear(), d.segments.clear();
  Random random(seed + 1);
  d.mask.clear();
  for (std::size_t k = 0; k < d.logp.size(); ++k) d.mask.push_back(random.chance(0.8));
  return d;
}
auto wide_gspo() {
  auto loss = gdpo::gspo_loss;
  loss.surrogate = {0.2, 0.2}, loss.kl.beta = 0.1;
  return loss;
}
template <class S = float, class Loss>
DeviceOutcome dense(const Loss& loss, const Data& d) {
  return cuda_loss::run<S>(test_device(3), loss, d, cuda_loss::dense, {}, cuda_loss::count(d));
}
template <class S = float, class Loss>
std::string against_seq(const Loss& loss, const Data& d) {
  return cuda_loss::mismatch<S>(loss, d, dense<S>(loss, d),
                                cuda_loss::on_seq<S>(loss, d, {}, cuda_loss::count(d)));
}
/// The loss on a batch of device arrays, some of which `change` has replaced.
template <class Loss, class S, class On, class Change>
DeviceOutcome changed(const Loss& loss, const Data& d, On& on, const gdpo::TokenBatch<S>&,
                      const Change& change) {
  gdpo::TokenBatch<S> batch = on.batch();
  change(batch);
  return cuda_loss::run<S>(test_device(4), loss, batch, on.places(), cuda_loss::count(d));
}
template <class Loss, class Change>
DeviceOutcome changed(const Loss& loss, const Data& d, const Change& change) {
  OnTheDevice<float> on(d, cuda_loss::dense);
  return changed(loss, d, on, gdpo::TokenBatch<float>{}, change);
}
template <class T, class X>
std::vector<T> all_stored(const std::vector<X>& from) {
  std::vector<T> to;
  for (const X& x : from) to.push_back(cuda_loss::stored<T>(x));
  return to;
}

}  // namespace

TEST_CASE("on a device: batches without rows or tokens", "[cuda][loss]") {
  const auto check = [](int rows, int width, const std::vector<int>& lengths,
                        const Layout& layout) {
    INFO(rows << " rows of " << width << ", " << layout.name);
    Data d;
    d.rows = rows, d.width = width;
    d.advantages.assign(static_cast<std::size_t>(rows), 1.0);
    d.truncated.assign(static_cast<std::size_t>(rows), 1.0);
    const gdpo::Normalizer n = cuda_loss::count(d, lengths);
    OnTheDevice<float> on(d, layout, lengths);
    const gdpo::TokenBatch<float> batch = on.batch();
    // seq reads only the columns of this batch, because it has no tokens.
    gdpo::TokenBatch<float> on_host = batch;
    const std::vector<index_t> offsets(static_cast<std::size_t>(rows) + 1, 0);
    if (!lengths.empty()) on_host.offsets = gdpo::view(offsets);
    on_host.advantages = gdpo::view(d.advantages), on_host.truncated = gdpo::view(d.truncated);
    const auto run = [&](const auto& loss) {
      const DeviceOutcome got = cuda_loss::run<float>(test_device(1), loss, batch, on.places(), n);
      gdpo::LossWorkspace<float> workspace;
      Outcome expected;
      expected.result = loss(gdpo::seq, on_host, n, gdpo::TokenOut<float>{}, workspace);
      CHECK(cuda_loss::mismatch<float>(loss, d, got, expected) == "");
      CHECK(got.result.loss == 0);
      CHECK(got.result.metrics.rows == rows);
      CHECK(got.result.metrics.empty_rows == rows);
    };
    run(gdpo::grpo_loss);
    run(wide_gspo());
  };
  check(0, 0, {}, cuda_loss::dense);
  check(0, 5, {}, cuda_loss::dense);
  check(3, 0, {}, cuda_loss::dense);
  check(3, 0, {0, 0, 0}, cuda_loss::packed);
}

TEST_CASE("on a device: rows of every length, masked ones among them", "[cuda][loss][sanitize]") {
  for (const int width :
       {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257}) {
    INFO("width " << width);
    Data d = simple_tokens(static_cast<std::uint64_t>(width), 4, width);
    for (int t = 0; t < width; ++t) d.mask[d.at(1, t)] = 0;
    CHECK(against_seq(gdpo::grpo_loss, d) == "");
    CHECK(against_seq(wide_gspo(), d) == "");
    CHECK(against_seq(gdpo::grpo_loss, some_tokens(7, 3, width)) == "");
    for (int& m : d.mask) m = 0;
    CHECK(against_seq(gdpo::grpo_loss, d) == "");
  }
}

TEST_CASE("on a device: arrays of any alignment, each by itself", "[cuda][loss][sanitize]") {
  const Data d = simple_tokens(11, 3, 41);
  const DeviceOutcome expected = dense(gdpo::grpo_loss, d);
  Random random(12);
  for (int round = 0; round < 24; ++round) {
    index_t shift[5];
    for (index_t& s : shift) s = round < 5 ? 0 : random.below(4);
    if (round < 5) shift[round] = 1 + round % 3;
    INFO("logp + " << shift[0] << ", old + " << shift[1] << ", ref + " << shift[2] << ", mask + "
                   << shift[3] << ", gradient + " << shift[4]);
    const auto moved = [](auto values, index_t by) {
      values.insert(values.begin(), static_cast<std::size_t>(by),
                    typename decltype(values)::value_type(1));
      return values;
    };
    OnDevice<float> logp(moved(all_stored<float>(d.logp), shift[0])),
        old(moved(all_stored<float>(d.old_logp), shift[1])),
        ref(moved(all_stored<float>(d.ref_logp), shift[2])),
        gradient(std::vector<float>(d.logp.size() + static_cast<std::size_t>(shift[4]), -77.0f)),
        advantages(all_stored<float>(d.advantages));
    OnDevice<unsigned char> mask(moved(all_stored<unsigned char>(d.mask), shift[3]));
    OnDevice<gdpo::LossResult> result(std::vector<gdpo::LossResult>(1));
    gdpo::TokenBatch<float> b;
    b.logp = gdpo::view(logp.data() + shift[0], 3, 41),
    b.old_logp = gdpo::view(old.data() + shift[1], 3, 41);
    b.ref_logp = gdpo::view(ref.data() + shift[2], 3, 41),
    b.mask = gdpo::view(mask.data() + shift[3], 3, 41);
    b.advantages = gdpo::view(advantages.data(), 3);
    OnDevice<double> truncated(d.truncated), row_weights(d.row_weights);
    b.truncated = gdpo::view(truncated.data(), 3);
    if (!d.row_weights.empty()) b.row_weights = gdpo::view(row_weights.data(), 3);
    TestScratch scratch(gdpo::cuda::scratch_bytes(gdpo::grpo_loss, b));
    gdpo::grpo_loss(test_device(1), b, gdpo::cuda::DeviceNormalizer(cuda_loss::count(d)),
                    gdpo::TokenOut<float>(gdpo::view(gradient.data() + shift[4], 3, 41)),
                    result.data(), scratch());
    Outcome got;
    got.result = result.host()[0];
    const auto written = gradient.host();
    got.gradient.assign(written.begin() + shift[4], written.end());
    CHECK(cuda_loss::difference_but_nan(got, expected) == "");
    for (index_t k = 0; k < shift[4]; ++k) CHECK(written[static_cast<std::size_t>(k)] == -77.0f);
  }
}

TEST_CASE("on a device: a simple batch, and one array more or one that lies otherwise",
          "[cuda][loss][sanitize]") {
  const Data simple = simple_tokens(15, 4, 45);
  const auto numbers = [&](std::uint64_t seed) {
    Random random(seed);
    std::vector<double> x;
    for (std::size_t k = 0; k < simple.logp.size(); ++k)
      x.push_back(static_cast<float>(random.uniform()));
    return x;
  };
  for (int extra = 0; extra < 7; ++extra) {
    Data d = simple;
    if (extra == 0) d.weights = numbers(1);
    if (extra == 1) d.kl_weights = numbers(2);
    if (extra == 2) d.entropies = numbers(3);
    if (extra == 3) d.token_advantages = numbers(4), d.advantages.clear();
    if (extra == 4) d.old_logp.clear();
    if (extra == 5) d.mask.clear();
    for (int k = 0; extra == 6 && k < 4 * 45; ++k) d.segments.push_back(k / 7 % 3);
    INFO("extra " << extra);
    CHECK(against_seq(gdpo::grpo_loss, d) == "");
    CHECK(against_seq(wide_gspo(), d) == "");
  }

  const DeviceOutcome expected = dense(gdpo::grpo_loss, simple);
  const Layout& strided = cuda_loss::padded_layouts[5];
  OnTheDevice<float> on(simple, cuda_loss::dense), other(simple, strided);
  for (int array = 0; array < 5; ++array) {
    gdpo::TokenBatch<float> batch = on.batch();
    const gdpo::TokenBatch<float> from = other.batch();
    if (array == 0) batch.logp = from.logp;
    if (array == 1) batch.old_logp = from.old_logp;
    if (array == 2) batch.ref_logp = from.ref_logp;
    if (array == 3) batch.mask = from.mask;
    // Array 4 is the gradient.
    const cuda_loss::Places& places = array == 4 ? other.places() : on.places();
    INFO("array " << array);
    const auto got = cuda_loss::run<float>(test_device(1), gdpo::grpo_loss, batch, places,
                                           cuda_loss::count(simple));
    CHECK(got.gaps_kept);
    CHECK(cuda_loss::difference_but_nan(got, expected) == "");
  }
}

TEST_CASE("on a device: without a gradient the result is the same", "[cuda][loss]") {
  const auto check = [](const auto& loss, const Data& d) {
    OnTheDevice<float> on(d, cuda_loss::dense);
    const auto run = [&](bool with_gradient) {
      return cuda_loss::run<float>(test_device(2), loss, on.batch(), on.places(),
                                   cuda_loss::count(d), with_gradient);
    };
    const DeviceOutcome without = run(false);
    CHECK(without.gaps_kept);
    CHECK(difference(loss_product::numbers(without.result),
                     loss_product::numbers(run(true).result)) == "");
  };
  check(gdpo::grpo_loss, some_tokens(21, 4, 70)), check(gdpo::grpo_loss, simple_tokens(22, 4, 70));
  check(wide_gspo(), some_tokens(23, 4, 70)), check(wide_gspo(), simple_tokens(24, 4, 70));
}

namespace {
template <class S, class T>
void check_stored(const char* type) {
  INFO(type);
  Data d = some_tokens(31, 4, 37);
  const auto store = [](double& x) { x = gdpo::load(cuda_loss::stored<T>(x)); };
  for (const auto member : loss_product::token_arrays) {
    for (double& x : d.*member) store(x);
  }
  for (double& x : d.advantages) store(x);
  const gdpo::Normalizer n = cuda_loss::count(d);
  for (const Layout& layout : {cuda_loss::dense, cuda_loss::padded_layouts[5]}) {
    OnTheDevice<S, T> on(d, layout);
    const auto got = cuda_loss::run<S>(test_device(5), gdpo::grpo_loss, on.batch(), on.places(), n);
    CHECK(cuda_loss::mismatch<S>(gdpo::grpo_loss, d, got,
                                 cuda_loss::on_seq<S>(gdpo::grpo_loss, d, {}, n)) == "");
  }
}
}  // namespace

TEST_CASE("on a device: tokens and advantages in every type", "[cuda][loss][storage][sanitize]") {
  check_stored<float, gdpo::Float16>("Float16");
  check_stored<float, gdpo::BFloat16>("BFloat16");
  check_stored<float, KnownUpper>("a class that is BFloat16 in memory");
  check_stored<double, float>("float, in a batch of double");
  check_stored<double, gdpo::BFloat16>("BFloat16, in a batch of double");
  check_stored<float, std::int8_t>("int8");
  check_stored<float, std::int16_t>("int16");
  check_stored<float, std::int32_t>("int32");
  check_stored<double, std::int64_t>("int64, in a batch of double");
}

TEST_CASE("on a device: masks of any type, 0 against the rest", "[cuda][loss][storage][sanitize]") {
  for (const Data& d : {some_tokens(41, 4, 35), simple_tokens(42, 4, 35)}) {
    Data masked = d;
    if (masked.mask.empty()) masked.mask = simple_tokens(42, 4, 35).mask;
    const DeviceOutcome expected = dense(gdpo::grpo_loss, masked);
    const auto check = [&](const auto yes) {
      using T = std::decay_t<decltype(yes)>;
      std::vector<T> values;
      for (const int m : masked.mask) values.push_back(m ? yes : cuda_loss::stored<T>(0.0));
      OnDevice<T> mask(values);
      const auto got = changed(gdpo::grpo_loss, masked, [&](gdpo::TokenBatch<float>& b) {
        b.mask = gdpo::view(mask.data(), 4, 35);
      });
      CHECK(cuda_loss::difference_but_nan(got, expected) == "");
    };
    check(std::uint8_t{255}), check(std::int8_t{-1}), check(std::int16_t{256}),
        check(std::uint16_t{256});
    check(std::int32_t{1 << 20}), check(std::uint32_t{1u << 31}), check(std::int64_t{1} << 40);
    check(std::uint64_t{1} << 63);
    check(1e-30f), check(1e-300), check(cuda_loss::stored<gdpo::Float16>(1.0)),
        check(cuda_loss::stored<gdpo::BFloat16>(1.0));
    std::vector<unsigned char> values(masked.mask.begin(), masked.mask.end());
    OnDevice<unsigned char> mask(values);
    const auto got = changed(gdpo::grpo_loss, masked, [&](gdpo::TokenBatch<float>& b) {
      b.mask = gdpo::view(reinterpret_cast<const bool*>(mask.data()), 4, 35);
    });
    CHECK(cuda_loss::difference_but_nan(got, expected) == "");
  }
}

TEST_CASE("on a device: columns, segments and offsets in any type",
          "[cuda][loss][storage][sanitize]") {
  Data d = some_tokens(51, 4, 35);
  d.advantages = {1, -2, 3, 0}, d.row_weights = {1, 0, 2, 1}, d.truncated = {0, 1, 1, 0};
  const DeviceOutcome expected = dense(gdpo::grpo_loss, d);
  const auto columns = [&](auto sample) {
    using T = decltype(sample);
    // Every second number of an array, from the last to the first.
    const auto spread = [](const std::vector<double>& from) {
      std::vector<T> to;
      for (std::size_t i = from.size(); i-- > 0;)
        to.push_back(cuda_loss::stored<T>(from[i])), to.push_back(T{});
      return to;
    };
    OnDevice<T> advantages(spread(d.advantages)), row_weights(spread(d.row_weights)),
        truncated(spread(d.truncated));
    const auto got = changed(gdpo::grpo_loss, d, [&](gdpo::TokenBatch<float>& b) {
      const auto backwards = [](T* data) { return gdpo::View<T, 1>{data + 6, {4}, {-2}}; };
      b.advantages = backwards(advantages.data()), b.row_weights = backwards(row_weights.data());
      b.truncated = backwards(truncated.data());
    });
    CHECK(cuda_loss::difference_but_nan(got, expected) == "");
  };
  columns(float{}), columns(double{}), columns(std::int8_t{}), columns(std::int16_t{}),
      columns(std::int32_t{});
  columns(std::int64_t{}), columns(gdpo::Float16{}), columns(gdpo::BFloat16{});

  d.segments.clear();
  for (int k = 0; k < 4 * 35; ++k) d.segments.push_back(k / 3 % 5);
  const DeviceOutcome of_segments = dense(wide_gspo(), d);
  const auto segments = [&](auto sample) {
    using T = decltype(sample);
    OnDevice<T> ids(all_stored<T>(d.segments));
    const auto got = changed(wide_gspo(), d, [&](gdpo::TokenBatch<float>& b) {
      b.segments = gdpo::view(ids.data(), 4, 35);
    });
    CHECK(cuda_loss::difference_but_nan(got, of_segments) == "");
  };
  segments(std::int8_t{}), segments(std::uint16_t{}), segments(std::int32_t{}),
      segments(std::int64_t{});
  CHECK(against_seq(wide_gspo(), d) == "");

  const std::vector<int> lengths{4, 0, 30, 35};
  const gdpo::Normalizer n = cuda_loss::count(d, lengths);
  const auto with_offsets = [&](auto sample) {
    OnTheDevice<float, float, unsigned char, decltype(sample)> on(d, cuda_loss::packed, lengths);
    return cuda_loss::run<float>(test_device(6), gdpo::grpo_loss, on.batch(), on.places(), n);
  };
  const DeviceOutcome of_32 = with_offsets(std::int32_t{});
  CHECK(cuda_loss::difference_but_nan(with_offsets(std::int64_t{}), of_32) == "");
  CHECK(cuda_loss::difference_but_nan(with_offsets(std::uint8_t{}), of_32) == "");
}

TEST_CASE("on a device: one number for all tokens, a stride of 0", "[cuda][loss][storage]") {
  Data d = some_tokens(61, 3, 20);
  d.weights.assign(60, 0.5);
  OnDevice<float> half(std::vector<float>{0.5f});
  const auto got = changed(gdpo::grpo_loss, d, [&](gdpo::TokenBatch<float>& b) {
    b.weights = gdpo::View<const float, 2>{half.data(), {3, 20}, {0, 0}};
  });
  CHECK(cuda_loss::difference_but_nan(got, dense(gdpo::grpo_loss, d)) == "");
}

TEST_CASE("on a device: weights of rows: 0, NaN, infinite, negative", "[cuda][loss][sanitize]") {
  for (const Data& from : {some_tokens(71, 6, 30), simple_tokens(72, 6, 30)}) {
    Data d = from;
    d.row_weights = {1, 0, no, inf, 2, 1e-320};
    for (int i = 0; i < 6 && !d.mask.empty(); ++i) d.mask[d.at(i, 4)] = 1;
    d.logp[d.at(1, 4)] = no;  // in a row that weighs 0
    CHECK(against_seq(gdpo::grpo_loss, d) == "");
    CHECK(against_seq(wide_gspo(), d) == "");
    const DeviceOutcome got = dense(gdpo::grpo_loss, d);
    for (const int row : {1, 2, 3}) {
      for (int t = 0; t < 30; ++t) CHECK(same_bits(got.gradient[d.at(row, t)], 0));
    }
    CHECK(got.result.metrics.non_finite.weights.count == 2);
    // The host refuses a negative weight. A device does not look first, and it counts as it is.
    d.row_weights[4] = -2;
    const DeviceOutcome negative = dense(gdpo::grpo_loss, d);
    for (int i = 0; i < 6; ++i) {
      for (int t = 0; t < 30; ++t) {
        const auto g = got.gradient[d.at(i, t)];
        CHECK(negative.gradient[d.at(i, t)] == (i == 4 ? -g : g));
      }
    }
    CHECK(got.result.metrics.non_finite.weights.row == 2);
    CHECK(got.result.metrics.non_finite.weights.token == -1);
  }
}

TEST_CASE("on a device: NaN and infinities in every input, one at a time",
          "[cuda][loss][non_finite]") {
  std::vector<std::vector<double> Data::*> arrays{&Data::advantages, &Data::row_weights,
                                                  &Data::truncated};
  arrays.insert(arrays.end(), std::begin(loss_product::token_arrays),
                std::end(loss_product::token_arrays));
  for (const bool simple : {false, true}) {
    for (std::size_t number = 0; number < arrays.size(); ++number) {
      const auto array = arrays[number];
      for (const double x : {no, inf, -inf}) {
        Data d = simple ? simple_tokens(81, 4, 50) : some_tokens(82, 4, 50);
        const bool of_rows =
            array == &Data::advantages || array == &Data::row_weights || array == &Data::truncated;
        if ((d.*array).empty() && simple) continue;
        if (array == &Data::token_advantages) d.advantages.clear();
        if ((d.*array).empty()) (d.*array).assign(of_rows ? 4 : 200, 0.5);
        (d.*array)[of_rows ? 2 : d.at(2, 17)] = x;
        if (!d.mask.empty()) d.mask[d.at(2, 17)] = 1;
        INFO((simple ? "simple, " : "") << "array " << number << ", " << x);
        CHECK(against_seq(wide_gspo(), d) == "");
        if (array == &Data::level_log_weights) continue;  // refused at level::Token
        CHECK(against_seq(gdpo::grpo_loss, d) == "");
        auto old = gdpo::grpo_loss;
        old.kl.against = gdpo::Against::Old, old.kl.input = {-1, 1};
        CHECK(against_seq(old, d) == "");
      }
    }
  }
}

TEST_CASE("on a device: prepared batches", "[cuda][loss][prepass]") {
  int thresholds = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    const Data d = seed % 2 ? some_tokens(90 + seed, 5, 40) : simple_tokens(90 + seed, 5, 40);
    Data with_entropies = d;
    Random random(seed);
    with_entropies.entropies.clear();
    for (std::size_t k = 0; k < d.logp.size(); ++k)
      with_entropies.entropies.push_back(static_cast<float>(random.uniform()));
    with_entropies.rollout_logp[3] = no;
    const loss_product::Arrays<float> arrays(with_entropies);
    gdpo::PrepassMemory<float> memory;
    gdpo::prepass::Gate gate;
    gate.min = 0.8, gate.max = 1.2, gate.reach = gdpo::Reach::Mask;
    const gdpo::TokenBatch<float> prepared = gdpo::prepare(
        arrays.batch(), memory, gate, gdpo::prepass::Importance{}, gdpo::prepass::TopEntropy{0.5});
    const gdpo::Normalizer n = gdpo::count(prepared);
    std::vector<float> gradient(d.logp.size());
    gdpo::LossWorkspace<float> workspace;
    Outcome expected;
    expected.result =
        gdpo::grpo_loss(gdpo::seq, prepared, n, gdpo::view(gradient.data(), 5, 40), workspace);
    expected.gradient.assign(gradient.begin(), gradient.end());

    Data uploaded = with_entropies;
    uploaded.mask.clear(), uploaded.weights.clear(), uploaded.kl_weights.clear();
    std::vector<unsigned char> completion;
    for (int i = 0; i < 5; ++i) {
      for (int t = 0; t < 40; ++t) {
        uploaded.mask.push_back(prepared.mask.at(i, 0, t));
        if (prepared.weights) uploaded.weights.push_back(prepared.weights.at(i, 0, t));
        if (prepared.kl_weights) uploaded.kl_weights.push_back(prepared.kl_weights.at(i, 0, t));
        completion.push_back(prepared.completion_mask.at(i, 0, t));
      }
    }
    OnDevice<unsigned char> completion_mask(completion);
    OnTheDevice<float> on(uploaded, cuda_loss::dense);
    gdpo::TokenBatch<float> batch = on.batch();
    batch.completion_mask = gdpo::view(completion_mask.data(), 5, 40);
    batch.rollout_non_finite = prepared.rollout_non_finite,
    batch.entropy_threshold = prepared.entropy_threshold;
    const auto got = cuda_loss::run<float>(test_device(7), gdpo::grpo_loss, batch, on.places(), n);
    CHECK(cuda_loss::mismatch<float>(gdpo::grpo_loss, uploaded, got, expected) == "");
    thresholds += std::isfinite(got.result.metrics.entropy_threshold);
    CHECK(got.result.metrics.non_finite.rollout_logp.count ==
          (d.mask.empty() || d.mask[3] ? 1 : 0));
  }
  CHECK(thresholds > 2);
}

TEST_CASE("on a device: the same bits on every grid", "[cuda][loss][determinism][sanitize]") {
  const auto check = [](const auto& loss, const Data& d, const std::vector<int>& lengths) {
    OnTheDevice<float> on(d, lengths.empty() ? cuda_loss::dense : cuda_loss::packed, lengths);
    const gdpo::Normalizer n = cuda_loss::count(d, lengths);
    const DeviceOutcome expected =
        cuda_loss::run<float>(test_device(0), loss, on.batch(), on.places(), n);
    unsigned seed = 0;
    for (const int warp_row : {0, 1 << 20}) {
      gdpo::cuda::Tuning tuning;
      tuning.warp_row = warp_row, tuning.blocks = warp_row + 1;
      INFO("rows of " << warp_row << " tokens by warps");
      const auto got =
          cuda_loss::run<float>(test_device(++seed, tuning), loss, on.batch(), on.places(), n);
      CHECK(cuda_loss::difference_but_nan(got, expected) == "");
    }
  };
  Random random(101);
  const Data d = some_tokens(102, 2500, 6), simple = simple_tokens(103, 2500, 6),
             wide = some_tokens(104, 40, 300);
  Data unmasked = simple_tokens(105, 3100, 40);
  unmasked.mask.clear();
  check(gdpo::grpo_loss, d, {}), check(gdpo::grpo_loss, simple, {}),
      check(gdpo::grpo_loss, wide, {});
  check(gdpo::grpo_loss, unmasked, {}), check(wide_gspo(), unmasked, {});
  CHECK(against_seq(gdpo::grpo_loss, unmasked) == "");
  check(wide_gspo(), d, cuda_loss::random_lengths(random, 2500, 6)), check(wide_gspo(), wide, {});
}

TEST_CASE("on a device: count_into counts as the host does, and a loss takes it",
          "[cuda][loss][count]") {
  const auto count = [](gdpo::TokenBatch<float> batch, unsigned seed, int blocks = 1056) {
    OnDevice<gdpo::Normalizer> n(std::vector<gdpo::Normalizer>(1));
    gdpo::cuda::Tuning tuning;
    tuning.blocks = blocks;
    TestScratch scratch(gdpo::cuda::scratch_bytes(batch));
    gdpo::cuda::count_into(test_device(seed, tuning), batch, n.data(), scratch());
    return n.host()[0];
  };
  const auto check = [](const gdpo::Normalizer& got, gdpo::Normalizer expected) {
    CHECK(got.tokens == expected.tokens);
    CHECK(got.rows == expected.rows);
    CHECK(got.non_empty_rows == expected.non_empty_rows);
    CHECK(got.given == 0);
  };
  unsigned seed = 0;
  for (const auto& [rows, width] :
       {std::pair{1, 1}, {4, 37}, {3, 1030}, {2051, 5}, {5000, 3}, {0, 4}, {4, 0}}) {
    Data d = simple_tokens(++seed, rows, width);
    Random random(seed);
    for (int i = 0; i < rows; ++i) {  // some rows without tokens
      if (random.chance(0.3))
        std::fill_n(d.mask.begin() + static_cast<std::ptrdiff_t>(d.at(i, 0)), width, 0);
    }
    INFO(rows << " rows of " << width);
    for (const Layout& layout : cuda_loss::padded_layouts) {
      OnTheDevice<float> on(d, layout);
      check(count(on.batch(), seed, random.pick({1, 3, 1056})), cuda_loss::count(d));
      OnTheDevice<float, float, float> as_float(d, layout);
      check(count(as_float.batch(), seed), cuda_loss::count(d));
    }
    const auto lengths = cuda_loss::random_lengths(random, rows, width);
    for (const Layout& layout : cuda_loss::packed_layouts) {
      OnTheDevice<float> on(d, layout, lengths);
      check(count(on.batch(), seed), cuda_loss::count(d, lengths));
    }
    d.mask.clear();
    OnTheDevice<float> on(d, cuda_loss::packed, lengths);
    check(count(on.batch(), seed), cuda_loss::count(d, lengths));
  }

  const Data d = simple_tokens(5, 6, 50);
  OnTheDevice<float> on(d, cuda_loss::dense);
  gdpo::Normalizer n = cuda_loss::count(d);
  n.given = 0;
  OnDevice<gdpo::Normalizer> there(std::vector<gdpo::Normalizer>(1));
  const auto batch = on.batch();
  TestScratch scratch(gdpo::cuda::scratch_bytes(batch));
  gdpo::cuda::count_into(test_device(1), batch, there.data(), scratch());
  const auto run = [&](const auto& normalizer) {
    return cuda_loss::run<float>(test_device(1), gdpo::grpo_loss, batch, on.places(), normalizer);
  };
  CHECK(cuda_loss::difference_but_nan(run(gdpo::cuda::DeviceNormalizer(there.data())),
                                      run(gdpo::cuda::DeviceNormalizer(n))) == "");

  // The host cannot see that a count on the device is 0. The weights are 0 then.
  OnDevice<gdpo::Normalizer> nothing(std::vector<gdpo::Normalizer>(1));
  const auto of_nothing = run(gdpo::cuda::DeviceNormalizer(nothing.data()));
  CHECK(of_nothing.result.loss == 0);
  CHECK(all_zero(of_nothing.gradient));
}

TEST_CASE(
    "on a device: offsets that are wrong make rows shorter, and nothing else is read or written",
    "[cuda][loss][offsets][sanitize]") {
  constexpr int tokens = 23;
  const Data d = simple_tokens(110, 1, tokens);
  OnDevice<float> logp(all_stored<float>(d.logp)), old(all_stored<float>(d.old_logp)),
      ref(all_stored<float>(d.ref_logp)), advantages(std::vector<float>{1, -1, 2});
  OnDevice<unsigned char> mask(all_stored<unsigned char>(d.mask));
  const auto run = [&](const std::vector<std::int64_t>& offsets) {
    OnDevice<std::int64_t> on(offsets);
    gdpo::TokenBatch<float> b;
    b.logp = gdpo::view(logp.data(), tokens), b.old_logp = gdpo::view(old.data(), tokens);
    b.ref_logp = gdpo::view(ref.data(), tokens), b.mask = gdpo::view(mask.data(), tokens);
    b.advantages = gdpo::view(advantages.data(), 3), b.offsets = gdpo::view(on.data(), 4);
    OnDevice<float> gradient(std::vector<float>(tokens, -77.0f));
    OnDevice<gdpo::LossResult> result(std::vector<gdpo::LossResult>(1));
    OnDevice<gdpo::Normalizer> n(std::vector<gdpo::Normalizer>(1));
    TestScratch scratch(gdpo::cuda::scratch_bytes(gdpo::grpo_loss, b));
    gdpo::cuda::count_into(test_device(1), b, n.data(), scratch());
    gdpo::grpo_loss(test_device(1), b, gdpo::cuda::DeviceNormalizer(n.data()),
                    gdpo::TokenOut<float>(gdpo::view(gradient.data(), tokens)), result.data(),
                    scratch());
    Outcome o;
    o.result = result.host()[0];
    const auto written = gradient.host();
    o.gradient.assign(written.begin(), written.end());
    return o;
  };
  const auto same = [&](const std::vector<std::int64_t>& wrong,
                        const std::vector<std::int64_t>& right) {
    CHECK(cuda_loss::difference_but_nan(run(wrong), run(right)) == "");
  };
  same({0, 9, 99, 23}, {0, 9, 23, 23});
  same({-4, 9, 23, 23}, {0, 9, 23, 23});
  same({0, 9, 1ll << 40, 1ll << 41}, {0, 9, 23, 23});
  same({0, -9, 23, -(1ll << 40)}, {0, 0, 23, 23});
  CHECK(run({5, 9, 12, 15}).gradient[4] == -77);
  CHECK(run({5, 9, 12, 15}).gradient[15] == -77);
  CHECK(run({0, 20, 3, 23}).result.metrics.rows == 3);
}

namespace {

/// Two rows of three tokens, in host memory: a refused call reads no array.
struct Call {
  std::vector<double> tokens = std::vector<double>(6, -1.0), rows{1, -1},
                      gradient = std::vector<double>(6, 42.0);
  gdpo::TokenBatch<double> batch;
  gdpo::Normalizer normalizer{6, 2, 2, 2};
  gdpo::TokenOut<double> out;

  Call() {
    batch.logp = batch.old_logp = batch.ref_logp = gdpo::view(std::as_const(tokens).data(), 2, 3);
    batch.advantages = gdpo::view(rows);
    out = gdpo::view(gradient.data(), 2, 3);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  template <class Loss>
  std::string message(const Loss& loss) {
    return message_of([&] {
      gdpo::LossWorkspace<double> workspace;
      loss(gdpo::seq, batch, normalizer, out, workspace);
    });
  }
  /// The message of the device, which launches nothing.
  template <class Loss>
  std::string device_message(const Loss& loss) {
    const HostOnly device;
    gdpo::LossResult result;
    const std::string message = message_of([&] {
      loss(device, batch, gdpo::cuda::DeviceNormalizer(normalizer), out, &result, unused_scratch());
    });
    CHECK(device.launches == 0);
    return message;
  }
};

}  // namespace

TEST_CASE("on a device: what only a device refuses", "[cuda][loss][errors]") {
  const auto loss = gdpo::grpo_loss;
  Call c;
  const HostOnly device;
  const std::size_t bytes = gdpo::cuda::scratch_bytes(loss, c.batch);
  std::vector<double> memory(bytes / sizeof(double));
  gdpo::LossResult result;
  const auto message = [&](gdpo::LossResult* to, const gdpo::cuda::Scratch& scratch) {
    return message_of([&] {
      loss(device, c.batch, gdpo::cuda::DeviceNormalizer(c.normalizer), c.out, to, scratch);
    });
  };
  const std::string needed =
      "; needed: " + std::to_string(bytes) + " bytes, as scratch_bytes(...) says";
  CHECK(message(&result, {memory.data(), bytes - 1}) ==
        "gdpo::PolicyLoss: scratch: given " + std::to_string(bytes - 1) + " bytes" + needed);
  CHECK(message(&result, {nullptr, bytes}) ==
        "gdpo::PolicyLoss: scratch: given no memory" + needed);
  CHECK(message(nullptr, {memory.data(), bytes}) ==
        "gdpo::PolicyLoss: result: given no memory; needed: a LossResult on the device");
  CHECK(message_of([&] {
          gdpo::Normalizer n;
          gdpo::cuda::count_into(device, c.batch, &n, {memory.data(), 8});
        }).find("gdpo::cuda::count_into: scratch: given 8 bytes; needed: ") == 0);
  CHECK(device.launches == 0);

  // An array of a class that only the host can read.
  const std::vector<Upper> tokens(6, Upper(-1.0f)), rows(2, Upper(1.0f));
  const auto refused = [&](const char* name, const auto& change) {
    Call call;
    change(call.batch);
    CHECK(call.message(loss) == "no error");
    CHECK(call.device_message(loss) ==
          std::string("gdpo::PolicyLoss: ") + name +
              ": given an array of a class; needed: numbers that a device can read: float, "
              "double, 16-bit floats or integers (gdpo::LayoutOf says what a class is in memory)");
  };
  const auto view = gdpo::view(tokens.data(), 2, 3);
  refused("batch.logp", [&](gdpo::TokenBatch<double>& b) { b.logp = view; });
  refused("batch.mask", [&](gdpo::TokenBatch<double>& b) { b.mask = view; });
  refused("batch.entropies", [&](gdpo::TokenBatch<double>& b) { b.entropies = view; });
  refused("batch.advantages",
          [&](gdpo::TokenBatch<double>& b) { b.advantages = gdpo::view(rows); });
  refused("batch.row_weights",
          [&](gdpo::TokenBatch<double>& b) { b.row_weights = gdpo::view(rows); });
}

TEST_CASE("on a device: the host reads and writes none of its memory", "[cuda][loss]") {
  auto* const nowhere = reinterpret_cast<double*>(std::uintptr_t{4096});
  const auto* const flags = reinterpret_cast<const unsigned char*>(nowhere);
  const auto* const ids = reinterpret_cast<const std::int64_t*>(nowhere);
  gdpo::TokenBatch<double> b;
  for (const auto tokens : loss_product::batch_arrays<double>) b.*tokens = gdpo::view(nowhere, 50);
  b.token_advantages = {};   // the advantages are per row
  b.level_log_weights = {};  // not at level::Token
  b.mask = b.completion_mask = gdpo::view(flags, 50);
  b.segments = gdpo::view(ids, 50), b.offsets = gdpo::view(ids, 6);
  b.advantages = b.row_weights = b.truncated = gdpo::view(nowhere, 5);
  const HostOnly device;
  const gdpo::cuda::Scratch scratch{nowhere, std::size_t{1} << 30};
  auto* const there = reinterpret_cast<gdpo::Normalizer*>(nowhere);
  auto* const result = reinterpret_cast<gdpo::LossResult*>(nowhere);
  CHECK(gdpo::cuda::scratch_bytes(gdpo::grpo_loss, b) > 0);
  gdpo::cuda::count_into(device, b, there, scratch);
  CHECK(device.launches == 2);
  gdpo::grpo_loss(device, b, gdpo::cuda::DeviceNormalizer(there),
                  gdpo::TokenOut<double>(gdpo::view(nowhere, 50)), result, scratch);
  CHECK(device.launches == 4);
}

TEST_CASE("the scratch of a batch serves every smaller one", "[cuda][loss]") {
  // 1024 rows form more units than 1025 do: rows are shared out in whole numbers to at most 1024.
  const std::vector<float> logp(3000);
  std::size_t before = 0, counts_before = 0;
  for (gdpo::index_t rows = 0; rows <= 3000; ++rows) {
    gdpo::TokenBatch<float> b;
    b.logp = gdpo::view(logp.data(), rows, 1);
    const std::size_t bytes = gdpo::cuda::scratch_bytes(gdpo::grpo_loss, b);
    const std::size_t counts = gdpo::cuda::scratch_bytes(b);
    INFO("rows " << rows);
    CHECK(bytes >= before);
    CHECK(counts >= counts_before);
    CHECK(counts <= bytes);
    before = bytes, counts_before = counts;
  }
}

}  // namespace loss_edges_test
