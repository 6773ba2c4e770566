// The three kinds of model files, each opened as a half-made Model and a set of named tensors to take the
// weights from.
#pragma once

#include <map>
#include <string>

#include "model/load.h"
#include "model/weights.h"

namespace fathom {

struct ModelSource {
  Model model;  // without weights
  std::map<std::string, Tensor, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> unsupported;  // name -> why it cannot be read
  bool gguf_names = false;

  // The tensor of that name, or null; it stays alive here and is marked as used.
  const Tensor* take(const std::string& name);
  // Throws a UserError that names a tensor which was not taken: without it the model would compute wrongly.
  void refuse_rest(const Model& model) const;

 private:
  std::map<std::string, bool, std::less<>> taken_;
};

ModelSource open_hf_source(const std::string& dir, const LoadOptions& options);
ModelSource open_gguf_source(const std::string& path, const LoadOptions& options);
ModelSource open_llama2c_source(const std::string& path, const LoadOptions& options);

}  // namespace fathom
