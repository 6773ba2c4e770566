// What convert and quantize share.
#pragma once

#include <string>

#include "model/save.h"

namespace fathom {

// The model's own files are mapped while the new ones are written, and a method that lies at `out` from
// before would be taken for the new model's.
void refuse_to_overwrite(const Model& model, const std::string& out);

// The model's own method, where the new file's is looked for.
void write_own_method(Context& ctx, const Model& model, const std::string& out);

void report_written(const SaveSummary& summary, const std::string& out, bool json);

}  // namespace fathom
