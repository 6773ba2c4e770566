// fathom quantize: a GGUF with smaller weights.
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "cli/write_model.h"
#include "model/weights.h"

namespace fathom {

int run_quantize(const Arguments& arguments) {
  Args args("quantize", "Writes a GGUF whose matrices have another type; vectors stay f32.",
            "fathom quantize -m SmolLM2-135M-Instruct -o smollm2-q8_0.gguf --type q8_0");
  ModelOptions o;
  std::string out, type;
  args.text("-o,--output", out, "FILE.gguf", "The file to write");
  args.text("--type", type, "TYPE", "Type of the matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1");
  add_model_options(args, o, false);
  if (!args.parse(arguments)) return 0;
  check_model_options(args, o);
  const std::optional<DType> wanted = weight_type("--type", type);
  if (!wanted) throw UsageError("quantize: --type is missing");
  if (!out.ends_with(".gguf"))
    throw UsageError(fmt::format("quantize: -o must end in .gguf, got '{}'", printable(out)));
  LoadedModel loaded = load_named(load_request(o));
  refuse_to_overwrite(loaded.model, out);
  convert_weights(*loaded.ctx, loaded.model, *wanted, true);
  int64_t kept = 0;
  for (const WeightSpec& spec : weight_specs(std::as_const(loaded.model)))
    kept += spec.matrix && spec.tensor->dtype() != *wanted;
  if (kept > 0)
    log_info(fmt::format("{} matrices whose rows are no whole blocks of {} stay as they were", kept,
                         name_of(*wanted)));
  const SaveSummary summary = save_gguf(*loaded.ctx, loaded.model, out);
  write_own_method(*loaded.ctx, loaded.model, out);
  report_written(summary, out, o.json);
  return 0;
}

}  // namespace fathom
