#include "cli/write_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/progress.h"
#include "cli/output.h"

namespace fathom {

void refuse_to_overwrite_input(const Model& model, const std::string& out) {
  std::error_code error;
  if (std::filesystem::equivalent(model.path, out, error)) {
    throw UsageError(fmt::format("-o {}: this is the model itself; write somewhere else", printable(out)));
  }
}

void report_written(const SaveSummary& summary, const std::string& out, bool json) {
  if (json) {
    print_json({{"tensors", summary.tensors}, {"bytes", summary.bytes}, {"output", out}});
  } else {
    print(fmt::format("{}: {} tensors, {}\n", printable(out), summary.tensors, bytes_text(summary.bytes)));
  }
}

}  // namespace fathom
