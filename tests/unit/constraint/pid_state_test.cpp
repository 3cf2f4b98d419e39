// labels: sanitizers
// The state of a controller as bytes and as JSON: a controller goes on from it with the same bits,
// and nothing damaged is accepted as a state.
#include <gdpo/constraint/calibration.hpp>
#include <gdpo/constraint/published.hpp>
#include <gdpo/with/nlohmann_json.hpp>
#include <support/catch.hpp>
#include <support/message.hpp>
#include <support/random_gains.hpp>
#include <support/tolerance.hpp>

namespace pid_state_test {

namespace {

using Catch::Matchers::ContainsSubstring;
using gdpo::PidGains;
using gdpo::PidLagrangian;
using gdpo::PidState;
using gdpo::SumCount;
using Bytes = std::vector<unsigned char>;

PidState through_bytes(const PidState& state) {
  return gdpo::pid_state_from_bytes(gdpo::to_bytes(state));
}
PidState through_json(const PidState& state) {
  return nlohmann::json::parse(nlohmann::json(state).dump()).get<PidState>();
}

/// A set-point from a baseline run, whose numbers use all their digits.
gdpo::SetPoint calibrated(Random& random) {
  std::vector<double> rewards;
  for (int i = 0; i < 50; ++i) rewards.push_back(random_pid::between(random, -1, 2));
  return gdpo::calibrate(gdpo::baseline_moments(gdpo::view(rewards)),
                         random_pid::between(random, -1, 1),
                         random.pick({gdpo::Bound::AtMost, gdpo::Bound::AtLeast}));
}

/// Two constraints after five measurements and a call without samples. The second has a delay of 3.
PidLagrangian small() {
  PidGains g, delayed;
  g.p_ema = 0.5, g.kp = 1, g.ki = 0.25;
  delayed = g;
  delayed.kd = 0.5, delayed.d_delay = 3;
  PidLagrangian pid(std::vector<PidGains>{g, delayed},
                    {{1, 0.5, gdpo::Bound::AtMost}, {-2, 4, gdpo::Bound::AtLeast}});
  for (const double x : {0.0, 1.0, 2.0, 3.0, 2.5}) pid.update({x, -x});
  pid.update({SumCount{}, SumCount{}});
  return pid;
}

/// A copy of `state` that `change` has altered.
template <class Change>
PidState altered(const PidState& state, const Change& change) {
  PidState other = state;
  change(other);
  return other;
}

/// The message of restore(state). Checks that a refused state leaves the controller as it was.
std::string refusal(PidLagrangian& pid, const PidState& state) {
  const Bytes before = gdpo::to_bytes(pid.state());
  const std::vector<gdpo::PidStep> last = pid.last();
  std::string message = message_of([&] { pid.restore(state); });
  CHECK(gdpo::to_bytes(pid.state()) == before);
  for (std::size_t c = 0; c < last.size(); ++c)
    CHECK(same_bits(pid.last()[c].lambda, last[c].lambda));
  return message;
}

}  // namespace

TEST_CASE("a controller goes on from its state with the same bits") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    random_pid::Case c = random_pid::some_case(random, 1 + random.below(4));
    for (std::size_t i = 0; i < c.size(); ++i) {
      if (random.chance(0.5)) c.set_points[i] = calibrated(random);
      c.walks[i] = random_pid::Walk(c.set_points[i]);
    }
    PidLagrangian pid = c.controller();
    const int before = random.below(40);  // with 0 the controller was never updated
    for (int t = 0; t < before; ++t) pid.update(c.measure(random));

    PidLagrangian from_bytes = c.controller(), from_json = c.controller(),
                  from_copy = c.controller();
    from_copy.update(std::vector<double>(c.size(), 5.0));
    from_bytes.restore(through_bytes(pid.state()));
    from_json.restore(through_json(pid.state()));
    from_copy.restore(pid.state());
    for (int t = 0; t < 40; ++t) {
      const std::vector<SumCount> x = c.measure(random);
      pid.update(x);
      for (PidLagrangian* other : {&from_bytes, &from_json, &from_copy}) {
        const std::vector<gdpo::PidStep>& steps = other->update(x);
        for (std::size_t i = 0; i < c.size(); ++i) {
          REQUIRE(same_bits(steps[i].lambda, pid.last()[i].lambda));
          REQUIRE(same_bits(steps[i].raw, pid.last()[i].raw));
          REQUIRE(steps[i].held == pid.last()[i].held);
        }
      }
    }
    const Bytes expected = gdpo::to_bytes(pid.state());
    for (PidLagrangian* other : {&from_bytes, &from_json, &from_copy}) {
      CHECK(gdpo::to_bytes(other->state()) == expected);
    }
  }
}

TEST_CASE("bytes and JSON give every field back") {
  Random random(11);
  PidState state = small().state();
  state.set_points[1] = calibrated(random);
  state.set_points[0].k = 0.8;  // set by hand: it has no baseline
  int fields = 0;
  // Every number gets a value of its own.
  gdpo::detail::for_each_field(state, [&](const char*, auto& field) {
    for (auto& x : field) {
      x = static_cast<std::decay_t<decltype(x)>>(
          0x1p-40 * static_cast<double>(random.bits() >> 12) + 1);
    }
    ++fields;
  });
  CHECK(fields == 15);
  state.integral[0] = -0.0;
  state.integral[1] = 5e-324;
  state.previous[1] = 1.7976931348623157e308;
  state.held[0] = (std::int64_t{1} << 62) + 1;
  const Bytes bytes = gdpo::to_bytes(state);
  CHECK(gdpo::to_bytes(through_bytes(state)) == bytes);
  CHECK(gdpo::to_bytes(through_json(state)) == bytes);
  const gdpo::SetPoint s = through_bytes(state).set_points[1], expected = state.set_points[1];
  CHECK((s.limit == expected.limit && s.scale == expected.scale && s.k == expected.k &&
         s.bound == expected.bound));
  CHECK(s.baseline.n == 50);
  gdpo::detail::for_each_number(expected.baseline, [&](const char* name, const double& x) {
    INFO(name);
    const auto offset =
        reinterpret_cast<const char*>(&x) - reinterpret_cast<const char*>(&expected);
    CHECK(
        same_bits(*reinterpret_cast<const double*>(reinterpret_cast<const char*>(&s) + offset), x));
  });
}

TEST_CASE("the bytes of version 1 are these, lowest first, wherever they are written") {
  const PidLagrangian pid = small();
  const Bytes bytes = gdpo::to_bytes(pid.state());
  const Bytes start{'G', 'D', 'P', 'O', '.', 'P', 'I', 'D', 1, 0, 0, 0,
                    0,   0,   0,   0,   2,   0,   0,   0,   0, 0, 0, 0};
  CHECK(Bytes(bytes.begin(), bytes.begin() + 24) == start);
  // Words of 8 bytes: the mark, the version and m; 11 for each set-point; 14 fields with their
  // lengths; the histories of 1 and 3 values with their length; the checksum.
  CHECK(bytes.size() == 8 * (3 + 2 * 11 + 14 * (1 + 2) + (1 + 4) + 1));
  const std::string recorded =  // the set-points, then the fields in the order of PidState
      "4744504f2e50494401000000000000000200000000000000000000000000f03f000000000000e03f000000000000"
      "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
      "00000000000000000000f07f000000000000f0ff00000000000000c0000000000000104000000000000000000100"
      "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
      "000000000000f07f000000000000f0ff020000000000000019638c31c618144032c618638c31d83f020000000000"
      "00000000000000000240000000000000b83f02000000000000000000000000800540000000000000b83f02000000"
      "00000000000000000000a03f000000000000a03f02000000000000000000000000001440000000000000e43f0200"
      "00000000000032c618638c31064032c618638c31d23f020000000000000000000000000000000000000000000000"
      "02000000000000000000000000000000000000000000000002000000000000006aaed3484be5e23f6aaed3484be5"
      "e23f0200000000000000e578c8301fd7ef3fe578c8301fd7ef3f0200000000000000000000000000000002000000"
      "00000000020000000000000005000000000000000500000000000000020000000000000001000000000000000100"
      "00000000000002000000000000000000000000000000000000000000000004000000000000000000000000001440"
      "000000000000e83f000000000000e43f000000000000e03f009a7a970359b654";
  std::string written;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    written += digits;
  }
  CHECK(written == recorded);

  Bytes read;
  for (std::size_t i = 0; i < recorded.size(); i += 2) {
    read.push_back(static_cast<unsigned char>(std::stoi(recorded.substr(i, 2), nullptr, 16)));
  }
  PidLagrangian later(pid.gains(), pid.state().set_points);
  later.restore(gdpo::pid_state_from_bytes(read));
  CHECK(same_bits(later.lambda(1), 0.37802419354838712));
  CHECK((later.state().set_points[1].limit == -2 &&
         later.state().set_points[1].bound == gdpo::Bound::AtLeast));
  CHECK((later.state().held[0] == 1 && later.state().updates[1] == 5));
  CHECK((later.state().history == std::vector<double>{5, 0.75, 0.625, 0.5}));
}

TEST_CASE("what was cut, altered or extended is no state") {
  PidLagrangian pid = small();
  const Bytes bytes = gdpo::to_bytes(pid.state());
  const auto what = [](const Bytes& given) {
    return message_of([&] { gdpo::pid_state_from_bytes(given); });
  };
  const std::string prefix = "gdpo::pid_state_from_bytes: bytes: given ",
                    needed = "; needed: what to_bytes() gave";
  CHECK(what(bytes) == "no error");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string message =
        what(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)));
    const char* expected = size < 16 ? "no state of a controller"
                                     : "a state that was cut or altered: its checksum differs";
    REQUIRE(message == prefix + expected + needed);
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int bits : {0x01, 0x80, 0xff, 0x5a}) {
      Bytes flipped = bytes;
      flipped[at] = static_cast<unsigned char>(flipped[at] ^ bits);
      const std::string message = what(flipped);
      INFO("byte " << at);
      REQUIRE_THAT(message, ContainsSubstring(prefix));
      REQUIRE_THAT(message, ContainsSubstring(at < 8    ? "no state of a controller"
                                              : at < 16 ? "version "
                                                        : "its checksum differs"));
    }
  }
  Bytes longer = bytes;
  longer.push_back(0);
  CHECK(what(longer) == prefix + "a state that was cut or altered: its checksum differs" + needed);

  // Bytes with a correct checksum, as a faulty writer might leave them.
  const auto sealed = [](Bytes b) {
    const std::uint64_t sum = gdpo::detail::checksum(b.data(), b.size());
    for (int shift = 0; shift < 64; shift += 8)
      b.push_back(static_cast<unsigned char>(sum >> shift));
    return b;
  };
  const Bytes body(bytes.begin(), bytes.end() - 8);
  CHECK(sealed(body) == bytes);
  Bytes more = body;
  more.insert(more.end(), 8, 0);
  CHECK(what(sealed(more)) == prefix + "bytes behind the state" + needed);
  CHECK_THAT(what(sealed(Bytes(body.begin(), body.end() - 8))), ContainsSubstring(prefix));
  CHECK_THAT(what(sealed(Bytes(body.begin(), body.begin() + 16))),
             ContainsSubstring("a state that ends after 24 bytes"));
  // The number of set-points and the length of lambda: more than there is memory for.
  for (const std::size_t length_at : {16u, 200u}) {
    Bytes huge = body;
    for (std::size_t i = 0; i < 8; ++i) huge[length_at + i] = 0xff;
    CHECK_THAT(what(sealed(huge)), ContainsSubstring("a state that ends after 584 bytes"));
  }
  Bytes later = bytes;
  later[8] = 2;
  CHECK(what(later) == prefix + "version 2 (this library reads version 1)" + needed);
  CHECK(message_of([] { gdpo::pid_state_from_bytes(nullptr, 0); }) ==
        prefix + "no state of a controller" + needed);
}

TEST_CASE("restore names the field that does not fit and changes nothing") {
  PidLagrangian pid = small();
  const PidState good = pid.state();
  const std::string function = "gdpo::PidLagrangian::restore: state.";
  const auto said = [&](const auto& change) { return refusal(pid, altered(good, change)); };
  CHECK(said([](PidState&) {}) == "no error");
  CHECK(said([](PidState& s) { s.version = 2; }) == function + "version: given 2; needed: 1");
  CHECK(said([](PidState& s) { s.version = 0; }) == function + "version: given 0; needed: 1");

  const std::string entries = ", for the 2 constraints of this controller and their delays";
  CHECK(said([](PidState& s) { s.set_points.pop_back(); }) ==
        function + "set_points: given 1 entries; needed: 2" + entries);
  std::vector<std::string> names;
  gdpo::detail::for_each_field(good,
                               [&](const char* name, const auto&) { names.emplace_back(name); });
  for (const std::string& name : names) {
    const std::string size = name == "history" ? "4" : "2";
    const auto change = [&](const auto& of_field) {
      return [&name, &of_field](PidState& s) {
        gdpo::detail::for_each_field(s, [&](const char* field, auto& x) {
          if (field == name) of_field(x);
        });
      };
    };
    CHECK(said(change([](auto& x) { x.push_back(0); })) ==
          function + name + ": given " + std::to_string(std::stoi(size) + 1) +
              " entries; needed: " + size + entries);
    CHECK(said(change([](auto& x) { x.clear(); })) ==
          function + name + ": given 0 entries; needed: " + size + entries);
    for (const double bad : {std::nan(""), gdpo::math::infinity, -gdpo::math::infinity}) {
      const std::string message = said(change([&](auto& x) {
        if constexpr (std::is_same_v<std::decay_t<decltype(x.back())>, double>) x.back() = bad;
      }));
      const bool integers =
          name == "cursor" || name == "updates" || name == "held" || name == "saturated_steps";
      CHECK(message == (integers ? "no error"
                                 : function + name + ": given " + gdpo::contract::text(bad) +
                                       "; needed: a finite number"));
    }
  }
  const auto range = [&](const std::string& name, auto given, const std::string& bounds) {
    return function + name + ": given " + gdpo::contract::text(static_cast<double>(given)) +
           "; needed: a number from " + bounds;
  };
  const double largest = std::numeric_limits<double>::max();
  const std::string most = gdpo::contract::text(largest), count = "0 to 4.6116860184273879e+18";
  for (const std::int64_t at : {-1, 3, 1000}) {
    CHECK(said([&](PidState& s) { s.cursor[1] = at; }) == range("cursor", at, "0 to 2"));
  }
  CHECK(said([](PidState& s) { s.cursor[0] = 1; }) == range("cursor", 1, "0 to 0"));
  CHECK(said([](PidState& s) { s.lambda[1] = -0.5; }) == range("lambda", -0.5, "0 to " + most));
  CHECK(said([](PidState& s) { s.adam_v[1] = -0.5; }) == range("adam_v", -0.5, "0 to " + most));
  for (const double weight : {-0.5, 1.5}) {
    CHECK(said([&](PidState& s) { s.p_weight[0] = weight; }) ==
          range("p_weight", weight, "0 to 1"));
    CHECK(said([&](PidState& s) { s.adam_m_weight[1] = weight; }) ==
          range("adam_m_weight", weight, "0 to 1"));
    CHECK(said([&](PidState& s) { s.adam_v_weight[1] = weight; }) ==
          range("adam_v_weight", weight, "0 to 1"));
  }
  for (const std::int64_t bad : {std::int64_t{-1}, (std::int64_t{1} << 62) + 1024}) {
    CHECK(said([&](PidState& s) { s.updates[0] = bad; }) == range("updates", bad, count));
    CHECK(said([&](PidState& s) { s.held[1] = bad; }) == range("held", bad, count));
    CHECK(said([&](PidState& s) { s.saturated_steps[0] = bad; }) ==
          range("saturated_steps", bad, count));
  }
  CHECK(said([](PidState& s) { s.set_points[1].scale = 0; }) ==
        "gdpo::PidLagrangian::restore: set_points[1].scale: given 0; needed: a finite number that "
        "is more than 0 (its inverse too)");
  CHECK(said([](PidState& s) { s.set_points[0].limit = std::nan(""); }) ==
        "gdpo::PidLagrangian::restore: set_points[0].limit: given nan; needed: a finite number");

  PidLagrangian one, other_delay(PidGains{}, 2);
  CHECK(refusal(one, good) == function +
                                  "set_points: given 2 entries; needed: 1, for the 1 constraints "
                                  "of this controller and their delays");
  CHECK(refusal(other_delay, good) == function + "history: given 4 entries; needed: 2" + entries);
}

TEST_CASE("a state is brought within the bounds of other gains") {
  PidGains g, tight;
  g.kp = 0, g.ki = 1, g.p_ema = 0;
  tight = g;
  tight.lambda_max = 2;
  PidLagrangian pid(g);
  for (int t = 0; t < 5; ++t) pid.update({1.0});
  CHECK((pid.lambda(0) == 5 && pid.state().integral[0] == 5));
  const auto restored = [&](const PidGains& gains) {
    PidLagrangian other(gains);
    other.restore(pid.state());
    CHECK(same_bits(other.last()[0].lambda, other.lambda(0)));
    CHECK(other.state().updates[0] == 5);
    return std::make_pair(other.lambda(0), other.state().integral[0]);
  };
  CHECK(restored(g) == std::make_pair(5.0, 5.0));
  CHECK(restored(tight) == std::make_pair(2.0, 2.0));
  tight.anti_windup = gdpo::AntiWindup::None;
  // Without anti-windup the integral may be above lambda_max.
  CHECK(restored(tight) == std::make_pair(2.0, 5.0));
  g.integral_max = 3;
  CHECK(restored(g) == std::make_pair(5.0, 3.0));
  g.form = gdpo::PidForm::Velocity, g.lambda_max = 4;
  CHECK(restored(g) == std::make_pair(4.0, 5.0));
}

TEST_CASE("an integral that still is where it began stays there when it is restored") {
  PidGains g;
  g.kp = 0, g.ki = 1, g.lambda_init = -2;
  PidLagrangian pid(g), same(g), other(PidGains{});
  pid.update({SumCount{}});
  same.restore(pid.state());
  CHECK((same.state().integral[0] == -2 && same.lambda(0) == 0));
  // Under gains that begin elsewhere it is at least 0.
  other.restore(pid.state());
  CHECK((other.state().integral[0] == 0 && other.lambda(0) == 0));
  CHECK(pid.update({5.0})[0].lambda == 3);
  CHECK(same.update({5.0})[0].lambda == 3);
}

TEST_CASE("restored, the last step is the multiplier that is kept") {
  PidGains g;
  g.lambda_max = 1;
  PidLagrangian pid(g), other(g);
  for (int t = 0; t < 3; ++t) pid.update({5.0});
  other.restore(pid.state());
  const gdpo::PidStep& step = other.last()[0];
  CHECK((step.lambda == 1 && step.raw == 1 && step.saturated && step.saturated_steps == 3));
  CHECK((step.i == pid.state().integral[0] && !step.held));
}

TEST_CASE("JSON names what is missing") {
  const nlohmann::json good = small().state();
  const auto said = [](const nlohmann::json& json) {
    return message_of([&] { json.get<PidState>(); });
  };
  const std::string missing = ": given nothing; needed: what to_json() wrote",
                    function = "gdpo::PidState from JSON: ";
  CHECK(said(good) == "no error");
  for (const auto& item : good.items()) {
    nlohmann::json without = good;
    without.erase(item.key());
    CHECK(said(without) == function + item.key() + missing);
  }
  for (const char* key : {"limit", "scale", "bound", "k"}) {
    nlohmann::json without = good;
    without["set_points"][1].erase(key);
    CHECK(said(without) == function + key + missing);
  }
  nlohmann::json other = good;
  other["version"] = 2;
  CHECK(said(other) == function + "version: given 2; needed: 1");
  other = good;
  other["set_points"][0]["bound"] = "at_first";
  CHECK(said(other) == function + "bound: given \"at_first\"; needed: \"at_most\" or \"at_least\"");
  other = good;
  const std::string whole = "; needed: a whole number";
  other["updates"][1] = 2.5;
  CHECK(said(other) == function + "updates: given 2.5" + whole);
  other["updates"][1] = true;
  CHECK(said(other) == function + "updates: given true" + whole);
  other["updates"][1] = std::uint64_t{1} << 63;
  CHECK(said(other) == function + "updates: given 9223372036854775808" + whole);
  other["updates"] = 3;
  CHECK(said(other) == function + "updates: given 3; needed: a list");
  other = good;
  for (const nlohmann::json& version : {nlohmann::json(-1), nlohmann::json::parse("4294967297"),
                                        nlohmann::json(4294967297), nlohmann::json(1.0)}) {
    other["version"] = version;
    CHECK(said(other) == function + "version: given " + version.dump() + whole);
  }
  other = good;
  other["lambda"][0] = 3;  // a whole number is a number
  CHECK(other.get<PidState>().lambda[0] == 3);
  other["lambda"][0] = "high";
  CHECK(said(other) == function + "lambda: given \"high\"; needed: a number");
  other["lambda"][0] = nullptr;  // JSON has null for NaN
  CHECK(said(other) == function + "lambda: given null; needed: a number");
  CHECK(said(nlohmann::json::array()) == function + "version" + missing);

  Random random(5);
  PidState state = small().state();
  state.set_points[1] = calibrated(random);
  const nlohmann::json with_baseline = state;
  CHECK(said(with_baseline) == "no error");
  for (const auto& item : with_baseline["set_points"][1]["baseline"].items()) {
    nlohmann::json without = with_baseline;
    without["set_points"][1]["baseline"].erase(item.key());
    CHECK(said(without) == function + item.key() + missing);
  }
}

}  // namespace pid_state_test
