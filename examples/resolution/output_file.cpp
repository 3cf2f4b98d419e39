#include "output_file.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "errors.hpp"

namespace resolution {
namespace {

bool write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  return static_cast<bool>(file);
}

}  // namespace

void write_whole_file(const std::string& path, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  if (fs::is_directory(there)) throw UserError(path + ": is a directory, cannot be written");
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    if (!write(path, text)) throw UserError(path + ": cannot be written");
    return;
  }
  const std::string temporary = path + ".part" + std::to_string(getpid());
  if (write(temporary, text)) {
    fs::rename(temporary, path, error);
    if (!error) return;
  }
  fs::remove(temporary, error);
  throw UserError(path + ": cannot be written");
}

}  // namespace resolution
