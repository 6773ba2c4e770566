#include "train/train_part.h"

#include "model/flops.h"
#include "model/transformer.h"
#include "ops/optimizer/gradient_norm.h"
#include "tensor/arena.h"

namespace fathom {

double PartFigures::skip_ratio() const {
  return units > 0 ? 1 - static_cast<double>(kept) / static_cast<double>(units) : 0;
}

double PartFigures::net_flops() const {
  return dense > 0 ? static_cast<double>(madds) / static_cast<double>(dense) : 1;
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

// The teacher's last states; x is undefined where there is none.
OutputRows PartRunner::teach(const Batch& batch) {
  if (!options_.teacher) return {};
  const RecordingScope quiet(ctx_, false);
  PolicyState none;
  return forward_to_output(ctx_, *options_.teacher, batch, FreshPass{}, DensePolicy(), none);
}

OutputRows PartRunner::forward_counted(const PartInput& input, SkipState& state) {
  const bool counts = options_.measures.work;
  const Work before = counts ? ctx_.counters().total() : Work();
  OutputRows output =
      forward_to_output(ctx_, model_, input.batch, FreshPass{options_.recompute}, method_, state);
  if (counts) {
    // The output's product is the loss's, where a GPU counts the gradient's with it.
    const DenseWork dense = dense_work(model_.config, input.rows);
    figures_.madds += (ctx_.counters().total() - before).madds + dense.output_madds;
    figures_.dense += dense.block_madds + dense.output_madds;
  }
  for (const UnitRecord& unit : state.pass.units) {
    const RowSet& kept = unit.decision.kept;
    if (kept.is_all()) figures_.kept += kept.capacity();
    if (kept.count()) keep_number(Number::kKept, kept.count());
  }
  figures_.units += input.batch.rows() * 2 * model_.config.layers;
  return output;
}

// Its memory is the tape's, which outlives the part.
void PartRunner::keep_number(Number kind, const Tensor& number) {
  numbers_.push_back(detach(number));
  kinds_.push_back(kind);
}

void PartRunner::add_number(Number kind, Scalar value) {
  switch (kind) {
    case Number::kLoss:
      figures_.loss += static_cast<double>(value.as_float());
      break;
    case Number::kCe:
      figures_.ce += static_cast<double>(value.as_float());
      break;
    case Number::kKept:
      figures_.kept += value.as_int();
      break;
  }
}

PartFigures PartRunner::finish(const Tensor& gradients) {
  const ArenaScope arena(ctx_);
  const Tensor norm = gradient_norm(ctx_, gradients);
  std::vector<Tensor> numbers = std::move(numbers_);
  numbers.push_back(norm.rows(0, 1));
  numbers.push_back(norm.rows(1, 1));
  const std::vector<Scalar> read = read_scalars(ctx_, numbers);
  for (size_t i = 0; i < kinds_.size(); ++i) add_number(kinds_[i], read[i]);
  figures_.gradient_norm = norm_of(read[kinds_.size()], read[kinds_.size() + 1]);
  return figures_;
}

// part: of the step. What the pass ends with is held here alone: the loss has what its gradient needs.
Tensor PartRunner::loss_of(const PartInput& input, SkipState& state, float part) {
  const OutputRows taught = teach(input.batch), output = forward_counted(input, state);
  const Tensor loss =
      method_.loss(ctx_, {model_, input.batch, output, taught, input.targets, input.weights, state, part});
  keep_number(Number::kLoss, loss);
  if (options_.measures.ce) {
    const RecordingScope quiet(ctx_, false);
    keep_number(Number::kCe, output_cross_entropy(ctx_, output, input.targets, input.weights));
  }
  return loss;
}

void PartRunner::run(const TrainBatch& part, double weight_sum) {
  const ArenaScope arena(ctx_);
  const TapeScope recording(ctx_, tape_);
  const PartInput input = part_input(ctx_, part, weight_sum);
  const std::unique_ptr<PolicyState> own_state =
      method_.make_state(ctx_, model_.config, input.batch.sequences);
  auto& state = static_cast<SkipState&>(*own_state);
  state.training = options_.step;

  tape_.backward(ctx_, loss_of(input, state, static_cast<float>(part.weight_sum / weight_sum)));
  method_.observe(ctx_, state, parts_++);
}

}  // namespace fathom
