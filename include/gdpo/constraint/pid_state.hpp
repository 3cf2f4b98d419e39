#pragma once
// What a controller remembers: plain, versioned, in bytes and back.
#include <cstdint>
#include <gdpo/constraint/set_point.hpp>
#include <vector>

namespace gdpo {  // plain data: it goes into checkpoints

/// The state of m constraints, an array a field. Two controllers with equal gains and equal states give the same bits for
/// ever after.
struct PidState {
  // Written out to be inlined: a function of plain data may stand in several objects, compiled for several processors.
  GDPO_DATA_HOST_INLINE PidState() = default;
  GDPO_DATA_HOST_INLINE PidState(const PidState&) = default;
  GDPO_DATA_HOST_INLINE PidState(PidState&&) = default;
  GDPO_DATA_HOST_INLINE PidState& operator=(const PidState&) = default;
  GDPO_DATA_HOST_INLINE PidState& operator=(PidState&&) = default;
  GDPO_DATA_HOST_INLINE ~PidState() = default;

  static constexpr std::uint32_t current_version = 1;

  std::uint32_t version = current_version;
  std::vector<SetPoint> set_points;

  std::vector<double> lambda, integral;
  std::vector<double> p_average, p_weight;  ///< of the errors; p_ema^t, for the bias correction
  std::vector<double> d_average;            ///< of the measurements
  std::vector<double> previous;             ///< Velocity: Kp p + Kd d of the last update
  std::vector<double> adam_m, adam_v, adam_m_weight, adam_v_weight;  ///< moments; beta^t
  std::vector<double> pending_sum, pending_count;  ///< measured since the last update (period)
  std::vector<double>
      history;  ///< past averages of the measurements, d_delay of each constraint in turn

  std::vector<std::int64_t> cursor;           ///< the oldest entry of its history
  std::vector<std::int64_t> updates;          ///< so far
  std::vector<std::int64_t> calls;            ///< since the last update (period)
  std::vector<std::int64_t> held;             ///< calls that were turned away, in all
  std::vector<std::int64_t> saturated_steps;  ///< updates in a row with lambda at lambda_max
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// f(name, field) for every field with an entry a constraint, then for `history`. State: PidState, const or not.
template <class State, class F>
void for_each_field(State& s, const F& f) {
  f("lambda", s.lambda), f("integral", s.integral), f("p_average", s.p_average),
      f("p_weight", s.p_weight);
  f("d_average", s.d_average), f("previous", s.previous), f("adam_m", s.adam_m),
      f("adam_v", s.adam_v);
  f("adam_m_weight", s.adam_m_weight), f("adam_v_weight", s.adam_v_weight),
      f("pending_sum", s.pending_sum);
  f("pending_count", s.pending_count), f("cursor", s.cursor), f("updates", s.updates),
      f("calls", s.calls);
  f("held", s.held), f("saturated_steps", s.saturated_steps), f("history", s.history);
}

/// Numbers as 8 bytes each, the lowest first, whatever the machine.
class ByteWriter {
 public:
  void put(std::uint64_t word) {
    for (int shift = 0; shift < 64; shift += 8)
      bytes.push_back(static_cast<unsigned char>(word >> shift));
  }
  void put(std::int64_t x) { put(static_cast<std::uint64_t>(x)); }
  void put(double x) {
    std::uint64_t word;
    std::memcpy(&word, &x, sizeof word);
    put(word);
  }
  std::vector<unsigned char> bytes;
};

class ByteReader {
 public:
  ByteReader(const char* function, const unsigned char* bytes, std::size_t size)
      : function_(function), bytes_(bytes), size_(size) {}
  std::uint64_t word() {
    if (size_ - at_ < 8)
      fail("a state that ends after " + contract::text(static_cast<index_t>(size_)) + " bytes");
    std::uint64_t word = 0;
    for (int shift = 0; shift < 64; shift += 8)
      word |= static_cast<std::uint64_t>(bytes_[at_++]) << shift;
    return word;
  }
  void get(std::int64_t& x) { x = static_cast<std::int64_t>(word()); }
  void get(double& x) {
    const std::uint64_t bits = word();
    std::memcpy(&x, &bits, sizeof bits);
  }
  /// A length of entries of 8 bytes, which are there.
  std::size_t length() {
    const std::uint64_t n = word();
    if (n > (size_ - at_) / 8)
      fail("a state that ends after " + contract::text(static_cast<index_t>(size_)) + " bytes");
    return static_cast<std::size_t>(n);
  }
  [[noreturn]] void fail(const std::string& given) const {
    contract::fail(function_, "bytes", given, "what to_bytes() gave");
  }
  std::size_t left() const { return size_ - at_; }

 private:
  const char* function_;
  const unsigned char* bytes_;
  std::size_t size_, at_ = 0;
};

constexpr std::uint64_t pid_state_mark = 0x4449502e4f504447u;  // "GDPO.PID"

/// FNV-1a, so that a checkpoint that was cut or altered is noticed.
inline std::uint64_t checksum(const unsigned char* bytes, std::size_t size) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < size; ++i) sum = (sum ^ bytes[i]) * 0x100000001b3u;
  return sum;
}

template <class Moments, class F>
void for_each_number(Moments& m, const F& f) {
  f("weight", m.weight), f("mean", m.mean), f("mean_low", m.mean_low), f("m2", m.m2),
      f("min", m.min), f("max", m.max);
}

}  // namespace detail

/// The state as bytes: a mark, the version, set-points, fields, a checksum; the same on every machine.
inline std::vector<unsigned char> to_bytes(const PidState& state) {
  detail::ByteWriter out;
  out.put(detail::pid_state_mark);
  out.put(std::uint64_t{state.version});
  out.put(static_cast<std::uint64_t>(state.set_points.size()));
  for (const SetPoint& s : state.set_points) {
    out.put(s.limit), out.put(s.scale), out.put(s.k);
    out.put(static_cast<std::uint64_t>(s.bound == Bound::AtLeast));
    out.put(static_cast<std::int64_t>(s.baseline.n));
    detail::for_each_number(s.baseline, [&](const char*, double x) { out.put(x); });
  }
  detail::for_each_field(state, [&](const char*, const auto& field) {
    out.put(static_cast<std::uint64_t>(field.size()));
    for (const auto x : field) out.put(x);
  });
  out.put(detail::checksum(out.bytes.data(), out.bytes.size()));
  return std::move(out.bytes);
}

/// Errors: invalid_input for bytes that are not a whole state, that were altered, or that a later version wrote.
inline PidState pid_state_from_bytes(const unsigned char* bytes, std::size_t size) {
  detail::ByteReader in("gdpo::pid_state_from_bytes", bytes, size);
  if (size < 16 || in.word() != detail::pid_state_mark) in.fail("no state of a controller");
  PidState state;
  const std::uint64_t version = in.word();
  if (version != PidState::current_version) {
    in.fail("version " + std::to_string(version) + " (this library reads version " +
            std::to_string(PidState::current_version) + ")");
  }
  detail::ByteReader last("gdpo::pid_state_from_bytes", bytes + size - 8, 8);
  if (detail::checksum(bytes, size - 8) != last.word())
    in.fail("a state that was cut or altered: its checksum differs");
  state.set_points.resize(in.length());
  for (SetPoint& s : state.set_points) {
    in.get(s.limit), in.get(s.scale), in.get(s.k);
    s.bound = in.word() != 0 ? Bound::AtLeast : Bound::AtMost;
    std::int64_t n;
    in.get(n);
    s.baseline.n = static_cast<index_t>(n);
    detail::for_each_number(s.baseline, [&](const char*, double& x) { in.get(x); });
  }
  detail::for_each_field(state, [&](const char*, auto& field) {
    field.resize(in.length());
    for (auto& x : field) in.get(x);
  });
  if (in.left() != 8) in.fail("bytes behind the state");
  return state;
}
inline PidState pid_state_from_bytes(const std::vector<unsigned char>& bytes) {
  return pid_state_from_bytes(bytes.data(), bytes.size());
}

GDPO_END_NAMESPACE
