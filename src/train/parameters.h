// What is trained, as one list: f32 master values and gradients each in one flat buffer, in the order of the
// list, on the context's device.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "ops/linear/gemm.h"  // Precision
#include "tensor/named_tensor.h"

namespace fathom {

std::span<const std::string_view> enum_names(Precision);  // "f32", "bf16"

struct ParameterSpec {
  std::string name;
  Tensor* tensor = nullptr;      // where the values are, in any dtype, and where training puts its own
  std::vector<Tensor*> aliases;  // the same weight under another name: a tied output
  bool decay = true;             // weight decay applies
  bool matrix = true;            // may be held in bf16 while it trains
  float rate = 1;                // multiplies the learning rate
};

// The model's weights in forward order; norms and biases do not decay.
std::vector<ParameterSpec> model_parameters(Model& model);

// The factors of its LoRA, "model.layers.0.self_attn.q_proj.lora_A.weight" and so on.
// merged: as MergedLora trains them, in f32 alone.
std::vector<ParameterSpec> lora_parameters(Model& model, bool merged = false);

class ParameterSet {
 public:
  struct Parameter {
    ParameterSpec spec;
    Shape shape;
    int64_t begin = 0, size = 0;  // in the flat buffers
    Tensor half;  // bf16, where the tensor is trained so; neighbours in the list are neighbours in memory
  };

  // Copies every value into the master buffer and points the tensors at what training moves: the master
  // itself (f32), or a bf16 copy of it for matrices. While a tape records, their gradients add up in the flat
  // buffer. The values may be on the CPU or on the context's device; what trains is on the latter.
  ParameterSet(Context& ctx, std::vector<ParameterSpec> specs, Precision precision);

  const std::vector<Parameter>& list() const { return list_; }
  int64_t size() const { return size_; }
  // The flat buffers, f32 (size).
  const Tensor& values() const { return master_; }
  const Tensor& gradients() const { return gradient_; }
  Tensor gradient(const Parameter& parameter) const;       // its part of the buffer, in its shape
  std::vector<Tensor> last_gradients(size_t count) const;  // of the last `count` parameters

  void zero_gradients(Context& ctx);
  void refresh(Context& ctx);  // the bf16 copies, after the master has moved

  // The master values by name, views.
  std::vector<NamedTensor> named_values() const;
  // Copies a checkpoint's tensors (on the CPU) into the master; each must be there, f32, of its shape.
  // `where` starts the message.
  void load(Context& ctx, std::span<const NamedTensor> tensors, const std::string& where);

 private:
  // Parameters with a bf16 copy that follow each other: one piece of the master, one of the copies.
  struct HalfRun {
    int64_t begin = 0, size = 0, half_begin = 0;
  };
  void make_halves(Device device);

  std::vector<Parameter> list_;
  int64_t size_ = 0;
  Tensor master_, gradient_;
  Tensor half_;  // bf16 (elements): the copies
  std::vector<HalfRun> half_runs_;
};

}  // namespace fathom
