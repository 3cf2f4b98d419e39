#include "bytes.hpp"

#include <algorithm>
#include <cstring>

#include "../errors.hpp"
#include "../words.hpp"
#include "formats.hpp"

#ifdef GDPO_HAS_ZLIB
#include <zlib.h>
#endif

namespace resolution {
namespace {

constexpr std::size_t block = std::size_t{1} << 18U;

}  // namespace

#ifdef GDPO_HAS_ZLIB
/// Decompresses gzip data, of one member or several behind each other, as gzip does.
struct Bytes::Inflater {
  explicit Inflater(std::string file) : name(std::move(file)) {
    if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) throw UserError(name + ": zlib has no memory");
  }
  ~Inflater() { inflateEnd(&z); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// Decompresses up to `most` bytes; `refill(to, most)` reads compressed ones.
  template <class Refill>
  std::size_t read(char* to, std::size_t most, const Refill& refill) {
    z.next_out = reinterpret_cast<Bytef*>(to);
    z.avail_out = static_cast<uInt>(most);
    while (z.avail_out > 0) {
      if (z.avail_in == 0) {
        z.next_in = reinterpret_cast<Bytef*>(input);
        z.avail_in = static_cast<uInt>(refill(input, sizeof input));
        if (z.avail_in == 0) {
          if (!between_members) throw UserError(name + ": the gzip data ends too early");
          break;
        }
      }
      if (between_members) {
        // What follows a member is padding with zeros, or another member.
        if (*z.next_in == 0) {
          ++z.next_in;
          --z.avail_in;
          continue;
        }
        if (*z.next_in != 0x1F) throw UserError(name + ": the gzip data is damaged");
        inflateReset(&z);
        between_members = false;
      }
      const int result = inflate(&z, Z_NO_FLUSH);
      if (result != Z_OK && result != Z_STREAM_END)
        throw UserError(name + ": the gzip data is damaged");
      between_members = result == Z_STREAM_END;
    }
    return most - z.avail_out;
  }

  z_stream z{};
  std::string name;
  char input[block];
  bool between_members = false;
};
#else
struct Bytes::Inflater {};
#endif

Bytes::Bytes(std::istream& stream, const std::string& name, std::uint64_t total)
    : stream_(stream), name_(printable(name)), total_(total) {
  more();
  refuse_other_formats(window(), name);
#ifdef GDPO_HAS_ZLIB
  if (is_gzip(window())) {
    inflater_ = std::make_unique<Inflater>(name_);
    std::memcpy(inflater_->input, buffer_.data(), end_);
    inflater_->z.next_in = reinterpret_cast<Bytef*>(inflater_->input);
    inflater_->z.avail_in = static_cast<uInt>(end_);
    end_ = 0;
    more();
    if (is_gzip(window())) throw UserError(name_ + ": this is gzip inside gzip; run zcat first");
    refuse_other_formats(window(), name);
  }
#endif
  if (window().substr(0, 3) == "\xEF\xBB\xBF") consume(3);
}

Bytes::~Bytes() = default;

bool Bytes::more() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  // A record that does not fit doubles the window, so that a long one is moved few times.
  if (buffer_.size() < end_ + block) buffer_.resize(std::max(end_ + block, 2 * end_));
  const std::size_t got = read(buffer_.data() + end_, buffer_.size() - end_);
  end_ += got;
  return got > 0;
}

std::size_t Bytes::read(char* to, std::size_t most) {
#ifdef GDPO_HAS_ZLIB
  if (inflater_) {
    return inflater_->read(
        to, most, [this](char* raw, std::size_t bytes) { return read_stream(raw, bytes); });
  }
#endif
  return read_stream(to, most);
}

std::size_t Bytes::read_stream(char* to, std::size_t most) {
  stream_.read(to, static_cast<std::streamsize>(most));
  if (stream_.bad()) throw UserError(name_ + ": cannot be read to its end");
  const auto got = static_cast<std::size_t>(stream_.gcount());
  taken_ += got;
  return got;
}

}  // namespace resolution
