#include "report/token_class.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_set>

#include "text/unicode.h"

namespace fathom {
namespace {

using Words = std::unordered_set<std::string_view>;

Words words_of(std::string_view list) {
  Words words;
  while (!list.empty()) {
    const size_t end = std::min(list.find(' '), list.size());
    if (end > 0) words.insert(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return words;
}

const Words& prepositions() {
  static const Words kWords = words_of(
      "of in to for with on at from by about as into like through after over between out against during "
      "without "
      "before under around among behind beyond near since until upon within across above below toward "
      "towards "
      "beside besides inside outside onto off along despite except per via throughout beneath");
  return kWords;
}

// After these a noun is likely.
const Words& determiners() {
  static const Words kWords = words_of(
      "the a an this that these those my your his her its our their some any no every each either neither "
      "both "
      "another such whose which what all few many much several");
  return kWords;
}

// After these a verb is likely.
const Words& subjects() {
  static const Words kWords = words_of("i you he she it we they who there");
  return kWords;
}

const Words& auxiliaries() {
  static const Words kWords = words_of(
      "is are was were be been being am do does did have has had having will would can could may might shall "
      "should "
      "must not n't don't doesn't didn't isn't aren't wasn't weren't won't wouldn't can't couldn't hasn't "
      "haven't "
      "i'm you're he's she's it's we're they're i've you've we've they've i'll you'll he'll she'll we'll "
      "they'll");
  return kWords;
}

const Words& other_function_words() {
  static const Words kWords = words_of(
      "and or but nor so yet if then than because while although though unless whereas whether when where "
      "why how "
      "me him us them mine yours hers ours theirs myself yourself himself herself itself ourselves "
      "themselves "
      "anyone everyone someone something anything nothing everything nobody here just too also very only "
      "even "
      "still again ever never always more most less least other same own yes s t d ll ve re m");
  return kWords;
}

const Words& verbs() {
  static const Words kWords = words_of(
      "say says said go goes went gone get gets got make makes made know knows knew known think thinks "
      "thought take "
      "takes took taken see sees saw seen come comes came want wants find finds found give gives gave given "
      "tell "
      "tells told work works feel feels felt try tries tried ask asks asked need needs become becomes became "
      "leave "
      "leaves left put puts mean means meant keep keeps kept let lets begin begins began begun seem seems "
      "help helps "
      "show shows shown hear hears heard run runs ran move moves live lives believe believes bring brings "
      "brought "
      "happen happens write writes wrote written sit sits sat stand stands stood lose loses lost pay pays "
      "paid meet "
      "meets met include includes continue continues learn learns change changes lead leads led understand "
      "understands understood watch follows follow stop stops create creates speak speaks spoke read reads "
      "allow "
      "allows add adds spend spends spent grow grows grew open opens walk walks win wins won offer offers "
      "remember "
      "love loves consider appear appears buy buys bought wait waits serve serves die dies died send sends "
      "sent "
      "expect build builds built stay stays fall falls fell cut reach reaches remain remains play plays look "
      "looks "
      "use uses call calls turn turns start starts eat eats ate sleep sleeps slept hold holds held set sets");
  return kWords;
}

const Words& nouns() {
  static const Words kWords = words_of(
      "time year years people way ways day days man men woman women thing things child children world life "
      "hand "
      "hands part parts place places case week weeks company system program question work government number "
      "night point home water room mother father area money story fact month lot right study book books eye "
      "eyes "
      "job word words business issue side kind head house houses service friend friends power hour game line "
      "end "
      "member law car city name names team minute idea body back parent face level office door health person "
      "art "
      "war history party result morning reason research girl girls boy boys guy moment air teacher force "
      "education "
      "foot feet food table tree trees garden animal animals dog cat bird birds king queen river sea sun "
      "moon sky "
      "model models layer layers token tokens data text light sound color family school country state "
      "students "
      "mr mrs miss dr");
  return kWords;
}

const Words& number_words() {
  static const Words kWords = words_of(
      "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
      "seventeen "
      "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million "
      "billion "
      "first second third half");
  return kWords;
}

bool ends_with_one_of(std::string_view word, std::span<const std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) {
    return word.size() > ending.size() + 2 && word.substr(word.size() - ending.size()) == ending;
  });
}

constexpr std::array<std::string_view, 20> kNounEndings{
    "tion", "tions", "sion", "sions", "ment", "ments", "ness", "ity",   "ities",  "ship",
    "ism",  "ist",   "ists", "ance",  "ence", "hood",  "dom",  "ology", "graphy", "eer"};
constexpr std::array<std::string_view, 9> kVerbEndings{"ing",  "ed",  "ize",   "izes", "ise",
                                                       "ises", "ify", "ifies", "ates"};
constexpr std::array<std::string_view, 12> kOtherEndings{"ly",   "ful", "ous",  "ive", "able", "ible",
                                                         "less", "ish", "ical", "ic",  "al",   "est"};

bool is_determiner(const std::string& word) {
  return determiners().count(word) > 0;
}

// `word` and `before` in lower case; before: the word before, "" at the start of a sentence.
TokenClass class_of_word(const std::string& word, const std::string& before, bool capital) {
  if (number_words().count(word)) return TokenClass::kNumber;
  if (prepositions().count(word)) return TokenClass::kPreposition;
  for (const Words* list : {&determiners(), &subjects(), &auxiliaries(), &other_function_words()}) {
    if (list->count(word)) return TokenClass::kFunction;
  }
  const bool after_subject = subjects().count(before) || auxiliaries().count(before);
  const bool after_determiner = is_determiner(before);
  if (capital && !before.empty()) return TokenClass::kNoun;  // a name
  if (nouns().count(word) && !(after_subject && verbs().count(word))) return TokenClass::kNoun;
  if (verbs().count(word) && !after_determiner) return TokenClass::kVerb;
  if (ends_with_one_of(word, kOtherEndings)) return TokenClass::kOther;
  if (ends_with_one_of(word, kNounEndings)) return TokenClass::kNoun;
  if (ends_with_one_of(word, kVerbEndings)) return TokenClass::kVerb;
  if (after_determiner || prepositions().count(before)) return TokenClass::kNoun;
  return after_subject ? TokenClass::kVerb : TokenClass::kOther;
}

// The text without special tokens, each byte with the token it came from.
struct Owned {
  std::string text;
  std::vector<size_t> owner;
};

bool is_space_at(const std::string& text, size_t at) {
  return is_white_space(decode_utf8(text, at).value);
}

// Does prose not have it? text[begin, end) has no white space.
bool looks_like_code(std::string_view chunk) {
  for (size_t i = 0; i < chunk.size(); ++i) {
    const auto c = static_cast<unsigned char>(chunk[i]);
    const auto before = static_cast<unsigned char>(i ? chunk[i - 1] : ' ');
    const bool last = i + 1 == chunk.size();
    if (std::string_view("_{}=<>\\|").find(chunk[i]) != std::string_view::npos) return true;
    if (c == '(' && std::isalnum(before)) return true;
    if (c == ';' && before == ')') return true;
    if (c == ':' && !last && chunk[i + 1] == ':') return true;
    if (c == '[' && std::isalnum(before)) return true;
    if (std::isupper(c) && std::islower(before) && std::islower(static_cast<unsigned char>(chunk[0])))
      return true;
  }
  return false;
}

class Classifier {
 public:
  Classifier(const Owned& owned, std::vector<TokenClass>& classes) : owned_(owned), classes_(classes) {}

  void run() {
    const std::string& text = owned_.text;
    for (size_t at = 0; at < text.size();) {
      if (is_space_at(text, at)) {
        at += decode_utf8(text, at).size;
        continue;
      }
      size_t end = at;
      while (end < text.size() && !is_space_at(text, end)) end += decode_utf8(text, end).size;
      if (looks_like_code(std::string_view(text).substr(at, end - at))) {
        mark(at, end, TokenClass::kCode);
        before_.assign(1, '?');  // no sentence's start
      } else {
        words(at, end);
      }
      at = end;
    }
  }

 private:
  // Tokens that have a part in [begin, end); the first mark holds.
  void mark(size_t begin, size_t end, TokenClass what) {
    for (size_t i = begin; i < end; ++i) {
      TokenClass& of = classes_[owned_.owner[i]];
      if (of == TokenClass::kPunctuation) of = what;
    }
  }

  // Letters, digits and marks of one chunk.
  void words(size_t at, size_t end) {
    const std::string& text = owned_.text;
    while (at < end) {
      const Utf8Char first = decode_utf8(text, at);
      const bool letter = is_letter(first.value), digit = is_numeric(first.value);
      size_t stop = at + first.size;
      if (!letter && !digit) {  // punctuation is what tokens are until something else is found in them
        if (first.value == '.' || first.value == '!' || first.value == '?') before_.clear();
        at = stop;
        continue;
      }
      std::string lower;
      append_utf8(lower, to_lower(first.value));
      for (; stop < end; stop += decode_utf8(text, stop).size) {
        const auto [c, size, valid] = decode_utf8(text, stop);
        const bool joins = letter ? c == '\'' || c == 0x2019 : c == '.' || c == ',';
        const char32_t next = joins && stop + size < end ? decode_utf8(text, stop + size).value : c;
        if (letter ? !(is_letter(next) || is_mark(next)) : !is_numeric(next)) break;
        append_utf8(lower, c == 0x2019 ? U'\'' : to_lower(c));
      }
      mark(at, stop,
           digit ? TokenClass::kNumber : class_of_word(lower, before_, to_lower(first.value) != first.value));
      before_ = lower;
      at = stop;
    }
  }

  const Owned& owned_;
  std::vector<TokenClass>& classes_;
  std::string before_;
};

}  // namespace

std::string_view name_of(TokenClass token_class) {
  static constexpr std::array<std::string_view, kTokenClasses> kNames{
      "BOS, special", "function word", "preposition", "noun", "verb",
      "number",       "punctuation",   "code",        "other"};
  return kNames[static_cast<size_t>(token_class)];
}

std::vector<TokenClass> token_classes(std::span<const std::string> pieces, std::span<const uint8_t> special) {
  std::vector<TokenClass> classes(pieces.size(), TokenClass::kPunctuation);
  Owned owned;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (special[i]) {
      classes[i] = TokenClass::kBos;
      continue;
    }
    owned.text += pieces[i];
    owned.owner.insert(owned.owner.end(), pieces[i].size(), i);
  }
  Classifier(owned, classes).run();
  return classes;
}

}  // namespace fathom
