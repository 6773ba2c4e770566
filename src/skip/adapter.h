// Routers and gates beside an untouched base model: a PEFT-style folder with adapter_config.json and
// adapter_model.safetensors.
#pragma once

#include <memory>
#include <string>

#include "model/lora.h"
#include "skip/fingerprint.h"
#include "skip/method_policy.h"

namespace fathom {

struct AdapterExtra {
  std::string base_model;               // name or path of the base
  std::string calibration = "{}";       // a JSON object: thresholds for budgets (infer/calibrate.h)
  std::vector<float> projections = {};  // of the base that it was made for; empty: the given model's
  std::string trained = {};  // a JSON object: the rule without a budget (infer/trained_rule.h); "": none
};

// The folder appears whole or not at all; one that exists already is a UserError. Every number must be
// finite. A LoRA of the model goes into a folder inside (skip/lora_files.h).
void save_adapter(Context& ctx, const std::string& folder, MethodPolicy& policy, const Model& model,
                  const AdapterExtra& extra = {});

// The calibration of a folder that exists is replaced, atomically; the rest stays as it is.
void save_calibration(const std::string& folder, const std::string& calibration);

struct Adapter {
  std::unique_ptr<MethodPolicy> policy;  // its tensors f32, on the model's device
  Lora lora;                             // f32, on the CPU; none where the adapter has none
  AdapterExtra extra;
};

// Whatever does not fit is a UserError of one line. A fingerprint of another model is one, too, and a LoRA
// for a model that has one merged already, unless `force`. Other matrices are a warning, unless `force`. A
// folder that PEFT wrote is a LoRA with the method dense.
Adapter load_adapter(Context& ctx, const std::string& folder, const Model& model, bool force = false);

}  // namespace fathom
