#include "against.hpp"

#include <dlfcn.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace gates {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& why) { throw std::runtime_error("--against: " + why); }

std::string read(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

/// Runs a command, whose output goes to stderr, and returns whether it succeeded.
bool succeeds(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t process;
  const int error =
      posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  return error == 0 && waitpid(process, &status, 0) == process && status == 0;
}

/// Compiles the figures of these files of `sources` with the library in `tree`, and loads their
/// experiments.
std::vector<TreeExperiment> load(const fs::path& tree, const fs::path& sources,
                                 const std::vector<std::string>& files, const std::string& only,
                                 const std::string& build) {
  std::string list;
  for (const std::string& file : files) list += (list.empty() ? "" : ";") + file;
  const Recipe recipe = gates::recipe();
  const std::string folder = recipe.folder + ("/" + build);
  std::fprintf(stderr, "compiling %s for %s\n", sources.c_str(), tree.c_str());
  if (!succeeds({recipe.cmake, "-S", sources / "tree", "-B", folder, "--log-level=NOTICE", "-G",
                 recipe.generator, "-C", recipe.settings,
                 "-DCMAKE_CXX_FLAGS=" + std::string(gates::build().flags),
                 "-DGDPO_INCLUDE=" + (tree / "include").string(), "-DGDPO_FILES=" + list}) ||
      !succeeds({recipe.cmake, "--build", folder})) {
    fail(sources.string() + " does not compile with " + (tree / "include").string() +
         "; the messages are above");
  }
  std::vector<TreeExperiment> experiments;
  for (const std::string& file : files) {
    // It stays loaded, because its experiments are code of it.
    void* const library = dlopen((folder + "/" + file + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    void* const function = library ? dlsym(library, "gdpo_tree") : nullptr;
    if (!function) fail(dlerror());
    reinterpret_cast<Tree*>(function)(only, experiments);
  }
  return experiments;
}

/// The experiment or contender with this name, or null.
template <class T>
const T* find(const std::vector<T>& list, const std::string& name) {
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const T& entry) { return entry.name == name; });
  return found == list.end() ? nullptr : &*found;
}
/// The names of both lists, each once.
template <class T>
std::vector<std::string> names(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<std::string> all;
  for (const T& entry : a) all.push_back(entry.name);
  for (const T& entry : b) {
    if (!find(a, entry.name)) all.push_back(entry.name);
  }
  return all;
}
std::vector<TreeContender> contenders(const std::vector<TreeExperiment>& tree,
                                      const std::string& experiment) {
  const TreeExperiment* const found = find(tree, experiment);
  return found ? found->set_up() : std::vector<TreeContender>();
}

/// Adds a contender of a tree, or says why it cannot be measured. `missing`: why it is null.
void add(Bench& bench, const std::string& name, const TreeContender* contender,
         const std::string& missing) {
  if (!contender) return bench.absent(name, missing);
  if (!contender->absent.empty()) return bench.absent(name, contender->absent);
  bench.add(name, contender->work, contender->run, [=] { return contender->wrong; });
}

}  // namespace

Against::Against(const std::string& folder, const std::vector<Figures>& selected,
                 const std::string& only) {
  const fs::path here = recipe().tree, gates = fs::path("bench") / "gates",
                 interface = gates / "tree" / "tree.hpp",
                 library = fs::path("include/gdpo/gdpo.hpp");
  if (!fs::exists(folder / library)) {
    fail("\"" + folder + "\" is no checkout of the library: a folder with " + library.string() +
         " is needed");
  }
  if (!fs::exists(here / interface))
    fail("this program needs the tree that it was compiled from, and it is not in " +
         here.string());
  const fs::path there = fs::canonical(folder);
  const bool own = read(there / interface) == read(here / interface);
  folder_ = there.string();
  sources_ = own ? (there / gates).string() : (here / gates).string();

  std::vector<std::string> files, files_there;
  for (const Figures& figures : selected) {
    // The other figures of a program are numbers: memory, accuracy.
    if (!figures.experiments[0].rows[0].under.empty()) files.push_back(figures.file);
  }
  if (files.empty()) fail("none of the figures that --only selects is a time");
  for (const std::string& file : files) {
    if (fs::exists(fs::path(sources_) / (file + ".cpp"))) files_there.push_back(file);
  }
  there_ = load(there, sources_, files_there, only,
                "there-" + std::to_string(std::hash<std::string>()(folder_)));
  here_ = load(here, here / gates, files, only, "here");
}

void Against::run(Report& report, double margin) const {
  // Every array gets pages of its own, so that it begins at the same place of a page, and of a line
  // of the cache, in both trees. Otherwise one of them is faster by chance, by up to a tenth.
  mallopt(M_MMAP_THRESHOLD, 512);
  bool any = false;
  for (const std::string& experiment : names(here_, there_)) {
    const std::vector<TreeContender> here = contenders(here_, experiment),
                                     there = contenders(there_, experiment);
    const std::vector<std::string> both = names(here, there);
    std::vector<Row> rows;
    for (const std::string& name : both)
      rows.push_back({name, at_least(1 - margin), name + " there", name + " here", 1, true});
    report.run({experiment, rows, [&](Bench& bench) {
                  for (const std::string& name : both) {
                    const TreeContender *ours = find(here, name), *theirs = find(there, name);
                    add(bench, name + " here", ours, "this tree has no such contender");
                    add(bench, name + " there", theirs, folder_ + " has no such contender");
                    any = any || (ours && theirs);
                  }
                }});
  }
  if (!any) fail("no contender is in both trees, so nothing can be compared");
}

nlohmann::ordered_json Against::setting() const {
  return {{"here", recipe().tree}, {"there", folder_}, {"sources_there", sources_}};
}

}  // namespace gates
