// The parameters of a case. Every parameter must be read: one that a mapping does not know, or a
// value that it does not know, makes the case unsupported.
#pragma once

#include <gdpo/loss.hpp>
#include <initializer_list>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "golden.hpp"

namespace conformance {

// Thrown where the runner cannot say what the library should do; what() is the reason.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Params {
 public:
  explicit Params(const Json& values, std::string where = "parameter ")
      : values_(values), where_(std::move(where)) {}

  bool has(const std::string& name) const;  // present and not null, which stands for "off"

  // The value of a parameter. Throws Unsupported if it is missing or of another type.
  double number(const std::string& name);
  int integer(const std::string& name);
  std::string text(const std::string& name);
  bool is_text(const std::string& name) const;  // present and a string
  bool flag(const std::string& name);
  std::vector<double> numbers(const std::string& name);
  Params object(const std::string& name);

  // A bound of a number: +-infinity (off) where the parameter is null or absent.
  double at_most(const std::string& name);
  double at_least(const std::string& name);
  // [lo, hi] with null for a bound that is off; null or absent: both are off.
  gdpo::Bounds interval(const std::string& name);

  // One of the values that a mapping knows. In the second form the parameter may be absent.
  std::string choice(const std::string& name, std::initializer_list<const char*> known);
  std::string choice(const std::string& name, std::initializer_list<const char*> known,
                     const char* absent);

  // The value must equal this one.
  template <class T>
  void fixed(const std::string& name, const T& value) {
    if (read(name) != Json(value)) refuse(name);
  }

  // A parameter that describes the recorded function and carries no setting; it may be absent.
  void remark(const std::string& name);

  // Settings that have no effect under the others of this case; they may be absent.
  void without_effect(std::initializer_list<const char*> names);

  // A number or [lo, hi] from the trainer's code, not its configuration: it must equal the
  // preset's.
  void of_preset(const std::string& name, double preset);
  void of_preset(const std::string& name, gdpo::Bounds preset);

  // Throws Unsupported if a parameter that is not off was never read.
  void all_read() const;

 private:
  const Json& read(const std::string& name);
  [[noreturn]] void refuse(const std::string& name) const;

  const Json& values_;
  std::string where_;
  std::set<std::string> read_;
};

// Throws Unsupported if the record has an input that a mapping does not read.
void only(const Json& inputs, std::initializer_list<const char*> known);

}  // namespace conformance
