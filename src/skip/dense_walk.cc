#include "skip/dense_walk.h"

#include "model/norm.h"
#include "model/transformer.h"
#include "ops/linear/embed.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/pointwise.h"
#include "tensor/arena.h"

namespace fathom {

Tensor DenseWalk::start() const {
  const Tensor h = embed(ctx_, batch_.tokens, model_.weights.embedding, model_.config.embedding_scale);
  return model_.config.embedding_norm ? norm(ctx_, model_.config, h, model_.weights.embedding_norm) : h;
}

void DenseWalk::run(int64_t unit, Tensor& h) const {
  if (is_gone(unit)) return;
  const ArenaScope scope(ctx_);
  Decision everybody;
  everybody.kept = RowSet::all(h.dim(0));
  PassKv kv;
  const Tensor branch = unit % 2 == 0 ? attend(ctx_, model_, unit / 2, h, everybody, batch_, kv)
                                      : mlp(ctx_, model_, unit / 2, h, everybody, batch_);
  add_rows_to(ctx_, h, everybody.kept, branch);
}

Tensor DenseWalk::finish(int64_t unit, const Tensor& h) const {
  Tensor own = copy(h);
  for (; unit < units(); ++unit) run(unit, own);
  return output_logits(ctx_, model_, gather_rows(ctx_, own, batch_.logit_rows));
}

Tensor DenseWalk::copy(const Tensor& h) const {
  return affine(ctx_, h, 1.0f, 0.0f);
}

}  // namespace fathom
