#include "checkpoint.hpp"

#include <fstream>
#include <gdpo/with/nlohmann_json.hpp>
#include <iterator>

#include "../resolution/errors.hpp"
#include "../resolution/output_file.hpp"
#include "hex.hpp"

namespace constrained {
namespace {

using Json = nlohmann::json;

constexpr const char* first_words = "gdpo constrained checkpoint 1 ";

}  // namespace

// The file has two lines: a heading with the checksum of the second line, then JSON. The JSON
// library writes a double with as many digits as it needs to be read back bit for bit.
void write_checkpoint(const std::string& path, const Settings& settings,
                      const Training::State& state) {
  const Rows& logits = state.policy.logits;
  const std::string json = Json{
      {"seed", settings.seed},
      {"steps", settings.steps},
      {"learning_rate", settings.learning_rate},
      {"kp", settings.gains.kp},
      {"ki", settings.gains.ki},
      {"hinge", settings.signal == gdpo::Signal::Hinge},
      {"steps_done", state.steps_done},
      {"logits", std::vector<double>(logits.data(), logits.data() + logits.size())},
      {"pid", state.pid}}.dump();
  resolution::write_files(
      {{path, first_words + hex(checksum(json.data(), json.size())) + "\n" + json + "\n"}});
}

std::pair<Settings, Training::State> read_checkpoint(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw resolution::UserError(path + ": cannot be opened");
  std::string head, json;
  std::getline(file, head);
  std::getline(file, json);
  if (head.rfind(first_words, 0) != 0)
    throw resolution::UserError(path + ": no checkpoint of this program");
  if (head != first_words + hex(checksum(json.data(), json.size()))) {
    throw resolution::UserError(path +
                                ": a checkpoint that was cut or altered: its checksum differs");
  }
  const Json read = Json::parse(json);
  Settings settings;
  read.at("seed").get_to(settings.seed);
  read.at("steps").get_to(settings.steps);
  read.at("learning_rate").get_to(settings.learning_rate);
  read.at("kp").get_to(settings.gains.kp);
  read.at("ki").get_to(settings.gains.ki);
  settings.signal = read.at("hinge").get<bool>() ? gdpo::Signal::Hinge : gdpo::Signal::Linear;
  const auto logits = read.at("logits").get<std::vector<double>>();
  Policy policy{Eigen::Map<const Rows>(logits.data(), Bandit::contexts, Bandit::items)};
  return {settings, {read.at("steps_done"), policy, read.at("pid")}};
}

}  // namespace constrained
