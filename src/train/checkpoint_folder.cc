#include "train/checkpoint_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "train/crc32c.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char *kDone = "DONE", *kMark = ".fathom-checkpoint";
constexpr const char* kStateFile = "state.json";  // no checkpoint is without it
constexpr size_t kMostDoneBytes = size_t{1} << 20;

OrderedJson sum_of(const std::string& path) {
  const auto file = MappedFile::open(path);
  return {{"bytes", file->bytes().size()}, {"crc32c", crc32c(file->bytes())}};
}

// A calibration is added to the method's config afterwards.
bool may_change(const fs::path& name) {
  return name == kDone || name == kMark || name.filename() == "adapter_config.json";
}

// Names of all files in it, in order.
std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!fs::is_directory(entry->symlink_status(error)))  // a link to a folder is a file
      names.push_back(entry->path().lexically_relative(folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// What DONE lists, or null where it is no list of a checkpoint of this step.
OrderedJson listed_files(const std::string& folder, int64_t step) {
  const std::string text = read_text_file(folder + "/" + kDone, kMostDoneBytes);
  check_json_depth(text, kDone);
  const OrderedJson done = OrderedJson::parse(text, nullptr, false);
  if (!done.is_object() || !done.contains("files") || !done["files"].is_object()) return nullptr;
  if (!done.contains("step") || done["step"] != step || !done["files"].contains(kStateFile)) return nullptr;
  if (done.contains("crc32c") && done["crc32c"] != crc32c(done["files"].dump())) return nullptr;
  return done["files"];
}

std::string damage_of(const std::string& folder, int64_t step, std::vector<std::string>& files) {
  std::error_code error;
  if (!fs::exists(folder + "/" + kDone, error)) return "it was not finished";
  const OrderedJson listed = listed_files(folder, step);
  if (!listed.is_object()) return "its DONE is not as it was written";
  for (const auto& [name, sum] : listed.items()) {
    if (name.empty() || name.find("..") != std::string::npos || name.front() == '/')
      return "its DONE names a file outside";
    if (!fs::exists(folder + "/" + name, error)) return printable(name) + " is missing";
    if (sum_of(folder + "/" + name) != sum) return printable(name) + " is not as it was written";
    files.push_back(name);
  }
  return "";
}

// Checkpoints from before there was a mark have a list of their files.
bool has_list(const std::string& folder) {
  try {
    return listed_files(folder, checkpoint_step(fs::path(folder).filename().string())).is_object();
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace

int64_t checkpoint_step(const std::string& name) {
  const std::string_view prefix = kCheckpointPrefix;
  if (!name.starts_with(prefix)) return -1;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? step : -1;
}

void write_mark(const std::string& folder) {
  // That it is there is what counts, at once: no temporary name, no waiting for the disk.
  const std::string path = folder + "/" + kMark;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0) fail("cannot write {}: {}", printable(path), std::strerror(errno));
  ::close(fd);
}

bool is_marked(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(folder, error))) return false;
  return fs::is_regular_file(folder + "/" + kMark, error) || has_list(folder);
}

void write_done(const std::string& folder, int64_t step) {
  OrderedJson sums = OrderedJson::object();
  for (const std::string& name : files_of(folder)) {
    if (!may_change(name)) sums[name] = sum_of(folder + "/" + name);
  }
  const OrderedJson done{{"step", step}, {"crc32c", crc32c(sums.dump())}, {"files", sums}};
  write_file_atomically(folder + "/" + kDone, done.dump(1) + "\n");
}

CheckpointState checkpoint_state(const std::string& folder, int64_t step) {
  CheckpointState state;
  try {
    state.damage = damage_of(folder, step, state.files);
  } catch (const UserError& problem) {
    state.damage = problem.what();
  }
  return state;
}

std::string foreign_file(const std::string& folder) {
  std::set<std::string, std::less<>> known;
  try {
    const OrderedJson listed = listed_files(folder, checkpoint_step(fs::path(folder).filename().string()));
    for (const auto& [name, sum] : listed.items()) known.insert(name);
  } catch (const UserError&) {
    return "";  // without a list, none can be told from ours
  }
  if (known.empty()) return "";
  for (const std::string& name : files_of(folder)) {
    if (!may_change(name) && !known.contains(name)) return name;
  }
  return "";
}

void remove_checkpoint(const std::string& folder) {
  if (!is_marked(folder)) return log_warn(fmt::format("{} stays: it is no checkpoint of ours", folder));
  if (const std::string foreign = foreign_file(folder); !foreign.empty())
    return log_warn(fmt::format("{} stays: it holds {}, which is no part of it", folder, foreign));
  std::error_code error;
  if (!fs::exists(folder + "/" + kMark, error)) write_mark(folder);
  std::string away = fmt::format("{}.tmp-{}", folder, getpid());
  for (int again = 1; fs::exists(fs::symlink_status(away, error)); ++again)
    away = fmt::format("{}.tmp-{}-{}", folder, getpid(), again);
  fs::rename(folder, away, error);
  if (!error) remove_marked(away);
}

void remove_marked(const std::string& folder) {
  std::error_code error;
  if (!is_marked(folder)) return;
  std::vector<fs::path> inside;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename() != kMark) inside.push_back(entry.path());
  }
  for (const fs::path& path : inside) fs::remove_all(path, error);
  fs::remove_all(folder, error);  // the mark goes last
}

}  // namespace fathom
