// Adafactor (Shazeer & Stern 2018) at a given rate: the second moments of a matrix are the product of a row
// and a column of means, so its state is rows + columns numbers; the update of a tensor is clipped by its
// root mean square, and the rate is relative to the tensor's own (at least 1e-3), as the paper's algorithm 5
// has it.
#include <algorithm>
#include <cmath>

#include "train/optimizer.h"

namespace fathom {
namespace {

constexpr int64_t kColumns = 64;    // of a column sum, by one thread
constexpr double kSmallest = 1e-3;  // root mean square of a tensor that a step is relative to

class Adafactor final : public Optimizer {
 public:
  Adafactor(const OptimizerConfig& config, const ParameterSet& parameters) : Optimizer(config) {
    if (config.beta1 > 0)
      state_.push_back({"mean", Tensor::owned(Device::kCpu, DType::kF32, {parameters.size()})});
    int64_t size = 0;
    for (const ParameterSet::Parameter& parameter : parameters.list()) {
      const Moments moments = layout(parameter, size);
      places_.push_back(moments);
      size += moments.columns > 0 ? moments.rows + moments.columns : moments.rows;
    }
    state_.push_back({"moments", Tensor::owned(Device::kCpu, DType::kF32, {std::max<int64_t>(1, size)})});
  }

 private:
  // Where a tensor's second moments are: rows means then columns means; columns 0: one for each of `rows`
  // elements.
  struct Moments {
    int64_t begin, rows, columns;
  };

  static Moments layout(const ParameterSet::Parameter& parameter, int64_t begin) {
    if (parameter.shape.rank() < 2) return {begin, parameter.size, 0};
    return {begin, parameter.size / parameter.shape.last(), parameter.shape.last()};
  }

  void update(Context& ctx, ParameterSet& parameters, double rate) override {
    const double t = static_cast<double>(steps_);
    beta2_ = config_.beta2_power > 0
                 ? static_cast<float>(1 - std::pow(t, -static_cast<double>(config_.beta2_power)))
                 : config_.beta2;
    for (size_t i = 0; i < places_.size(); ++i) {
      const ParameterSet::Parameter& parameter = parameters.list()[i];
      const float* gradient = parameters.gradients().data() + parameter.begin;
      const Moments& place = places_[i];
      float* moments = state_.back().tensor.data<float>() + place.begin;
      if (place.columns > 0) {
        row_means(ctx, gradient, place, moments);
        column_means(ctx, gradient, place, moments + place.rows);
      } else {
        for (int64_t k = 0; k < place.rows; ++k) follow(moments[k], square(gradient[k]));
      }
      const double own_rate = rate * static_cast<double>(parameter.spec.rate);
      apply(ctx, parameters, parameter, place, moments, own_rate * size_of(parameters, parameter));
    }
  }

  // What the tensor's step is relative to.
  double size_of(ParameterSet& parameters, const ParameterSet::Parameter& parameter) const {
    if (!config_.scale_by_size) return 1;
    double sum = 0;
    for (int64_t i = 0; i < parameter.size; ++i) {
      const auto value = static_cast<double>(parameters.values()[static_cast<size_t>(parameter.begin + i)]);
      sum += value * value;
    }
    return std::max(kSmallest, std::sqrt(sum / static_cast<double>(parameter.size)));
  }

  double square(float g) const {
    return static_cast<double>(g) * static_cast<double>(g) + static_cast<double>(config_.eps);
  }
  void follow(float& mean, double value) const {
    mean = beta2_ * mean + (1 - beta2_) * static_cast<float>(value);
  }

  void row_means(Context& ctx, const float* gradient, const Moments& place, float* means) const {
    ctx.pool().parallel_for(place.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        double sum = 0;
        for (int64_t k = 0; k < place.columns; ++k) sum += square(gradient[row * place.columns + k]);
        follow(means[row], sum / static_cast<double>(place.columns));
      }
    });
  }

  void column_means(Context& ctx, const float* gradient, const Moments& place, float* means) const {
    ctx.pool().parallel_for(place.columns, kColumns, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += kColumns) {
        const int64_t count = std::min(kColumns, end - first);
        double sums[kColumns] = {};
        for (int64_t row = 0; row < place.rows; ++row) {
          for (int64_t k = 0; k < count; ++k) sums[k] += square(gradient[row * place.columns + first + k]);
        }
        for (int64_t k = 0; k < count; ++k)
          follow(means[first + k], sums[k] / static_cast<double>(place.rows));
      }
    });
  }

  // u = g / sqrt(v), v of row i and column j = R_i · C_j / mean(R)
  void apply(Context& ctx, ParameterSet& parameters, const ParameterSet::Parameter& parameter,
             const Moments& place, const float* moments, double rate) {
    const bool factored = place.columns > 0;
    const int64_t rows = factored ? place.rows : 1, columns = factored ? place.columns : place.rows;
    const float* gradient = parameters.gradients().data() + parameter.begin;
    double mean_of_rows = 0;
    for (int64_t row = 0; factored && row < rows; ++row) mean_of_rows += static_cast<double>(moments[row]);
    mean_of_rows /= static_cast<double>(rows);
    const float* by_column = factored ? moments + rows : moments;
    const auto row_factor = [&](int64_t row) {
      return factored ? static_cast<float>(1 / std::sqrt(static_cast<double>(moments[row]) / mean_of_rows))
                      : 1.0f;
    };

    std::vector<double> squares(static_cast<size_t>(rows));
    const auto each_row = [&](auto&& fn) {
      ctx.pool().parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) fn(row, row_factor(row));
      });
    };
    each_row([&](int64_t row, float factor) {
      double sum = 0;
      for (int64_t k = 0; k < columns; ++k) {
        const double u = static_cast<double>(gradient[row * columns + k] * factor / std::sqrt(by_column[k]));
        sum += u * u;
      }
      squares[static_cast<size_t>(row)] = sum;
    });
    double total = 0;
    for (double sum : squares) total += sum;
    const double rms = std::sqrt(total / static_cast<double>(rows * columns));
    const auto scale =
        static_cast<float>(rate / std::max(1.0, rms / static_cast<double>(config_.update_clip)));

    float* value = parameters.values().data() + parameter.begin;
    float* mean = config_.beta1 > 0 ? state_[0].tensor.data<float>() + parameter.begin : nullptr;
    const double decay = parameter.spec.decay ? static_cast<double>(config_.weight_decay) : 0.0;
    const auto keep = static_cast<float>(1 - rate * decay);
    each_row([&](int64_t row, float factor) {
      for (int64_t k = 0; k < columns; ++k) {
        const int64_t i = row * columns + k;
        float u = scale * gradient[i] * factor / std::sqrt(by_column[k]);
        if (mean) u = mean[i] = config_.beta1 * mean[i] + (1 - config_.beta1) * u;
        value[i] = value[i] * keep - u;
      }
    });
  }

  float beta2_ = 0;
  std::vector<Moments> places_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const OptimizerConfig& config, const ParameterSet& parameters) {
  return std::make_unique<Adafactor>(config, parameters);
}

}  // namespace fathom
