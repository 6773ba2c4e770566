#include "train/train_log.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The step of a whole line; -1: it is none.
int64_t step_of(std::string_view line) {
  const OrderedJson json = OrderedJson::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return -1;
  return json["step"].get<int64_t>();
}

}  // namespace

TrainLog::TrainLog(const std::string& path, int64_t step) : path_(path) {
  cut(step);
}

TrainLog::~TrainLog() {
  if (file_) std::fclose(file_);
}

void TrainLog::open() {
  file_ = std::fopen(path_.c_str(), "abe");
  if (!file_) fail("cannot write {}: {}", printable(path_), std::strerror(errno));
}

void TrainLog::cut(int64_t step) {
  if (file_) std::fclose(file_);
  file_ = nullptr;
  std::error_code error;
  if (std::filesystem::exists(path_, error)) {
    const std::string text = read_text_file(path_);
    AtomicFile kept(path_);
    size_t begin = 0;
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
      const std::string_view line = std::string_view(text).substr(begin, end - begin);
      const int64_t of = step_of(line);
      if (of >= 0 && of <= step) kept.write(std::string(line) + "\n");
      begin = end + 1;
    }
    kept.commit();
  }
  open();
}

void TrainLog::write(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  OrderedJson line{{"step", step}};
  for (const auto& [name, value] : values) {
    const bool whole = std::floor(value) == value && std::fabs(value) < 1e15;
    if (!std::isfinite(value))
      line[name] = nullptr;
    else if (whole)
      line[name] = static_cast<int64_t>(value);
    else
      line[name] = value;
  }
  const std::string text = line.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    fail("cannot write {}: {}", printable(path_), std::strerror(errno));
}

}  // namespace fathom
