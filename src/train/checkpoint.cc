#include "train/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/format.h"
#include "base/log.h"
#include "io/atomic_folder.h"
#include "train/checkpoint_folder.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 2> kLinks{"last", "best"};

std::string name_of_step(int64_t step) {
  return kCheckpointPrefix + std::to_string(step);
}

std::vector<CheckpointPlace> all_checkpoints(const std::string& dir) {  // newest first
  std::vector<CheckpointPlace> places;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const int64_t step = checkpoint_step(entry.path().filename().string());
    if (step >= 0 && entry.is_directory(error)) places.push_back({step, entry.path().string(), {}});
  }
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return places;
}

void point(const std::string& dir, const char* link, int64_t step) {
  const std::string path = dir + "/" + link, fresh = fmt::format("{}.tmp-{}", path, getpid());
  std::error_code error;
  if (fs::is_symlink(fresh, error)) fs::remove(fresh, error);
  if (fs::exists(path, error) && !fs::is_symlink(path, error))
    fail("cannot write {}: it exists and is not a link", printable(path));
  if (::symlink(name_of_step(step).c_str(), fresh.c_str()) != 0 ||
      std::rename(fresh.c_str(), path.c_str()) != 0)
    fail("cannot write {}: {}", printable(path), std::strerror(errno));
  sync_folder(dir);
}

// The one of `fresh`, which was just written, is whole.
void keep_newest(const std::string& dir, int64_t fresh, const KeptCheckpoints& rule) {
  if (rule.newest <= 0) return;
  const std::vector<CheckpointPlace> places = all_checkpoints(dir);
  if (static_cast<int64_t>(places.size()) <= rule.newest) return;
  int64_t kept = 0;
  for (const CheckpointPlace& place : places) {
    if (kept >= rule.newest) {
      if (place.step != fresh && place.step != rule.best) remove_checkpoint(place.path);
    } else if (place.step == fresh || checkpoint_state(place.path, place.step).damage.empty()) {
      ++kept;
    }
  }
}

// A folder with our mark, gone at the end.
class Workplace {
 public:
  explicit Workplace(const std::string& place) {
    for (int attempt = 0;; ++attempt) {
      path_ = fmt::format("{}.tmp-{}", place, getpid());
      if (attempt > 0) path_ += fmt::format("-{}", attempt);
      if (::mkdir(path_.c_str(), 0777) == 0) break;
      if (errno != EEXIST || attempt > kAttempts)
        fail("cannot create the folder {}: {}", printable(path_), std::strerror(errno));
    }
    write_mark(path_);
  }
  ~Workplace() { remove_marked(path_); }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  std::string files() const { return path_ + "/files"; }

 private:
  static constexpr int kAttempts = 100;
  std::string path_;
};

void write_files(const CheckpointPlace& place, const std::function<void(const std::string&)>& fill) {
  const Workplace work(place.path);
  fill(work.files());
  write_mark(work.files());
  write_done(work.files(), place.step);
  sync_folder(work.files());
  std::error_code error;
  if (fs::exists(fs::symlink_status(place.path, error))) remove_checkpoint(place.path);
  if (std::rename(work.files().c_str(), place.path.c_str()) != 0)
    fail("cannot write {}: {}", printable(place.path), std::strerror(errno));
}

// A link that point() did not come to rename.
bool is_half_link(const fs::path& path) {
  std::error_code error;
  const std::string name = path.filename().string();
  const bool named = std::any_of(kLinks.begin(), kLinks.end(), [&](const char* link) {
    return name.starts_with(link + std::string(".tmp-"));
  });
  return named && fs::is_symlink(path, error) && checkpoint_step(fs::read_symlink(path, error).string()) >= 0;
}

}  // namespace

bool CheckpointPlace::has(const std::string& name) const {
  return std::find(files.begin(), files.end(), name) != files.end();
}

CheckpointPlace write_checkpoint(const std::string& dir, int64_t step, const KeptCheckpoints& kept,
                                 const std::function<void(const std::string& folder)>& fill) {
  const CheckpointPlace place{step, dir + "/" + name_of_step(step), {}};
  std::error_code error;
  if (kept.again || !fs::exists(place.path, error) || !checkpoint_state(place.path, step).damage.empty()) {
    fs::create_directories(dir, error);
    if (error) fail("cannot create the folder {}: {}", printable(dir), error.message());
    write_files(place, fill);
    sync_folder(dir);
  }
  point(dir, "last", step);
  if (kept.best >= 0 && fs::exists(dir + "/" + name_of_step(kept.best), error)) point(dir, "best", kept.best);
  keep_newest(dir, step, kept);
  return place;
}

std::optional<CheckpointPlace> newest_checkpoint(const std::string& dir) {
  for (CheckpointPlace& place : all_checkpoints(dir)) {
    CheckpointState state = checkpoint_state(place.path, place.step);
    place.files = std::move(state.files);
    if (state.damage.empty()) return place;
    log_warn(fmt::format("{} is passed over: {}", place.path, state.damage));
  }
  return std::nullopt;
}

CheckpointPlace find_checkpoint(const std::string& path) {
  const std::string plain = fs::path(path).filename().empty() ? fs::path(path).parent_path().string() : path;
  const int64_t step = checkpoint_step(fs::path(plain).filename().string());
  if (step >= 0) {
    CheckpointState state = checkpoint_state(plain, step);
    if (!state.damage.empty()) fail("{} is no checkpoint to go on from: {}", printable(plain), state.damage);
    return {step, plain, std::move(state.files)};
  }
  if (const auto place = newest_checkpoint(plain)) return *place;
  fail("{}: expected a folder with checkpoints (step-N), it has none that is whole", printable(path));
}

void check_run_folder(const std::string& dir, int64_t step) {
  std::error_code error;
  for (const char* link : kLinks) {
    const std::string path = dir + "/" + link;
    if (fs::exists(path, error) && !fs::is_symlink(path, error))
      fail("{} is in the way: expected a link to a checkpoint, or nothing; move it, or use another folder",
           printable(path));
  }
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string path = entry.path().string();
    const int64_t of = checkpoint_step(entry.path().filename().string());
    if (of <= step) continue;
    const bool marked = is_marked(path);
    const std::string foreign = marked ? foreign_file(path) : "";
    if (marked && (foreign.empty() || checkpoint_state(path, of).damage.empty())) continue;
    fail("{} is in the way: {}; move it, or use another folder", printable(path),
         marked ? "it holds " + printable(foreign) + ", which is no part of the checkpoint"
                : "it is no checkpoint of ours");
  }
}

namespace {

// A name that Workplace gives: step-N.tmp-PID, or step-N.tmp-PID-ATTEMPT.
bool is_workplace_name(const std::string& name) {
  const size_t suffix = name.find(".tmp-");
  if (suffix == std::string::npos || checkpoint_step(name.substr(0, suffix)) < 0) return false;
  return name.find_first_not_of("0123456789-", suffix + 5) == std::string::npos;
}

}  // namespace

void remove_leftovers(const std::string& dir) {
  std::error_code error;
  std::vector<fs::path> folders, links;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    const size_t suffix = name.find(".tmp-");
    if (suffix != std::string::npos && checkpoint_step(name.substr(0, suffix)) >= 0)
      folders.push_back(entry.path());
    else if (is_half_link(entry.path()))
      links.push_back(entry.path());
  }
  for (const fs::path& path : folders) {
    remove_marked(path.string());
    // A kill between making the folder and its mark, or between removing them, leaves it empty.
    if (is_workplace_name(path.filename().string())) ::rmdir(path.c_str());
  }
  for (const fs::path& path : links) fs::remove(path, error);
}

}  // namespace fathom
