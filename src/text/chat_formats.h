// The formats chat_template.h knows: how each is recognised, and its variants.
#pragma once

#include "text/chat_template.h"

namespace fathom {

struct ChatFormatEntry {
  const char* name;
  // Whether the template's text is of this format; every marker it holds is known to the format.
  bool (*matches)(std::string_view jinja);
  // The format as that text varies it. With "" as the text: as the format's first model had it.
  ChatFormat (*read)(std::string_view jinja, const std::string& bos, const std::string& eos);
};

std::span<const ChatFormatEntry> chat_formats();

}  // namespace fathom
