#include "skip/measurements.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "io/atomic_file.h"
#include "skip/fingerprint.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kVersion = 1;
constexpr const char* kFormat = "fathom-measurements";

// The rows that a measurement runs, and those whose output it looks at.
void add(Context& ctx, const Batch& batch, Sha256& hash) {
  std::vector<BatchRow> room;
  for (const BatchRow& row : rows_on_host(ctx, batch, room))
    hash.add(fmt::format("{} {} {},", row.token, row.position, row.sequence));
  const RowSet& wanted = batch.logit_rows;
  hash.add(wanted.is_all() ? std::string("all;") : wanted.is_none() ? "none;" : "some;");
  if (wanted.is_all() || wanted.is_none()) return;
  int32_t count = 0;
  copy_to_host(ctx, wanted.count(), std::span(&count, 1));
  std::vector<int32_t> ids(static_cast<size_t>(wanted.ids().numel()));
  copy_to_host(ctx, wanted.ids(), ids);
  hash.add(std::as_bytes(std::span(ids).first(static_cast<size_t>(count))));
}

std::map<std::string, std::vector<double>> read(const std::string& path, const std::string& key) {
  std::map<std::string, std::vector<double>> all;
  if (!std::filesystem::exists(path)) return all;
  try {
    const std::string text = read_text_file(path);
    check_json_depth(text, path);
    const OrderedJson json = OrderedJson::parse(text);
    if (json.at("format") != kFormat || json.at("version") != kVersion || json.at("key") != key) return all;
    for (const auto& [name, list] : json.at("values").items()) {
      std::vector<double>& values = all[name];
      for (const OrderedJson& value : list) values.push_back(value.is_null() ? NAN : value.get<double>());
    }
    return all;
  } catch (const std::exception&) {  // what it holds can be had again
    log_warn(fmt::format("{}: damaged; what it kept is measured again", printable(path)));
    return {};
  }
}

}  // namespace

void Measurements::open() {
  Sha256 hash;
  hash.add(fmt::format("{} {};", kVersion, identity_of(ctx_, model_)));
  for (const Batch& batch : batches_) {
    add(ctx_, batch, hash);
    rows_ += batch.rows();
  }
  key_ = hash.hex().substr(0, 16);
  path_ = folder_ + "/measured-" + key_ + ".json";
  values_ = read(path_, key_);
}

void Measurements::write() {
  OrderedJson values = OrderedJson::object();
  for (const auto& [name, list] : values_) values[name] = list;
  const OrderedJson json{
      {"format", kFormat}, {"version", kVersion}, {"key", key_}, {"tokens", rows_}, {"values", values}};
  try {
    std::filesystem::create_directories(folder_);
    write_file_atomically(path_, json.dump() + "\n");
  } catch (const std::exception& error) {  // nothing is lost but the time of the next measurement
    if (!warned_) log_warn(fmt::format("what was measured is not kept: {}", error.what()));
    warned_ = true;
  }
}

std::vector<double> Measurements::get(const std::string& name, size_t count,
                                      const std::function<std::vector<double>()>& measure) {
  if (key_.empty()) open();
  const auto kept = values_.find(name);
  if (kept != values_.end() && kept->second.size() == count) return kept->second;
  if (!measured_) log_info(fmt::format("measuring which units matter least on {} tokens", rows_));
  measured_ = true;
  std::vector<double>& values = values_[name] = measure();
  write();
  return values;
}

std::vector<double> kept_or_measured(Measurements* kept, const std::string& name, size_t count,
                                     const std::function<std::vector<double>()>& measure) {
  return kept ? kept->get(name, count, measure) : measure();
}

}  // namespace fathom
