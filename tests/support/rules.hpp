// The oracle's rules (reference/naive.hpp) as the library's: what a missing reward, a group of one,
// the penalty, weights and gates mean.
#pragma once
#include <gdpo/advantages.hpp>
#include <reference/naive.hpp>
#include <vector>

namespace product {

/// Gives an estimator the rules of the oracle's settings.
template <class Estimator>
void set_rules(Estimator& e, const naive::Settings& from) {
  e.missing.entry = from.entry == naive::Entry::Skip   ? gdpo::MissingEntry::Skip
                    : from.entry == naive::Entry::Zero ? gdpo::MissingEntry::Zero
                                                       : gdpo::MissingEntry::Propagate;
  e.missing.row = from.row == naive::Row::Keep              ? gdpo::MissingRow::Keep
                  : from.row == naive::Row::ExcludeUnscored ? gdpo::MissingRow::ExcludeUnscored
                                                            : gdpo::MissingRow::Exclude;
  e.singleton = from.singleton == naive::Singleton::Raw       ? gdpo::Singleton::Raw
                : from.singleton == naive::Singleton::Nan     ? gdpo::Singleton::Nan
                : from.singleton == naive::Singleton::Exclude ? gdpo::Singleton::Exclude
                                                              : gdpo::Singleton::Zero;
  e.reward_clip = {from.reward_low, from.reward_high};
  e.clip = {from.low, from.high};
  e.penalty = {from.penalty_coef, from.penalty_reward};
  e.weights = from.weights;
  std::vector<gdpo::Gate> gates;
  for (const naive::Gate& gate : from.gates)
    gates.push_back({gate.reward, gate.given, gate.at_least});
  e.gates = gates;
}

}  // namespace product
