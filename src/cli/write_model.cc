#include "cli/write_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/progress.h"
#include "cli/output.h"
#include "infer/model_path.h"
#include "skip/adapter.h"

namespace fathom {
namespace {

// A folder that is no method of ours stays, and then no other can be written there.
void remove_method(const std::string& out) {
  const std::string old = own_method(out);
  if (!old.empty() && std::filesystem::exists(old + "/adapter_config.json")) std::filesystem::remove_all(old);
}

}  // namespace

void refuse_to_overwrite(const Model& model, const std::string& out, bool force) {
  std::error_code error;
  if (std::filesystem::equivalent(model.path, out, error)) {
    throw UsageError(fmt::format("-o {}: this is the model itself; write somewhere else", printable(out)));
  }
  // A folder that is there is never replaced: save_hf says so.
  if (force || std::filesystem::is_directory(out, error)) return;
  if (std::filesystem::is_regular_file(out, error))
    throw UsageError(fmt::format("-o {}: the file is there already: --force replaces it", printable(out)));
  if (const std::string old = own_method(out); !old.empty())
    throw UsageError(
        fmt::format("-o {}: {} is there already, and would be taken for the new model's method: --force "
                    "replaces it",
                    printable(out), printable(old)));
}

void write_method(Context& ctx, const Model& model, Adapter adapter, const std::string& out) {
  remove_method(out);
  if (adapter.policy->is_dense()) return;
  adapter.extra.projections.clear();  // it belongs to the model that is written
  Model written = model;
  written.lora = adapter.lora;
  save_adapter(ctx, own_method_place(out), *adapter.policy, written, adapter.extra);
}

void write_own_method(Context& ctx, const Model& model, const std::string& out) {
  const std::string own = own_method(model.path);
  if (own.empty()) return remove_method(out);
  write_method(ctx, model, load_adapter(ctx, own, model, true), out);
}

void report_written(const SaveSummary& summary, const std::string& out, bool json) {
  if (json) {
    print_json({{"tensors", summary.tensors}, {"bytes", summary.bytes}, {"output", out}});
  } else {
    print(fmt::format("{}: {} tensors, {}\n", printable(out), summary.tensors, bytes_text(summary.bytes)));
  }
}

}  // namespace fathom
