// Hugging Face's generation_config.json: sampling defaults, and the full list of tokens that end an answer.
#pragma once

#include <string>

#include "model/model.h"

namespace fathom {

// A file that is not there changes nothing. Values of a wrong type are UserErrors that name the file and the
// key; keys that change what a model writes, and that we do nothing with, are named in a warning.
void read_generation_config(const std::string& path, Model& model);

}  // namespace fathom
