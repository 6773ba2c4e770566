// SentencePiece's tokenizer.model: a protocol buffer, read by hand.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/hf_tokenizer.h"
#include "text/tokenizer.h"

namespace fathom {

// `where` starts each message. BOS and EOS as tokenizer_config.json says, else BOS where the model has one.
std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(std::string_view model, const HfConfigText& config,
                                                         const std::string& where);

}  // namespace fathom
