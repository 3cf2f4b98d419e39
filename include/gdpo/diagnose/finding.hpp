#pragma once
#include <gdpo/core/config.hpp>
#include <string>
#include <vector>

namespace gdpo {

/// Something about a step that usually means a mistake: what was measured, and the usual cause.
struct Finding {
  // Written out so that they are inlined, as those of GroupReport: this is plain data outside the
  // inline namespace.
  /// Nothing found yet.
  GDPO_DATA_HOST_INLINE Finding() = default;
  GDPO_DATA_HOST_INLINE Finding(const Finding&) = default;             ///< A copy.
  GDPO_DATA_HOST_INLINE Finding(Finding&&) = default;                  ///< A move.
  GDPO_DATA_HOST_INLINE Finding& operator=(const Finding&) = default;  ///< A copy.
  GDPO_DATA_HOST_INLINE Finding& operator=(Finding&&) = default;       ///< A move.
  GDPO_DATA_HOST_INLINE ~Finding() = default;

  std::string name;     ///< What it is, one of the names in gdpo/diagnose.hpp; they never change.
  std::string subject;  ///< The input or the reward that it is about; empty: the whole batch.
  double figure = 0;    ///< What was measured.
  double bound = 0;     ///< The threshold that the figure has crossed.
  std::string text;     ///< A sentence with the figure.
  std::string cause;    ///< The usual cause, in one sentence.
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// The findings as text, one line for each; "" where there is none.
///
///     NAME SUBJECT: TEXT Usual cause: CAUSE
GDPO_COLD inline std::string to_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& f : findings) {
    text += f.name;
    if (!f.subject.empty()) text += " " + f.subject;
    text += ": " + f.text + " Usual cause: " + f.cause + "\n";
  }
  return text;
}

GDPO_END_NAMESPACE
