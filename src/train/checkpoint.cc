#include "train/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "train/crc32c.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kDone = "DONE";
constexpr std::string_view kPrefix = "step-";

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

// N of "step-N"; -1: another name.
int64_t step_of(const std::string& name) {
  if (name.rfind(kPrefix, 0) != 0) return -1;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? step : -1;
}

Json sum_of(const std::string& path) {
  const auto file = MappedFile::open(path);
  return {{"bytes", file->bytes().size()}, {"crc32c", crc32c(file->bytes())}};
}

// Every file, less what may change afterwards: a calibration is added to the method's config.
Json sums_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (entry.is_regular_file() && name != kDone && entry.path().filename() != "adapter_config.json")
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  Json sums = Json::object();
  for (const std::string& name : names) sums[name] = sum_of(folder + "/" + name);
  return sums;
}

// "" when whole, else what is wrong with it.
std::string damage(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder + "/" + kDone, error)) return "it was not finished";
  try {
    const Json done = Json::parse(read_text_file(folder + "/" + kDone, size_t{1} << 20), nullptr, false);
    if (!done.is_object() || !done.contains("files") || !done["files"].is_object())
      return "its DONE cannot be read";
    for (const auto& [name, sum] : done["files"].items()) {
      if (name.empty() || name.find("..") != std::string::npos || name.front() == '/')
        return "its DONE names a file outside";
      if (!fs::exists(folder + "/" + name, error)) return name + " is missing";
      if (sum_of(folder + "/" + name) != sum) return name + " is not as it was written";
    }
  } catch (const UserError& problem) {
    return problem.what();
  }
  return "";
}

std::vector<CheckpointPlace> all_checkpoints(const std::string& dir) {  // newest first
  std::vector<CheckpointPlace> places;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const int64_t step = step_of(entry.path().filename().string());
    if (step >= 0 && entry.is_directory()) places.push_back({step, entry.path().string()});
  }
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return places;
}

// A crash while it goes leaves something that is no checkpoint.
void remove_checkpoint(const std::string& folder) {
  std::error_code ignored;
  fs::remove(folder + "/" + kDone, ignored);
  fs::remove_all(folder, ignored);
}

void point_last(const std::string& dir, const std::string& name) {
  const std::string link = dir + "/last", fresh = fmt::format("{}.tmp-{}", link, getpid());
  std::error_code ignored;
  fs::remove(fresh, ignored);
  if (::symlink(name.c_str(), fresh.c_str()) != 0 || std::rename(fresh.c_str(), link.c_str()) != 0)
    fail("cannot write {}: {}", printable(link), std::strerror(errno));
  sync_folder(dir);
}

void keep_newest(const std::string& dir, int64_t keep) {
  if (keep <= 0) return;
  int64_t kept = 0;
  std::error_code error;
  for (const CheckpointPlace& place : all_checkpoints(dir)) {
    if (!fs::exists(place.path + "/" + kDone, error)) continue;
    if (++kept > keep) remove_checkpoint(place.path);
  }
}

struct Temporary {
  std::string path;
  ~Temporary() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

}  // namespace

CheckpointPlace write_checkpoint(const std::string& dir, int64_t step, int64_t keep,
                                 const std::function<void(const std::string& folder)>& fill) {
  const std::string name = std::string(kPrefix) + std::to_string(step);
  const CheckpointPlace place{step, dir + "/" + name};
  std::error_code error;
  if (!fs::exists(place.path, error) || !damage(place.path).empty()) {
    fs::create_directories(dir, error);
    if (error) fail("cannot create the folder {}: {}", printable(dir), error.message());
    const Temporary fresh{fmt::format("{}/{}.tmp-{}", dir, name, getpid())};
    fs::remove_all(fresh.path, error);
    fill(fresh.path);
    const Json done{{"step", step}, {"files", sums_of(fresh.path)}};
    sync_folder(fresh.path);
    if (fs::exists(place.path, error)) remove_checkpoint(place.path);
    if (std::rename(fresh.path.c_str(), place.path.c_str()) != 0)
      fail("cannot write {}: {}", printable(place.path), std::strerror(errno));
    sync_folder(dir);
    write_file_atomically(place.path + "/" + kDone, done.dump(1) + "\n");
  }
  point_last(dir, name);
  keep_newest(dir, keep);
  return place;
}

std::optional<CheckpointPlace> newest_checkpoint(const std::string& dir) {
  for (const CheckpointPlace& place : all_checkpoints(dir)) {
    const std::string why = damage(place.path);
    if (why.empty()) return place;
    log_warn(fmt::format("{} is passed over: {}", place.path, why));
  }
  return std::nullopt;
}

CheckpointPlace find_checkpoint(const std::string& path) {
  const std::string plain = fs::path(path).filename().empty() ? fs::path(path).parent_path().string() : path;
  const int64_t step = step_of(fs::path(plain).filename().string());
  if (step >= 0) {
    const std::string why = damage(plain);
    if (!why.empty()) fail("{} is no checkpoint to go on from: {}", printable(plain), why);
    return {step, plain};
  }
  if (const auto place = newest_checkpoint(plain)) return *place;
  fail("{}: expected a folder with checkpoints (step-N), it has none that is whole", printable(path));
}

void remove_leftovers(const std::string& dir) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kPrefix, 0) == 0 && name.find(".tmp-") != std::string::npos)
      leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

}  // namespace fathom
