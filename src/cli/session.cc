#include "cli/session.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/log.h"
#include "base/system_memory.h"
#include "cli/model_path.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

DType cache_type(const char* option, const std::string& name, DType standard) {
  if (name.empty()) return standard;
  DType type;
  const bool known = parse_dtype(name, &type) && (type == DType::kF32 || type == DType::kF16 ||
                                                  type == DType::kBF16 || type == DType::kQ8_0);
  if (!known)
    throw UsageError(
        fmt::format("{} must be one of f32, f16, bf16, q8_0, got '{}'", option, printable(name)));
  return type;
}

}  // namespace

LoadedModel load_from_options(const ModelOptions& options) {
  const auto start = Clock::now();
  LoadOptions load;
  load.dtype = weight_type("--dtype", options.dtype);
  load.mode = options.no_mmap ? MappedFile::Mode::kRead : MappedFile::Mode::kMap;
  const ModelFiles files = find_model(options.model);
  load.tokenizer = options.tokenizer.empty() ? files.tokenizer : options.tokenizer;

  LoadedModel loaded;
  ContextOptions where;
  where.device = options.device == "cuda" ? Device::kCuda : Device::kCpu;
  where.threads = static_cast<int>(options.threads);
  loaded.ctx = std::make_unique<Context>(where);
  loaded.model = load_model(*loaded.ctx, files.model, load);
  loaded.load_seconds = seconds_since(start);
  return loaded;
}

LoadedModel load_to_run(const ModelOptions& options) {
  const auto start = Clock::now();
  LoadedModel loaded = load_from_options(options);
  // A file that was read is in memory already, and a model that does not fit is better left to the page
  // cache.
  if (!options.no_mmap && loaded.model.weight_bytes() < available_memory() / 4 * 3)
    arrange_weights(*loaded.ctx, loaded.model);
  loaded.load_seconds = seconds_since(start);
  return loaded;
}

Session::Session(const ModelOptions& options) {
  const DType standard = options.dtype == "f32" ? DType::kF32 : DType::kF16;
  cache_options_.k_type = cache_type("-ctk", options.key_type, standard);
  cache_options_.v_type = cache_type("-ctv", options.value_type, standard);
  loaded_ = load_to_run(options);
  const int64_t trained = loaded_.model.config.context;
  context_ = options.context > 0 ? options.context : trained;
  if (context_ > trained) {
    log_warn(fmt::format(
        "-c {} is longer than the {} tokens this model was trained for: what comes after them will be poor",
        context_, trained));
  }
  load_method(options);
}

// The adapter that was asked for, or the model's own method.
void Session::load_method(const ModelOptions& options) {
  const bool own = options.adapter.empty();
  const std::string folder = own && !options.dense ? own_method(model().path) : options.adapter;
  const double budget = options.saved != 0 ? 1 - options.saved : options.budget;
  budget_ = budget;
  if (folder.empty()) {
    const char* const why = "this is a dense model without a skipping method";
    if (!options.quality.empty())
      throw UsageError(fmt::format("--quality {} needs an adapter with a calibration table; {}",
                                   printable(options.quality), why));
    if (budget != 1)
      throw UsageError(
          fmt::format("a budget of {:g} needs an adapter with a calibration table; {}, which runs everything",
                      budget, why));
    if (options.execution != "physical")
      throw UsageError(fmt::format("--execution masked needs decisions to mask; {}", why));
    if (!options.decide.empty())
      throw UsageError(fmt::format("--decide {} needs scores to decide on; {}", options.decide, why));
    return;
  }
  // A model's own method fits it; its thresholds do not where it was given another tokenizer.
  const bool has_budget = options.has_budget || budget != 1;
  const bool force = options.force_adapter || (own && !has_budget);
  adapter_ = load_adapter(ctx(), folder, model(), force);
  folder_ = folder;
  own_ = own;
  if (!options.quality.empty()) budget_ = tables().budget_for(quality_option(options.quality));
  if (has_budget) thresholds_ = tables().thresholds(budget_);
  masked_ = options.execution == "masked";
  if (!options.decide.empty() && !method()->has_batch_quantile())
    throw UsageError(fmt::format("--decide {} is gate_skip's rule; this is {}, which has no such rule",
                                 options.decide, method()->name()));
  batch_quantile_ = !options.decide.empty();
}

const BudgetTables& Session::tables() {
  if (!tables_) tables_.emplace(model(), adapter_, folder_, own_);
  return *tables_;
}

Speculation Session::use_drafts(DraftOptions options) {
  if (masked_ || batch_quantile_)
    throw UsageError("--speculate runs what it decides: not with --execution masked, nor with --decide");
  if (method() && method()->needs_whole_prompt())
    throw UsageError(fmt::format(
        "--speculate takes tokens back, and {} as it is configured decides on the whole of what it was fed",
        method()->name()));
  if (!options.kind)
    options.kind = method() && !tables().empty() ? DraftKind::kMethod : DraftKind::kHarmOrder;
  DraftSource source;
  if (*options.kind == DraftKind::kMethod) {
    if (!method())
      throw UsageError("--draft method needs an adapter with a calibration table: this is a dense model");
    if (options.budget >= budget_)
      throw UsageError(
          fmt::format("--draft-budget must be below the budget of {:g}, got {:g}", budget_, options.budget));
    source.calibration = &tables().for_budget(options.budget);
  }
  std::vector<int32_t> order;
  if (*options.kind == DraftKind::kHarmOrder) order = measure_harm_order(ctx(), model());
  source.harm_order = order;
  speculative_ = std::make_unique<SpeculativePolicy>(verifier());
  return make_speculation(model(), source, options, budget_);
}

void Session::make_cache(int64_t tokens, int64_t sequences) {
  cache_options_.sequences = sequences;
  cache_options_.context = tokens < 0 ? context_ : std::clamp<int64_t>(tokens, 1, context_);
  const SkipPolicy& policy = speculative_ ? static_cast<const SkipPolicy&>(*speculative_) : verifier();
  cache_options_.key_bias = policy.has_key_bias();
  cache_ = std::make_unique<KvCache>(ctx(), model().config, cache_options_);
  state_ = policy.make_state(ctx(), model().config, sequences);
  if (method()) {
    SkipState& state = *skip_state_of(*state_);
    state.pass.masked = masked_;
    state.pass.batch_quantile = batch_quantile_;
  }
  for (int32_t s = 0; s < sequences && !thresholds_.empty(); ++s)
    state_->set_thresholds(ctx(), s, thresholds_);
  feeder_ = std::make_unique<Feeder>(ctx(), model(), *cache_, policy, *state_);
}

const Tokenizer& Session::tokenizer() const {
  if (model().tokenizer) return *model().tokenizer;
  fail("{}: there is no tokenizer with this model: give one with --tokenizer", printable(model().path));
}

std::string read_input(const std::string& path) {
  if (path != "-") return read_text_file(path);
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  if (std::cin.bad()) fail("reading stdin failed");
  return text;
}

std::vector<int32_t> read_ids(const std::string& path, int64_t vocab) {
  const nlohmann::json list = nlohmann::json::parse(read_input(path), nullptr, false);
  if (!list.is_array())
    fail("{}: expected a JSON list of token ids, got {}", printable(path),
         list.is_discarded() ? "no JSON" : list.type_name());
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const auto& entry : list) {
    const bool good = entry.is_number_integer() && entry >= 0 && entry < vocab;
    if (!good) {
      fail("{}: entry {} must be a token id from 0 to {}, got {}", printable(path), ids.size(), vocab - 1,
           printable(entry.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), 40));
    }
    ids.push_back(entry.get<int32_t>());
  }
  return ids;
}

}  // namespace fathom
