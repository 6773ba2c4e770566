// What convert and quantize share.
#pragma once

#include <string>

#include "model/save.h"

namespace fathom {

// The model's own files are mapped while the new ones are written.
void refuse_to_overwrite_input(const Model& model, const std::string& out);

void report_written(const SaveSummary& summary, const std::string& out, bool json);

}  // namespace fathom
