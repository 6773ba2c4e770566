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

// What is merged for a folder, which holds no blocks: f32 where the model has them, so that it is rounded
// once.
std::optional<DType> float_type(const Model& model, std::optional<DType> wanted) {
  return is_block_format(model.weights.blocks.front().down.dtype()) ? DType::kF32 : wanted;
}

// Returns the adapter without its LoRA, which is part of the weights then.
Adapter merge_adapter(LoadedModel& loaded, const ModelOptions& o, std::optional<DType> type) {
  Adapter adapter = load_adapter(*loaded.ctx, o.adapter, loaded.model, o.force_adapter);
  if (!adapter.lora.any())
    fail("{} has no LoRA to merge: use it with --adapter as it is", printable(o.adapter));
  merge_lora(*loaded.ctx, loaded.model, adapter.lora, o.adapter, type);
  adapter.lora = {};
  return adapter;
}

// A folder of that name would be no file of that format.
void refuse_other_formats(const std::string& out) {
  const std::string extension = fs::path(out).extension();
  for (const char* other : {".bin", ".pt", ".pth", ".ckpt", ".onnx", ".ggml", ".npz", ".h5", ".json"}) {
    if (extension == other)
      throw UsageError(
          fmt::format("-o {}: {} files are not written: a .gguf, a .safetensors, or a Hugging Face folder is",
                      printable(out), other));
  }
}

}  // namespace

int run_convert(const Arguments& arguments) {
  Args args("convert",
            "Writes a model in another format: a .gguf, a .safetensors, or a Hugging Face folder, by the "
            "output's name. With an adapter, its LoRA becomes part of the weights.",
            "fathom convert -m model.gguf -o model-hf --dtype bf16\n"
            "  fathom convert -m model.gguf --adapter routers -o adapted.gguf --type q8_0");
  ModelOptions o;
  std::string out;
  bool force = false;
  args.text("-o,--output", out, "OUT", "FILE.gguf, FILE.safetensors, or a folder");
  args.text("--dtype,--type", o.dtype, "TYPE",
            "Type of the matrices, embedding and output among them, which quantize keeps finer (default: as "
            "stored; in a folder, block formats become f32)");
  args.text("--adapter", o.adapter, "DIR",
            "Merge the LoRA of this adapter; its method goes beside the model");
  args.flag("--force-adapter", o.force_adapter,
            "Use the adapter although it was made for other weights, or is part of them already");
  args.flag("--force", force, "Replace a file that is there");
  add_model_options(args, o, false);
  if (!args.parse(arguments)) return 0;
  check_model_options(args, o);
  if (out.empty()) throw UsageError("convert: -o is missing");
  refuse_other_formats(out);
  const std::optional<DType> dtype = weight_type("--dtype", o.dtype);
  const bool gguf = out.ends_with(".gguf");
  if (!gguf && dtype && is_block_format(*dtype)) {
    throw UsageError(fmt::format(
        "--dtype {}: a folder or .safetensors holds f32, f16 or bf16; a .gguf holds {}", o.dtype, o.dtype));
  }
  if (!gguf || !o.adapter.empty()) o.dtype.clear();  // save_hf converts; so does what is merged
  LoadedModel loaded = load_named(load_request(o));
  refuse_to_overwrite(loaded.model, out, force);
  std::optional<Adapter> adapter;
  if (!o.adapter.empty()) adapter = merge_adapter(loaded, o, gguf ? dtype : float_type(loaded.model, dtype));
  if (adapter && gguf && dtype) convert_weights(*loaded.ctx, loaded.model, *dtype, true);
  const SaveSummary summary = gguf ? save_gguf(*loaded.ctx, loaded.model, out)
                              : out.ends_with(".safetensors")
                                  ? save_one_safetensors(*loaded.ctx, loaded.model, out, dtype)
                                  : save_hf(*loaded.ctx, loaded.model, out, dtype);
  if (!out.ends_with(".safetensors")) {
    if (adapter) {
      write_method(*loaded.ctx, loaded.model, std::move(*adapter), out);
    } else {
      write_own_method(*loaded.ctx, loaded.model, out);
    }
  }
  report_written(summary, out, o.json);
  return 0;
}

}  // namespace fathom
