// A sweep's results on disk, written chunk by chunk. A process that dies loses its current chunk only.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include "eval/evaluate.h"

namespace fathom {

// Items that ran together. Their work cannot be told apart, so that they are kept together.
struct SweepChunk {
  std::vector<ItemResult> items;
  WorkBooks books;
  double seconds = 0;
};

// Tokens fed one at a time to one sequence, in turns with the dense model.
struct SweepSpeed {
  WorkBooks books;
  double tokens_per_s = 0, dense_tokens_per_s = 0;
};

// FOLDER/items.jsonl. Every line is a checksum and a JSON object, added at the end; what a crash
// or a full disk left of the last one is cut off when the file is opened again, and lines that are damaged
// are as if they had never been there.
class SweepCache {
 public:
  // A file that another process is writing to is a UserError.
  explicit SweepCache(const std::string& folder);
  ~SweepCache();
  SweepCache(const SweepCache&) = delete;
  SweepCache& operator=(const SweepCache&) = delete;

  // What is kept here belongs to this `identity` of `what` ("model", "task arc_challenge"): another one than
  // last time is a UserError.
  void claim(const std::string& what, const std::string& identity);

  const SweepChunk* chunk(const std::string& key) const;  // null: not there
  const SweepSpeed* speed(const std::string& key) const;
  const SweepChunk& add(const std::string& key, SweepChunk chunk);
  const SweepSpeed& add(const std::string& key, const SweepSpeed& speed);

 private:
  void read();
  bool take(std::string_view line);
  void append(const std::string& json);
  [[noreturn]] void fail_to_write(int error) const;

  std::string folder_, path_;
  int fd_ = -1;
  int64_t size_ = 0;  // of whole lines
  std::chrono::steady_clock::time_point synced_;
  std::map<std::string, std::string> claims_;
  std::map<std::string, SweepChunk> chunks_;
  std::map<std::string, SweepSpeed> speeds_;
};

}  // namespace fathom
