#pragma once
// What an unknown name may have meant: the known names that are near to it.
#include <algorithm>
#include <gdpo/core/config.hpp>
#include <string>
#include <string_view>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace contract {

namespace detail {
/// A name as it is compared: letters are small, and "-", "." and ":" are "_".
inline std::string compared(std::string_view name) {
  std::string text(name);
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-' || c == '.' || c == ':') c = '_';
  }
  return text;
}
/// What stands behind the last dot or colon of a name.
inline std::string_view end_of(std::string_view name) {
  const std::size_t place = name.find_last_of(".:");
  return place == std::string_view::npos ? name : name.substr(place + 1);
}
/// How many letters have to be put in, left out, replaced or swapped with the next one to make `b`
/// of `a` (the optimal string alignment distance).
inline std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(last), last.swap(row), row.assign(b.size() + 1, i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = (std::min)({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = (std::min)(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}
/// The nearest known names, by the whole of them or by `end` of them: those with the fewest
/// changes, at most one for every four letters, and among them those of the nearest length.
inline std::vector<std::string> nearest(std::string_view name,
                                        const std::vector<std::string>& known, bool end) {
  const auto part = [end](std::string_view x) { return compared(end ? end_of(x) : x); };
  const std::string given = part(name);
  std::vector<std::string> found;
  std::size_t least = 0;
  for (const std::string& each : known) {
    const std::string other = part(each);
    const std::size_t longer = (std::max)(given.size(), other.size()),
                      longer_by = longer - (std::min)(given.size(), other.size()),
                      most = longer < 3 ? 0 : (longer + 2) / 4;
    if (longer_by > most) continue;  // so much has to be put in or left out
    const std::size_t changes = distance(given, other);
    if (changes > most) continue;
    const std::size_t cost = changes * 1024 + longer_by;
    if (!found.empty() && cost > least) continue;
    if (cost < least) found.clear();
    least = cost, found.push_back(each);
  }
  return found;
}
}  // namespace detail

/// The known names that an unknown one may have meant, three at most: those that differ from it in
/// a few letters, else those with the same end, behind a dot or colon, else those whose ends differ
/// from its end in a few letters.
GDPO_COLD inline std::vector<std::string> near_names(std::string_view name,
                                                     const std::vector<std::string>& known) {
  if (name.empty()) return {};
  std::vector<std::string> found = detail::nearest(name, known, false);
  if (found.empty()) {
    for (const std::string& each : known)
      if (detail::end_of(each) == detail::end_of(name)) found.push_back(each);
  }
  if (found.empty()) found = detail::nearest(name, known, true);
  if (found.size() > 3) found.resize(3);
  return found;
}

/// The end of a message that lists the known names: '; did you mean "dapo"?', or nothing.
GDPO_COLD inline std::string did_you_mean(std::string_view name,
                                          const std::vector<std::string>& known) {
  std::string words;
  for (const std::string& each : near_names(name, known))
    words += (words.empty() ? "; did you mean \"" : "\" or \"") + each;
  return words.empty() ? words : words + "\"?";
}

}  // namespace contract
GDPO_END_NAMESPACE
