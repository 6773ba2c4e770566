#include "infer/broken_unit.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

class FinitePolicy final : public ForwardingPolicy {
 public:
  FinitePolicy(const SkipPolicy& inner, std::string& where) : ForwardingPolicy(inner), where_(where) {}

  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
    if (input.index() == 0) check(ctx, input.h, "the embedding");
    return ForwardingPolicy::decide(ctx, input, state);
  }
  void join(Context& ctx, const UnitInput& input, const Decision& decision, const Tensor& branch, Tensor& h,
            PolicyState& state) const override {
    ForwardingPolicy::join(ctx, input, decision, branch, h, state);
    check(ctx, h, input.unit == Unit::kAttention ? "the attention" : "the FFN", input.layer);
  }

 private:
  void check(Context& ctx, const Tensor& h, const char* unit, int64_t layer = -1) const {
    if (!where_.empty()) return;
    std::vector<float> values(static_cast<size_t>(h.numel()));
    copy_to_host(ctx, h, values);
    if (std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) return;
    where_ = layer < 0 ? unit : fmt::format("{} of layer {}", unit, layer);
  }

  std::string& where_;
};

// All of it again, piece by piece: a row is made of rows before it, so the first piece that breaks tells.
// Returns "; first not finite after …", or "" when all of it is finite.
std::string where_it_broke(Feeder& feeder, int32_t sequence, std::span<const int32_t> fed) {
  constexpr size_t kRows = 128;
  Context& ctx = feeder.context();
  std::string where;
  const FinitePolicy looking(feeder.policy(), where);
  Feeder again(ctx, feeder.model(), feeder.cache(), looking, feeder.state());
  std::vector<float> logits(static_cast<size_t>(feeder.model().config.vocab));
  feeder.truncate(sequence, 0);
  while (!fed.empty() && where.empty()) {
    const ArenaScope scope(ctx);
    const size_t rows = feeder.policy().needs_whole_prompt() ? fed.size() : std::min(kRows, fed.size());
    copy_to_host(ctx, again.feed(sequence, fed.first(rows), LogitsFor::kLast), logits);
    fed = fed.subspan(rows);
  }
  if (where.empty()) {
    const auto broken = [](float x) { return std::isnan(x) || x == INFINITY; };
    if (std::none_of(logits.begin(), logits.end(), broken)) return "";
    where = "the output matrix";
  }
  return "; first not finite after " + where;
}

}  // namespace

void fail_where_it_broke(const std::string& what, Feeder& feeder, int32_t sequence,
                         std::span<const int32_t> fed) {
  std::string where;
  try {
    where = where_it_broke(feeder, sequence, fed);
  } catch (const UserError&) {  // such as CacheFull: others hold what looking again would take
  }
  throw UserError(what + where);
}

}  // namespace fathom
