#include "train/event_file.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/format.h"
#include "train/crc32c.h"

namespace fathom {
namespace {

template <class T>
std::string raw(T value) {  // little-endian, as this machine has it (checked in token_shard.cc)
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}

// Protobuf's wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
std::string key(uint64_t field, uint64_t wire) {
  return varint(field << 3 | wire);
}
std::string message(uint64_t field, const std::string& content) {
  return key(field, 2) + varint(content.size()) + content;
}

std::string event(double wall_time, int64_t step) {
  const std::string time = key(1, 1) + raw(wall_time);
  return step == 0 ? time : time + key(2, 0) + varint(static_cast<uint64_t>(step));  // 0 is not written
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string tfrecord(const std::string& data) {
  const std::string length = raw(static_cast<uint64_t>(data.size()));
  return length + raw(masked_crc32c(length)) + data + raw(masked_crc32c(data));
}

std::string version_event(double wall_time) {
  return event(wall_time, 0) + message(3, "brain.Event:2");
}

std::string start_event(double wall_time, int64_t step) {
  return event(wall_time, step) + message(7, key(1, 0) + varint(1));  // SessionLog { status: START }
}

std::string scalars_event(double wall_time, int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += message(1, message(1, tag) + key(2, 5) + raw(static_cast<float>(value)));
  return event(wall_time, step) + message(5, summary);
}

EventFile::EventFile(const std::string& dir, int64_t step) : file_(nullptr) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  path_ = fmt::format("{}/events.out.tfevents.{:.0f}.{}.{}", dir, now(), host, getpid());
  for (int again = 1; std::filesystem::exists(path_, error); ++again)
    path_ = fmt::format("{}/events.out.tfevents.{:.0f}.{}.{}.{}", dir, now(), host, getpid(), again);
  file_ = std::fopen(path_.c_str(), "wbe");
  if (!file_) fail("cannot write {}: {}", printable(path_), std::strerror(errno));
  put(version_event(now()));
  put(start_event(now(), step));
}

EventFile::~EventFile() {
  std::fclose(file_);
}

void EventFile::put(const std::string& text) {
  const std::string record = tfrecord(text);
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size() || std::fflush(file_) != 0)
    fail("cannot write {}: {}", printable(path_), std::strerror(errno));
}

void EventFile::write(int64_t step, const Scalars& scalars) {
  put(scalars_event(now(), step, scalars));
}

}  // namespace fathom
