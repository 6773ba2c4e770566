#pragma once

#include <optional>
#include <string>

#include "base/mapped_file.h"
#include "model/model.h"

namespace fathom {

struct LoadOptions {
  std::optional<DType> dtype{};  // convert the matrices at load; none: as stored
  MappedFile::Mode mode = MappedFile::Mode::kMap;
  std::string tokenizer{};  // path; "": what the model's own files hold
};

// A Hugging Face directory, a .gguf or a llama2.c .bin. Anything else is refused with what it looks like.
Model load_model(Context& ctx, const std::string& path, const LoadOptions& options = {});

// Its weights, all of them, to the context's device; those that are there already stay.
void move_model(Context& ctx, Model& model);

// tensor: (…, n) on the CPU, its rows decoded and encoded again; itself when it has that dtype already.
Tensor convert_tensor(Context& ctx, const Tensor& tensor, DType dtype);

// A copy of the matrices in another dtype (norms, biases and other vectors stay f32). A matrix whose rows are
// not whole blocks of that format stays as it is when `keep_unfit`, else it is a UserError.
void convert_weights(Context& ctx, Model& model, DType dtype, bool keep_unfit);

// Every matrix in bf16 on the context's device, in forward order in one block of memory: those that multiply
// the same rows (q, k and v; gate and up) are neighbours, which products on a GPU take as one.
void hold_in_bf16(Context& ctx, Model& model);

// The matrices as this machine multiplies them fastest, the same values bit for bit: for a model that will
// run and not be trained. It costs a copy: what was mapped from a file is memory of this process after it.
void arrange_weights(Context& ctx, Model& model);

}  // namespace fathom
