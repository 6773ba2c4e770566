#include "eval/sweep_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kChecksumDigits = 16;

std::string checksum(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.hex().substr(0, kChecksumDigits);
}

OrderedJson to_json(const Work& work) {
  return {work.madds, work.weight_bytes, work.cache_bytes, work.unit_rows, work.policy_madds};
}

Work work_from(const OrderedJson& json) {
  return {.madds = json.at(0),
          .weight_bytes = json.at(1),
          .cache_bytes = json.at(2),
          .unit_rows = json.at(3),
          .policy_madds = json.at(4)};
}

OrderedJson to_json(const WorkBooks& books) {
  return {{"ran", to_json(books.ran)},
          {"dense", to_json(books.dense)},
          {"output_madds", books.dense_output_madds}};
}

WorkBooks books_from(const OrderedJson& json) {
  return {work_from(json.at("ran")), work_from(json.at("dense")), json.at("output_madds")};
}

OrderedJson to_json(const ItemResult& item) {
  OrderedJson out = OrderedJson::object();
  for (const TextScore& score : item.scores) out["scores"].push_back({score.logprob, score.greedy});
  out["predicted"] = {item.predicted, item.predicted_norm, item.predicted_token};
  out["text"] = item.text;
  for (const Judgement& one : item.judgements) out["judgements"].push_back({one.name, one.answer, one.score});
  return out;
}

ItemResult item_from(const OrderedJson& json) {
  ItemResult item;
  for (const OrderedJson& score : json.value("scores", OrderedJson::array()))
    item.scores.push_back({score.at(0).get<double>(), score.at(1).get<bool>()});
  item.predicted = json.at("predicted").at(0);
  item.predicted_norm = json.at("predicted").at(1);
  item.predicted_token = json.at("predicted").at(2);
  item.text = json.at("text");
  for (const OrderedJson& one : json.value("judgements", OrderedJson::array()))
    item.judgements.push_back(
        {one.at(0).get<std::string>(), one.at(1).get<std::string>(), one.at(2).get<double>()});
  return item;
}

SweepChunk chunk_from(const OrderedJson& json) {
  SweepChunk chunk;
  for (const OrderedJson& item : json.at("items")) chunk.items.push_back(item_from(item));
  chunk.books = books_from(json.at("books"));
  chunk.seconds = json.at("seconds");
  return chunk;
}

std::string text_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

SweepCache::SweepCache(const std::string& folder) : folder_(folder), path_(folder + "/items.jsonl") {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd_ < 0) fail_to_write(errno);
  struct stat info {};
  if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) fail("{}: expected a plain file", printable(path_));
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0)
    fail("{}: another sweep is writing to this folder", printable(folder));
  read();
}

SweepCache::~SweepCache() {
  if (fd_ >= 0) ::close(fd_);
}

void SweepCache::read() {
  const std::string text = read_text_file(path_);
  int64_t damaged = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // torn
    damaged += !take(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    size_ = static_cast<int64_t>(begin);
  }
  if (size_ < static_cast<int64_t>(text.size()) && ftruncate(fd_, size_) != 0) fail_to_write(errno);
  if (damaged > 0)
    log_warn(
        fmt::format("{}: {} lines are damaged; what they held is computed again", printable(path_), damaged));
}

// false: it is not what was written.
bool SweepCache::take(std::string_view line) {
  if (line.size() <= kChecksumDigits || line[kChecksumDigits] != ' ') return false;
  const std::string_view text = line.substr(kChecksumDigits + 1);
  if (line.substr(0, kChecksumDigits) != checksum(text)) return false;
  try {
    const OrderedJson json = OrderedJson::parse(text);
    if (json.contains("what")) {
      claims_[json.at("what")] = json.at("identity");
    } else if (json.contains("items")) {
      chunks_[json.at("key")] = chunk_from(json);
    } else {
      speeds_[json.at("key")] = {books_from(json.at("books")), json.at("tokens_per_s"),
                                 json.at("dense_tokens_per_s")};
    }
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  return true;
}

void SweepCache::claim(const std::string& what, const std::string& identity) {
  const auto found = claims_.find(what);
  if (found == claims_.end()) {
    append(text_of({{"what", what}, {"identity", identity}}));
    claims_[what] = identity;
    return;
  }
  if (found->second == identity) return;
  fail("{}: what is kept there was made with another {} ({}; now {}): use a new folder, or delete {}",
       printable(folder_), printable(what), printable(found->second, 80), printable(identity, 80),
       printable(path_));
}

const SweepChunk* SweepCache::chunk(const std::string& key) const {
  const auto found = chunks_.find(key);
  return found == chunks_.end() ? nullptr : &found->second;
}

const SweepSpeed* SweepCache::speed(const std::string& key) const {
  const auto found = speeds_.find(key);
  return found == speeds_.end() ? nullptr : &found->second;
}

const SweepChunk& SweepCache::add(const std::string& key, SweepChunk chunk) {
  OrderedJson json{{"key", key}, {"items", OrderedJson::array()}};
  for (const ItemResult& item : chunk.items) json["items"].push_back(to_json(item));
  json["books"] = to_json(chunk.books);
  json["seconds"] = chunk.seconds;
  append(text_of(json));
  return chunks_[key] = std::move(chunk);
}

const SweepSpeed& SweepCache::add(const std::string& key, const SweepSpeed& speed) {
  append(text_of({{"key", key},
                  {"books", to_json(speed.books)},
                  {"tokens_per_s", speed.tokens_per_s},
                  {"dense_tokens_per_s", speed.dense_tokens_per_s}}));
  return speeds_[key] = speed;
}

void SweepCache::append(const std::string& json) {
  const std::string line = checksum(json) + " " + json + "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t put = ::write(fd_, line.data() + done, line.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int error = errno;
      if (ftruncate(fd_, size_) != 0) log_warn("what was written of the last line stays until the next run");
      fail_to_write(error);
    }
    done += static_cast<size_t>(put);
  }
  size_ += static_cast<int64_t>(line.size());
  const auto now = std::chrono::steady_clock::now();
  if (now - synced_ < std::chrono::seconds(1)) return;
  if (fdatasync(fd_) != 0) fail_to_write(errno);
  synced_ = now;
}

void SweepCache::fail_to_write(int error) const {
  fail("cannot write {}: {}{}", printable(path_), std::strerror(error),
       size_ > 0 ? "; what was done before is kept: the same command goes on from there" : "");
}

}  // namespace fathom
