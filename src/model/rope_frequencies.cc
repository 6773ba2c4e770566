// The rotary embedding's frequencies under each published scaling.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config.h"

namespace fathom {
namespace {

// Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
double llama3_scaled(const RopeConfig& rope, double frequency) {
  const double turns = static_cast<double>(rope.original_context) * frequency / (2 * std::numbers::pi);
  if (turns < rope.low_frequency_factor) return frequency / rope.factor;
  if (turns > rope.high_frequency_factor) return frequency;
  const double smooth =
      (turns - rope.low_frequency_factor) / (rope.high_frequency_factor - rope.low_frequency_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

struct YarnRamp {
  double low, high;
};

// YaRN (Peng et al. 2023): the dimensions that turn `beta_fast` and `beta_slow` times within the original
// context.
YarnRamp yarn_ramp(const RopeConfig& rope, int64_t head_dim) {
  const auto dimension_of = [&](double turns) {
    const double wavelengths = static_cast<double>(rope.original_context) / (turns * 2 * std::numbers::pi);
    return static_cast<double>(head_dim) * std::log(wavelengths) /
           (2 * std::log(static_cast<double>(rope.theta)));
  };
  double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  return {low, low == high ? high + 0.001 : high};
}

}  // namespace

std::vector<float> inverse_frequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<float> out;
  const YarnRamp ramp = rope.scaling == RopeScaling::kYarn ? yarn_ramp(rope, head_dim) : YarnRamp{0, 1};
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
    double frequency = 1.0 / std::pow(static_cast<double>(rope.theta), exponent);
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3:
        frequency = llama3_scaled(rope, frequency);
        break;
      case RopeScaling::kYarn: {
        const double slow =
            std::clamp((static_cast<double>(i) - ramp.low) / (ramp.high - ramp.low), 0.0, 1.0);
        frequency = frequency / rope.factor * slow + frequency * (1 - slow);
        break;
      }
    }
    out.push_back(static_cast<float>(frequency));
  }
  return out;
}

float rope_magnitude(const RopeConfig& rope) {
  return rope.scaling == RopeScaling::kYarn ? rope.attention_factor : 1.0f;
}

}  // namespace fathom
