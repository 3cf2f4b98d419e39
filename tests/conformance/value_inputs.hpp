// The arrays of tokens of a case, and how they lie in memory.
#pragma once

#include <algorithm>
#include <gdpo/value.hpp>
#include <gdpo/with/thread_pool.hpp>
#include <string>
#include <vector>

#include "comparison.hpp"
#include "golden.hpp"
#include "loss.hpp"
#include "params.hpp"

namespace conformance {

using gdpo::index_t;

inline std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

inline gdpo::ThreadPool& threads() {
  static gdpo::ThreadPool pool(3);
  return pool;
}

// The token arrays of a case, padded to (rows, width). An empty vector is an array that the record
// does not have.
struct Inputs {
  index_t rows = 0, width = 0;
  std::vector<double> rewards, values, logp, ref_logp, old_values, returns;
  std::vector<double> row_rewards, baselines;
  std::vector<double> bootstrap;
  std::vector<double> of_rows;  // rewards of rows that stand for each of their tokens
  std::vector<unsigned char> mask;
  std::vector<index_t> lengths;  // positions of each row, if the record cuts rows

  std::size_t size() const { return at(rows * width); }
};

inline std::vector<double> token_array(const Case& recorded, const char* name, Inputs& in) {
  if (!recorded.inputs.contains(name)) return {};
  Array array = array_of(recorded.inputs.at(name));
  if (array.shape.size() != 2) throw BadGolden(std::string(name) + " must be rows x T");
  in.rows = static_cast<index_t>(array.shape[0]), in.width = static_cast<index_t>(array.shape[1]);
  return array.data;
}

inline Inputs inputs_of(const Case& recorded) {
  only(recorded.inputs,
       {"token_level_rewards", "values", "logp", "ref_logp", "kl", "rewards", "response_mask",
        "response_lengths", "group_ids", "vpreds", "returns", "truncated", "reward_baselines"});
  Inputs in;
  in.rewards = token_array(recorded, "token_level_rewards", in);
  in.returns = token_array(recorded, "returns", in);
  // A value loss is given the new values as vpreds; its values are those of the rollout.
  (recorded.kind == "loss" ? in.old_values : in.values) = token_array(recorded, "values", in);
  if (recorded.kind == "loss") in.values = token_array(recorded, "vpreds", in);
  in.logp = token_array(recorded, "logp", in);
  in.ref_logp = token_array(recorded, "ref_logp", in);
  const std::vector<double> mask = token_array(recorded, "response_mask", in);
  for (const double m : mask) in.mask.push_back(m != 0);
  if (mask.empty()) in.mask.assign(in.size(), 1);
  if (recorded.inputs.contains("kl")) {  // the estimate itself: K1 of it and 0 gives it back
    in.logp = token_array(recorded, "kl", in);
    in.ref_logp.assign(in.size(), 0);
  }
  if (recorded.inputs.contains("rewards"))
    in.row_rewards = array_of(recorded.inputs.at("rewards")).data;
  if (recorded.inputs.contains("reward_baselines"))
    in.baselines = array_of(recorded.inputs.at("reward_baselines")).data;
  if (recorded.inputs.contains("response_lengths")) {
    for (const long long n : integers_of(recorded.inputs.at("response_lengths")))
      in.lengths.push_back(static_cast<index_t>(n));
  }
  return in;
}

// Where the tokens of a layout stand in the padded arrays. Packed rows have the recorded lengths,
// or else end at their last valid token.
struct Layout {
  std::vector<index_t> offsets;    // packed: rows + 1; padded: empty
  std::vector<std::size_t> place;  // of each token

  Layout(const Inputs& in, bool packed) {
    if (packed) offsets.push_back(0);
    for (index_t i = 0; i < in.rows; ++i) {
      index_t length = in.width;
      if (packed && !in.lengths.empty()) {
        length = in.lengths[at(i)];
      } else if (packed) {
        while (length > 0 && in.mask[at(i * in.width + length - 1)] == 0) --length;
      }
      for (index_t t = 0; t < length; ++t) place.push_back(at(i * in.width + t));
      if (packed) offsets.push_back(static_cast<index_t>(place.size()));
    }
  }
  template <class S, class T>
  std::vector<S> of(const std::vector<T>& padded) const {
    std::vector<S> tokens;
    for (std::size_t k = 0; k < place.size() && !padded.empty(); ++k)
      tokens.push_back(static_cast<S>(padded[place[k]]));
    return tokens;
  }
  template <class S>
  std::vector<double> padded(const Inputs& in, const std::vector<S>& tokens) const {
    std::vector<double> all(in.size(), 0.0);
    for (std::size_t k = 0; k < place.size(); ++k) all[place[k]] = static_cast<double>(tokens[k]);
    return all;
  }
  // A view of tokens of this layout; absent if there are none.
  template <class View, class T>
  View view(const Inputs& in, T& tokens) const {
    if (tokens.empty() && !place.empty()) return {};
    if (offsets.empty()) return gdpo::view(tokens.data(), in.rows, in.width);
    return gdpo::view(tokens);
  }
};

// The arrays of a case in a batch of S, whose members refer to this object.
template <class S>
struct BoundTokens {
  std::vector<S> rewards, values, logp, ref_logp, baselines, of_rows;
  std::vector<unsigned char> mask;
  gdpo::ReturnBatch<S> batch;

  BoundTokens(const Inputs& in, const Layout& layout)
      : rewards(layout.of<S>(in.rewards)),
        values(layout.of<S>(in.values)),
        logp(layout.of<S>(in.logp)),
        ref_logp(layout.of<S>(in.ref_logp)),
        baselines(in.baselines.begin(), in.baselines.end()),
        of_rows(in.of_rows.begin(), in.of_rows.end()),
        mask(layout.of<unsigned char>(in.mask)) {
    const auto tokens = [&](const auto& x) { return layout.view<gdpo::TokenView<S>>(in, x); };
    batch.rewards = tokens(rewards), batch.values = tokens(values);
    batch.logp = tokens(logp), batch.ref_logp = tokens(ref_logp);
    batch.mask = layout.view<gdpo::TokenView<unsigned char>>(in, mask);
    if (!layout.offsets.empty()) batch.offsets = gdpo::view(layout.offsets);
    if (!of_rows.empty()) batch.rewards = gdpo::repeated(gdpo::view(of_rows));
    if (!in.bootstrap.empty()) batch.bootstrap = gdpo::view(in.bootstrap);
    if (!baselines.empty()) batch.values = gdpo::repeated(gdpo::view(baselines));
  }
  BoundTokens(const BoundTokens&) = delete;
  BoundTokens& operator=(const BoundTokens&) = delete;
};

struct TokenOutputs {
  std::vector<double> advantages, returns;
};

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return gdpo::math::bits_of(x) == gdpo::math::bits_of(y);
  });
}

// Compares what run(packed) gives with the record, and padded with packed where both hold the same.
template <class Run>
void compare_tokens(const Case& recorded, const Inputs& in, Comparison& comparison,
                    const Run& run) {
  const TokenOutputs out = run(true);
  if (in.lengths.empty()) {
    const TokenOutputs padded = run(false);
    comparison.law(same_bits(padded.advantages, out.advantages), "other advantages padded");
    comparison.law(same_bits(padded.returns, out.returns), "other returns padded");
  }
  const auto compare = [&](const char* name, const std::vector<double>& values) {
    if (recorded.expected.contains(name))
      comparison.output(name, Array{{at(in.rows), at(in.width)}, values}, in.mask);
  };
  compare("advantages", out.advantages);
  compare("returns", out.returns);
}

}  // namespace conformance
