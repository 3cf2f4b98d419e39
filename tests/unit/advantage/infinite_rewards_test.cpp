// labels: sanitizers
// What rewards mean that are infinite, missing in rows that only a reward of weight 0 scored, or of
// rows that count in nothing. The trainers' formulas stand here as they write them, with the
// functions of PyTorch that let NaN and infinities through.
#include <gdpo/advantages.hpp>
#include <gdpo/presets/ms_swift.hpp>
#include <gdpo/presets/trl.hpp>
#include <gdpo/runtime.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"

namespace infinite_rewards_test {

namespace {

using gdpo::index_t;
using Numbers = std::vector<double>;
const double inf = std::numeric_limits<double>::infinity(), none = std::nan(""),
             most = static_cast<double>(std::numeric_limits<float>::max());

// ---- torch -------------------------------------------------------------------------------------

long double nanmean(const std::vector<long double>& x) {
  long double sum = 0, n = 0;
  for (const long double v : x) {
    if (!std::isnan(v)) sum += v, n += 1;
  }
  return sum / n;
}
long double mean(const std::vector<long double>& x) {
  long double sum = 0;
  for (const long double v : x) sum += v;
  return sum / static_cast<long double>(x.size());
}
/// TRL's nanstd; with plain also torch.std, through which a NaN goes.
long double deviation(const std::vector<long double>& x, bool plain) {
  const long double center = plain ? mean(x) : nanmean(x);
  std::vector<long double> squares;
  long double n = 0;
  for (const long double v : x) {
    squares.push_back((v - center) * (v - center));
    n += plain || !std::isnan(v);
  }
  if (n < 2) return std::numeric_limits<long double>::quiet_NaN();
  return std::sqrt((plain ? mean(squares) : nanmean(squares)) * n / (n - 1));
}
long double number(long double x) {
  return std::isnan(x) ? 0.0L : x == inf ? most : x == -inf ? -most : x;
}

// ---- the trainers ------------------------------------------------------------------------------

struct Batch {
  index_t rows, rewards, size;
  Numbers values, weights;
  long double value(index_t i, index_t c) const {
    return values[static_cast<std::size_t>(i * rewards + c)];
  }
  long double weight(index_t c) const { return weights[static_cast<std::size_t>(c)]; }
  std::vector<long double> column(index_t c) const {
    std::vector<long double> x;
    for (index_t i = 0; i < rows; ++i) x.push_back(value(i, c));
    return x;
  }
  /// The weighted sums, those of the rewards that are not NaN after their weight.
  std::vector<long double> sums() const {
    std::vector<long double> s;
    for (index_t i = 0; i < rows; ++i) {
      long double sum = 0;
      for (index_t c = 0; c < rewards; ++c) {
        const long double term = value(i, c) * weight(c);
        if (!std::isnan(term)) sum += term;
      }
      s.push_back(sum);
    }
    return s;
  }
  /// Whether no reward function gave the row a number.
  bool unscored(index_t i) const {
    for (index_t c = 0; c < rewards; ++c) {
      if (!std::isnan(value(i, c))) return false;
    }
    return true;
  }
  std::vector<long double> group_of(const std::vector<long double>& x, index_t i) const {
    const auto first = x.begin() + i / size * size;
    return {first, first + size};
  }
};

enum class Mode { Group, Batch, None, Gdpo };

std::vector<long double> of_trl(const Batch& b, Mode mode) {
  const long double not_known = std::numeric_limits<long double>::quiet_NaN();
  std::vector<long double> sums = b.sums(), result;
  if (mode == Mode::Gdpo) {
    std::fill(sums.begin(), sums.end(), 0.0L);
    for (index_t c = 0; c < b.rewards; ++c) {
      const std::vector<long double> x = b.column(c);
      for (index_t i = 0; i < b.rows; ++i) {
        const std::vector<long double> group = b.group_of(x, i);
        const long double std = b.size > 1 ? deviation(group, false) : 0;
        const long double term =
            (x[static_cast<std::size_t>(i)] - nanmean(group)) / (std + 1e-4L) * b.weight(c);
        if (!std::isnan(term)) sums[static_cast<std::size_t>(i)] += term;
      }
    }
  }
  for (index_t i = 0; i < b.rows; ++i) {
    if (b.unscored(i)) sums[static_cast<std::size_t>(i)] = not_known;
  }
  for (index_t i = 0; i < b.rows; ++i) {
    const std::vector<long double> group = mode == Mode::Gdpo ? sums : b.group_of(sums, i);
    const std::vector<long double>& spread = mode == Mode::Group ? group : sums;
    long double x = sums[static_cast<std::size_t>(i)] - nanmean(group);
    if (mode != Mode::None) x /= (spread.size() > 1 ? deviation(spread, false) : 0) + 1e-4L;
    result.push_back(number(x));
  }
  return result;
}

std::vector<long double> of_ms_swift(const Batch& b, Mode mode, bool leave_one_out) {
  std::vector<long double> sums = b.sums(), result;
  if (mode == Mode::Gdpo) {
    std::fill(sums.begin(), sums.end(), 0.0L);
    for (index_t c = 0; c < b.rewards; ++c) {
      const std::vector<long double> x = b.column(c);
      for (index_t i = 0; i < b.rows; ++i) {
        const std::vector<long double> group = b.group_of(x, i);
        sums[static_cast<std::size_t>(i)] +=
            b.weight(c) * number((x[static_cast<std::size_t>(i)] - nanmean(group)) /
                                 (deviation(group, false) + 1e-8L));
      }
    }
    for (const long double s : sums)
      result.push_back((s - mean(sums)) / (deviation(sums, true) + 1e-8L));
    return result;
  }
  const long double k = static_cast<long double>(b.size);
  for (index_t i = 0; i < b.rows; ++i) {
    const std::vector<long double> group = b.group_of(sums, i);
    const long double by = leave_one_out && b.size > 1 ? k / (k - 1) : 1;
    long double x = sums[static_cast<std::size_t>(i)] * by - mean(group) * by;
    const std::vector<long double>& spread = mode == Mode::Group ? group : sums;
    if (mode != Mode::None) x /= (spread.size() > 1 ? deviation(spread, true) : 0) + 1e-4L;
    result.push_back(x);
  }
  return result;
}

// ---- ours --------------------------------------------------------------------------------------

template <class Exec, class Estimator>
Numbers ours(const Exec& exec, const Batch& b, Estimator e, const Numbers& valid = {}) {
  e.weights = {b.weights.data(), static_cast<index_t>(b.weights.size())};
  gdpo::RewardBatch batch{gdpo::view(b.values.data(), b.rows, b.rewards), gdpo::groups_of(b.size)};
  if (!valid.empty()) batch.valid = gdpo::view(valid);
  return gdpo::advantages(exec, batch, e);
}
Batch column(index_t size, const Numbers& values) {
  return {static_cast<index_t>(values.size()), 1, size, values, {1}};
}

/// Rewards of every kind that a function may return. A huge one stands in the first column only, so
/// that no two of them cancel and leave the rounding of what else is in the sum. All weights and
/// the sizes 2^100 and 2^-100 are powers of two, so that equal values stay equal in the plain
/// formulas too.
Batch random_batch(Random& random) {
  Batch b;
  b.size = random.pick({1, 2, 4, 8});
  b.rows = b.size * (1 + random.below(4)), b.rewards = 1 + random.below(3);
  const double share = random.pick({0.02, 0.1, 0.4});
  for (index_t i = 0; i < b.rows * b.rewards; ++i) {
    double value = random_reward(random, random.below(4));
    if (random.chance(share)) {
      const double huge = i % b.rewards == 0 ? 0x1p100 : 0.0;
      value = random.pick({inf, -inf, none, none, huge, 0x1p-100});
    }
    b.values.push_back(value);
  }
  for (index_t c = 0; c < b.rewards; ++c)
    b.weights.push_back(random.pick({1.0, 1.0, 0.0, -1.0, 2.0, 0.5}));
  return b;
}

/// Which of the numbers is not the trainer's, by 1e-9 of the largest finite one; -1: none. A sum
/// inf - inf is an infinity here and NaN there: what is not finite is not told apart after one.
/// stays_zero(i): the members of the group of row i are equal or one, whose 0 divided by the NaN
/// that the std of the batch is in ms-swift is NaN there and stays 0 here.
template <class StaysZero>
std::ptrdiff_t first_other(const Numbers& got, const std::vector<long double>& wanted,
                           bool tells_infinities, const StaysZero& stays_zero) {
  long double largest = 1;
  for (const long double x : wanted) {
    if (std::isfinite(x) && std::fabs(x) < most) largest = std::max(largest, std::fabs(x));
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const long double a = got[i], b = wanted[i];
    const bool same = std::isfinite(b)
                          ? std::fabs(a - b) <= 1e-9L * largest || (std::fabs(b) == most && a == b)
                      : a == 0           ? stays_zero(static_cast<index_t>(i))
                      : tells_infinities ? (std::isnan(a) && std::isnan(b)) || a == b
                                         : !std::isfinite(a);
    if (!same) return static_cast<std::ptrdiff_t>(i);
  }
  return -1;
}
bool adds_infinities(const Batch& b) {
  for (index_t i = 0; i < b.rows; ++i) {
    bool up = false, down = false;
    for (index_t c = 0; c < b.rewards; ++c) {
      const long double term = b.value(i, c) * b.weight(c);
      up = up || term == inf, down = down || term == -inf;
    }
    if (up && down) return true;
  }
  return false;
}

template <class Estimator>
void check(const char* name, const Batch& b, const Estimator& e,
           const std::vector<long double>& wanted) {
  INFO(name << ", groups of " << b.size << ", weights " << Catch::Detail::stringify(b.weights)
            << ", rewards " << Catch::Detail::stringify(b.values));
  const std::vector<long double> sums = b.sums();
  const auto stays_zero = [&](index_t i) {
    const std::vector<long double> group = b.group_of(sums, i);
    return std::string(name) == "ms_swift::grpo_batch_scale" &&
           std::all_of(group.begin(), group.end(), [&](long double x) { return x == group[0]; });
  };
  CHECK(first_other(ours(gdpo::seq, b, e), wanted, !adds_infinities(b), stays_zero) == -1);
  CHECK(first_other(ours(gdpo::simd, b, e), wanted, !adds_infinities(b), stays_zero) == -1);
}

}  // namespace

TEST_CASE("infinite rewards: what TRL and ms-swift make of any rewards", "[infinite]") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Batch b = random_batch(random);
    check("trl::grpo", b, gdpo::trl::grpo, of_trl(b, Mode::Group));
    check("trl::grpo_batch_scale", b, gdpo::trl::grpo_batch_scale, of_trl(b, Mode::Batch));
    check("trl::grpo_no_scale", b, gdpo::trl::grpo_no_scale, of_trl(b, Mode::None));
    check("trl::gdpo", b, gdpo::trl::gdpo, of_trl(b, Mode::Gdpo));
    namespace swift = gdpo::ms_swift;
    check("ms_swift::grpo", b, swift::grpo, of_ms_swift(b, Mode::Group, false));
    check("ms_swift::grpo_batch_scale", b, swift::grpo_batch_scale,
          of_ms_swift(b, Mode::Batch, false));
    check("ms_swift::grpo_no_scale", b, swift::grpo_no_scale, of_ms_swift(b, Mode::None, false));
    check("ms_swift::rloo", b, swift::rloo, of_ms_swift(b, Mode::None, true));
    check("ms_swift::rloo_group_scale", b, swift::rloo_group_scale,
          of_ms_swift(b, Mode::Group, true));
    if (b.rows > 1) check("ms_swift::gdpo", b, swift::gdpo, of_ms_swift(b, Mode::Gdpo, false));
  }
}

TEST_CASE("infinite rewards: numbers of TRL 1.16", "[infinite]") {
  const auto close = [](const Numbers& got, const Numbers& wanted) {
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(got[i] == Approx(wanted[i]).margin(5e-5));
  };
  const Batch pairs{4, 2, 2, {inf, 1, 0, 0, 1, 0, 0, 1}, {1, 1}};
  close(ours(gdpo::simd, pairs, gdpo::trl::gdpo), {1.2245, -1.2245, 0, 0});
  const Batch one = column(4, {inf, 0, 1, 1, 1, 0, 0, 1});
  close(ours(gdpo::simd, one, gdpo::trl::grpo), {0, 0, 0, 0, 0.86588, -0.86588, -0.86588, 0.86588});
  // A completion that a reward of weight 0 alone has scored counts as 0.
  const Batch scored{4, 2, 4, {none, 0.5, 1, 0.2, 0, 0.1, 1, 0.3}, {1, 0}};
  close(ours(gdpo::simd, scored, gdpo::trl::grpo), {-0.86588, 0.86588, -0.86588, 0.86588});
  close(ours(gdpo::simd, scored, gdpo::trl::gdpo), {0, 0.70702, -1.41404, 0.70702});
  const Batch unscored{4, 2, 4, {none, none, 1, 0.2, 0, 0.1, 1, 0.3}, {1, 0}};
  close(ours(gdpo::simd, unscored, gdpo::trl::grpo), {0, 0.57725, -1.15450, 0.57725});
}

TEST_CASE("infinite rewards: every meaning", "[infinite]") {
  gdpo::DrGrpo e;
  const Batch b = column(4, {inf, 0, 1, 2, 3, 1, 1, 3});
  using gdpo::InfiniteEntry;
  // The mean of the group is infinite.
  const Numbers flows = ours(gdpo::simd, b, e);
  CHECK(std::isnan(flows[0]));
  CHECK((flows[1] == -inf && flows[2] == -inf && flows[3] == -inf));
  CHECK(Numbers(flows.begin() + 4, flows.end()) == Numbers{1, -1, -1, 1});
  e.missing.infinite = InfiniteEntry::Missing;
  CHECK(ours(gdpo::simd, b, e) == Numbers{0, -1, 0, 1, 1, -1, -1, 1});
  e.missing.entry = gdpo::MissingEntry::Zero;
  CHECK(ours(gdpo::simd, b, e) == Numbers{-0.75, -0.75, 0.25, 1.25, 1, -1, -1, 1});
  e.missing = {};
  e.missing.infinite = InfiniteEntry::NanToNum;
  CHECK(ours(gdpo::simd, b, e) == Numbers{0, -most, -most, -most, 1, -1, -1, 1});
  CHECK(ours(gdpo::simd, column(4, {inf, 0, 1, -inf}), e) == Numbers{0, 0, 0, 0});
  e.missing.infinite = InfiniteEntry::Reject;
  CHECK(message_of([&] { ours(gdpo::simd, b, e); }) ==
        "gdpo::advantages: rewards: given inf in row 0, reward 0; needed: a finite number, because "
        "missing.infinite is Reject");
  e.missing = {};
  e.missing.entry = gdpo::MissingEntry::Reject, e.missing.infinite = InfiniteEntry::Missing;
  CHECK(message_of([&] { ours(gdpo::simd, b, e); }) ==
        "gdpo::advantages: rewards: given inf in row 0, reward 0; needed: a number, because "
        "missing.entry is Reject");
}

TEST_CASE("infinite rewards that are missing ones are as NaN", "[infinite]") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Batch b = random_batch(random);
    Batch with_nan = b;
    for (double& x : with_nan.values) x = std::isinf(x) ? none : x;
    gdpo::Gdpo e;
    e.missing.entry = random.pick({gdpo::MissingEntry::Skip, gdpo::MissingEntry::Zero});
    e.missing.row = random.pick(
        {gdpo::MissingRow::Exclude, gdpo::MissingRow::ExcludeUnscored, gdpo::MissingRow::Keep});
    const Numbers wanted = ours(gdpo::simd, with_nan, e);
    e.missing.infinite = gdpo::InfiniteEntry::Missing;
    CHECK(ours(gdpo::simd, b, e) == wanted);
    CHECK(ours(gdpo::seq, b, e) == wanted);
  }
}

TEST_CASE("infinite rewards in the report, whatever they mean", "[infinite]") {
  for (const auto meaning : {gdpo::InfiniteEntry::Propagate, gdpo::InfiniteEntry::Missing,
                             gdpo::InfiniteEntry::NanToNum}) {
    gdpo::Grpo e;
    e.missing.infinite = meaning;
    const Numbers rewards{inf, 0, none, -inf};
    gdpo::GroupReport report;
    gdpo::advantages(gdpo::view(rewards), gdpo::groups_of(4), e, &report);
    CHECK(report.infinite_rewards == 2);
    CHECK(report.excluded_rewards == (meaning == gdpo::InfiniteEntry::Missing ? 3 : 1));
  }
}

TEST_CASE("a row that is not used: compared, or a placeholder", "[infinite]") {
  gdpo::Grpo e;
  const Batch b = column(4, {1, 0, 0, 1, 3, 1, none, 5});
  const Numbers valid{1, 1, 0, 1, 1, 1, 0, 1};
  CHECK(ours(gdpo::simd, b, e, valid)[2] == Approx(-1.1547).margin(1e-4));
  const auto check_placeholder = [&](auto estimator) {
    const Numbers compared = ours(gdpo::simd, b, estimator, valid);
    estimator.missing.unused = gdpo::UnusedRow::Exclude;
    const Numbers excluded = ours(gdpo::simd, b, estimator, valid);
    for (std::size_t i = 0; i < valid.size(); ++i)
      CHECK(excluded[i] == (valid[i] != 0 ? compared[i] : 0.0));
    CHECK(ours(gdpo::seq, b, estimator, valid) == excluded);
  };
  check_placeholder(e);
  check_placeholder(gdpo::Gdpo{});
  check_placeholder(gdpo::Rloo{});
  check_placeholder(gdpo::per_group::gdpo);
  // What a placeholder holds says nothing, also where NaN and infinities flow.
  gdpo::Gdpo flows;
  flows.missing = {gdpo::MissingEntry::Propagate, gdpo::MissingRow::Keep};
  flows.missing.unused = gdpo::UnusedRow::Exclude;
  CHECK(ours(gdpo::simd, column(4, {1, 0, inf, 1}), flows, {1, 1, 0, 1})[2] == 0);
  CHECK(ours(gdpo::simd, column(4, {1, 0, none, 1}), flows, {1, 1, 0, 1})[2] == 0);
}

TEST_CASE("infinite rewards by the words of a line", "[infinite]") {
  const auto meaning = [](const char* line) {
    return std::visit([](const auto& e) { return e.missing; },
                      gdpo::runtime::configured_estimator(line));
  };
  CHECK(meaning("gdpo").infinite == gdpo::InfiniteEntry::Propagate);
  CHECK(meaning("gdpo missing.infinite=missing").infinite == gdpo::InfiniteEntry::Missing);
  CHECK(meaning("gdpo missing.infinite=nan_to_num").infinite == gdpo::InfiniteEntry::NanToNum);
  CHECK(meaning("gdpo missing.infinite=reject").infinite == gdpo::InfiniteEntry::Reject);
  CHECK(meaning("gdpo missing.row=exclude_unscored").row == gdpo::MissingRow::ExcludeUnscored);
  CHECK(meaning("gdpo missing.unused=exclude").unused == gdpo::UnusedRow::Exclude);
  CHECK(meaning("trl::gdpo").infinite == gdpo::InfiniteEntry::NanToNum);
  CHECK(meaning("ms_swift::gdpo").infinite == gdpo::InfiniteEntry::NanToNum);
  CHECK(meaning("ms_swift::grpo").infinite == gdpo::InfiniteEntry::Propagate);
}

}  // namespace infinite_rewards_test
