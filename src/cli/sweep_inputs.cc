#include "cli/sweep_inputs.h"

#include <algorithm>
#include <filesystem>

#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace fathom {
namespace {

std::string identity_of_files(const MethodPolicy& policy, const Model& model, const std::string& folder) {
  Sha256 hash;
  if (model.lora.any()) hash.add(std::string("a LoRA beside the weights"));
  hash.add(policy.to_json());
  for (const char* name : {"/adapter_model.safetensors", "/lora/adapter_model.safetensors"}) {
    if (std::filesystem::exists(folder + name)) hash.add(MappedFile::open(folder + name)->bytes());
  }
  return hash.hex().substr(0, 16);
}

}  // namespace

std::string label_of(const std::string& path) {
  std::filesystem::path at(printable(path));
  if (at.filename().empty()) at = at.parent_path();
  const std::string last = at.filename().string();
  const bool checkpoint = last == "last" || last.starts_with("step-");
  return checkpoint && at.has_parent_path() ? at.parent_path().filename().string() : last;
}

SweepInputs::SweepInputs(const SweepChoice& choice) : choice_(choice) {
  add_model(choice.model.model, !choice.adapters.empty());
  const Session& first = sessions_.front();
  for (const std::string& folder : choice.adapters) add_adapter(folder);
  for (const std::string& model : choice.also) add_model(model);
  if (plan.methods.size() < 2 && !first.method())
    throw UsageError(
        "sweep needs a method: give its adapter with --adapter, or a model that was trained with one");
}

int64_t SweepInputs::context() const {
  int64_t least = INT64_MAX;
  for (const Session& session : sessions_) least = std::min(least, session.context());
  return least;
}

bool SweepInputs::has_other_dense() const {
  return std::any_of(plan.methods.begin(), plan.methods.end(), [&](const SweepMethod& method) {
    return !method.policy && &method.model != &models_.front();
  });
}

std::string SweepInputs::unique_label(const std::string& wanted) const {
  std::string label = wanted;
  const auto taken = [&] {
    return label == "random" || label == "shallower" ||
           std::any_of(plan.methods.begin(), plan.methods.end(),
                       [&](const SweepMethod& method) { return method.label == label; });
  };
  for (int n = 2; taken(); ++n) label = fmt::format("{} ({})", wanted, n);
  return label;
}

void SweepInputs::add_model(const std::string& path, bool dense) {
  ModelOptions options = choice_.model;
  options.model = path;
  options.dense = dense;
  Session& session = sessions_.emplace_back(options);
  if (fingerprint(session.ctx(), session.model()).tokenizer !=
      fingerprint(base().ctx(), base().model()).tokenizer)
    fail("--also {}: its tokenizer is another one than that of {}", printable(path),
         printable(choice_.model.model));
  const bool first = models_.empty();
  models_.push_back({session.ctx(), session.model()});
  if (session.method())
    return add_method(label_of(path), models_.back(), session.adapter(), session.adapter_folder(), true);
  plan.methods.push_back({.label = unique_label(first ? "dense" : label_of(path)),
                          .model = models_.back(),
                          .budgets = {{std::nullopt, {}}}});
}

void SweepInputs::add_adapter(const std::string& folder) {
  Adapter adapter = load_adapter(base().ctx(), folder, base().model(), choice_.model.force_adapter);
  if (!adapter.lora.any()) {
    adapters_.push_back(std::move(adapter));
    return add_method(label_of(folder), models_.front(), adapters_.back(), folder, false);
  }
  // A LoRA is other weights: a model of its own.
  ModelOptions options = choice_.model;
  options.adapter = folder;
  const Session& session = sessions_.emplace_back(options);
  models_.push_back({sessions_.back().ctx(), session.model()});
  add_method(label_of(folder), models_.back(), session.adapter(), folder, false);
  with_lora_.push_back(plan.methods.back().label);
}

// Adapters reach different budgets: what one cannot meet is no point of it.
void SweepInputs::add_budgets(SweepMethod& method, const Budgets& budgets,
                              const std::vector<float>& unasked) {
  std::vector<std::string> left_out;
  for (const std::optional<double>& budget : choice_.asked) {
    try {
      method.budgets.push_back({budget, budget ? budgets.thresholds(*budget) : unasked});
    } catch (const OutOfReach& error) {
      left_out.push_back(fmt::format("{}: {}", method.label, error.what()));
    }
  }
  if (method.budgets.empty()) fail("{}", left_out.front());
  for (const std::string& why : left_out) log_warn(why + "; that point is left out");
}

void SweepInputs::add_method(const std::string& label, const SweepModel& model, const Adapter& adapter,
                             const std::string& folder, bool own) {
  SweepMethod method{.label = unique_label(label),
                     .model = model,
                     .policy = adapter.policy.get(),
                     .identity = identity_of_files(*adapter.policy, model.model, folder),
                     .adapter = !own};
  const Budgets budgets(model.model, adapter, folder);
  std::vector<float> unasked;
  if (!adapter.extra.trained.empty())
    unasked = trained_rule_from_json(adapter.extra.trained, 2 * model.model.config.layers, printable(folder))
                  .thresholds;
  try {
    add_budgets(method, budgets, unasked);
  } catch (const NoCalibration& error) {
    const bool beside = !own || &model != &models_.front();
    fail_without_calibration(error, model.model.path, beside ? folder : "");
  }
  plan.methods.push_back(std::move(method));
}

}  // namespace fathom
