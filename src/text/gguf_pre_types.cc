#include "text/gguf_pre_types.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/format.h"

namespace fathom {
namespace {

// The patterns are those of the models' own tokenizer.json files.
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define LEAD R"([^\r\n\p{L}\p{N}]?)"
#define SPACES R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
#define ASCII_MARK R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~])"

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    CONTRACTIONS "|" LEAD R"(\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES;
constexpr const char* kQwen2 = CONTRACTIONS "|" LEAD R"(\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES;
constexpr const char* kQwen35 =
    CONTRACTIONS "|" LEAD R"([\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" SPACES;
constexpr const char* kUfakzeka = LEAD R"(\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES;
constexpr const char* kMiniCpm5 = CONTRACTIONS "|" LEAD R"(\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES;
constexpr const char* kJais2 = CONTRACTIONS
    "|" LEAD R"(\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|)"
    R"(\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr const char* kTekken =
    LEAD UPPER "*" LOWER "+|" LEAD UPPER "+" LOWER R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SPACES;
constexpr const char* kGpt4o =
    LEAD UPPER "*" LOWER "+" CONTRACTIONS "?|" LEAD UPPER "+" LOWER "*" CONTRACTIONS
               R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SPACES;
constexpr const char* kYoutu = LEAD UPPER "*" LOWER "+" CONTRACTIONS "?|" LEAD UPPER "+" LOWER
                                          "*" CONTRACTIONS R"(?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SPACES;
constexpr const char* kDeepSeek3 =
    ASCII_MARK R"([A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" SPACES;
constexpr const char* kSpark =
    ASCII_MARK R"([A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kHanKana = "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+";
constexpr const char* kBloom = " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+";
constexpr const char* kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoder = CONTRACTIONS "|" LEAD R"(\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)" SPACES;
constexpr const char* kExaoneMoe = CONTRACTIONS
    "|" LEAD R"((?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kKimi =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)" CONTRACTIONS
    R"(?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)" CONTRACTIONS
    R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPACES;
// deepseek-llm: letters of cased scripts, then marks. "\s+$" is written so that it is tried once for a run of
// spaces.
constexpr const char* kDeepSeekLetters =
    "\\s?[A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}"
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}"
    "\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}"
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}"
    "\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-"
    "\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}"
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}"
    "\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}"
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}"
    "\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}"
    "\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}"
    "\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}"
    "\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-"
    "\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}]+";
constexpr const char* kDeepSeekMarks =
    "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+";
constexpr const char* kEndSpaces = "(?<!\\s)\\s++\\z";
constexpr const char* kDeepSeekHan = "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+";
constexpr const char* kAfmoeScripts =
    "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{8C48}-\\x{FAFF}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}"
    "\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}\\x{E80}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}"
    "-\\x{109F}\\x{AA60}-\\x{AA7F}\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+";
constexpr const char* kYoutuScripts =
    "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}"
    "\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|"
    "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+";
constexpr const char* kLines = "[^\\n]+|[\\n]+";

#undef CONTRACTIONS
#undef UPPER
#undef LOWER
#undef LEAD
#undef SPACES
#undef ASCII_MARK

constexpr const char* kDigitGroups = "digit groups";  // PreTokenizer::add_digit_groups

struct Entry {
  std::vector<std::string_view> names;
  std::vector<const char*> cuts;
  GgufPreType type = {};
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> kEntries = {
      {{"", "default"}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum",
        "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt", "olmo", "jais",
        "trillion", "granite-docling"},
       {kGpt2}},
      {{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"},
       {kLlama3},
       {.ignore_merges = true, .add_bos = true}},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {kLlama3}},
      {{"glm4", "glm5"}, {kLlama3}, {.ignore_merges = true}},
      {{"jais-2"}, {kJais2}},
      {{"minicpm5"}, {R"(\p{N}{1,3})", kMiniCpm5}, {.ignore_merges = true}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
        "grok-2"},
       {kQwen2}},
      {{"qwen35"}, {kQwen35}},
      {{"laguna"}, {kLines, kQwen2}},
      {{"ufakzeka"}, {kUfakzeka}},
      {{"deepseek-llm"}, {"[\r\n]", kDeepSeekLetters, kDeepSeekMarks, kEndSpaces, kDeepSeekHan, R"(\p{N}+)"}},
      {{"deepseek-coder"}, {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekHan, R"(\p{N})"}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"}, {R"(\p{N}{1,3})", kHanKana, kDeepSeek3}},
      {{"spark2_5"}, {R"(\p{N}{1,3})", kHanKana, kSpark, R"(\p{N})"}},
      {{"youtu"}, {kYoutuScripts, kYoutu}, {.ignore_merges = true}},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"}},
      {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
       {R"(\p{N})", kGpt2}},
      {{"poro-chat", "bloom", "gpt3-finnish"}, {kBloom}},
      {{"viking"}, {kBloom, R"(\p{N})"}},
      {{"tekken"}, {kTekken}, {.ignore_merges = true, .add_bos = true}},
      {{"chameleon"},
       {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", R"(\p{N})",
        R"([\p{P}!-/:-@\[-`{-~])", kGpt2},
       {.add_bos = true}},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {kGpt4o}},
      {{"granite-embed-multi-97m"}, {kGpt4o}, {.ignore_merges = true}},
      {{"tiny_aya", "cohere2moe"}, {kDigitGroups, kGpt4o}},
      {{"superbpe"}, {R"(\p{N}+)", kDigitGroups}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailing}},
      {{"seed-coder"}, {kSeedCoder}},
      {{"kimi-k2"}, {kKimi}},
      {{"afmoe"}, {kDigitGroups, kAfmoeScripts, kDeepSeek3}},
      {{"exaone-moe"}, {kExaoneMoe}},
      {{"gemma4", "granite-embed-multi-311m"},
       {kLines},
       {.add_bos = true, .raw_text = true, .whole_newlines = true}},
      {{"sarvam-moe"}, {kLines}, {.raw_text = true}},
  };
  return kEntries;
}

const Entry& find_entry(std::string_view name) {
  std::vector<std::string> known;
  for (const Entry& entry : entries()) {
    for (const std::string_view one : entry.names) {
      if (one == name) return entry;
      known.emplace_back(one);
    }
  }
  const std::string nearest = nearest_name(name, known.data(), known.size());
  fail("gguf: the pre-tokenizer '{}' (tokenizer.ggml.pre) is not known{}", printable(name),
       nearest.empty() ? "" : "; the nearest that is: '" + nearest + "'");
}

}  // namespace

GgufPreType gguf_pre_type(std::string_view name, PreTokenizer& out) {
  const Entry& entry = find_entry(name);
  for (const char* cut : entry.cuts) {
    if (cut == kDigitGroups) {
      out.add_digit_groups();
    } else {
      out.add_split(Regex(cut), SplitBehavior::kIsolated, false);
    }
  }
  return entry.type;
}

const char* const kGpt2Cut = kGpt2;

std::vector<std::string> gguf_pre_cuts(std::string_view name) {
  const Entry& entry = find_entry(name);
  std::vector<std::string> cuts;
  for (const char* cut : entry.cuts) {
    if (cut == kDigitGroups) fail("the pre-tokenizer '{}' has a rule that tokenizer.json cannot state", name);
    cuts.emplace_back(cut);
  }
  return cuts;
}

bool gguf_pre_ignores_merges(std::string_view name) {
  return find_entry(name).type.ignore_merges;
}

std::string_view gguf_pre_name(const std::vector<std::string>& cuts, bool ignore_merges) {
  for (const Entry& entry : entries()) {
    const bool same = std::equal(cuts.begin(), cuts.end(), entry.cuts.begin(), entry.cuts.end(),
                                 [](const std::string& a, const char* b) { return a == b; });
    if (same && entry.type.ignore_merges == ignore_merges && !entry.type.raw_text) return entry.names.front();
  }
  return "";
}

}  // namespace fathom
