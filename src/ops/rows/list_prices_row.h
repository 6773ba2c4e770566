// One row of list_prices(), for both kinds of kernels.
#pragma once

#include <cmath>

#include "base/both_devices.h"
#include "ops/rows/list_prices.h"

namespace fathom {

inline constexpr float kMostPrice = 1e20f;

// The rules as plain numbers.
struct PlainListRules {
  int lists = 0, band = 0, protect_rows = 0;
  float left[kMostLists + 1] = {};
};

inline PlainListRules plain(const ListRules& rules) {
  PlainListRules out;
  out.lists = rules.costs.lists;
  out.band = rules.band;
  out.protect_rows = rules.protect_rows;
  for (int k = 0; k <= out.lists; ++k) out.left[k] = rules.costs.left[static_cast<size_t>(k)];
  return out;
}

// out[g − 1] = min over k ≥ g of max over j < g of (loss k − loss j) / (cost j − cost k). loss: of 1 … K.
FATHOM_BOTH inline void critical_prices(const PlainListRules& rules, const float* loss, float* out) {
  for (int g = 1; g <= rules.lists; ++g) {
    float least = kMostPrice;
    for (int k = g; k <= rules.lists; ++k) {
      float most = -kMostPrice;
      for (int j = 0; j < g; ++j) {
        const float saved = fmaxf(rules.left[j] - rules.left[k], 1e-6f);
        most = fmaxf(most, (loss[k - 1] - (j == 0 ? 0.0f : loss[j - 1])) / saved);
      }
      least = fminf(least, most);
    }
    out[g - 1] = least;
  }
}

// What lies more than half of the way from `mid` to `edge` is pressed into the other half.
FATHOM_BOTH inline float pressed(float price, float mid, float edge) {
  const float half = (edge - mid) / 2, beyond = (price - mid - half) / half;
  return beyond <= 0 ? price : mid + half + half * (beyond / (1 + beyond));
}

// prices: of the row, in place; mean: of the mean row; most: filled. All (K).
FATHOM_BOTH inline void press_into_band(const PlainListRules& rules, const float* mean, float* prices,
                                        float* most) {
  float highest = -kMostPrice;
  for (int g = 0; g < rules.lists; ++g) {
    const float mid = mean[g], gap = 0.05f * fabsf(mid) + 1e-4f;
    most[g] = kMostPrice;
    if (rules.band > 0 && g + rules.band < rules.lists) {
      most[g] = highest = fmaxf(highest, fmaxf(mean[g + rules.band], mid + gap));
      if (prices[g] > mid) prices[g] = fminf(pressed(prices[g], mid, most[g]), most[g]);
    }
    if (rules.band > 0 && g >= rules.band && prices[g] < mid)
      prices[g] = pressed(prices[g], mid, fminf(mean[g - rules.band], mid - gap));
    if (g > 0) prices[g] = fmaxf(prices[g], prices[g - 1]);  // lists stay nested
  }
}

}  // namespace fathom
