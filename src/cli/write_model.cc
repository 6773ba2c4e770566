#include "cli/write_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/progress.h"
#include "cli/output.h"
#include "infer/model_path.h"
#include "skip/adapter.h"

namespace fathom {

void refuse_to_overwrite(const Model& model, const std::string& out) {
  std::error_code error;
  if (std::filesystem::equivalent(model.path, out, error)) {
    throw UsageError(fmt::format("-o {}: this is the model itself; write somewhere else", printable(out)));
  }
  if (const std::string old = own_method(out); !old.empty())
    throw UsageError(fmt::format("-o {}: {} is there, the method of another model: write somewhere else",
                                 printable(out), printable(old)));
}

void write_own_method(Context& ctx, const Model& model, const std::string& out) {
  const std::string own = own_method(model.path);
  if (own.empty()) return;
  const Adapter adapter = load_adapter(ctx, own, model, true);
  save_adapter(ctx, own_method_place(out), *adapter.policy, model, adapter.extra);
}

void report_written(const SaveSummary& summary, const std::string& out, bool json) {
  if (json) {
    print_json({{"tensors", summary.tensors}, {"bytes", summary.bytes}, {"output", out}});
  } else {
    print(fmt::format("{}: {} tensors, {}\n", printable(out), summary.tensors, bytes_text(summary.bytes)));
  }
}

}  // namespace fathom
