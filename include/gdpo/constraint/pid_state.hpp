#pragma once
// The state of a controller, and its conversion to bytes and back for checkpoints.
#include <cstdint>
#include <gdpo/constraint/set_point.hpp>
#include <vector>

// The struct below is plain data, outside the inline namespace: it goes into checkpoints.
namespace gdpo {

/// Everything that a PidLagrangian of m constraints remembers, one array for each field.
/// Two controllers with equal gains and equal states give the same bits for the same measurements
/// from then on. The arrays have m entries, but for `history`.
struct PidState {
  // The special members are written out so that they can be forced inline. Otherwise objects that
  // are compiled for different instruction sets would share one of them, and the linker would keep
  // the code of any of the objects.
  GDPO_DATA_HOST_INLINE PidState() = default;                            ///< An empty state.
  GDPO_DATA_HOST_INLINE PidState(const PidState&) = default;             ///< Copies.
  GDPO_DATA_HOST_INLINE PidState(PidState&&) = default;                  ///< Moves.
  GDPO_DATA_HOST_INLINE PidState& operator=(const PidState&) = default;  ///< Copies.
  GDPO_DATA_HOST_INLINE PidState& operator=(PidState&&) = default;       ///< Moves.
  GDPO_DATA_HOST_INLINE ~PidState() = default;

  static constexpr std::uint32_t current_version = 1;  ///< The version that this library writes.

  std::uint32_t version = current_version;  ///< Version of the format of this state.
  std::vector<SetPoint> set_points;         ///< Limit and unit of each constraint.

  std::vector<double> lambda,     ///< The multipliers.
      integral;                   ///< I of the positional form; lambda_init in the other forms.
  std::vector<double> p_average,  ///< Average of the errors.
      p_weight;                   ///< p_ema^t after t updates, for the bias correction.
  std::vector<double> d_average;  ///< Average of the measurements.
  std::vector<double> previous;   ///< Kp p + Kd d of the last update, for the velocity form.
  /// First moment of the errors. Positional: -1 while a moved limit keeps the integral below 0, 1
  /// while it keeps it above integral_max, else 0.
  std::vector<double> adam_m,
      adam_v,         ///< Second moment of the errors.
      adam_m_weight,  ///< beta1^t after t updates.
      adam_v_weight;  ///< beta2^t after t updates.
  /// Past averages of the measurements: d_delay entries of constraint 0, then those of constraint
  /// 1, and so on. Those of one constraint are a ring.
  std::vector<double> history;

  std::vector<std::int64_t> cursor;           ///< Index of the oldest entry in each ring.
  std::vector<std::int64_t> updates;          ///< Number of updates so far.
  std::vector<std::int64_t> held;             ///< Calls that were held, in all.
  std::vector<std::int64_t> saturated_steps;  ///< Updates in a row with lambda at lambda_max.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Calls f(name, field) for each array of numbers with one entry a constraint, then for `history`.
/// The order is that of the bytes, so it must not change. State is PidState or const PidState.
template <class State, class F>
void for_each_field(State& s, const F& f) {
  f("lambda", s.lambda), f("integral", s.integral), f("p_average", s.p_average),
      f("p_weight", s.p_weight);
  f("d_average", s.d_average), f("previous", s.previous), f("adam_m", s.adam_m),
      f("adam_v", s.adam_v);
  f("adam_m_weight", s.adam_m_weight), f("adam_v_weight", s.adam_v_weight);
  f("cursor", s.cursor), f("updates", s.updates), f("held", s.held),
      f("saturated_steps", s.saturated_steps);
  f("history", s.history);
}

/// Writes each number as 8 bytes, the lowest byte first on every machine.
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

/// Reads what ByteWriter wrote; throws `invalid_input` where the bytes end too early.
class ByteReader {
 public:
  ByteReader(const char* function, const unsigned char* bytes, std::size_t size)
      : function_(function), bytes_(bytes), size_(size) {}
  std::uint64_t word() {
    if (size_ - offset_ < 8)
      fail("a state that ends after " + contract::text(static_cast<index_t>(size_)) + " bytes");
    std::uint64_t word = 0;
    for (int shift = 0; shift < 64; shift += 8)
      word |= static_cast<std::uint64_t>(bytes_[offset_++]) << shift;
    return word;
  }
  void get(std::int64_t& x) { x = static_cast<std::int64_t>(word()); }
  void get(double& x) {
    const std::uint64_t bits = word();
    std::memcpy(&x, &bits, sizeof bits);
  }
  /// The length of an array whose entries take 8 bytes or more. It is checked against the bytes
  /// that are left, so that a damaged length cannot cause a huge allocation.
  std::size_t length() {
    const std::uint64_t n = word();
    if (n > (size_ - offset_) / 8)
      fail("a state that ends after " + contract::text(static_cast<index_t>(size_)) + " bytes");
    return static_cast<std::size_t>(n);
  }
  [[noreturn]] void fail(const std::string& given) const {
    contract::fail(function_, "bytes", given, "what to_bytes() gave");
  }
  std::size_t left() const { return size_ - offset_; }

 private:
  const char* function_;
  const unsigned char* bytes_;
  std::size_t size_, offset_ = 0;
};

/// The first 8 bytes of a state: "GDPO.PID" in ASCII.
constexpr std::uint64_t pid_state_mark = 0x4449502e4f504447u;

/// The FNV-1a hash of the bytes, which shows that a checkpoint was cut or altered.
inline std::uint64_t checksum(const unsigned char* bytes, std::size_t size) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < size; ++i) sum = (sum ^ bytes[i]) * 0x100000001b3u;
  return sum;
}

/// Calls f(name, number) for every member of Moments that is a double.
template <class Moments, class F>
void for_each_number(Moments& m, const F& f) {
  f("weight", m.weight), f("mean", m.mean), f("mean_low", m.mean_low), f("m2", m.m2),
      f("min", m.min), f("max", m.max);
}

}  // namespace detail

/// The state as bytes for a checkpoint, the same on every machine.
/// The order is: a mark, the version, the set-points, the arrays, a checksum; 8 bytes a number.
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

/// The state that `to_bytes` wrote, all of its bits. bytes: (size).
/// Errors: `invalid_input` for bytes that are no state, were cut or altered, or were written by
/// another version. Whether the numbers suit a controller, `PidLagrangian::restore` checks.
inline PidState pid_state_from_bytes(const unsigned char* bytes, std::size_t size) {
  detail::ByteReader reader("gdpo::pid_state_from_bytes", bytes, size);
  if (!bytes && size > 0) reader.fail("a null pointer");
  if (size < 16 || reader.word() != detail::pid_state_mark) reader.fail("no state of a controller");
  PidState state;
  const std::uint64_t version = reader.word();
  if (version != PidState::current_version) {
    reader.fail("version " + std::to_string(version) + " (this library reads version " +
                std::to_string(PidState::current_version) + ")");
  }
  detail::ByteReader last("gdpo::pid_state_from_bytes", bytes + size - 8, 8);
  if (detail::checksum(bytes, size - 8) != last.word())
    reader.fail("a state that was cut or altered: its checksum differs");
  state.set_points.resize(reader.length());
  for (SetPoint& s : state.set_points) {
    reader.get(s.limit), reader.get(s.scale), reader.get(s.k);
    s.bound = reader.word() != 0 ? Bound::AtLeast : Bound::AtMost;
    std::int64_t n;
    reader.get(n);
    s.baseline.n = static_cast<index_t>(n);
    detail::for_each_number(s.baseline, [&](const char*, double& x) { reader.get(x); });
  }
  detail::for_each_field(state, [&](const char*, auto& field) {
    field.resize(reader.length());
    for (auto& x : field) reader.get(x);
  });
  if (reader.left() != 8) reader.fail("bytes behind the state");
  return state;
}
/// The same from a vector of bytes.
inline PidState pid_state_from_bytes(const std::vector<unsigned char>& bytes) {
  return pid_state_from_bytes(bytes.data(), bytes.size());
}

GDPO_END_NAMESPACE
