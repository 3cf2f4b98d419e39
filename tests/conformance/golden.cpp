#include "golden.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>

namespace conformance {
namespace {

namespace fs = std::filesystem;

double number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  throw BadGolden("not a number: " + value.dump());
}

void append(const Json& value, std::size_t depth, Array& out) {
  if (!value.is_array()) {
    if (depth != out.shape.size()) throw BadGolden("a list whose entries have different shapes");
    out.data.push_back(number_of(value));
    return;
  }
  if (depth == out.shape.size() || value.size() != out.shape[depth]) {
    throw BadGolden("a list whose entries have different shapes");
  }
  for (const Json& entry : value) append(entry, depth + 1, out);
}

bool is_reference(const std::string& text) {
  return text.size() > 1 && text[0] == '#' &&
         std::all_of(text.begin() + 1, text.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Replaces every "#3" by texts[3].
void resolve(Json& value, const Json& texts) {
  if (value.is_structured()) {
    for (Json& entry : value) resolve(entry, texts);
  } else if (value.is_string() && is_reference(value.get_ref<const std::string&>())) {
    value = texts.at(std::stoul(value.get_ref<const std::string&>().substr(1)));
  }
}

// "ms_swift" and "4.6.0" are "ms-swift 4.6.0".
std::string name_of_release(std::string source, const std::string& release) {
  std::replace(source.begin(), source.end(), '_', '-');
  return source + ' ' + release;
}

// The numbers of a release; none if it is named otherwise, such as by a commit.
std::vector<int> numbers_of_release(const std::string& release) {
  const bool numbers = std::all_of(release.begin(), release.end(), [](unsigned char c) {
    return std::isdigit(c) != 0 || c == '.';
  });
  std::vector<int> out;
  std::istringstream parts(numbers ? release : "");
  for (std::string part; std::getline(parts, part, '.');) out.push_back(std::stoi(part));
  return out;
}

Case read_case(const Json& record, const std::string& source, const std::string& version,
               const Json& texts) {
  Case c{source,
         version,
         record.at("kind"),
         record.at("function"),
         record.at("name"),
         record.at("params"),
         record.at("inputs"),
         record.at("expected"),
         record.at("tol").at(0),
         record.at("tol").at(1),
         record.value("precision", "float64") == "float32-internal",
         record.value("ill_conditioned", false)};
  resolve(c.params, texts);
  if (!c.params.is_object() || !c.inputs.is_object() || !c.expected.is_object()) {
    throw BadGolden("params, inputs and expected must be objects");
  }
  return c;
}

void read_file(const fs::path& path, bool& is_golden, std::vector<Case>& out) {
  std::ifstream stream(path);
  if (!stream) throw BadGolden(path.string() + ": cannot be opened");
  std::string at;
  try {
    const Json file = Json::parse(stream);
    if (!file.is_object() || !file.contains("cases")) return;
    is_golden = true;
    const std::string source = file.at("source");
    const std::string release = file.value("version", "");
    const std::string version =
        release.empty() ? file.value("repo", "") + '@' + file.value("commit", "").substr(0, 8)
                        : name_of_release(source, release);
    const Json texts = file.value("texts", Json::array());
    for (const Json& record : file.at("cases")) {
      at = record.is_object() ? record.value("name", "a case without a name")
                              : "a case that is not an object";
      out.push_back(read_case(record, source, version, texts));
      out.back().file = path.stem().string();
      out.back().release = numbers_of_release(release);
    }
  } catch (const std::exception& error) {
    throw BadGolden(path.string() + (at.empty() ? "" : ", " + at) + ": " + error.what());
  }
}

}  // namespace

bool since(const Case& recorded, const std::vector<int>& release) {
  return recorded.release >= release;
}

Array array_of(const Json& value) {
  Array out;
  for (const Json* at = &value; at->is_array(); at = &at->front()) {
    out.shape.push_back(at->size());
    if (at->empty()) break;
  }
  append(value, 0, out);
  return out;
}

std::vector<long long> integers_of(const Json& value) {
  if (!value.is_array()) throw BadGolden("not a list of integers");
  std::vector<long long> out;
  out.reserve(value.size());
  for (const Json& entry : value) {
    if (!entry.is_number_integer()) throw BadGolden("not an integer: " + entry.dump());
    out.push_back(entry.get<long long>());
  }
  return out;
}

std::vector<Case> read_directory(const fs::path& directory) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".json") paths.push_back(it->path());
  }
  if (error) throw BadGolden(directory.string() + ": " + error.message());
  std::sort(paths.begin(), paths.end());

  std::vector<Case> cases;
  bool is_golden = false;
  for (const fs::path& path : paths) read_file(path, is_golden, cases);
  if (!is_golden)
    throw BadGolden(directory.string() +
                    ": no golden file (a *.json with \"cases\") in this directory");
  return cases;
}

}  // namespace conformance
