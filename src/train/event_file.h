// Scalars for TensorBoard: TFRecord frames around protobuf messages, both simple enough to be written by
// hand.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace fathom {

using Scalars = std::vector<std::pair<std::string, double>>;

// One record: length, its checksum, data, its checksum.
std::string tfrecord(const std::string& data);
// tensorflow.Event messages.
std::string version_event(double wall_time);
std::string start_event(double wall_time,
                        int64_t step);  // what stands in older files from this step on is void
std::string scalars_event(double wall_time, int64_t step, const Scalars& scalars);

class EventFile {
 public:
  // A new file in `dir`, begun at `step`; one that cannot be made is a UserError.
  EventFile(const std::string& dir, int64_t step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  void write(int64_t step, const Scalars& scalars);

 private:
  void put(const std::string& event);
  std::string path_;
  std::FILE* file_;
};

}  // namespace fathom
