#include "train/train_part.h"

#include "model/flops.h"
#include "model/transformer.h"
#include "ops/loss/cross_entropy.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

int64_t kept_rows(Context& ctx, const RowSet& kept) {
  if (kept.is_all()) return kept.capacity();
  if (kept.is_none()) return 0;
  int32_t count = 0;
  copy_to_host(ctx, kept.count(), std::span(&count, 1));
  return count;
}

}  // namespace

double PartFigures::skip_ratio() const {
  return units > 0 ? 1 - static_cast<double>(kept) / static_cast<double>(units) : 0;
}

double PartFigures::net_flops() const {
  return dense > 0 ? static_cast<double>(madds) / static_cast<double>(dense) : 1;
}

double value_of(Context& ctx, const Tensor& scalar) {
  float value = 0;
  copy_to_host(ctx, scalar, std::span(&value, 1));
  return static_cast<double>(value);
}

std::vector<BatchRow> rows_of(const TrainBatch& part) {
  std::vector<BatchRow> rows(part.tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = {part.tokens[i], part.positions[i], part.sequence[i], part.weights[i] > 0,
               part.sequence_keys[static_cast<size_t>(part.sequence[i])]};
  }
  return rows;
}

PartInput part_input(Context& ctx, const TrainBatch& part, double weight_sum) {
  std::vector<int32_t> targets;
  std::vector<float> weights;
  for (size_t i = 0; i < part.tokens.size(); ++i) {
    if (part.weights[i] <= 0) continue;
    targets.push_back(part.targets[i]);
    weights.push_back(static_cast<float>(static_cast<double>(part.weights[i]) / weight_sum));
  }
  const auto count = static_cast<int64_t>(targets.size());
  std::vector<BatchRow> rows = rows_of(part);
  Batch batch = make_batch(ctx, rows);
  return {std::move(rows), std::move(batch), Tensor::from(ctx, targets, {count}),
          Tensor::from(ctx, weights, {count})};
}

// The teacher's logits; undefined where there is none.
Tensor PartRunner::teach(const Batch& batch) {
  if (!options_.teacher) return {};
  const RecordingScope quiet(ctx_, false);
  PolicyState none;
  return forward(ctx_, *options_.teacher, batch, FreshPass{}, DensePolicy(), none);
}

Tensor PartRunner::forward_counted(const PartInput& input, SkipState& state) {
  const Work before = ctx_.counters().total();
  Tensor logits = forward(ctx_, model_, input.batch, FreshPass{options_.recompute}, method_, state);
  figures_.madds += (ctx_.counters().total() - before).madds;
  const DenseWork dense = dense_work(model_.config, input.rows);
  figures_.dense += dense.block_madds + dense.output_madds;
  for (const UnitRecord& unit : state.pass.units) figures_.kept += kept_rows(ctx_, unit.decision.kept);
  figures_.units += input.batch.rows() * 2 * model_.config.layers;
  return logits;
}

void PartRunner::run(const TrainBatch& part, double weight_sum, bool want_ce) {
  const ArenaScope arena(ctx_);
  const TapeScope recording(ctx_, tape_);
  const PartInput input = part_input(ctx_, part, weight_sum);
  const std::unique_ptr<PolicyState> own_state =
      method_.make_state(ctx_, model_.config, input.batch.sequences);
  auto& state = static_cast<SkipState&>(*own_state);
  state.training = options_.step;

  const Tensor taught = teach(input.batch);
  Tensor logits = forward_counted(input, state);
  const Tensor loss = method_.loss(ctx_, {model_, input.batch, logits, taught, input.targets, input.weights,
                                          state, static_cast<float>(part.weight_sum / weight_sum)});
  figures_.loss += value_of(ctx_, loss);
  if (want_ce) {
    const RecordingScope quiet(ctx_, false);
    figures_.ce += value_of(ctx_, cross_entropy(ctx_, detach(logits), input.targets, input.weights));
  }
  logits = {};  // the loss writes its gradient into their memory where nothing else holds it
  tape_.backward(ctx_, loss);
  method_.observe(ctx_, state, parts_++);
}

}  // namespace fathom
