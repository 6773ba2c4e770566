// fathom quantize: a GGUF with smaller weights.
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "cli/write_model.h"
#include "infer/calibrate.h"
#include "model/weights.h"

namespace fathom {
namespace {

struct QuantizeChoice {
  ModelOptions model;
  std::string out, type, output_type, embedding_type;
  bool force = false;
};

struct Types {
  DType matrices, output, embedding;
};

// As llama-quantize has it: every token reads the embedding and the output matrix, and four bits there cost
// more than anywhere else.
DType fine_type(DType wanted, DType stored) {
  const bool coarse = is_block_format(wanted) && wanted != DType::kQ8_0;
  if (!coarse) return wanted;
  return stored == DType::kQ6_K ? stored : DType::kQ8_0;
}

bool parse(Args& args, QuantizeChoice& o, const Arguments& arguments) {
  const char* const fine = "(default: --type, but q8_0, or q6_k where it was stored so, below 8 bits)";
  args.text("-o,--output", o.out, "FILE.gguf", "The file to write");
  args.text("--type", o.type, "TYPE", "Type of the matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1");
  args.text("--output-type", o.output_type, "TYPE", fmt::format("Type of the output matrix {}", fine));
  args.text("--embedding-type", o.embedding_type, "TYPE", fmt::format("Type of the embedding {}", fine));
  args.flag("--force", o.force, "Replace a file that is there");
  add_model_options(args, o.model, false);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  if (o.type.empty()) throw UsageError("quantize: --type is missing");
  if (!o.out.ends_with(".gguf"))
    throw UsageError(fmt::format("quantize: -o must end in .gguf, got '{}'", printable(o.out)));
  return true;
}

Types types_of(const QuantizeChoice& o, const Model& model) {
  const DType wanted = *weight_type("--type", o.type);
  const std::optional<DType> output = weight_type("--output-type", o.output_type),
                             embedding = weight_type("--embedding-type", o.embedding_type);
  Types types{wanted, output.value_or(fine_type(wanted, model.weights.output.dtype())),
              embedding.value_or(fine_type(wanted, model.weights.embedding.dtype()))};
  if (!model.config.tied) return types;
  if (output && embedding && *output != *embedding)
    throw UsageError("--output-type and --embedding-type differ, and in this model they are one matrix");
  types.output = types.embedding = output.value_or(types.embedding);
  return types;
}

// What rounding has lost stays lost.
void warn_about_source(const std::string& stored, DType wanted) {
  DType from;
  if (!parse_dtype(stored, &from) || !is_block_format(from) || from == wanted) return;
  const int64_t block = traits(from).block * traits(wanted).block;
  const bool up = row_bytes(wanted, block) > row_bytes(from, block);
  log_warn(fmt::format("the source is {} already: {}; better quantise what it was made from", stored,
                       up ? fmt::format("{} makes the file larger and brings nothing back", name_of(wanted))
                          : "what is rounded twice loses twice"));
}

// A matrix whose rows are no whole blocks stays as it is.
Tensor converted(Context& ctx, const Tensor& matrix, DType type) {
  return matrix.shape().last() % traits(type).block == 0 ? convert_tensor(ctx, matrix, type) : matrix;
}

// Returns what to say of it once it is written.
std::vector<std::string> convert_model(Context& ctx, Model& model, const Types& types) {
  const Tensor embedding = model.weights.embedding, output = model.weights.output;
  convert_weights(ctx, model, types.matrices, true);
  model.weights.embedding = converted(ctx, embedding, types.embedding);
  model.weights.output = model.config.tied ? model.weights.embedding : converted(ctx, output, types.output);
  int64_t kept = 0;
  for (const WeightSpec& spec : weight_specs(std::as_const(model))) {
    const bool ends = spec.tensor == &model.weights.embedding || spec.tensor == &model.weights.output;
    kept += spec.matrix && !ends && spec.tensor->dtype() != types.matrices;
  }
  std::vector<std::string> notes;
  if (kept > 0)
    notes.push_back(fmt::format("{} matrices whose rows are no whole blocks of {} stay as they were", kept,
                                name_of(types.matrices)));
  if (types.embedding != types.matrices || types.output != types.matrices)
    notes.push_back(fmt::format("the embedding is {}, the output matrix {}",
                                name_of(model.weights.embedding.dtype()),
                                name_of(model.weights.output.dtype())));
  return notes;
}

}  // namespace

int run_quantize(const Arguments& arguments) {
  Args args("quantize", "Writes a GGUF whose matrices have another type; vectors stay f32.",
            "fathom quantize -m SmolLM2-135M-Instruct -o smollm2-q8_0.gguf --type q8_0");
  QuantizeChoice o;
  if (!parse(args, o, arguments)) return 0;
  weight_type("--type", o.type);
  LoadedModel loaded = load_named(load_request(o.model));
  refuse_to_overwrite(loaded.model, o.out, o.force);
  const Types types = types_of(o, loaded.model);
  warn_about_source(weight_type_name(loaded.model), types.matrices);
  const std::vector<std::string> notes = convert_model(*loaded.ctx, loaded.model, types);
  const SaveSummary summary = save_gguf(*loaded.ctx, loaded.model, o.out);
  for (const std::string& note : notes) log_info(note);
  write_own_method(*loaded.ctx, loaded.model, o.out);
  report_written(summary, o.out, o.model.json);
  return 0;
}

}  // namespace fathom
