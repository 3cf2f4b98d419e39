// Tensors of LibTorch as views, groups and rewards: nothing is copied, and what a view cannot be of
// is refused by name. TorchThreads are the threads of LibTorch.
#include <ATen/ATen.h>

#include <atomic>
#include <cmath>
#include <gdpo/with/torch/advantages.hpp>
#include <gdpo/with/torch/threads.hpp>
#include <mutex>
#include <set>
#include <thread>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"

namespace {

using gdpo::index_t;

template <class T, int Rank>
bool is_view_of(const gdpo::View<T, Rank>& v, const at::Tensor& t) {
  bool same = v.data == t.data_ptr() && t.dim() == Rank;
  for (int r = 0; same && r < Rank; ++r)
    same = v.extent[r] == t.size(r) && v.stride[r] == t.stride(r);
  return same;
}

/// What Python calls a dtype.
std::string words(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kBool:
      return "bool";
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    default:
      return "int64";
  }
}

template <class T>
void check_type(at::ScalarType dtype) {
  INFO(c10::toString(dtype));
  const at::Tensor t = at::ones({3, 4}, dtype);
  CHECK(is_view_of(gdpo::view<const T, 2>(t), t));
  CHECK(is_view_of(gdpo::view<T, 2>(t), t));
  CHECK(gdpo::load(gdpo::view<T, 2>(t)(2, 3)) == 1);
  for (const at::ScalarType other : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kBool,
                                     at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    // Bytes of bool may be read as bytes.
    if (other == dtype || (dtype == at::kByte && other == at::kBool)) continue;
    const std::string dtypes = words(dtype) + (dtype == at::kByte ? " or bool" : "");
    const at::Tensor converted = t.to(other);
    CHECK(message_of([&] { gdpo::view<const T, 2>(converted, "x"); }) ==
          "gdpo::view: x: given " + words(other) + "; needed: " + dtypes);
  }
}

// Whether a view of a temporary compiles.
template <class Tensor, class = void>
constexpr bool can_be_viewed = false;
template <class Tensor>
constexpr bool
    can_be_viewed<Tensor, std::void_t<decltype(gdpo::view<float, 1>(std::declval<Tensor>()))>> =
        true;
template <class Tensor, class = void>
constexpr bool can_be_device_viewed = false;
template <class Tensor>
constexpr bool can_be_device_viewed<
    Tensor, std::void_t<decltype(gdpo::device_view<float, 1>(std::declval<Tensor>()))>> = true;
template <class Tensor, class = void>
constexpr bool can_be_column = false;
template <class Tensor>
constexpr bool
    can_be_column<Tensor, std::void_t<decltype(gdpo::torch_column(std::declval<Tensor>()))>> = true;
static_assert(can_be_viewed<at::Tensor&> && can_be_viewed<const at::Tensor&>);
static_assert(!can_be_viewed<at::Tensor> && !can_be_viewed<const at::Tensor>);
static_assert(can_be_device_viewed<at::Tensor&> && !can_be_device_viewed<at::Tensor>);
static_assert(can_be_column<at::Tensor&> && !can_be_column<at::Tensor>);

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

}  // namespace

TEST_CASE("a view of a tensor refers to its elements", "[torch]") {
  const at::Tensor cube = at::rand({3, 4, 5});
  CHECK(is_view_of(gdpo::view<const float, 3>(cube), cube));
  for (const at::Tensor& t : {cube.transpose(0, 2), cube.slice(1, 1, 4, 2), cube.permute({1, 2, 0}),
                              cube.select(1, 2).unsqueeze(1), cube.narrow(0, 1, 2),
                              cube.slice(2, 0, 1), cube.slice(0, 0, 0)}) {
    CHECK(is_view_of(gdpo::view<const float, 3>(t), t));
    CHECK(is_view_of(gdpo::view<float, 3>(t), t));
  }
  const at::Tensor row = cube.select(0, 1).select(0, 2), table = cube.select(2, 3);
  CHECK(is_view_of(gdpo::view<float, 1>(row), row));
  CHECK(is_view_of(gdpo::view<float, 2>(table), table));
  CHECK(gdpo::view<const float, 2>(table)(2, 1) == table[2][1].item<float>());
  gdpo::view<float, 2>(table)(2, 1) = 7;
  CHECK(cube[2][1][3].item<float>() == 7);
  const at::Tensor none = at::empty({0, 4});
  CHECK_FALSE(gdpo::view<float, 2>(none));
  CHECK(gdpo::view<float, 2>(none).extent[1] == 4);
}

TEST_CASE("a view of a tensor is of its dtype", "[torch]") {
  check_type<float>(at::kFloat);
  check_type<double>(at::kDouble);
  check_type<gdpo::Float16>(at::kHalf);
  check_type<c10::Half>(at::kHalf);
  check_type<gdpo::BFloat16>(at::kBFloat16);
  check_type<c10::BFloat16>(at::kBFloat16);
  check_type<bool>(at::kBool);
  check_type<unsigned char>(at::kByte);
  check_type<std::int8_t>(at::kChar);
  check_type<std::int16_t>(at::kShort);
  check_type<std::int32_t>(at::kInt);
  check_type<std::int64_t>(at::kLong);
  check_type<index_t>(at::kLong);
  const at::Tensor flags = at::ones({2}, at::kBool);
  CHECK(gdpo::view<const unsigned char, 1>(flags).data == flags.data_ptr());
  CHECK(message_of([&] { gdpo::view<unsigned char, 1>(flags, "x"); }) ==
        "gdpo::view: x: given bool; needed: uint8");

  // The 16-bit types are those of the library, in both directions.
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor t = at::empty({1}, dtype);
    const double x = -1.375;
    if (dtype == at::kHalf) gdpo::store(gdpo::view<gdpo::Float16, 1>(t)(0), x);
    if (dtype == at::kBFloat16) gdpo::store(gdpo::view<gdpo::BFloat16, 1>(t)(0), x);
    CHECK(t.item<double>() == x);
  }
  CHECK(gdpo::stored_as<c10::Half>() == gdpo::StoredAs::Float16);
  CHECK(gdpo::stored_as<c10::BFloat16>() == gdpo::StoredAs::BFloat16);
}

TEST_CASE("a view refuses what it cannot be of", "[torch]") {
  const at::Tensor t = at::zeros({2, 3}), undefined;
  const auto view_2 = [](const at::Tensor& x) {
    return message_of([&] { gdpo::view<const float, 2>(x, "x"); });
  };
  CHECK(view_2(t) == "no error");
  CHECK(view_2(undefined) ==
        "gdpo::view: x: given an undefined tensor; needed: a tensor with elements");
  CHECK(view_2(t.select(0, 0)) == "gdpo::view: x: given (3); needed: rank 2");
  CHECK(view_2(t.unsqueeze(0)) == "gdpo::view: x: given (1, 2, 3); needed: rank 2");
  CHECK(view_2(at::zeros({})) == "gdpo::view: x: given (); needed: rank 2");
  CHECK(view_2(t.to_sparse()) ==
        "gdpo::view: x: given layout Sparse; needed: a dense tensor, such as to_dense()");
  CHECK(view_2(t.to(at::kMeta)) == "gdpo::view: x: given a tensor on meta; needed: one on cpu");
  CHECK(view_2(at::_neg_view(t)) ==
        "gdpo::view: x: given a tensor that is negated when it is read; needed: its resolve_neg()");
  CHECK(message_of([&] { gdpo::view<const float, 1>(t); }) ==
        "gdpo::view: tensor: given (2, 3); needed: rank 1");

  CHECK(message_of([&] { gdpo::device_view<const float, 2>(t, "x"); }) ==
        "gdpo::device_view: x: given a tensor on cpu; needed: one on cuda");
  CHECK(message_of([&] { gdpo::device_view<const float, 2>(undefined); }) ==
        "gdpo::device_view: tensor: given an undefined tensor; needed: a tensor with elements");
}

TEST_CASE("a view for writing refuses elements that overlap", "[torch]") {
  const auto writes = [](const at::Tensor& x) {
    CHECK(message_of([&] { gdpo::view<const float, 2>(x); }) == "no error");
    return message_of([&] { gdpo::view<float, 2>(x, "x"); });
  };
  const auto message = [](const std::string& strides, const std::string& shape) {
    return "gdpo::view: x: given strides " + strides + " for shape " + shape +
           ", which repeat elements; needed: an element of its own for each index, because it is "
           "written";
  };
  const at::Tensor line = at::zeros({12});
  CHECK(writes(line.narrow(0, 0, 3).unsqueeze(1).expand({3, 4})) == message("(1, 0)", "(3, 4)"));
  CHECK(writes(line.narrow(0, 0, 4).unsqueeze(0).expand({3, 4})) == message("(0, 1)", "(3, 4)"));
  CHECK(writes(line.unfold(0, 3, 1)) == message("(1, 1)", "(10, 3)"));
  CHECK(writes(line.unfold(0, 3, 2)) == message("(2, 1)", "(5, 3)"));
  CHECK(writes(line.unfold(0, 3, 3)) == "no error");
  CHECK(writes(line.as_strided({2, 3}, {3, 2})) == message("(3, 2)", "(2, 3)"));
  CHECK(writes(line.as_strided({3, 2}, {2, 1})) == "no error");
  CHECK(writes(line.as_strided({3, 2}, {2, 2})) == message("(2, 2)", "(3, 2)"));
  // One element, or none, overlaps nothing.
  CHECK(writes(line.as_strided({1, 3}, {0, 1})) == "no error");
  CHECK(writes(line.as_strided({0, 3}, {0, 0})) == "no error");
}

TEST_CASE("a tensor as a column", "[torch]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kBool,
                                     at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    INFO(c10::toString(dtype));
    const at::Tensor t = at::arange(12, at::kFloat).to(dtype).view({3, 4}).select(1, 1);
    const gdpo::Column c = gdpo::torch_column(t);
    CHECK(c.data() == t.data_ptr());
    REQUIRE(c.size() == 3);
    CHECK(c(2) == (dtype == at::kBool ? 1 : 9));
    const at::Tensor table = at::arange(12, at::kFloat).to(dtype).view({3, 4}).t();
    CHECK(gdpo::torch_column(table).size() == 12);
    CHECK(gdpo::torch_column(table)(4) == 5 * (dtype == at::kBool ? 0.2 : 1));
  }
  const at::Tensor undefined, cube = at::zeros({2, 3, 4}),
                              complex = at::zeros({2}, at::kComplexFloat);
  CHECK_FALSE(gdpo::torch_column(undefined));
  CHECK(message_of([&] { gdpo::torch_column(cube, "x"); }) ==
        "gdpo::torch_column: x: given (2, 3, 4); needed: (rows) or (prompts, completions)");
  CHECK(message_of([&] { gdpo::torch_column(complex); }) ==
        "gdpo::torch_column: tensor: given dtype ComplexFloat; needed: one of float32, float64, "
        "bfloat16, float16, int64, int32, int16, int8, uint8 or bool");
}

TEST_CASE("groups by ids in a tensor", "[torch]") {
  const at::Tensor ids = at::tensor({7, 3, 7, 5, 3, 7}, at::kLong);
  for (const at::ScalarType dtype : {at::kLong, at::kInt, at::kShort, at::kChar, at::kByte}) {
    const gdpo::ById groups = gdpo::by_id(ids.to(dtype));
    REQUIRE(groups.count(6) == 3);
    CHECK(groups.ids()(0) == 3);
    CHECK(groups.length(2) == 3);
    CHECK(groups.row(2, 1) == 2);
  }
  CHECK(gdpo::by_id(ids.slice(0, 0, 6, 2)).count(3) == 2);
  CHECK(message_of([&] { gdpo::by_id(ids, 3); }) ==
        "gdpo::by_id: ids: given 2 rows of id 3; needed: 3 rows of every id (expected_size)");
  CHECK(message_of([&] { gdpo::by_id(at::Tensor()); }) ==
        "gdpo::by_id: ids: given an undefined tensor; needed: a tensor with elements");
  CHECK(message_of([&] {
          gdpo::by_id(ids.view({2, 3}));
        }) == "gdpo::by_id: ids: given (2, 3); needed: rank 1");
  CHECK(message_of([&] { gdpo::by_id(ids.to(at::kFloat)); }) ==
        "gdpo::by_id: ids: given float32; needed: one of int64, int32, int16, int8, uint8 or bool");
}

TEST_CASE("advantages of rewards in a tensor", "[torch]") {
  Random random(11);
  std::vector<double> x;
  for (int i = 0; i < 24 * 3; ++i) x.push_back(random_reward(random, 1));
  const at::Tensor rewards = at::tensor(x, at::kDouble).view({24, 3});
  const auto groups = gdpo::groups_of(6);

  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kBool,
                                     at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    INFO(c10::toString(dtype));
    // Integers differ too, and one reward is missing where the dtype has a NaN.
    at::Tensor r = rewards.mul(4).to(dtype);
    if (at::isFloatingType(dtype)) r[3][1] = NAN;
    const bool narrow = at::isFloatingType(dtype) && dtype != at::kDouble;
    // The library's own calls, with the elements as they are stored.
    const auto own = [&](auto element) {
      using T = decltype(element);
      const std::vector<gdpo::result_t<T>> a = gdpo::advantages(
          gdpo::view(static_cast<const T*>(r.data_ptr()), 24, 3), groups, gdpo::Gdpo{});
      return at::tensor(std::vector<double>(a.begin(), a.end()), at::kDouble);
    };
    const at::Tensor expected = dtype == at::kFloat      ? own(float{})
                                : dtype == at::kDouble   ? own(double{})
                                : dtype == at::kHalf     ? own(gdpo::Float16{})
                                : dtype == at::kBFloat16 ? own(gdpo::BFloat16{})
                                : dtype == at::kLong     ? own(std::int64_t{})
                                : dtype == at::kInt      ? own(std::int32_t{})
                                : dtype == at::kShort    ? own(std::int16_t{})
                                : dtype == at::kChar     ? own(std::int8_t{})
                                : dtype == at::kByte     ? own(std::uint8_t{})
                                                         : own(bool{});
    gdpo::GroupReport report;
    const at::Tensor a = gdpo::advantages(r, groups, gdpo::Gdpo{}, &report);
    CHECK(a.scalar_type() == (narrow ? at::kFloat : at::kDouble));
    CHECK(same_bits(a.to(at::kDouble), expected));
    CHECK(report.excluded_rewards == (at::isFloatingType(dtype) ? 1 : 0));
    // Strides change nothing, and neither does the execution.
    const at::Tensor columns = at::empty({3, 24}, dtype).copy_(r.t()).t();
    REQUIRE_FALSE(columns.is_contiguous());
    CHECK(same_bits(gdpo::advantages(columns, groups), a));
    CHECK(same_bits(gdpo::advantages(gdpo::seq, columns, groups), a));
    CHECK(same_bits(gdpo::advantages(gdpo::parallel(gdpo::TorchThreads{}), r, groups), a));
    // One reward may be of rank 1.
    CHECK(same_bits(gdpo::advantages(r.select(1, 0), groups),
                    gdpo::advantages(r.narrow(1, 0, 1), groups)));
  }

  gdpo::GroupReport report;
  gdpo::advantages(rewards, groups, &report);
  CHECK(report.groups == 4);
  const at::Tensor grpo = gdpo::advantages(rewards, groups, gdpo::Grpo{});
  CHECK_FALSE(same_bits(grpo, gdpo::advantages(rewards, groups)));
  const at::Tensor ids = at::arange(24, at::kLong).div(6, "floor");
  CHECK(same_bits(gdpo::advantages(rewards, gdpo::by_id(ids), gdpo::Grpo{}),
                  gdpo::advantages(gdpo::seq, rewards, gdpo::by_id(ids), gdpo::Grpo{})));
  // Autograd does not record it.
  const at::Tensor leaf = rewards.clone().requires_grad_();
  CHECK_FALSE(gdpo::advantages(leaf, groups).requires_grad());
  CHECK(gdpo::advantages(at::zeros({0, 3}), groups).numel() == 0);

  const auto message = [&](const at::Tensor& t) {
    return message_of([&] { gdpo::advantages(t, groups); });
  };
  CHECK(message(at::Tensor()) ==
        "gdpo::advantages: rewards: given an undefined tensor; needed: a tensor with elements");
  CHECK(message(at::zeros({4, 6, 3})) ==
        "gdpo::advantages: rewards: given (4, 6, 3); needed: (N, C), or (N) for one reward");
  CHECK(message(at::zeros({6}, at::kComplexDouble)) ==
        "gdpo::advantages: rewards: given dtype ComplexDouble; needed: one of float32, float64, "
        "bfloat16, float16, int64, int32, int16, int8, uint8 or bool");
  CHECK(message(at::zeros({7, 3})).find("gdpo::advantages: groups: given 7 rows") == 0);
}

TEST_CASE("the threads of LibTorch as an executor", "[torch]") {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    const gdpo::TorchThreads executor;
    CHECK(executor.concurrency() == threads);
    for (const index_t n : {0, 1, 2, 3, 5, 70, 4099}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n));
      std::atomic<bool> inside{true};
      executor.for_each(n, [&](index_t i) {
        ++calls[static_cast<std::size_t>(i)];
        if (n > 1 && threads > 1 && !at::in_parallel_region()) inside = false;
      });
      for (const auto& times : calls) REQUIRE(times == 1);
      CHECK(inside);
    }
    // They run on the threads that LibTorch has, and on no others.
    std::mutex mutex;
    std::set<std::thread::id> ours;
    executor.for_each(threads, [&](index_t) {
      const std::lock_guard<std::mutex> lock(mutex);
      ours.insert(std::this_thread::get_id());
    });
    CHECK(ours.size() == static_cast<std::size_t>(threads));
    // A call from inside runs on the thread that makes it.
    std::atomic<int> inner{0}, elsewhere{0};
    executor.for_each(4, [&](index_t) {
      const std::thread::id outer = std::this_thread::get_id();
      executor.for_each(3, [&](index_t) {
        ++inner;
        if (std::this_thread::get_id() != outer && threads > 1) ++elsewhere;
      });
    });
    CHECK(inner == 12);
    CHECK(elsewhere == 0);
  }
  at::set_num_threads(before);
}
