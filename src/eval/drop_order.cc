#include "eval/drop_order.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "eval/sweep_identity.h"
#include "io/atomic_file.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kRowsOfAPass = 512;
constexpr int64_t kVersion = 1;
constexpr const char* kFormat = "fathom-drop-order";

int64_t rows_of_a_pass(const Model& model) {
  return std::min(kRowsOfAPass, model.config.context);
}

std::string search_name(const DropOrderOptions& options) {
  const std::string name(enum_names(options.search)[static_cast<size_t>(options.search)]);
  return options.search == OrderSearch::kOnce ? name : fmt::format("{} until {:g}", name, options.until);
}

std::string key_of(Context& ctx, const Model& model, std::span<const std::vector<int32_t>> sequences,
                   const DropOrderOptions& options) {
  Sha256 hash;
  hash.add(fmt::format("{} {} {} {}", kVersion, identity_of(ctx, model), search_name(options),
                       rows_of_a_pass(model)));
  for (const std::vector<int32_t>& ids : sequences)
    hash.add(fmt::format(" {} {}", ids.size(), identity_of(std::span(ids))));
  return hash.hex().substr(0, 16);
}

bool is_order(const std::vector<int32_t>& units, const Model& model) {
  std::vector<int32_t> sorted = units;
  std::sort(sorted.begin(), sorted.end());
  for (size_t unit = 0; unit < sorted.size(); ++unit) {
    if (sorted[unit] != static_cast<int32_t>(unit)) return false;
  }
  return static_cast<int64_t>(units.size()) == 2 * model.config.layers;
}

// Empty: the file has none for this key.
std::vector<int32_t> read(const std::string& path, const std::string& key, const Model& model) {
  if (!std::filesystem::exists(path)) return {};
  try {
    const OrderedJson json = OrderedJson::parse(read_text_file(path));
    if (json.at("format") != kFormat || json.at("version") != kVersion || json.at("key") != key) return {};
    const auto units = json.at("units").get<std::vector<int32_t>>();
    if (is_order(units, model)) return units;
  } catch (const nlohmann::json::exception&) {
  }
  log_warn(fmt::format("{}: damaged; the order of units is measured again", printable(path)));
  return {};
}

void write(const std::string& path, const std::string& key, size_t tokens, const DropOrderOptions& options,
           const std::vector<int32_t>& units) {
  const OrderedJson json{{"format", kFormat},
                         {"version", kVersion},
                         {"key", key},
                         {"tokens", tokens},
                         {"search", search_name(options)},
                         {"units", units}};
  write_file_atomically(path, json.dump() + "\n");
}

// Short sequences share a pass. One that is longer than `most` rows has its own.
std::vector<Batch> passes(Context& ctx, std::span<const std::vector<int32_t>> sequences, size_t most) {
  std::vector<Batch> batches;
  std::vector<BatchRow> rows;
  const auto end_pass = [&] {
    if (!rows.empty()) batches.push_back(make_batch(ctx, rows));
    rows.clear();
  };
  for (const std::vector<int32_t>& ids : sequences) {
    if (rows.size() + ids.size() > most) end_pass();
    const int32_t sequence = rows.empty() ? 0 : rows.back().sequence + 1;
    int32_t position = 0;
    for (const int32_t id : ids) rows.push_back({id, position++, sequence, true});
  }
  end_pass();
  return batches;
}

}  // namespace

std::optional<DropOrder> drop_order(Context& ctx, const Model& model,
                                    std::span<const std::vector<int32_t>> sequences,
                                    const DropOrderOptions& options, const std::string& path) {
  const std::string key = key_of(ctx, model, sequences, options);
  if (std::vector<int32_t> units = read(path, key, model); !units.empty()) return DropOrder{units, true};
  size_t tokens = 0;
  for (const std::vector<int32_t>& ids : sequences) tokens += ids.size();
  log_info(fmt::format("measuring which units matter least, {}, on {} tokens", search_name(options), tokens));
  const ArenaScope scope(ctx);
  const int64_t length = rows_of_a_pass(model);
  const std::vector<Batch> batches = passes(ctx, sequences, static_cast<size_t>(length));
  const std::vector<int32_t> protect;
  const PrepareInput input{model, batches, SkippedKv::kHide, true, protect, options.cancel};
  try {
    const std::vector<int64_t> found = found_order(ctx, input, options.search, options.until, length);
    const std::vector<int32_t> units(found.begin(), found.end());
    write(path, key, tokens, options, units);
    return DropOrder{units, false};
  } catch (const PrepareCancelled&) {
    return std::nullopt;
  }
}

}  // namespace fathom
