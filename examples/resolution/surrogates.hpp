#pragma once

#include <string>
#include <utility>
#include <vector>

#include "surrogate_words.hpp"

namespace resolution {

/// One token under a loss: a row of one token, without KL terms, not divided by any count.
struct SurrogatePoint {
  double value = 0;       ///< surrogate times detached factors
  double derivative = 0;  ///< of the value by the token's logp
  bool inside = true;     ///< neither the clip metrics nor the map hold the token
};

/// What a loss gives for one sign of the advantage, at the points of its axis.
struct SurrogateCurve {
  double advantage = 1;
  std::vector<double> value;
  std::vector<double> derivative;
  /// The parts of the axis that are inside of all bounds. Empty where there are no bounds, or none
  /// that has an effect.
  std::vector<std::pair<double, double>> inside;
};

/// Losses that treat the ratio alike: the same surrogate, factors and map with the same settings.
struct LossShape {
  std::vector<std::string> parts;         ///< their types: "surrogate::Reinforce", "factor::..."
  std::vector<std::string> settings;      ///< what is not off: "low 0.2"
  bool has_settings = false;              ///< on or off
  std::vector<std::string> names;         ///< of the losses, in the library's order
  const SurrogateWords* words = nullptr;  ///< of what sets it apart; null: nobody has written any
  bool log_axis = false;                  ///< x is log r, else r
  std::vector<double> x;                  ///< evenly spaced
  SurrogateCurve positive, negative;      ///< A = 1 and A = -1
  /// The first loss of the shape whose picture shows this one: its own, unless a shape before it
  /// has the same parts with the same settings on, or looks the same.
  std::string picture;

  bool is_pictured() const { return picture == names.front(); }
  std::string settings_text() const;  ///< "low 0.2, high 0.2", "no bounds" or "no settings"
  std::string parts_text() const;     ///< "surrogate::Reinforce x factor::ClippedRatio"
  std::string title() const;          ///< that of its words, else its parts
};

/// The losses of the library, by shape. Shapes of the same parts stand together, in the order of
/// `surrogate_words`.
struct Surrogates {
  std::vector<LossShape> shapes;
};
Surrogates all_surrogates();

/// The loss of that name for a token with this advantage and log ratio. old_logp is 0.
SurrogatePoint surrogate_point(const std::string& loss, double advantage, double log_ratio);

/// Every surrogate, factor and map (but those named None, and Clamp) that a name of the library can
/// stand for.
std::vector<std::string> surrogate_types();
/// The losses by name, but those of KL terms alone, which have no surrogate.
std::vector<std::string> losses_with_surrogate();

}  // namespace resolution
