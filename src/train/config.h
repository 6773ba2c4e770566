// Everything a training run is told. The field lists here are what docs/training.md documents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "ops/linear/low_rank.h"
#include "skip/method_policy.h"
#include "train/initial_model.h"
#include "train/optimizer.h"
#include "train/schedule.h"

namespace fathom {

enum class OnNan : uint8_t { kStop, kRollback };
std::span<const std::string_view> enum_names(OnNan);          // "stop", "rollback"
std::span<const std::string_view> enum_names(MergeRounding);  // "none", "q4_1"

struct ValidationConfig {
  std::vector<std::string> data;
  float share = 0;
  int64_t every = 0, batches = 8, patience = 0;

  template <class V>
  void visit(V& v) {
    v("data", data, "files to validate on, as in data");
    v("share", share, "or this share of the documents of data, their last ones, kept from training");
    v("every", every, "steps between validations; 0: only at the end");
    v("batches", batches, "micro-batches of one validation, always the same");
    v("patience", patience, "stop after this many validations in a row without a better one; 0: never");
  }
};

struct CheckpointConfig {
  int64_t every = 0, keep = 2;

  template <class V>
  void visit(V& v) {
    v("every", every, "steps between checkpoints; 0: only at the end (and at Ctrl-C)");
    v("keep", keep, "how many checkpoints stay; 0: all");
  }
};

// Low-rank factors that train beside frozen weights.
struct LoraConfig {
  int64_t rank = 0;
  float alpha = 0;
  std::vector<std::string> targets;
  float dropout = 0;
  MergeRounding round = MergeRounding::kNone;
  std::string start;

  template <class V>
  void visit(V& v) {
    v("rank", rank, "rank of the factors that train beside the frozen weights; 0: there are none");
    v("alpha", alpha, "what they add is scaled by alpha / rank; 0: the rank, a scale of 1");
    v("targets", targets,
      "the matrices that have factors, of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj; "
      "empty: all");
    v("dropout", dropout, "share of the factors' input that is dropped in training");
    v("round", round,
      "what weights with their factors in them are rounded to in every step, and stored as: none, or q4_1");
    v("start", start, "a LoRA's folder whose factors training begins with; empty: A is random, B is 0");
  }
  float scaled_alpha() const { return alpha > 0 ? alpha : static_cast<float>(rank); }
};

struct TrainConfig {
  uint64_t seed = 0;
  std::string base, tokenizer;
  std::vector<std::string> data;
  std::string data_cache, chat_template;
  bool prompts_as_chat = false;
  int64_t batch = 8, context = 256, accumulate = 1;
  std::vector<std::string> prepare_data;
  int64_t prepare_tokens = 16384;
  int64_t steps = 0, schedule_steps = 1000;
  Precision precision = Precision::kF32;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  float method_rate = 1;
  LoraConfig lora;
  float text_share = 0;
  float clip = 1;
  bool recompute = false;
  ValidationConfig validation;
  CheckpointConfig checkpoint;
  int64_t log_every = 1;
  OnNan on_nan = OnNan::kStop;
  float spike = 0;
  int64_t rollbacks = 3;
  InitialWeights init;
  ModelConfig model = default_model();

  template <class V>
  void visit(V& v) {
    v("seed", seed, "of the weights, the data's order and all noise");
    v("base", base,
      "a pretrained model to start from, by path or name; empty: a new one, as model and init say");
    v("tokenizer", tokenizer, "a tokenizer's file or folder; empty: the base's");
    v("data", data,
      "files to train on; \"FILE:0.3\" gives one a weight: its share of the tokens, relative to the others'");
    v("data_cache", data_cache,
      "folder for tokenized data, and for what methods measured on it; empty: fathom/tokens in the user's "
      "cache folder");
    v("chat_template", chat_template, "format of conversations, by name; empty: the tokenizer's own");
    v("prompts_as_chat", prompts_as_chat, "write prompts and answers as a conversation");
    v("batch", batch, "samples of a micro-batch");
    v("context", context, "tokens of a sample, at most");
    v("accumulate", accumulate, "micro-batches of a step");
    v("prepare_data", prepare_data,
      "files on which a method measures the model before it starts (harm order, Attention Drop, ShortGPT, "
      "nested's lists, init harm_order), as in data: the text of a calibration, say; empty: data");
    v("prepare_tokens", prepare_tokens, "tokens of prepare_data that it takes, or all where there are fewer");
    v("steps", steps, "stop after this step; 0: after schedule_steps. Changes no schedule");
    v("schedule_steps", schedule_steps, "the length of every schedule");
    v("precision", precision,
      "of weights and activations in products; the values that learn are f32 either way");
    v("optimizer", optimizer);
    v("schedule", schedule);
    v("method_rate", method_rate, "the method's own tensors learn at the rate times this");
    v("lora", lora);
    v("text_share", text_share,
      "of a run that distils: the share of its steps, drawn by the seed, that learn the text's next token "
      "instead of the teacher's output");
    v("clip", clip, "the largest norm of all gradients together; 0: not clipped");
    v("recompute", recompute,
      "keep no activations of branches, compute them again: less memory, a third more time");
    v("validation", validation);
    v("checkpoint", checkpoint);
    v("log_every", log_every, "steps between lines of log.jsonl");
    v("on_nan", on_nan,
      "a loss that is NaN or infinite, or a spike: stop, or roll back to the last checkpoint and skip that "
      "data");
    v("spike", spike,
      "a loss above its running mean times this is a spike, handled as on_nan says; 0: never");
    v("rollbacks", rollbacks, "stop after this many roll-backs without a checkpoint between them");
    v("init", init);
    v("model", model);
  }

  // What a model has unless a recipe says otherwise: Llama's.
  static ModelConfig default_model();
  int64_t last_step() const { return steps > 0 ? steps : schedule_steps; }
  // Does this step of a run that distils learn the text instead?
  bool learns_text(int64_t step) const;
};

// A recipe: the keys above, and "method": {"name": …, …} (skip/method_policy.h).
struct Recipe {
  TrainConfig train;
  std::unique_ptr<MethodPolicy> method;

  // JSON with comments. Unknown keys and wrong values are UserErrors that begin with `where`.
  static Recipe parse(const std::string& json_text, const std::string& where);
  // "key=value"; "method.key=value" reaches the method. UsageError.
  void set(const std::string& assignment);
  // Do the backbone's weights stay as they are?
  bool frozen() const { return train.lora.rank > 0 || method->options().frozen_backbone; }
  void check() const;           // values that make no sense together: UserErrors
  std::string to_json() const;  // every key
};

// The keys in which two recipes differ, "a.b" each, less those that may change when a run goes on (steps,
// log_every, checkpoint.*, data_cache, prepare_data, prepare_tokens).
std::vector<std::string> differing_keys(const std::string& json_a, const std::string& json_b);

struct WeightedPath {
  std::string path;
  double weight = 0;  // 0: none given
};
// "FILE" or "FILE:0.3".
WeightedPath parse_data(const std::string& entry);

// The shape of a new model, with what follows from the rest filled in: heads' size, windows, the tokenizer's
// vocabulary and marks.
ModelConfig complete_model(ModelConfig model, const TrainConfig& config, const Tokenizer* tokenizer);

}  // namespace fathom
