#include "fuzz/call.hpp"

#include "fuzz/trial.hpp"

namespace fuzz {
namespace {

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> together;
    for (const auto* part :
         {&group_cases(), &array_cases(), &token_cases(), &logit_cases(), &row_cases(),
          &update_cases(), &value_cases(), &rollout_cases(), &outcome_cases(), &state_cases()})
      together.insert(together.end(), part->begin(), part->end());
    return together;
  }();
  return all;
}

}  // namespace

Outcome call(const unsigned char* bytes, std::size_t size) {
  Input in(bytes, size);
  const Case& chosen =
      cases()[static_cast<std::size_t>(in.below(static_cast<int>(cases().size())))];
  in.choose_mood();
  Trial trial(in);
  trial.outcome.function = chosen.function;
  chosen.make(trial);
  return trial.outcome;
}

const std::vector<const char*>& functions() {
  static const std::vector<const char*> names = [] {
    std::vector<const char*> all;
    for (const Case& c : cases()) all.push_back(c.function);
    return all;
  }();
  return names;
}

std::string digits_of(const unsigned char* bytes, std::size_t size) {
  std::string digits;
  for (std::size_t i = 0; i < size; ++i) {
    digits += "0123456789abcdef"[bytes[i] >> 4];
    digits += "0123456789abcdef"[bytes[i] & 15];
  }
  return digits;
}

}  // namespace fuzz
