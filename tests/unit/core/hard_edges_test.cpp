// labels: sanitizers
// Null pointers, negative extents, sizes that overflow and offsets that wrap: each is refused by a
// message that names the argument, and nothing is read, written or allocated before.
#include <gdpo/constraint.hpp>
#include <gdpo/gdpo.hpp>
#include <gdpo/with/eigen_tensor.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace hard_edges_test {

namespace {

using gdpo::index_t;
constexpr double* null = nullptr;
constexpr index_t large = index_t{1} << 32;
const std::string more = "; needed: at most 2^48 elements, more than memory holds",
                  negative = "; needed: extents of at least 0";

/// Four rows of two rewards.
struct Rewards {
  std::vector<double> values{1, 0, 0, 1, 1, 1, 0, 0}, out{7, 7, 7, 7};
  gdpo::View<double, 2> view() { return gdpo::view(values.data(), 4, 2); }
};
template <class T, class Groups>
std::string of_rewards(gdpo::View<T, 2> rewards, const Groups& groups) {
  return message_of([&] { gdpo::advantages(rewards, groups); });
}

}  // namespace

TEST_CASE("rewards and advantages that are null or have impossible sizes", "[edges]") {
  Rewards r;
  const auto groups = gdpo::groups_of(2);
  const std::string function = "gdpo::advantages: ";
  CHECK(of_rewards(gdpo::view(null, 4, 2), groups) ==
        function + "rewards: given a null pointer; needed: (4, 2) elements");
  CHECK(of_rewards(gdpo::view(r.values.data(), -4, 2), groups) ==
        function + "rewards: given (-4, 2)" + negative);
  CHECK(of_rewards(gdpo::view(r.values.data(), 4, -1), groups) ==
        function + "rewards: given (4, -1)" + negative);
  const gdpo::View<double, 2> wide{r.values.data(), {large, large}, {0, 0}};
  CHECK(of_rewards(wide, groups) == function + "rewards: given (4294967296, 4294967296)" + more);
  // No element does not make the other extents right.
  CHECK(of_rewards(gdpo::View<double, 2>{null, {0, -1}, {0, 0}}, groups) ==
        function + "rewards: given (0, -1)" + negative);
  CHECK(message_of([&] { gdpo::advantages(gdpo::view(null, 4), groups); }) ==
        function + "rewards: given a null pointer; needed: (4, 1) elements");
  CHECK(message_of([] {
          const Eigen::Map<const Eigen::ArrayXd> none(nullptr, 4);
          gdpo::advantages(none, gdpo::groups_of(2));
        }) == function + "rewards: given a null pointer; needed: (4, 1) elements");

  gdpo::Workspace workspace;
  const auto into = [&](gdpo::View<double, 2> rewards, gdpo::View<double, 1> out) {
    const gdpo::RewardBatch batch{rewards, groups};
    return message_of(
        [&] { gdpo::advantages_into(gdpo::seq, batch, gdpo::Gdpo{}, out, workspace); });
  };
  CHECK(into(r.view(), gdpo::view(null, 4)) ==
        function + "out: given a null pointer; needed: (4) elements");
  CHECK(into(gdpo::view(r.values.data(), -4, 2), gdpo::view(r.out.data(), -4)) ==
        function + "rewards: given (-4, 2)" + negative);
  CHECK(into(gdpo::view(null, 4, 2), gdpo::view(r.out)) ==
        function + "rewards: given a null pointer; needed: (4, 2) elements");
  const gdpo::RewardBatch batch{gdpo::view(null, 4, 2), groups};
  CHECK(message_of([&] {
          gdpo::advantages_into(gdpo::simd, batch, gdpo::Constrained<>{}, gdpo::view(r.out),
                                workspace);
        }) == function + "rewards: given a null pointer; needed: (4, 2) elements");
  CHECK(r.out == std::vector<double>(4, 7));
  // Arrays without elements may be null.
  CHECK(of_rewards(gdpo::view(null, 0, 2), groups) == "no error");
  CHECK(of_rewards(gdpo::view(null, 4, 0), groups) == "no error");
}

TEST_CASE("groups that are null, negative, or wrap", "[edges][groups]") {
  Rewards r;
  const std::string function = "gdpo::advantages: offsets: ";
  const std::vector<std::int64_t> offsets{0, 2, 4};
  CHECK(of_rewards(r.view(), gdpo::by_offsets(gdpo::view(static_cast<const int*>(nullptr), 3))) ==
        function + "given a null pointer; needed: (3) elements");
  CHECK(of_rewards(r.view(), gdpo::by_offsets(gdpo::view(offsets.data(), -1))) ==
        function + "given (-1)" + negative);
  CHECK(of_rewards(r.view(), gdpo::by_offsets(gdpo::view(offsets), -1)) ==
        "gdpo::advantages: expected_size: given -1; needed: the number of rows of every group, or "
        "0: any");
  // The differences of these offsets wrap around to numbers that look like lengths.
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = -most - 1,
                         half = std::int64_t{1} << 62;
  const std::vector<std::int64_t> wrap{0, half, most, least, -half, 4};
  CHECK(of_rewards(r.view(), gdpo::by_offsets(wrap)) ==
        function + "given offsets[3] = " + std::to_string(least) + " after offsets[2] = " +
            std::to_string(most) + " (group 2); needed: offsets that never decrease");
  CHECK(of_rewards(r.view(), gdpo::GroupsOf{0}) ==
        "gdpo::advantages: groups.size: given 0; needed: at least 1");

  const auto ids = [](const int* data, index_t n) {
    return message_of([&] { gdpo::by_id(gdpo::view(data, n)); });
  };
  CHECK(ids(nullptr, 3) == "gdpo::by_id: ids: given a null pointer; needed: (3) elements");
  CHECK(ids(nullptr, -3) == "gdpo::by_id: ids: given (-3)" + negative);
  CHECK(message_of([] {
          gdpo::by_id(std::vector<int>{1, 1}, -2);
        }) ==
        "gdpo::by_id: expected_size: given -2; needed: the number of rows of every group, or 0: "
        "any");
  CHECK(message_of([] {
          gdpo::per_row(gdpo::groups_of(2), 4, gdpo::view(static_cast<const int*>(nullptr), 2));
        }) == "gdpo::per_row: values: given a null pointer; needed: (2) elements");
  CHECK(message_of([] {
          gdpo::per_row(gdpo::groups_of(1), index_t{1} << 60, gdpo::view(null, index_t{1} << 60));
        }) == "gdpo::per_row: rows: given (1152921504606846976)" + more);
}

TEST_CASE("token arrays with impossible sizes, and offsets that wrap", "[edges][loss]") {
  const std::vector<unsigned char> mask(8, 1);
  const std::vector<float> logp(8, -1.0f);
  gdpo::TokenBatch<float> batch;
  const auto counted = [&] { return message_of([&] { gdpo::count(batch); }); };
  batch.mask = gdpo::View<const unsigned char, 2>{mask.data(), {large, large}, {0, 0}};
  CHECK(counted() == "gdpo::count: batch.mask: given (4294967296, 4294967296)" + more);
  batch.mask = gdpo::View<const unsigned char, 3>{mask.data(), {large, large, 0}, {0, 0, 0}};
  CHECK(counted() == "gdpo::count: batch.mask: given (4294967296, 4294967296, 0)" + more);
  batch.mask = gdpo::view(mask.data(), -2, -4);
  CHECK(counted() == "gdpo::count: batch.mask: given (-2, -4)" + negative);
  batch.mask = {};
  batch.logp = gdpo::View<const float, 2>{logp.data(), {2, -1}, {1, 1}};
  CHECK(counted() == "gdpo::count: batch.logp: given (2, -1)" + negative);

  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = -most - 1,
                         half = std::int64_t{1} << 62;
  const std::vector<std::int64_t> wrap{0, half, most, least, -half, 8};
  batch.logp = gdpo::view(logp);
  batch.offsets = gdpo::view(wrap);
  const std::string decreasing = "given offsets[3] = " + std::to_string(least) +
                                 " after offsets[2] = " + std::to_string(most) +
                                 "; needed: offsets that never decrease";
  CHECK(counted() == "gdpo::count: batch.offsets: " + decreasing);
  batch.logp = {};
  CHECK(counted() == "gdpo::count: batch.offsets: " + decreasing);
  const std::vector<std::int64_t> huge{0, half}, backwards{0, -5};
  batch.offsets = gdpo::view(huge);
  CHECK(counted() == "gdpo::count: batch.offsets: given (" + std::to_string(half) + ")" + more);
  batch.offsets = gdpo::view(backwards);
  CHECK(counted() == "gdpo::count: batch.offsets: given (-5)" + negative);
  batch.offsets = gdpo::view(backwards.data(), -1);
  CHECK(counted() == "gdpo::count: batch.offsets: given (-1)" + negative);
  batch.logp = gdpo::view(logp);
  batch.offsets = gdpo::view(static_cast<const int*>(nullptr), 3);
  CHECK(counted() ==
        "gdpo::count: batch.offsets: given none, with packed tokens (logp has rank 1); needed: "
        "offsets (B + 1)");

  std::vector<float> table(8);
  gdpo::LogitBatch<float, 2> logits;
  logits.logits = gdpo::View<const float, 2>{table.data(), {large, large}, {0, 1}};
  CHECK(message_of([&] { gdpo::token_logprobs(logits); }) ==
        "gdpo::token_logprobs: logits: given (4294967296, 4294967296)" + more);
  logits.logits = gdpo::view(table.data(), 4, 2);
  CHECK(message_of([&] {
          gdpo::logit_rows(gdpo::simd, logits,
                           gdpo::view(static_cast<gdpo::LogitRow*>(nullptr), 4));
        }) == "gdpo::logit_rows: out: given a null pointer; needed: (4) elements");
  CHECK(message_of([&] {
          gdpo::aligned(gdpo::view(table.data(), 2, 2, 2),
                        gdpo::view(static_cast<const int*>(nullptr), 2, 2));
        }) == "gdpo::aligned: input_ids: given a null pointer; needed: (2, 2) elements");
}

TEST_CASE("masked values, token advantages and constraints that are null", "[edges]") {
  std::vector<double> x(4, 1), y(4, 7);
  const auto some = gdpo::view(x), out = gdpo::view(y);
  const auto none = gdpo::view(null, 4);
  const auto table = gdpo::view(x.data(), 2, 2), none_of_two = gdpo::view(null, 2, 2);
  const std::string four = " given a null pointer; needed: (4) elements",
                    two = " given a null pointer; needed: (2, 2) elements";
  CHECK(message_of([&] { gdpo::masked_mean(none); }) == "gdpo::masked_mean: values:" + four);
  CHECK(message_of([&] { gdpo::masked_moments(none); }) == "gdpo::masked_moments: values:" + four);
  CHECK(message_of([&] { gdpo::masked_mean_over(none, some, 1.0); }) ==
        "gdpo::masked_mean_over: values:" + four);
  CHECK(message_of([&] { gdpo::masked_row_means(none_of_two); }) ==
        "gdpo::masked_row_means: values:" + two);
  CHECK(message_of([&] { gdpo::masked_mean(gdpo::view(x.data(), -4)); }) ==
        "gdpo::masked_mean: values: given (-4)" + negative);
  const gdpo::Renorm whiten = gdpo::renorm::token_weighted_batch();
  CHECK(message_of([&] { gdpo::whiten_into(some, some, whiten, none); }) ==
        "gdpo::whiten_into: out:" + four);
  CHECK(message_of([&] { gdpo::whiten_into(none, some, whiten, out); }) ==
        "gdpo::whiten_into: values:" + four);
  const auto advantages = gdpo::view(x.data(), 2), no_advantages = gdpo::view(null, 2);
  CHECK(message_of([&] { gdpo::broadcast_into(advantages, table, none_of_two); }) ==
        "gdpo::broadcast_into: out:" + two);
  CHECK(message_of([&] { gdpo::broadcast_into(advantages, none_of_two, table); }) ==
        "gdpo::broadcast_into: mask:" + two);
  CHECK(message_of([&] {
          gdpo::token_advantages_into(no_advantages, table, table, table, gdpo::penalty::Token<>{},
                                      gdpo::view(y.data(), 2, 2));
        }) ==
        "gdpo::token_advantages_into: advantages: given a null pointer; needed: (2) elements");
  CHECK(message_of([&] { gdpo::measure(none, gdpo::SetPoint{}); }) ==
        "gdpo::measure: values:" + four);
  CHECK(message_of([&] { gdpo::baseline_moments(none); }) ==
        "gdpo::baseline_moments: values:" + four);
  const std::vector<double> lambda{1.0};
  const gdpo::View<double, 2> costs{null, {1, 4}, {4, 1}};
  CHECK(message_of([&] {
          gdpo::mix_into(some, costs, gdpo::view(lambda), gdpo::LambdaNorm::Sum, out);
        }) == "gdpo::mix_into: cost_advantages: given a null pointer; needed: (1, 4) elements");
  gdpo::PidLagrangian pid;
  CHECK(message_of([&] { pid.update(gdpo::view(static_cast<const double*>(nullptr), 1)); }) ==
        "gdpo::PidLagrangian::update: values: given a null pointer; needed: (1) elements");
  CHECK(message_of([] { gdpo::pid_state_from_bytes(nullptr, 64); }) ==
        "gdpo::pid_state_from_bytes: bytes: given a null pointer; needed: what to_bytes() gave");
  CHECK(y == std::vector<double>(4, 7));
}

TEST_CASE("views from extents and strides", "[view]") {
  std::vector<int> x{0, 1, 2, 3, 4, 5};
  const int rows = 2, columns = 3;
  const auto v = gdpo::view(x.data(), {columns, rows}, {1, columns});  // the transposed table
  static_assert(std::is_same_v<decltype(v), const gdpo::View<int, 2>>);
  CHECK((v(2, 1) == 5 && v(0, 1) == 3 && v.extent[0] == 3));
  const auto back = gdpo::view(x.data() + 5, {6}, {-1});
  CHECK((back(0) == 5 && back(5) == 0));
  const std::vector<int>& read_only = x;
  const auto cube = gdpo::view(read_only.data(), {2, 1, 3}, {3, 0, 1});
  static_assert(std::is_same_v<decltype(cube), const gdpo::View<const int, 3>>);
  CHECK(cube(1, 0, 2) == 5);
}

TEST_CASE("advantages of (prompts, completions) fit tokens of rank 3", "[view][loss]") {
  const std::vector<float> logp(24, -1.0f);
  const std::vector<double> a{1, 2, 3, 4, 5, 6};  // (2, 3)
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 2, 3, 4);
  batch.advantages = gdpo::view(a);
  const auto loss = [&] { return gdpo::dapo_loss(batch, gdpo::count(batch)); };
  const double expected = loss().loss;
  batch.advantages = gdpo::view(a.data(), 2, 3);
  CHECK(batch.advantages.size() == 6);
  CHECK(loss().loss == expected);
  // Column-major, and a part of a larger array.
  const std::vector<double> by_columns{1, 4, 2, 5, 3, 6}, larger{1, 2, 3, 9, 4, 5, 6, 9};
  batch.advantages = gdpo::view(by_columns.data(), {2, 3}, {1, 2});
  CHECK(loss().loss == expected);
  batch.advantages = gdpo::view(larger.data(), {2, 3}, {4, 1});
  CHECK(loss().loss == expected);
  CHECK((batch.advantages.gap() == 1 && batch.advantages.rank() == 2));
  // Beside tokens of rank 2 the rows are numbered through.
  batch.logp = gdpo::view(logp.data(), 6, 4);
  CHECK(loss().loss == expected);
  batch.logp = gdpo::view(logp.data(), 2, 3, 4);
  batch.advantages = gdpo::view(a.data(), 3, 2);
  CHECK(message_of(loss) ==
        "gdpo::count: batch.advantages: given (3, 2); needed: (2, 3), the prompts and completions "
        "of batch.logp");
  CHECK(message_of([&] { batch.advantages = gdpo::view(a.data(), -2, 3); }) ==
        "gdpo::Column: values: given (-2, 3)" + negative);
}

}  // namespace hard_edges_test
