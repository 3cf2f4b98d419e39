// The tables of calls that are refused (tests/refusals): what a case changes in a call that is
// right, and the message. A door makes the calls of a table in its own way.
#pragma once
#include <algorithm>
#include <fstream>
#include <gdpo/runtime.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/catch.hpp"
#include "support/host_only.hpp"
#include "support/message.hpp"

namespace refusals {

using gdpo::index_t;
using nlohmann::json;

/// A number of a table, where NaN and infinities are words.
inline double number(const json& value) {
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

/// An array of a table, and its memory.
class Array {
 public:
  explicit Array(const json& a, double filled = 0) {
    std::size_t count = 1;
    if (a.contains("shape")) {
      shape_ = a["shape"].get<std::vector<index_t>>();
      for (const index_t n : shape_) count *= static_cast<std::size_t>(n < 0 ? -n : n);
    } else {
      shape_ = {static_cast<index_t>(a.at("values").size())}, count = a["values"].size();
    }
    stride_.assign(shape_.size(), 1);
    for (std::size_t r = shape_.size(); r-- > 1;) stride_[r - 1] = stride_[r] * shape_[r];
    if (a.contains("stride")) {
      stride_ = a["stride"].get<std::vector<index_t>>(), count = 1;
      for (std::size_t r = 0; r < shape_.size(); ++r)
        count += static_cast<std::size_t>((shape_[r] - 1) * stride_.at(r));
    }
    has_memory_ = a.value("memory", true);
    const std::string dtype = a.value("dtype", "float64");
    if (dtype == "float32") elements_ = std::vector<float>();
    if (dtype == "int64") elements_ = std::vector<std::int64_t>();
    if (elements_.index() == 0 && dtype != "float64")
      throw std::invalid_argument("no array of " + dtype);
    std::visit(
        [&](auto& elements) {
          using T = typename std::decay_t<decltype(elements)>::value_type;
          elements.assign(count, static_cast<T>(a.contains("fill") ? number(a["fill"]) : filled));
          for (std::size_t i = 0; a.contains("values") && i < count; ++i)
            elements[i] = static_cast<T>(number(a["values"].at(i)));
          elements.reserve(1);  // an array without elements has an address, too
        },
        elements_);
  }

  int rank() const { return static_cast<int>(shape_.size()); }
  bool empty() const {
    return std::visit([](const auto& elements) { return elements.empty(); }, elements_);
  }
  /// Whether all elements are that number.
  bool is_all(double value) const {
    return std::visit(
        [value](const auto& elements) {
          for (const auto x : elements)
            if (static_cast<double>(x) != value) return false;
          return true;
        },
        elements_);
  }
  /// A view of the array, whose elements are of type T.
  template <class T, int Rank>
  gdpo::View<T, Rank> view() {
    auto* elements = std::get_if<std::vector<std::remove_const_t<T>>>(&elements_);
    if (rank() != Rank || !elements) throw std::invalid_argument("rank or type");
    gdpo::View<T, Rank> v{};
    if (has_memory_) v.data = elements->data();
    std::copy(shape_.begin(), shape_.end(), v.extent);
    std::copy(stride_.begin(), stride_.end(), v.stride);
    return v;
  }
  /// The array as `To`, which is made from views of rank 1 to `most`.
  template <class To, class T, int most>
  To as() {
    if constexpr (most > 1)
      if (rank() < most) return as<To, T, most - 1>();
    return view<T, most>();
  }
  /// An array of tokens that is read as S.
  template <class S>
  gdpo::TokenView<S> tokens() {
    return std::visit(
        [&](const auto& elements) -> gdpo::TokenView<S> {
          using T = typename std::decay_t<decltype(elements)>::value_type;
          if constexpr ((std::is_same_v<S, std::int64_t> && !std::is_integral_v<T>) ||
                        (std::is_same_v<S, float> && std::is_same_v<T, double>)) {
            throw std::invalid_argument("a type that the array cannot have");
          } else {
            return as<gdpo::TokenView<S>, const T, 3>();
          }
        },
        elements_);
  }
  gdpo::Column column() { return as<gdpo::Column, const double, 2>(); }
  gdpo::IndexColumn index_column() { return view<const std::int64_t, 1>(); }
  /// An array of tokens that is written.
  template <class S = double>
  gdpo::TokenOut<S> out() {
    return as<gdpo::TokenOut<S>, S, 3>();
  }
  /// Gives a member of a batch this array.
  template <class S>
  void bind(gdpo::TokenView<S>& member) {
    member = tokens<S>();
  }
  template <class T, int Rank>
  void bind(gdpo::View<T, Rank>& member) {
    member = view<T, Rank>();
  }
  void bind(gdpo::Column& member) { member = column(); }
  void bind(gdpo::IndexColumn& member) { member = index_column(); }

 private:
  std::vector<index_t> shape_, stride_;
  bool has_memory_ = true;
  std::variant<std::vector<double>, std::vector<float>, std::vector<std::int64_t>> elements_;
};

/// What a call writes holds this before.
constexpr double unwritten = 42;

/// A call of a table: its base with what a case changes, and its arrays.
struct Call {
  json values;  ///< All but the arrays: preset, settings, counts, ...
  std::map<std::string, Array> arrays, outputs;

  explicit Call(const json& described) : values(described) {
    for (const auto& [name, a] : values.at("arrays").items())
      if (!a.is_null()) arrays.emplace(name, Array(a));
    const json written = values.value("outputs", json::object());
    for (const auto& [name, a] : written.items())
      if (!a.is_null()) outputs.emplace(name, Array(a, unwritten));
  }
  /// An output of tokens; absent if it is null.
  template <class S = double>
  gdpo::TokenOut<S> out(const std::string& name) {
    const auto output = outputs.find(name);
    return output == outputs.end() ? gdpo::TokenOut<S>{} : output->second.out<S>();
  }
  /// Gives the members of a batch, each behind its name, their arrays; there are no others.
  template <class... NamesAndMembers>
  void bind(NamesAndMembers&&... members) {
    if (bind_first(members...) != arrays.size())
      throw std::invalid_argument("an array that the batch has not");
  }
  bool nothing_written() const {
    for (const auto& output : outputs)
      if (!output.second.is_all(unwritten)) return false;
    return true;
  }

 private:
  std::size_t bind_first() { return 0; }
  template <class Member, class... Others>
  std::size_t bind_first(const char* name, Member& member, Others&... others) {
    const auto found = arrays.find(name);
    if (found != arrays.end()) found->second.bind(member);
    return (found != arrays.end() ? 1 : 0) + bind_first(others...);
  }
};

/// The batch of a call's arrays, whose numbers are read as S. Others of the call belong to
/// something else, such as "logits".
template <class S = double>
gdpo::TokenBatch<S> batch_of(Call& call, const std::vector<std::string>& others = {}) {
  gdpo::TokenBatch<S> batch;
  for (auto& entry : call.arrays) {
    const std::string& name = entry.first;
    Array& array = entry.second;
    bool known = std::count(others.begin(), others.end(), name) > 0;
    if (name == "offsets") known = true, batch.offsets = array.index_column();
#define GDPO_X(in_batch, ...) \
  if (name == #in_batch) known = true, batch.in_batch = array.tokens<S>();
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
#define GDPO_X(in_batch, type) \
  if (name == #in_batch) known = true, batch.in_batch = array.tokens<type>();
    GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
#define GDPO_X(in_batch, ...) \
  if (name == #in_batch) known = true, batch.in_batch = array.column();
    GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
    if (!known) throw std::invalid_argument("a batch has no " + name);
  }
  return batch;
}
/// The counts of a call.
template <class Call>
gdpo::Normalizer counts_of(const Call& call) {
  const json& c = call.values.at("counts");
  return {number(c.at("tokens")), number(c.at("rows")), number(c.at("non_empty_rows")),
          number(c.at("given"))};
}

/// Gives a setting a value, whether it fits or not.
template <class T>
void assign(T& setting, const json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    setting = value.get<bool>();
  } else if constexpr (std::is_arithmetic_v<T>) {
    setting = static_cast<T>(number(value));
  } else if constexpr (gdpo::detail::has_enumerators_v<T>) {
    bool found = value.is_number();
    if (found) setting = static_cast<T>(value.get<int>());
    for (const auto& e : enumerators(setting))
      if (value == e.word) found = true, setting = e.value;
    if (!found) throw std::invalid_argument("no enumerator " + value.dump());
  } else if constexpr (gdpo::runtime::detail::is_pair_v<T>) {
    setting = {number(value.at(0)), number(value.at(1))};
  } else {
    throw std::invalid_argument("a setting that is no number, word or pair");
  }
}
/// The same for a list of numbers, or of structs: lists of their members.
template <class T, int capacity>
void assign(gdpo::List<T, capacity>& list, const json& value) {
  std::vector<T> entries;
  for (const json& entry : value) {
    entries.emplace_back();
    if constexpr (std::is_arithmetic_v<T>) {
      entries.back() = number(entry);
    } else {
      std::size_t k = 0;
      gdpo::detail::walk_fields(entries.back(), {}, [&](const auto&, auto& member, const auto&) {
        if (k < entry.size()) assign(member, entry[k++]);
      });
    }
  }
  list = entries;
}
/// The same for settings by their names. One may decide which others there are.
template <class T>
void set(T& x, json settings) {
  while (!settings.empty()) {
    json unknown = json::object();
    for (const auto& [name, value] : settings.items()) {
      bool found = false;
      gdpo::detail::walk_fields(
          x, {}, [&, &name = name, &value = value](const auto& path, auto& member, const auto&) {
            if (path.text() == name) found = true, assign(member, value);
          });
      if (!found) unknown[name] = value;
    }
    if (unknown.size() == settings.size())
      throw std::invalid_argument("no setting " + unknown.begin().key());
    settings = unknown;
  }
}

/// Calls f(loss) with the loss of a call. Returns its message.
template <class Call, class F>
std::string with_loss(const Call& call, const F& f) {
  auto named = gdpo::runtime::loss(call.values.at("preset").template get<std::string>());
  return std::visit(
      [&](auto& loss) {
        set(loss, call.values.at("settings"));
        return message_of([&] { f(loss); });
      },
      named);
}

/// Adds the cases of a list to others. An entry with cases of its own is what they share.
inline void add_cases(const json& list, const json& shared, std::vector<json>& cases) {
  for (const json& entry : list) {
    json one = shared;
    one.update(entry);
    one.erase("cases");
    if (entry.contains("cases"))
      add_cases(entry["cases"], one, cases);
    else
      cases.push_back(one);
  }
}
/// Whether a case says why a door cannot make its call.
inline bool is_left_out(const json& one, const std::string& door) {
  const json reasons = one.value("not", json::object());
  for (const auto& reason : reasons.items())
    if ((" " + reason.key() + " ").find(" " + door + " ") != std::string::npos) return true;
  return false;
}
/// The call of a case: its base with what the case changes.
inline json changed(const json& bases, const json& one) {
  json call = bases.at(
      one.value("base", bases.contains("padded") ? std::string("padded") : bases.begin().key()));
  for (const auto& [key, change] : one.items()) {
    if (key == "base" || key == "not" || key == "written" || key == "function" ||
        key == "argument" || key == "given" || key == "needed") {
      continue;
    }
    json& part = call.at(key);
    if (part.is_object())
      part.update(change);
    else
      part = change;
  }
  return call;
}

/// Makes the calls of tests/refusals/TABLE.json through a door: the bases, the cases and what is
/// accepted. The message of a case begins with the name of the function, and nothing is written.
/// run(call) makes a call and returns its message, "no error" where there is none. Call is made of
/// the description of a call.
template <class Call = refusals::Call, class Run>
void check(const std::string& table, const std::string& door, const std::string& function,
           const Run& run) {
  std::ifstream file(GDPO_TEST_REFUSALS "/" + table + ".json");
  const json all = json::parse(file), &bases = all.at("bases");
  for (const auto& base : bases.items()) {
    INFO("base " << base.key());
    Call call(base.value());
    CHECK(run(call) == "no error");
  }
  std::vector<json> refused, accepted;
  add_cases(all.at("cases"), json::object(), refused);
  add_cases(all.at("accepted"), json::object(), accepted);
  for (const json& one : accepted) {
    if (is_left_out(one, door)) continue;
    INFO(one.dump());
    Call call(changed(bases, one));
    CHECK(run(call) == "no error");
  }
  for (const json& one : refused) {
    if (is_left_out(one, door)) continue;
    INFO(one.dump());
    const auto text = [&one](const char* key) { return one.at(key).get<std::string>(); };
    Call call(changed(bases, one));
    CHECK(run(call) == one.value("function", function) + ": " + text("argument") + ": given " +
                           text("given") + "; needed: " + text("needed"));
    if (!one.contains("written")) CHECK(call.nothing_written());
  }
}

/// The same through the door "grid": on a device, which launches nothing for a call that is
/// refused. run(device, call) makes a call and returns its message.
template <class Run>
void check_on_device(const std::string& table, const std::string& function, const Run& run) {
  check(table, "grid", function, [&run](Call& call) {
    const HostOnly device;
    const std::string message = run(device, call);
    CHECK((device.launches > 0) == (message == "no error"));
    return message;
  });
}

}  // namespace refusals
