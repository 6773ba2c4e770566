// What a model's units do on a text (their harm, the influence of layers), kept in a file: the same model is
// measured on the same text once, and a long search that was stopped goes on.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/model.h"

namespace fathom {

class Measurements {
 public:
  // folder: gets a file for this model and these rows, measured-KEY.json, once there is something to keep.
  // Nothing is read or hashed before the first get().
  Measurements(Context& ctx, std::string folder, const Model& model, std::span<const Batch> batches)
      : ctx_(ctx), folder_(std::move(folder)), model_(model), batches_(batches) {}

  // `count` values of that name: those that the file has, or what `measure` returns, which it then has.
  std::vector<double> get(const std::string& name, size_t count,
                          const std::function<std::vector<double>()>& measure);
  bool measured() const { return measured_; }  // whether the file lacked something

 private:
  void open();
  void write();

  Context& ctx_;
  std::string folder_;
  const Model& model_;
  std::span<const Batch> batches_;
  std::string key_, path_;  // "" before the first get()
  int64_t rows_ = 0;
  std::map<std::string, std::vector<double>> values_;  // what is not finite is NaN
  bool measured_ = false, warned_ = false;
};

// As Measurements::get(), or without a place to keep anything: what `measure` returns.
std::vector<double> kept_or_measured(Measurements* kept, const std::string& name, size_t count,
                                     const std::function<std::vector<double>()>& measure);

}  // namespace fathom
