// Routers and gates beside an untouched base model: a PEFT-style folder with adapter_config.json and
// adapter_model.safetensors.
#pragma once

#include <memory>
#include <string>

#include "skip/method_policy.h"

namespace fathom {

// Which model an adapter belongs to: equal for the same model as a GGUF file or a Hugging Face folder,
// quantised or not, because quantisation leaves the norms alone.
struct Fingerprint {
  std::string shape;      // "width 576, layers 30, …"
  std::string tokenizer;  // sha256 of its tokens; "": the model has none
  std::string norms;      // sha256 of all RMSNorm weights as bf16, in forward order
};
Fingerprint fingerprint(Context& ctx, const Model& model);

// "" when the adapter fits, else what differs. A model without a tokenizer fits any.
std::string fingerprint_difference(const Fingerprint& adapter, const Fingerprint& model);

struct AdapterExtra {
  std::string base_model;          // name or path of the base
  std::string calibration = "{}";  // a JSON object: thresholds for budgets (infer/calibrate.h)
};

// The folder appears whole or not at all; one that exists already is a UserError. Every number must be
// finite.
void save_adapter(Context& ctx, const std::string& folder, MethodPolicy& policy, const Model& model,
                  const AdapterExtra& extra = {});

// The calibration of a folder that exists is replaced, atomically; the rest stays as it is.
void save_calibration(const std::string& folder, const std::string& calibration);

struct Adapter {
  std::unique_ptr<MethodPolicy> policy;  // its tensors f32, on the model's device
  AdapterExtra extra;
};

// Whatever does not fit is a UserError of one line. A fingerprint of another model is one, too, unless
// `force`.
Adapter load_adapter(Context& ctx, const std::string& folder, const Model& model, bool force = false);

}  // namespace fathom
