#include "train/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/format.h"

namespace fathom {
namespace {

// Refuses a factor that the schedule does not read, unless it has its default value.
void check_silenced(const ScheduleConfig& config) {
  const ScheduleConfig plain;
  const bool ends = config.kind == ScheduleKind::kCosine || config.kind == ScheduleKind::kLinear,
             warms_up = config.warmup_steps > 0 || config.warmup_share > 0;
  require(ends || config.final_factor == plain.final_factor,
          "schedule.final_factor is for kind: cosine or linear, and does nothing with kind: {}: leave it out",
          enum_names(config.kind)[static_cast<size_t>(config.kind)]);
  require(warms_up || config.start_factor == plain.start_factor,
          "schedule.start_factor is the warm-up's, and there is none: leave it out, or set "
          "schedule.warmup_steps or schedule.warmup_share");
}

}  // namespace

std::span<const std::string_view> enum_names(ScheduleKind) {
  static constexpr std::array<std::string_view, 4> kNames{"constant", "cosine", "linear",
                                                          "inverse_square_root"};
  return kNames;
}

Schedule::Schedule(const ScheduleConfig& config, int64_t steps) : config_(config), steps_(steps) {
  require(steps > 0, "schedule_steps must be at least 1, got {}", steps);
  require(config.rate > 0, "schedule.rate must be above 0, got {}", config.rate);
  require(config.warmup_steps >= 0, "schedule.warmup_steps must not be negative, got {}",
          config.warmup_steps);
  require(config.warmup_steps == 0 || config.warmup_share == 0,
          "schedule.warmup_steps ({}) and schedule.warmup_share ({}) are two ways to say the same: give one",
          config.warmup_steps, config.warmup_share);
  for (const auto& [name, value] : {std::pair("schedule.warmup_share", config.warmup_share),
                                    std::pair("schedule.start_factor", config.start_factor),
                                    std::pair("schedule.final_factor", config.final_factor)})
    require(value >= 0 && value <= 1, "{} must be in [0, 1], got {}", name, value);
  check_silenced(config);
  const auto share = static_cast<int64_t>(
      std::llround(static_cast<double>(config.warmup_share) * static_cast<double>(steps)));
  warmup_ = std::max(config.warmup_steps, share);
}

double Schedule::rate(int64_t step) const {
  const auto highest = static_cast<double>(config_.rate);
  if (step < warmup_) {
    const double start = static_cast<double>(config_.start_factor),
                 done = static_cast<double>(step) / static_cast<double>(warmup_);
    return highest * (start + (1 - start) * done);
  }
  const int64_t length = std::max<int64_t>(1, steps_ - 1 - warmup_);
  const double done = std::min(1.0, static_cast<double>(step - warmup_) / static_cast<double>(length));
  const auto final = static_cast<double>(config_.final_factor);
  switch (config_.kind) {
    case ScheduleKind::kConstant:
      return highest;
    case ScheduleKind::kCosine:
      return highest * (final + (1 - final) * 0.5 * (1 + std::cos(std::numbers::pi * done)));
    case ScheduleKind::kLinear:
      return highest * (1 - (1 - final) * done);
    case ScheduleKind::kInverseSquareRoot: {
      const auto origin = static_cast<double>(std::max<int64_t>(1, warmup_));
      return highest * std::sqrt(origin / std::max(origin, static_cast<double>(step)));
    }
  }
  return highest;
}

}  // namespace fathom
