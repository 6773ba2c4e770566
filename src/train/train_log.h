// DIR/log.jsonl: one object a step, in the order of the steps.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace fathom {

class TrainLog {
 public:
  // Lines after `step` (and a last one that was cut short) go: the run goes on from there.
  TrainLog(const std::string& path, int64_t step);
  ~TrainLog();
  TrainLog(const TrainLog&) = delete;
  TrainLog& operator=(const TrainLog&) = delete;

  // {"step": …, …}; a number that is not finite becomes null. When this returns, the line survives a crash
  // of the process, not a power cut.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  void cut(int64_t step);  // as the constructor does: after a roll-back

 private:
  void open();
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace fathom
