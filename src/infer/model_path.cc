#include "infer/model_path.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/format.h"
#include "base/mapped_file.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostRefBytes = 4096;  // of a file that names a commit

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// `builtin`: FATHOM_MODELS; beside the build folder; where `make install` puts it.
ModelFiles find_builtin() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<fs::path> places;
  if (const std::string models = environment("FATHOM_MODELS"); !models.empty()) {
    const fs::path file = fs::path(models) / "builtin" / "builtin.gguf";
    if (!is_there(file))
      fail("FATHOM_MODELS names {}, where there is no builtin/builtin.gguf", printable(models));
    return {file, ""};
  }
  places.push_back(program.parent_path() / "models");
  places.push_back(program.parent_path() / "share" / "fathom" / "models");
  std::string looked;
  for (const fs::path& place : places) {
    const fs::path file = place / "builtin" / "builtin.gguf";
    if (is_there(file)) return {file, ""};
    looked += (looked.empty() ? "" : ", ") + place.string();
  }
  fail("the builtin model was not found in {}; FATHOM_MODELS may name its folder", printable(looked, 600));
}

bool is_repository_name(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == name.size() ||
      name.find('/', slash + 1) != std::string::npos)
    return false;
  for (char c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '/' && c != '-' && c != '_' && c != '.')
      return false;
  }
  return name.front() != '.' && name[slash + 1] != '.';
}

// The rule of the huggingface_hub package.
fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string value = environment(name); !value.empty()) return value;
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  const std::string cache = environment("XDG_CACHE_HOME");
  const fs::path base = cache.empty() ? fs::path(environment("HOME")) / ".cache" : fs::path(cache);
  return base / "huggingface" / "hub";
}

// The commit that refs/main names, or the only one there is.
fs::path snapshot_of(const fs::path& repository) {
  const fs::path ref = repository / "refs" / "main";
  if (std::error_code error; fs::is_regular_file(ref, error)) {
    std::string commit = read_text_file(ref.string(), kMostRefBytes);
    commit.resize(std::min(commit.find('\n'), commit.size()));
    for (char c : commit) {
      if (!std::isalnum(static_cast<unsigned char>(c))) commit.clear();
      if (commit.empty()) break;
    }
    if (!commit.empty() && is_there(repository / "snapshots" / commit))
      return repository / "snapshots" / commit;
  }
  std::vector<fs::path> snapshots;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", error))
    snapshots.push_back(entry.path());
  if (snapshots.size() == 1) return snapshots.front();
  fail("{}: refs/main names no snapshot that is there, and there are {} of them",
       printable(repository.string()), snapshots.size());
}

// A repository of GGUF files is a model when it holds one of them.
fs::path model_in(const fs::path& snapshot) {
  if (is_there(snapshot / "config.json")) return snapshot;
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(snapshot, error)) {
    if (entry.path().extension() == ".gguf") files.push_back(entry.path());
  }
  if (files.size() == 1) return files.front();
  if (files.size() > 1)
    fail("{} holds {} GGUF files: name one of them", printable(snapshot.string()), files.size());
  return snapshot;
}

ModelFiles find_in_hub_cache(const std::string& name) {
  const fs::path cache = hub_cache();
  const size_t slash = name.find('/');
  const fs::path repository = cache / ("models--" + name.substr(0, slash) + "--" + name.substr(slash + 1));
  if (!is_there(repository)) {
    fail(
        "{} is no file or folder here, and not in the Hugging Face cache {}; to fetch it there: hf download "
        "{}",
        name, printable(cache.string()), name);
  }
  return {model_in(snapshot_of(repository)), ""};
}

}  // namespace

ModelFiles find_model(const std::string& name) {
  if (name == "builtin") return find_builtin();
  if (is_there(name)) {
    const fs::path vocabulary = fs::path(name).parent_path() / "tokenizer.bin";
    return {name, name.ends_with(".bin") && is_there(vocabulary) ? vocabulary.string() : ""};
  }
  if (is_repository_name(name)) return find_in_hub_cache(name);
  fail("no such file or folder: {}", printable(name));
}

std::string own_method_place(const std::string& model) {
  std::error_code error;
  return fs::is_directory(model, error) ? fs::path(model) / "skip"
                                        : fs::path(model).replace_extension(".skip");
}

std::string own_method(const std::string& model) {
  std::error_code error;
  const std::string place = own_method_place(model);
  return fs::is_directory(place, error) ? place : "";
}

}  // namespace fathom
