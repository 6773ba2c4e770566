#include "train/train_part.h"

#include "model/flops.h"
#include "model/transformer.h"
#include "ops/optimizer/gradient_norm.h"
#include "tensor/arena.h"
#include "tensor/memory.h"

namespace fathom {

double PartFigures::skip_ratio() const {
  return units > 0 ? 1 - static_cast<double>(kept) / static_cast<double>(units) : 0;
}

double PartFigures::net_flops() const {
  return dense > 0 ? static_cast<double>(madds) / static_cast<double>(dense) : 1;
}

PartInput part_input(Context& ctx, const StagedPart& part) {
  Tensor block = Tensor::empty(ctx, DType::kI32, {part.numbers});
  copy_bytes(ctx, block.raw(), block.device(), part.block.get(), Device::kCpu,
             static_cast<size_t>(block.nbytes()));
  const Tensor weights = block.rows(part.weights_at, part.shape.wanted);
  return {batch_of(ctx, block, part.shape), block.rows(part.targets_at, part.shape.wanted),
          Tensor::view(weights.device(), weights.raw(), DType::kF32, weights.shape(), weights.owner())};
}

// The teacher's last states; x is undefined where there is none.
OutputRows PartRunner::teach(const Batch& batch) {
  if (!options_.teacher) return {};
  const RecordingScope quiet(ctx_, false);
  PolicyState none;
  return forward_to_output(ctx_, *options_.teacher, batch, FreshPass{}, DensePolicy(), none);
}

OutputRows PartRunner::forward_counted(const Batch& batch, std::span<const BatchRow> rows, SkipState& state) {
  const bool counts = options_.measures.work;
  const Work before = counts ? ctx_.counters().total() : Work();
  OutputRows output = forward_to_output(ctx_, model_, batch, FreshPass{options_.recompute}, method_, state);
  if (counts) {
    // The output's product is the loss's, where a GPU counts the gradient's with it.
    const DenseWork dense = dense_work(model_.config, rows);
    figures_.madds += (ctx_.counters().total() - before).madds + dense.output_madds;
    figures_.dense += dense.block_madds + dense.output_madds;
  }
  for (const UnitRecord& unit : state.pass.units) {
    const RowSet& kept = unit.decision.kept;
    if (kept.is_all()) figures_.kept += kept.capacity();
    if (kept.count()) keep_number(Number::kKept, kept.count());
  }
  figures_.units += batch.rows() * 2 * model_.config.layers;
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
  for (const Tensor& figure : method_.figures(ctx_)) numbers.push_back(figure);
  const std::vector<Scalar> read = read_scalars(ctx_, numbers);
  for (size_t i = 0; i < kinds_.size(); ++i) add_number(kinds_[i], read[i]);
  const auto rest = std::span(read).subspan(kinds_.size());
  figures_.gradient_norm = norm_of(rest[0], rest[1]);
  for (const Scalar& figure : rest.subspan(2)) figures_.of_method.push_back(figure.as_float());
  return figures_;
}

// What the pass ends with is held here alone: the loss has what its gradient needs.
Tensor PartRunner::loss_of(const StagedPart& part, SkipState& state, const PartInput& input) {
  const OutputRows taught = teach(input.batch), output = forward_counted(input.batch, part.rows, state);
  const Tensor loss = method_.loss(ctx_, {model_, input.batch, output, taught, input.targets, input.weights,
                                          state, static_cast<float>(part.share)});
  keep_number(Number::kLoss, loss);
  if (options_.measures.ce) {
    const RecordingScope quiet(ctx_, false);
    keep_number(Number::kCe, output_cross_entropy(ctx_, output, input.targets, input.weights));
  }
  return loss;
}

void PartRunner::run(const StagedPart& part) {
  const ArenaScope arena(ctx_);
  const TapeScope recording(ctx_, tape_);
  const PartInput input = part_input(ctx_, part);
  const std::unique_ptr<PolicyState> own_state =
      method_.make_state(ctx_, model_.config, input.batch.sequences);
  auto& state = static_cast<SkipState&>(*own_state);
  state.training = options_.step;

  tape_.backward(ctx_, loss_of(part, state, input));
  method_.observe(ctx_, state, parts_++);
}

}  // namespace fathom
