#pragma once
// Messages between ranks: a status word first, so that either all ranks go on or none does.
#include <algorithm>
#include <cstdint>
#include <gdpo/dist/communicator.hpp>
#include <gdpo/dist/describe.hpp>
#include <optional>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace dist {

/// The number of the message protocol: the order of the messages and their contents. It is sent
/// with every status word, next to the version of the library.
inline constexpr std::uint32_t protocol = 1;

}  // namespace dist

namespace detail {

/// The version of the library as one number.
inline constexpr std::uint32_t library_version =
    GDPO_VERSION_MAJOR * 1000000 + GDPO_VERSION_MINOR * 1000 + GDPO_VERSION_PATCH;

/// The first message of a rank in every collective. Its size and its first three members are the
/// same in every protocol, so that ranks of different versions can recognize each other.
struct StatusWord {
  static constexpr std::uint32_t gdpo_greeting = 0x6f706467;  // "gdpo" in the order of the bytes
  enum class State : std::uint32_t { Ready, InvalidInput, Failed };

  std::uint32_t greeting = gdpo_greeting, protocol = dist::protocol, version = library_version;
  State state = State::Ready;
  std::uint64_t settings = 0;      // the hash of the settings
  std::uint64_t text_bytes = 0;    // of the settings in words, or of what went wrong
  std::uint64_t record_bytes = 0;  // of what this rank sends
  char call[24] = {};              // the name of the call, filled up with zeros

  std::string name() const { return {call, std::find(call, call + sizeof call, '\0')}; }
};
static_assert(sizeof(StatusWord) == 64, "every rank sends a status word of this size");

/// What a rank has to send.
struct Contribution {
  std::string settings;               ///< In words; they must be the same on all ranks.
  std::vector<unsigned char> record;  ///< The data; their size may differ from rank to rank.

  /// Appends n values to the record.
  template <class T>
  void put(const T* values, std::size_t n) {
    static_assert(std::is_trivially_copyable_v<T>, "records are bytes");
    if (n == 0) return;
    const auto* bytes = reinterpret_cast<const unsigned char*>(values);
    record.insert(record.end(), bytes, bytes + n * sizeof(T));
  }
};

/// What the ranks have sent. Every rank holds the same.
class Records {
 public:
  Records(std::vector<std::size_t> sizes, std::size_t longest)
      : sizes_(std::move(sizes)), longest_(longest), bytes_(longest * sizes_.size()) {}
  int ranks() const { return static_cast<int>(sizes_.size()); }
  const unsigned char* of(int rank) const { return bytes_.data() + longest_ * index(rank); }
  std::size_t size(int rank) const { return sizes_[index(rank)]; }
  unsigned char* data() { return bytes_.data(); }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  std::vector<std::size_t> sizes_;
  std::size_t longest_;
  std::vector<unsigned char> bytes_;
};

/// Reads the values of a record one after the other.
class RecordReader {
 public:
  RecordReader(const Records& records, int rank)
      : position_(records.of(rank)), left_(records.size(rank)) {}
  template <class T>
  void get(T* values, std::size_t n) {
    if (n == 0) return;
    if (n > left_ / sizeof(T)) dist::fail_communication("gdpo::dist: a record ends too early");
    std::memcpy(values, position_, n * sizeof(T));
    position_ += n * sizeof(T), left_ -= n * sizeof(T);
  }
  template <class T>
  T get() {
    T value;
    get(&value, 1);
    return value;
  }

 private:
  const unsigned char* position_;
  std::size_t left_;
};

/// FNV-1a, a hash of 64 bits.
inline std::uint64_t hash_of(const std::string& words) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : words) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

/// Throws an invalid_input, the same on all ranks: a of rank `first` does not fit b of `second`.
[[noreturn]] GDPO_COLD inline void fail_between(const char* function, const char* argument,
                                                const std::string& a, std::size_t first,
                                                const std::string& b, std::size_t second,
                                                const char* needed) {
  contract::fail(
      function, argument,
      a + " on rank " + std::to_string(first) + " and " + b + " on rank " + std::to_string(second),
      needed);
}

/// The first bytes of a text, at most so many, without a part of a character (of UTF-8) at the end.
inline std::string first_bytes(const std::string& text, std::size_t most) {
  std::size_t end = (std::min)(text.size(), most);
  while (end > 0 && end < text.size() && (text[end] & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

/// The settings of two ranks from a little before the place where they differ, at most 60 bytes.
GDPO_COLD inline std::pair<std::string, std::string> differing_parts(const std::string& a,
                                                                     const std::string& b) {
  if (a == b) return {"words that go on", "others, after the first " + std::to_string(a.size())};
  std::size_t begin = 0;
  while (begin < a.size() && begin < b.size() && a[begin] == b[begin]) ++begin;
  // The number or word that differs is shown whole, unless it is long.
  const std::size_t first = begin;
  while (begin > 0 && a[begin - 1] != ' ' && a[begin - 1] != '<') --begin;
  if (first - begin > 40) begin = first - 20;
  while (begin > 0 && begin < a.size() && (a[begin] & 0xC0) == 0x80) --begin;
  const auto part = [&](const std::string& words) {
    const std::string left = words.substr((std::min)(begin, words.size()));
    return (begin > 0 ? "... " : "") + (left.size() > 60 ? first_bytes(left, 57) + "..." : left);
  };
  return {part(a), part(b)};
}

/// Throws, the same on all ranks, if the status words do not fit together. If a rank failed or
/// settings differ, the message needs the texts of all ranks, which `texts()` gathers. A failure
/// comes first, because it may be the reason why ranks make different calls.
template <class Texts>
void check_status(const char* function, const std::vector<StatusWord>& words, const Texts& texts) {
  const StatusWord& first = words[0];
  std::size_t differs = 0, failed = words.size(), failures = 0;
  for (std::size_t r = words.size(); r-- > 0;) {
    const StatusWord& word = words[r];
    if (word.state != StatusWord::State::Ready) failed = r, ++failures;
    if (word.settings != first.settings) differs = r;
  }
  for (std::size_t r = 0; r < words.size(); ++r) {
    const StatusWord& word = words[r];
    if (word.greeting != StatusWord::gdpo_greeting) {
      contract::fail("gdpo::dist", "ranks",
                     "other bytes from rank " + std::to_string(r) + " than gdpo sends",
                     "the same calls of gdpo, in the same order, on ranks of one byte order");
    }
    const auto number = [](const StatusWord& w) {
      return "protocol " + std::to_string(w.protocol) + " of version " +
             std::to_string(w.version / 1000000) + "." + std::to_string(w.version / 1000 % 1000) +
             "." + std::to_string(w.version % 1000);
    };
    if (word.protocol != first.protocol || word.version != first.version) {
      fail_between("gdpo::dist", "gdpo", number(first), 0, number(word), r,
                   "one version of gdpo on all ranks");
    }
  }
  for (std::size_t r = 0; failures == 0 && r < words.size(); ++r) {
    if (words[r].name() == first.name()) continue;
    fail_between("gdpo::dist", "calls", first.name(), 0, words[r].name(), r,
                 "the same calls in the same order on all ranks");
  }
  if (failures == 0 && differs == 0) return;
  const std::vector<std::string> rank_texts = texts();
  if (failures == 0) {
    const auto [a, b] = differing_parts(rank_texts[0], rank_texts[differs]);
    fail_between(function, "settings", a, 0, b, differs, "the same settings on all ranks");
  }
  // The text of a rank begins with the name of a function. If that is the call itself, the message
  // has it before the rank.
  const std::string call = words[failed].name() + ": ", caller = std::string(function) + ": ";
  const auto ends_with_call = [&](const std::string& name) {
    return name.size() > call.size() + 1 &&
           name.substr(name.size() - call.size() - 1) == ":" + call;
  };
  std::string what = rank_texts[failed],
              prefix = ends_with_call(caller) ? caller : "gdpo::dist::" + call;
  if (const std::string name = what.substr(0, what.find(' ') + 1); ends_with_call(name))
    prefix = name, what.erase(0, name.size());
  std::string message = prefix + what;
  if (words.size() > 1) {
    message = prefix + "rank " + std::to_string(failed) + " of " + std::to_string(words.size()) +
              ": " + what;
  }
  if (failures > 1) {
    message += "; so did " + std::to_string(failures - 1) +
               (failures == 2 ? " other rank" : " other ranks");
  }
#if defined(__cpp_exceptions)
  if (words[failed].state == StatusWord::State::InvalidInput) throw invalid_input(message);
  throw std::runtime_error(message);
#else
  on_failure(message.c_str());
  std::abort();
#endif
}

/// Whether this thread is inside the work of a collective. Another collective started there would
/// read the status words of the first, from ranks whose work has thrown already.
inline bool& inside_work() {
  thread_local bool yes = false;
  return yes;
}
struct WorkGuard {
  WorkGuard() { inside_work() = true; }
  ~WorkGuard() { inside_work() = false; }
  WorkGuard(const WorkGuard&) = delete;
  WorkGuard& operator=(const WorkGuard&) = delete;
};

/// One collective: `make(contribution)` fills in what this rank sends, and every rank gets what all
/// of them sent.
///
/// Status words go first: 64 bytes from each rank. Only if they fit together the data follow, each
/// rank's filled up to the longest. If `make` throws on a rank, if ranks make different calls, have
/// different settings or other versions of the library, then all ranks throw the same error and no
/// data are sent; the ranks are in step again afterwards. A communication_error in `make` is thrown
/// at once, because the other ranks cannot be told.
template <class Comm, class Make>
Records exchange(const char* function, const Comm& comm, const Make& make) {
  static_assert(needs_communicator<Comm>());
  const int size = comm.size(), rank = comm.rank();
  if (size < 1 || rank < 0 || rank >= size) {
    contract::fail(function, "comm", "rank " + std::to_string(rank) + " of " + std::to_string(size),
                   "a communicator of at least one rank, with a rank from 0 to size() - 1");
  }
  const auto ranks = static_cast<std::size_t>(size);
  constexpr std::size_t most_text = 4096;
  if (inside_work()) {
    contract::fail(function, "call", "one within the work of another call of dist/",
                   "calls one after the other; work that calls none");
  }
  StatusWord local;
  Contribution mine;
  std::string text;
  const char* call = std::strrchr(function, ':') ? std::strrchr(function, ':') + 1 : function;
  std::strncpy(local.call, call, sizeof local.call - 1);
#if defined(__cpp_exceptions)
  try {
    const WorkGuard guard;
    make(mine);
    text = mine.settings;
  } catch (const communication_error&) {
    throw;
  } catch (const invalid_input& e) {
    local.state = StatusWord::State::InvalidInput, text = e.what();
  } catch (const std::exception& e) {
    local.state = StatusWord::State::Failed, text = e.what();
  } catch (...) {
    local.state = StatusWord::State::Failed, text = "an exception that is no std::exception";
  }
#else
  make(mine);
  text = mine.settings;
#endif
  local.settings = hash_of(mine.settings);
  text = first_bytes(text, most_text);
  local.text_bytes = text.size();
  local.record_bytes = mine.record.size();

  std::vector<StatusWord> words(ranks);
  comm.all_gather(&local, sizeof local, words.data());
  const auto longest = [&](std::uint64_t StatusWord::*bytes) {
    std::uint64_t most = 0;
    for (const StatusWord& word : words) most = (std::max)(most, word.*bytes);
    return static_cast<std::size_t>(most);
  };
  check_status(function, words, [&] {
    const std::size_t most = longest(&StatusWord::text_bytes);
    text.resize(most);
    std::vector<char> all(most * ranks);
    comm.all_gather(text.data(), most, all.data());
    std::vector<std::string> rank_texts(ranks);
    for (std::size_t r = 0; r < ranks; ++r)
      rank_texts[r].assign(all.data() + r * most, words[r].text_bytes);
    return rank_texts;
  });

  std::vector<std::size_t> sizes(ranks);
  for (std::size_t r = 0; r < ranks; ++r) sizes[r] = words[r].record_bytes;
  const std::size_t most = longest(&StatusWord::record_bytes);
  Records records(std::move(sizes), most);
  mine.record.resize(most);
  if (most > 0) comm.all_gather(mine.record.data(), most, records.data());
  return records;
}

}  // namespace detail

namespace dist {

/// Runs `work()` on this rank and tells the other ranks whether it threw. All ranks return, each
/// with its own result, or all throw.
///
///     const gdpo::LossResult r = gdpo::dist::agree(comm, [&] {
///       return loss(batch, normalizer, gradient);  // throws on the rank that has wrong shapes
///     });
///
/// Without it, a rank that refuses its input never comes to the next collective, and the others
/// wait there. Where several ranks throw, the message is that of the first. An invalid_input is
/// thrown as invalid_input everywhere, any other exception as std::runtime_error; a
/// communication_error goes straight through. One message of 64 bytes a rank. `work` must not call
/// functions of dist/ itself: that is refused. Memory that runs out later, while the data of the
/// others are received, is the one error that the others are not told of.
template <class Comm, class Work>
auto agree(const Comm& comm, Work&& work) {
  using Result = std::decay_t<decltype(work())>;
  constexpr const char* function = "gdpo::dist::agree";
  if constexpr (std::is_void_v<Result>) {
    detail::exchange(function, comm, [&](auto&) { work(); });
  } else {
    std::optional<Result> result;  // empty if work() threw, and then exchange() throws as well
    detail::exchange(function, comm, [&](auto&) { result.emplace(work()); });
    return Result(*std::move(result));
  }
}

/// Throws on all ranks unless the settings are the same on all of them: losses, estimators, lists,
/// numbers, enumerators, strings. The message shows where they first differ.
///
///     gdpo::dist::agree_on(comm, estimator, loss, learning_rate, "run 17");
///
/// Call it once before training, and after each change. The types are compared by the names that
/// the compiler gives them, so all ranks have to be built by one compiler. A struct of your own
/// lists its fields (core/fields.hpp).
template <class Comm, class... Settings>
void agree_on(const Comm& comm, const Settings&... settings) {
  static_assert(sizeof...(Settings) > 0, "agree_on takes settings after the communicator");
  detail::exchange("gdpo::dist::agree_on", comm, [&](detail::Contribution& mine) {
    ((mine.settings += (mine.settings.empty() ? "" : ", ") + detail::description(settings)), ...);
  });
}

}  // namespace dist
GDPO_END_NAMESPACE
