#include "train/training_data.h"

#include "base/format.h"
#include "train/shard_cache.h"

namespace fathom {
namespace {

std::vector<DataSource> open_sources(Context& ctx, const TrainConfig& config, const Model& model,
                                     const std::vector<std::string>& entries,
                                     const std::atomic<bool>* cancel) {
  const ShardCacheOptions options{config.data_cache, {config.chat_template, config.prompts_as_chat}, cancel};
  std::vector<DataSource> sources;
  for (const std::string& entry : entries) {
    const WeightedPath data = parse_data(entry);
    sources.push_back({data.path,
                       tokenized_source(ctx, data.path, *model.tokenizer, model.config.vocab, options),
                       data.weight});
  }
  return sources;
}

}  // namespace

TrainingData open_training_data(Context& ctx, const TrainConfig& config, const Model& model,
                                const std::atomic<bool>* cancel) {
  if (config.data.empty()) fail("expected data to train on: the recipe's data names no files");
  if (!model.tokenizer) fail("the model has no tokenizer: name one with the key tokenizer");
  if (config.context > model.config.context) {
    fail("context is {}, and the model was made for sequences of at most {}", config.context,
         model.config.context);
  }
  DatasetOptions options{.context = config.context,
                         .seed = config.seed,
                         .vocab = model.config.vocab,
                         .validation_share = static_cast<double>(config.validation.share)};
  TrainingData data;
  const std::vector<DataSource> sources = open_sources(ctx, config, model, config.data, cancel);
  data.train = std::make_unique<Dataset>(sources, options);
  if (!config.prepare_data.empty()) {
    DatasetOptions whole = options;
    whole.validation_share = 0;
    data.prepare =
        std::make_unique<Dataset>(open_sources(ctx, config, model, config.prepare_data, cancel), whole);
  }
  if (config.validation.share == 0 && config.validation.data.empty()) return data;
  options.shuffle = false;
  options.validation = config.validation.share > 0;
  if (!options.validation) options.validation_share = 0;
  data.validation = std::make_unique<Dataset>(
      options.validation ? sources : open_sources(ctx, config, model, config.validation.data, cancel),
      options);
  return data;
}

}  // namespace fathom
