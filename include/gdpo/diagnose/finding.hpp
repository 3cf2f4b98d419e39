#pragma once
// Finding: one suspicious measurement, and its usual cause.
#include <gdpo/core/config.hpp>
#include <string>
#include <vector>

GDPO_BEGIN_NAMESPACE

/// Something about a step that usually means a mistake: what was measured, and the usual cause.
struct Finding {
  std::string name;     ///< What it is, one of the names in gdpo/diagnose.hpp; they never change.
  std::string subject;  ///< The input or the reward that it is about; empty: the whole batch.
  double figure = 0;    ///< What was measured.
  double bound = 0;     ///< The threshold that the figure has crossed.
  std::string text;     ///< A sentence with the figure.
  std::string cause;    ///< The usual cause, in one sentence.
};

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
