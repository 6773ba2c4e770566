// What convert and quantize share.
#pragma once

#include <string>

#include "model/save.h"
#include "skip/adapter.h"

namespace fathom {

// The model's own files are mapped while the new ones are written. A file that is there is replaced only when
// `force`, and so is a method that lies beside it: it would be taken for the new model's. UsageErrors.
void refuse_to_overwrite(const Model& model, const std::string& out, bool force);

// A method beside a model that is written, in the place of one that lies there; dense: none.
void write_method(Context& ctx, const Model& model, Adapter adapter, const std::string& out);

// The model's own method, where the new file's is looked for; one that lies there goes.
void write_own_method(Context& ctx, const Model& model, const std::string& out);

void report_written(const SaveSummary& summary, const std::string& out, bool json);

}  // namespace fathom
