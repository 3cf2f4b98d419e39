#pragma once
// Settings of an operator from one line of text: SETTING=VALUE, separated by blanks.
#include <gdpo/runtime.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {
namespace detail {

/// Reads the settings of a struct with fields (core/fields.hpp) from a line. `read` is called as
/// read(name, text, member) for those of the line.
/// Errors: `invalid_input` for a setting that there is not, with a list of those that there are.
template <class T, class Read>
void read_settings(const char* function, std::string_view line, T& x, const Read& read) {
  while (!line.empty()) {
    const std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix((std::min)(word.size() + 1, line.size()));
    if (word.empty()) continue;
    const std::string name(word.substr(0, word.find('=')));
    const std::string_view text = word.substr((std::min)(name.size() + 1, word.size()));
    bool known = false;
    std::string names;
    runtime::detail::for_each_setting(x, [&](const std::string& setting, auto& member) {
      names += (names.empty() ? "" : ", ") + setting;
      if (name != setting) return;
      known = true;
      read(name, text, member);
    });
    if (!known) contract::fail(function, "settings", "'" + name + "'", "one of " + names);
  }
}

}  // namespace detail
}  // namespace torch_stable
GDPO_END_NAMESPACE
