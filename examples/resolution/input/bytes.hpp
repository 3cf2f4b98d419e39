#pragma once

#include <cstdint>
#include <istream>
#include <memory>
#include <string>
#include <string_view>

namespace resolution {

/// The text of a log, in a window that the readers move forward: a file of any size is read with
/// the memory of its longest record. Gzip is decompressed on the way. A UTF-8 byte order mark at
/// the beginning is skipped.
class Bytes {
 public:
  /// Reads the first block. `name` stands in messages; `total` is the number of bytes of the
  /// stream, 0 where it is not known. Throws UserError for a format that is not read.
  Bytes(std::istream& stream, const std::string& name, std::uint64_t total = 0);
  ~Bytes();
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  /// What has been read and not yet been consumed.
  std::string_view window() const { return {buffer_.data() + begin_, end_ - begin_}; }
  /// Makes the window longer; false at the end of the log. Earlier views of the window are invalid
  /// afterwards. Throws UserError where the stream cannot be read or the gzip data is damaged.
  bool more();
  /// Removes bytes from the front of the window.
  void consume(std::size_t bytes) { begin_ += bytes; }

  /// The name for messages, made printable.
  const std::string& name() const { return name_; }
  /// The share of the stream that has been read, 0 where its length is not known.
  double share() const {
    return total_ == 0 ? 0 : static_cast<double>(taken_) / static_cast<double>(total_);
  }

 private:
  struct Inflater;
  std::size_t read(char* to, std::size_t most);
  std::size_t read_stream(char* to, std::size_t most);

  std::istream& stream_;
  std::string name_;
  std::uint64_t total_;
  std::uint64_t taken_ = 0;
  std::unique_ptr<Inflater> inflater_;
  std::string buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace resolution
