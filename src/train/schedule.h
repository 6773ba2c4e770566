// The learning rate over the steps.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace fathom {

enum class ScheduleKind : uint8_t { kConstant, kCosine, kLinear, kInverseSquareRoot };
std::span<const std::string_view> enum_names(ScheduleKind);  // constant, cosine, linear, inverse_square_root

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kCosine;
  float rate = 1e-3f;
  int64_t warmup_steps = 0;
  float warmup_share = 0;
  float start_factor = 0.1f;
  float final_factor = 0.1f;

  template <class V>
  void visit(V& v) {
    v("kind", kind, "how the learning rate changes after the warm-up");
    v("rate", rate, "the highest learning rate");
    v("warmup_steps", warmup_steps, "steps in which the rate rises to its highest");
    v("warmup_share", warmup_share, "the same as a share of schedule_steps: one of the two");
    v("start_factor", start_factor, "the warm-up begins at this share of the rate");
    v("final_factor", final_factor, "cosine, linear: the share of the rate at the last step");
  }
};

class Schedule {
 public:
  // Values that make no sense are a UserError that names the key.
  Schedule(const ScheduleConfig& config, int64_t steps);
  double rate(int64_t step) const;  // of step 0, 1, …; after the last it stays
  int64_t warmup() const { return warmup_; }

 private:
  ScheduleConfig config_;
  int64_t steps_, warmup_;
};

}  // namespace fathom
