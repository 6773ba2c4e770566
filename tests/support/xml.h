// Is a text well-formed markup? Tags that close in order, attributes in quotes, entities that exist. The
// inside of <script> and <style> is text, as in HTML.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

class XmlCheck {
 public:
  explicit XmlCheck(std::string_view text) : text_(text) {}

  // "" when it is, else what is wrong and where.
  std::string run() {
    while (at_ < text_.size() && wrong_.empty()) {
      if (text_[at_] == '<') {
        tag();
      } else if (text_[at_] == '&') {
        entity();
      } else {
        const auto c = static_cast<unsigned char>(text_[at_++]);
        if (c < 0x20 && c != '\n' && c != '\t' && c != '\r') complain("a control character");
      }
    }
    if (wrong_.empty() && !open_.empty()) complain("<" + open_.back() + "> never closes");
    if (wrong_.empty() && elements_ == 0) complain("no element");
    return wrong_;
  }
  size_t elements() const { return elements_; }

 private:
  void complain(const std::string& what) {
    wrong_ = what + " at byte " + std::to_string(at_) + ": " +
             std::string(text_.substr(at_ < 20 ? 0 : at_ - 20, 60));
  }
  std::string word() {
    std::string out;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
                                  std::string_view("-_:").find(text_[at_]) != std::string_view::npos))
      out += text_[at_++];
    return out;
  }
  void entity() {
    for (const std::string_view known : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "&nbsp;"}) {
      if (text_.substr(at_, known.size()) != known) continue;
      at_ += known.size();
      return;
    }
    complain("an unknown entity");
  }
  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  void tag() {
    if (text_.substr(at_, 9) == "<!DOCTYPE") {
      at_ = text_.find('>', at_) + 1;
      return;
    }
    const bool closing = text_.substr(at_, 2) == "</";
    at_ += closing ? 2 : 1;
    const std::string name = word();
    if (name.empty()) return complain("a tag without a name");
    if (!closing) attributes();
    if (!wrong_.empty()) return;
    const bool empty = text_.substr(at_, 2) == "/>";
    at_ += empty ? 1 : 0;
    if (at_ >= text_.size() || text_[at_] != '>') return complain("a tag that does not end");
    ++at_;
    if (closing) {
      if (open_.empty() || open_.back() != name) return complain("</" + name + "> closes nothing");
      open_.pop_back();
      return;
    }
    ++elements_;
    if (empty) return;
    open_.push_back(name);
    if (name == "script" || name == "style") at_ = text_.find("</" + name + ">", at_);
  }
  void attributes() {
    for (space(); at_ < text_.size() && text_[at_] != '>' && text_[at_] != '/'; space()) {
      if (word().empty()) return complain("no attribute");
      if (text_.substr(at_, 2) != "=\"") return complain("an attribute without quotes");
      for (at_ += 2; at_ < text_.size() && text_[at_] != '"' && wrong_.empty();) {
        if (text_[at_] == '<') return complain("< inside an attribute");
        if (text_[at_] == '&') {
          entity();
        } else {
          ++at_;
        }
      }
      ++at_;
    }
  }

  std::string_view text_;
  size_t at_ = 0, elements_ = 0;
  std::vector<std::string> open_;
  std::string wrong_;
};

inline std::string xml_fault(std::string_view text) {
  return XmlCheck(text).run();
}

}  // namespace fathom
