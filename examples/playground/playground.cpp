// What the playground asks of the library: one function, text in and text out. In a browser, where
// Emscripten compiles this file, the page calls it. On this machine it is a program that reads
// requests from standard input, each ended by a line with a full stop, and writes each answer with
// such a line behind it; a test compares the two.
#include <cstdio>
#include <cstdlib>
#include <gdpo/runtime.hpp>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>
#ifdef __EMSCRIPTEN__
#include <emscripten/emscripten.h>
#endif

namespace {

using Numbers = std::vector<double>;

/// A request: its first line, and the numbers of the others by their first word.
struct Request {
  std::string kind, line;
  std::map<std::string, Numbers> numbers;

  explicit Request(const std::string& text) {
    std::istringstream in(text);
    in >> kind;
    std::getline(in >> std::ws, line);
    for (std::string row; std::getline(in, row);) {
      std::istringstream words(row);
      std::string name;
      words >> name;
      Numbers& list = numbers[name];
      for (std::string word; words >> word;) list.push_back(number(name, word));
    }
  }

  static double number(const std::string& name, const std::string& word) {
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    if (*end) gdpo::contract::fail("playground", name, "'" + word + "'", "a number");
    return value;
  }

  /// The numbers behind that word; at least that many.
  const Numbers& at(const char* name, std::size_t least) const {
    static const Numbers none;
    const auto found = numbers.find(name);
    const Numbers& list = found == numbers.end() ? none : found->second;
    if (list.size() < least) {
      gdpo::contract::fail("playground", name, std::to_string(list.size()) + " numbers",
                           "at least " + std::to_string(least));
    }
    return list;
  }
};

void write(std::string& to, const Numbers& numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    char text[32];
    std::snprintf(text, sizeof text, i ? " %.17g" : "%.17g", numbers[i]);
    to += text;
  }
  to += '\n';
}

std::string names(const std::vector<std::string>& list) {
  std::string lines;
  for (const std::string& name : list) lines += name + '\n';
  return lines;
}

std::string advantages(const Request& request) {
  const Numbers& table = request.at("rewards", 1);
  const auto rewards = static_cast<gdpo::index_t>(table[0]);
  const auto entries = static_cast<gdpo::index_t>(table.size()) - 1;
  if (rewards < 1 || entries % rewards != 0)
    gdpo::contract::fail("playground", "rewards", std::to_string(entries) + " numbers",
                         "C, and C for each completion");
  const gdpo::View<const double, 2> view = gdpo::view(table.data() + 1, entries / rewards, rewards);
  const auto groups = gdpo::groups_of(static_cast<gdpo::index_t>(request.at("group", 1)[0]));
  Numbers tokens = request.at("tokens", 0);
  if (tokens.empty()) tokens.assign(static_cast<std::size_t>(entries / rewards), 1);
  std::string lines;
  std::visit(
      [&](auto estimator) {
        const Numbers &weights = request.at("weights", 0), &gates = request.at("gates", 0);
        if (!weights.empty()) estimator.weights = weights;
        std::vector<gdpo::Gate> list;
        for (std::size_t g = 0; g + 2 < gates.size(); g += 3)
          list.push_back(
              {static_cast<int>(gates[g]), static_cast<int>(gates[g + 1]), gates[g + 2]});
        estimator.gates = list;
        gdpo::RewardBatch batch{view, groups};
        batch.tokens = gdpo::view(tokens);
        const auto result = gdpo::advantages(gdpo::seq, batch, estimator);
        write(lines, Numbers(result.begin(), result.end()));
      },
      gdpo::runtime::configured_estimator(request.line));
  return lines;
}

std::string loss(const Request& request) {
  const double advantage = request.at("advantage", 1)[0];
  const double old_logp = -1, kl = request.at("kl", 1)[0];
  Numbers values, gradients;
  std::visit(
      [&](auto chosen) {
        // The divisor of Dr. GRPO, the longest completion: here there is one token.
        if (chosen.aggregate.constant == 0) chosen.aggregate.constant = 1;
        gdpo::LossWorkspace<double> workspace;
        for (const double log_ratio : request.at("log_ratios", 1)) {
          const double logp = old_logp + log_ratio, ref_logp = logp + kl;
          double dlogp = 0;
          gdpo::TokenBatch<double> batch;
          batch.logp = gdpo::view(&logp, 1, 1);
          batch.old_logp = batch.rollout_logp = gdpo::view(&old_logp, 1, 1);
          batch.ref_logp = batch.teacher_logp = gdpo::view(&ref_logp, 1, 1);
          batch.advantages = gdpo::view(&advantage, 1);
          gdpo::Normalizer counts = gdpo::count(batch);
          counts.given = 1;
          const auto result = chosen(gdpo::seq, batch, counts, gdpo::view(&dlogp, 1, 1), workspace);
          values.push_back(result.loss);
          gradients.push_back(dlogp);
        }
      },
      gdpo::runtime::configured_loss(request.line));
  std::string lines;
  write(lines, values), write(lines, gradients);
  return lines;
}

/// The answer to a request. A request is lines of words, the first of them one of
///
///     estimators               the names of estimators, one a line; and so "losses"
///     advantages LINE          LINE as runtime::configured_estimator reads it; then, a line each:
///       rewards C R ...        C rewards a completion, completion by completion; "nan" is missing
///       group K                K completions a prompt; more lines are optional:
///       weights W ...          one for each reward
///       gates I J T ...        for each gate: reward I counts where reward J is at least T
///       tokens T ...           the length of each completion; absent: all of 1
///     loss LINE                LINE as runtime::configured_loss reads it; then, a line each:
///       advantage A
///       kl D                   the log-prob of the reference policy, less the policy's, in nats
///       log_ratios X ...       of the policy to the one that sampled, in nats
///
/// The answer to "advantages" is a line of one advantage for each completion; that to "loss" two
/// lines, the loss of one completion of one token at each ratio and its derivative by the log-prob.
/// Numbers have 17 significant digits. What the library refuses, and a request that cannot be read,
/// is answered by "error " and the message.
std::string answer(const std::string& text) {
  try {
    const Request request(text);
    if (request.kind == "estimators") return names(gdpo::runtime::estimator_names());
    if (request.kind == "losses") return names(gdpo::runtime::loss_names());
    if (request.kind == "advantages") return advantages(request);
    if (request.kind == "loss") return loss(request);
    return "error unknown request '" + request.kind + "'";
  } catch (const std::exception& error) {
    return std::string("error ") + error.what();
  }
}

}  // namespace

#ifdef __EMSCRIPTEN__
/// The answer, valid until the next call.
extern "C" EMSCRIPTEN_KEEPALIVE const char* playground(const char* request) {
  static std::string text;
  text = answer(request);
  return text.c_str();
}
#else
int main() {
  std::string request;
  for (std::string line; std::getline(std::cin, line);) {
    if (line != ".") {
      request += line + '\n';
      continue;
    }
    std::cout << answer(request) << ".\n";
    request.clear();
  }
}
#endif
