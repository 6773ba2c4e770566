// fathom convert: a model in another format.
#include <unistd.h>

#include <filesystem>

#include "base/format.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "cli/write_model.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

// The weights of a Hugging Face folder without the folder: written whole beside their place, then moved.
SaveSummary save_one_safetensors(Context& ctx, const Model& model, const std::string& out,
                                 std::optional<DType> dtype) {
  const fs::path folder = out + ".tmp-" + std::to_string(getpid());
  struct Cleanup {
    const fs::path& path;
    ~Cleanup() {
      std::error_code error;
      fs::remove_all(path, error);
    }
  } cleanup{folder};
  const SaveSummary summary = save_hf(ctx, model, folder.string(), dtype);
  std::error_code error;
  fs::rename(folder / "model.safetensors", out, error);
  if (error) fail("{}: cannot be written: {}", printable(out), error.message());
  return summary;
}

}  // namespace

int run_convert(const Arguments& arguments) {
  Args args("convert",
            "Writes a model in another format: a .gguf, a .safetensors, or a Hugging Face folder, by the "
            "output's name.",
            "fathom convert -m model.gguf -o model-hf --dtype bf16\n"
            "  fathom convert -m builtin -o model.gguf");
  ModelOptions o;
  std::string out;
  args.text("-o,--output", out, "OUT", "FILE.gguf, FILE.safetensors, or a folder");
  args.text("--dtype", o.dtype, "TYPE",
            "Type of the matrices (default: as stored; in a folder, block formats become f32)");
  add_model_options(args, o, false);
  if (!args.parse(arguments)) return 0;
  check_model_options(args, o);
  if (out.empty()) throw UsageError("convert: -o is missing");
  const std::optional<DType> dtype = weight_type("--dtype", o.dtype);
  const bool gguf = out.ends_with(".gguf");
  if (!gguf && dtype && is_block_format(*dtype)) {
    throw UsageError(fmt::format(
        "--dtype {}: a folder or .safetensors holds f32, f16 or bf16; a .gguf holds {}", o.dtype, o.dtype));
  }
  if (!gguf) o.dtype.clear();  // save_hf converts
  LoadedModel loaded = load_named(load_request(o));
  refuse_to_overwrite(loaded.model, out);
  const SaveSummary summary = gguf ? save_gguf(*loaded.ctx, loaded.model, out)
                              : out.ends_with(".safetensors")
                                  ? save_one_safetensors(*loaded.ctx, loaded.model, out, dtype)
                                  : save_hf(*loaded.ctx, loaded.model, out, dtype);
  if (!out.ends_with(".safetensors")) write_own_method(*loaded.ctx, loaded.model, out);
  report_written(summary, out, o.json);
  return 0;
}

}  // namespace fathom
