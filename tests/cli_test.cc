// The program's surface: exit codes, one-line errors, JSON, streaming, Ctrl-C. See docs/ and the verbs' own
// -h.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "program.h"
#include "support/test_paths.h"
#include "text/utf8_stream.h"

namespace fathom {
namespace {

const std::string kData = FATHOM_TEST_DATA;
const Words kVerbs{"generate", "chat", "score",     "tokenize", "info",  "convert", "quantize", "bench",
                   "train",    "tune", "calibrate", "eval",     "sweep", "inspect", "serve"};

const Words kGreedy{"generate", "-m", kStories, "--temp", "0", "-p", "Once upon a time"};

// The exit code, nothing on stdout, and one line on stderr that begins with "fathom: " and holds `part`.
void expect_refused(const Words& arguments, int code, const std::string& part,
                    const ProgramOptions& options = {}) {
  const ProgramResult r = run_fathom(arguments, options);
  std::string command;
  for (const std::string& word : arguments) command += word + " ";
  SCOPED_TRACE(command + "-> " + r.err);
  EXPECT_EQ(r.exit_code, code);
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(r.err.starts_with("fathom: "));
  EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << "one line";
  EXPECT_NE(r.err.find(part), std::string::npos) << "expected: " << part;
}

TEST(Cli, VersionSaysWhatItIs) {
  const ProgramResult r = run_fathom({"--version"});
  EXPECT_EQ(r.exit_code, 0);
  for (const char* part : {"fathom 0.", "commit ", "ISA: ", "BLAS: ", "CUDA: "})
    EXPECT_NE(r.out.find(part), std::string::npos) << part;
}

TEST(Cli, HelpOfEveryVerbHasAnExample) {
  const ProgramResult all = run_fathom({"-h"});
  EXPECT_EQ(all.exit_code, 0);
  for (const std::string& verb : kVerbs) {
    EXPECT_NE(all.out.find("\n  " + verb + " "), std::string::npos) << verb;
    for (const char* flag : {"-h", "--help"}) {
      const ProgramResult r = run_fathom({verb, flag});
      EXPECT_EQ(r.exit_code, 0);
      EXPECT_EQ(r.err, "");
      EXPECT_NE(r.out.find("Example:\n  fathom " + verb), std::string::npos) << r.out;
    }
  }
}

TEST(Cli, UnknownWordsNameTheNearest) {
  expect_refused({}, 2, "a verb is missing");
  expect_refused({"genrate"}, 2, "did you mean 'generate'?");
  expect_refused({"zzzzzz"}, 2, "unknown verb 'zzzzzz' (");
  expect_refused({"generate", "--tmep", "0"}, 2, "did you mean '--temp'?");
  expect_refused({"generate", "--top-q=3"}, 2, "did you mean '--top-");
  expect_refused({"score", "stray"}, 2, "unexpected argument 'stray'");
  expect_refused({"generate", "-m"}, 2, "-m");
}

TEST(Cli, OptionValuesAreChecked) {
  const auto refused = [](const Words& more, const std::string& part) {
    expect_refused(kGreedy + more, 2, part);
  };
  refused({"-t", "-1"}, "--threads must be a whole number from 0 to 1024, got '-1'");
  refused({"-t", "-3"}, "got '-3'");
  refused({"-t", "99999"}, "got '99999'");
  refused({"-t", "two"}, "got 'two'");
  refused({"-n", "1.5"}, "got '1.5'");
  refused({"-c", "0"}, "--ctx-size");
  refused({"--device", "gpu"}, "--device must be cpu, cuda or cuda:N, got 'gpu'");
  refused({"--device", "cuda:x"}, "got 'cuda:x'");
  refused({"--dtype", "q9"}, "--dtype must be one of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, got 'q9'");
  refused({"--dtype", "q4_k"}, "got 'q4_k'");
  refused({"-ctk", "q4_0"}, "-ctk must be one of f32, f16, bf16, q8_0, got 'q4_0'");
  refused({"--top-p", "2"}, "top-p must be between 0 and 1, got 2");
  refused({"--top-k", "-1"}, "--top-k");
  refused({"--min-p", "nan"}, "--min-p must be a number, got 'nan'");
  refused({"--repeat-penalty", "0"}, "repeat-penalty must be above 0");
  refused({"--stop", ""}, "--stop must not be empty");
  refused({"--logit-bias", "5"}, "TOKEN:VALUE");
  refused({"--logit-bias", "512:1"}, "token 512 is not in the vocabulary of 512");
  refused({"-f", "x.txt"}, "either -p or -f");
  refused({"--system", "S"}, "--chat-template");
  refused({"--chat-template", "alpaca"},
          "must be one of chatml, llama2, llama3, mistral, gemma, zephyr, olmo2, got 'alpaca'");
  expect_refused({"generate", "-m", kStories}, 2, "either -p or -f");
  expect_refused({"generate", "-p", "x"}, 2, "-m is missing");
  expect_refused(Words{"generate", "-m", kStories, "-p", "x", "--temp", "-1"}, 2,
                 "temperature must be 0 or more, got -1");
}

TEST(Cli, ADenseModelHasNothingToSkip) {
  const auto refused = [](const Words& more, const std::string& part) {
    expect_refused(kGreedy + more, 2, part);
  };
  refused({"--budget", "0.5"}, "needs an adapter with a calibration table");
  refused({"--saved", "0.25"}, "a budget of 0.75");
  refused({"--budget", "1.5"}, "above 0 and at most 1, got 1.5");
  refused({"--budget", "1", "--saved", "0"}, "the same thing twice");
  expect_refused(kGreedy + Words{"--adapter", "somewhere"}, 1, "somewhere is no adapter");
  refused({"--execution", "masked"}, "masked execution needs decisions to mask");
  refused({"--decide", "batch_quantile"}, "batch_quantile needs scores to decide on");
  // A rule that another method has.
  const ProgramResult other =
      run_fathom({"generate", "-m", "builtin", "-p", "x", "-n", "1", "--decide", "batch_quantile"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("batch_quantile is gate_skip's rule; this is priced"), std::string::npos)
      << other.err;
  for (const Words& more : {Words{"--budget", "1"}, Words{"--saved", "0"}}) {
    EXPECT_EQ(run_fathom(kGreedy + Words{"-n", "3"} + more).exit_code, 0);
  }
}

TEST(Cli, SpeculationGivesTheSameText) {
  const ProgramResult plain = run_fathom(kGreedy + Words{"-n", "40", "--json"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  for (const Words& more :
       {Words{"--speculate", "3"}, Words{"--speculate", "auto"},
        Words{"--speculate", "4", "--draft", "exit", "--draft-budget", "0.8"},
        Words{"--speculate", "3", "--draft", "exit", "--draft-budget", "0.8", "--draft-vocab", "300"},
        Words{"--speculate", "auto", "--draft", "auto"},
        Words{"--speculate", "auto", "--draft", "harm_order"},
        Words{"--speculate", "4", "--draft", "lookup"}}) {
    const ProgramResult r = run_fathom(kGreedy + Words{"-n", "40", "--json"} + more);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const auto json = nlohmann::json::parse(r.out), was = nlohmann::json::parse(plain.out);
    EXPECT_EQ(json["ids"], was["ids"]);
    EXPECT_EQ(json["text"], was["text"]);
    EXPECT_EQ(json["depth"], was["depth"]);
    EXPECT_GE(json["drafted"], json["accepted"]);
    EXPECT_GE(json["drafted"], json["looked_up"]);
    EXPECT_GE(json["draft_passes"].get<int64_t>() + json["looked_up"].get<int64_t>(), json["verify_passes"]);
    if (more.back() == "lookup") {
      EXPECT_EQ(json["looked_up"], json["drafted"]);
      EXPECT_EQ(json["draft_passes"], 0);
    } else if (more[1] != "auto") {
      EXPECT_GT(json["accepted"], 0);
    }
  }
  const auto refused = [](const Words& more, const std::string& part) {
    expect_refused(kGreedy + more, 2, part);
  };
  refused({"--speculate", "0"}, "--speculate must be a whole number from 1 to 16, got '0'");
  refused({"--speculate", "much"}, "--speculate must be");
  refused({"--draft-budget", "0.5"}, "goes with --speculate");
  refused({"--speculate", "2", "--draft-budget", "1"}, "above 0 and below 1, got 1");
  refused({"--speculate", "2", "--draft", "method"}, "needs an adapter with a calibration table");
  refused({"--speculate", "2", "--draft", "guess"}, "must be");
  refused({"--draft-vocab", "100"}, "--draft-vocab goes with --speculate");
  refused({"--speculate", "2", "--draft", "exit", "--draft-vocab", "100000"},
          "--draft-vocab must be at most the model's vocabulary of 512, got 100000");
  refused({"--speculate", "2", "--draft", "exit", "--draft-vocab", "-3"}, "--draft-vocab must be");
  refused({"--speculate", "2", "--draft", "lookup", "--draft-vocab", "100"}, "--draft lookup makes none");
  refused({"--speculate", "2", "--draft", "auto"}, "--draft auto goes with --speculate auto");
}

TEST(Cli, LooksUpWhatWasThereBefore) {
  const Words again{"generate", "-m", kStories, "--temp", "0",
                    "-n",       "40", "--json", "-p",     "Tom ran to the dog. Tom ran to the dog. Tom ran"};
  const nlohmann::json plain = run_fathom(again).json();
  for (const Words& more : {Words{"--speculate", "4", "--draft", "lookup"}, Words{"--speculate", "auto"}}) {
    const nlohmann::json out = run_fathom(again + more).json();
    EXPECT_EQ(out.at("ids"), plain.at("ids"));
    EXPECT_EQ(out.at("depth"), plain.at("depth"));
    EXPECT_GT(out.at("looked_up"), 0);
    EXPECT_EQ(out.at("draft_passes"), 0);
  }
}

TEST(Cli, StoriesReproduceTheirKnownText) {
  const std::string known = read_text_file(kData + "/stories260k/stories260K.greedy_n200.expected.txt");
  const ProgramResult r = run_fathom({"generate", "-m", kStories, "-p", "", "-n", "200", "--temp", "0"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  ASSERT_GT(r.out.size(), 400u);
  const size_t length = std::min(known.size(), r.out.size() - 1);
  EXPECT_EQ(r.out.substr(0, length), known.substr(0, length));
  EXPECT_NE(r.err.find("200 new tokens"), std::string::npos) << r.err;
  EXPECT_EQ(run_fathom({"generate", "-m", kStories, "-p", "", "-n", "5", "-q"}).err, "");
}

TEST(Cli, GenerateJsonHasItsFields) {
  const nlohmann::json out = run_fathom(kGreedy + Words{"-n", "12", "--json"}).json();
  EXPECT_EQ(
      out.at("text"),
      run_fathom(kGreedy + Words{"-n", "12", "-q"}).out.substr(0, out.at("text").get<std::string>().size()));
  EXPECT_EQ(out.at("ids").size(), 12u);
  EXPECT_EQ(out.at("prompt_tokens"), 5);
  EXPECT_EQ(out.at("generated_tokens"), 12);
  EXPECT_EQ(out.at("finish_reason"), "length");
  EXPECT_GT(out.at("prefill_tokens_per_s"), 0);
  EXPECT_GT(out.at("decode_tokens_per_s"), 0);
  EXPECT_EQ(out.at("skip_ratio"), 0);
  for (const char* field : {"block_flops", "net_flops", "net_bytes"}) EXPECT_EQ(out.at(field), 1) << field;
  EXPECT_EQ(out.at("depth"), std::vector<double>(12, 5.0));
  std::string pieces;
  for (const nlohmann::json& piece : out.at("pieces")) {
    pieces += piece.at("text").get<std::string>();
    EXPECT_EQ(piece.at("depth"), 5.0);
  }
  EXPECT_EQ(pieces, out.at("text").get<std::string>());
  for (const char* field : {"cache_bytes", "cache_bytes_dense"})  // 16 rows: one page in each layer
    EXPECT_EQ(out.at(field), 64 * 5 * 4 * 8 * 2 * 2) << field;
}

TEST(Cli, StopStringsEndTheText) {
  const nlohmann::json out =
      run_fathom(kGreedy + Words{"-n", "60", "--stop", "nowhere", "--stop", "girl", "--json"}).json();
  EXPECT_EQ(out.at("finish_reason"), "stop");
  EXPECT_EQ(out.at("text"), ", there was a little ");
}

TEST(Cli, TheSeedDecidesAndThreadsDoNot) {
  const auto text = [](const Words& more) {
    return run_fathom(Words{"generate", "-m", kStories, "-p", "Once", "-n", "40", "--temp", "1.2", "--top-k",
                            "0", "-q"} +
                      more)
        .out;
  };
  const std::string one = text({"-s", "1"});
  EXPECT_EQ(text({"-s", "1"}), one);
  EXPECT_EQ(text({"-s", "1", "-t", "1"}), one);
  EXPECT_EQ(text({"-s", "1", "-t", "5"}), one);
  EXPECT_NE(text({"-s", "2"}), one);
}

TEST(Cli, PromptsComeFromFilesAndStdin) {
  const ScratchFolder folder;
  const std::string expected = run_fathom(kGreedy + Words{"-n", "10", "-q"}).out;
  const Words base{"generate", "-m", kStories, "--temp", "0", "-n", "10", "-q", "-f"};
  EXPECT_EQ(run_fathom(base + Words{folder.write("p.txt", "Once upon a time")}).out, expected);
  ProgramOptions options;
  options.input = "Once upon a time";
  EXPECT_EQ(run_fathom(base + Words{"-"}, options).out, expected);
  expect_refused(base + Words{folder / "missing.txt"}, 1, "missing.txt");
  // A prompt may begin with a dash.
  EXPECT_EQ(run_fathom({"generate", "-m", kStories, "-n", "1", "-p", "-hello"}).exit_code, 0);
}

// Two byte tokens of "é" (0xC3, 0xA9) are made to alternate: every write is whole characters.
TEST(Cli, StreamingNeverSplitsACharacter) {
  const ProgramResult r = run_fathom({"generate", "-m", kStories, "-p", "a", "-n", "41", "--temp", "0",
                                      "--logit-bias", "198:100000", "--logit-bias", "172:100000",
                                      "--frequency-penalty", "1000", "--repeat-last-n", "-1"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  size_t accents = 0;
  for (size_t at = r.out.find("\xC3\xA9"); at != std::string::npos; at = r.out.find("\xC3\xA9", at + 1))
    ++accents;
  EXPECT_EQ(accents, 20u) << r.out;
  for (const std::string& read : r.reads) EXPECT_EQ(to_valid_utf8(read), read);
  EXPECT_NE(r.out.find("\xEF\xBF\xBD"), std::string::npos) << "an odd byte is left at one end";
}

TEST(Cli, ShowDepthShadesEveryToken) {
  const Words base = kGreedy + Words{"-n", "8", "--show-depth"};
  const ProgramResult r = run_fathom(base + Words{"--color", "always"});
  EXPECT_EQ(r.exit_code, 0);
  const std::string text = r.out.substr(0, r.out.find('\n'));
  size_t shades = 0;
  for (size_t at = text.find("\x1b[48;5;227;"); at != std::string::npos;
       at = text.find("\x1b[48;5;227;", at + 1))
    ++shades;
  EXPECT_EQ(shades, 8u) << "all tokens, one shade";
  EXPECT_NE(r.out.find("\nlayers run: "), std::string::npos) << "the legend";
  // Into a file or a pipe goes plain text; what was seen is said on stderr.
  const ProgramResult plain = run_fathom(base);
  EXPECT_EQ(plain.out, run_fathom(kGreedy + Words{"-n", "8"}).out);
  EXPECT_NE(plain.err.find("layers run for a new token: 5.0 of 5 on average"), std::string::npos)
      << plain.err;
  EXPECT_EQ(run_fathom(base + Words{"--color", "never"}).out, plain.out);
  expect_refused(kGreedy + Words{"--color", "always"}, 2, "--color goes with --show-depth");
}

TEST(Cli, InspectWritesAFolder) {
  const ScratchFolder folder;
  const Words base{"inspect", "-m", kStories};
  const Words text{"-p", "Once upon a time <b>"};
  // Without gnuplot: pictures are report/'s to test.
  ProgramOptions options;
  options.environment = {"PATH=/nonexistent"};
  const ProgramResult r = run_fathom(base + text + Words{"-o", folder / "report", "--json"}, options);
  EXPECT_NE(r.err.find("warning: no PNG figures"), std::string::npos) << r.err;
  const nlohmann::json out = r.json();
  EXPECT_EQ(out.at("method"), "dense");
  EXPECT_EQ(out.at("skip_ratio"), 0);
  for (const auto& name : out.at("files"))
    EXPECT_TRUE(std::filesystem::is_regular_file(folder / ("report/" + name.get<std::string>()))) << name;
  const nlohmann::json trace = nlohmann::json::parse(read_text_file(folder / "report/trace.json"));
  EXPECT_EQ(trace.at("tokens").size(), out.at("tokens"));
  EXPECT_EQ(trace.at("tokens")[0].at("depth"), 5.0);
  EXPECT_EQ(read_text_file(folder / "report/index.html").find("<b>"), std::string::npos);

  expect_refused(base + text, 2, "-o must name the folder");
  expect_refused(base + text + Words{"-f", "x", "-o", "y"}, 2, "either -p or --file");
  expect_refused(base + text + Words{"-c", "3", "-o", folder / "other"}, 1, "the context 3");
  expect_refused(base + text + Words{"-o", folder / "report/index.html"}, 1, "the folder cannot be made",
                 options);
  EXPECT_EQ(folder.names(), (Words{"report"})) << "nothing is left of a run that was refused";
}

TEST(Cli, ContextLimits) {
  expect_refused(kGreedy + Words{"-c", "4"}, 1, "the prompt has 5 tokens, the context 4");
  expect_refused({"score", "-m", kStories, "-c", "4", "-p", "Once upon a time"}, 1,
                 "the text has 5 tokens, the context 4");
  const nlohmann::json full = run_fathom(kGreedy + Words{"-c", "16", "-n", "-1", "--json"}).json();
  EXPECT_EQ(full.at("finish_reason"), "length");
  EXPECT_EQ(full.at("generated_tokens"), 12);
  const nlohmann::json shifted =
      run_fathom(kGreedy + Words{"-c", "16", "-n", "40", "--context-shift", "--json"}).json();
  EXPECT_EQ(shifted.at("generated_tokens"), 40);
  EXPECT_GE(shifted.at("context_shifts"), 2);
  const ProgramResult longer = run_fathom(kGreedy + Words{"-c", "1000", "-n", "2"});
  EXPECT_EQ(longer.exit_code, 0);
  EXPECT_NE(longer.err.find("warning: a context of 1000 is longer than the 512 tokens"), std::string::npos)
      << longer.err;
}

TEST(Cli, CacheTypesChangeLittle) {
  const auto text = [](const Words& more) {
    return run_fathom(kGreedy + Words{"-n", "30", "-q"} + more).out;
  };
  EXPECT_EQ(text({"-ctk", "f32", "-ctv", "f32"}), text({"--dtype", "f32"}));
  EXPECT_FALSE(text({"-ctk", "bf16", "-ctv", "f16"}).empty());
  expect_refused(kGreedy + Words{"-ctk", "q8_0"}, 1, "multiple of 32");  // heads of 8
}

TEST(Cli, CtrlCEndsCleanly) {
  ProgramOptions options;
  options.interrupt_when = [](const std::string& out) { return out.size() > 200; };
  const Words endless{"generate", "-m", kStories,          "-p",          "Once",
                      "-n",       "-1", "--context-shift", "--ignore-eos"};
  const ProgramResult r = run_fathom(endless, options);
  EXPECT_EQ(r.exit_code, 130);
  EXPECT_EQ(r.out.back(), '\n');
  EXPECT_EQ(to_valid_utf8(r.out), r.out);
  EXPECT_EQ(r.err.find("terminate"), std::string::npos) << r.err;
}

TEST(Cli, ControlCharactersOfNamesAreEscaped) {
  const ProgramResult r = run_fathom({"info", "-m", "/no\x1b[31m\nsuch"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.err.find('\x1b'), std::string::npos);
  EXPECT_NE(r.err.find("/no\\x1b[31m\\x0asuch"), std::string::npos) << r.err;
}

TEST(Cli, ChatTalks) {
  const Words base{"chat", "-m", kStories, "--chat-template", "chatml", "--temp", "0", "-n", "8"};
  ProgramOptions options;
  options.input = "Hello\n\n/reset\nHello\n/help\n/exit\nnot read\n";
  const ProgramResult r = run_fathom(base, options);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const size_t line = r.out.find('\n');
  ASSERT_NE(line, std::string::npos);
  EXPECT_EQ(r.out.substr(0, line), r.out.substr(line + 1, line)) << "after /reset the answer is the same";
  EXPECT_NE(r.out.find("/exit ends"), std::string::npos);
  options.input = "Hello";  // no line end, no /exit
  EXPECT_EQ(run_fathom(base, options).exit_code, 0);
  options.input = "Hello\n";
  expect_refused({"chat", "-m", kStories}, 1,
                 "no chat template; choose one with --chat-template: chatml, llama2", options);
  expect_refused(base + Words{"-c", "16"}, 1, "/reset starts again", options);
  options.input = "Hello, how are you?\nAnd what is your name?\nAnd where do you live?\n";
  const ProgramResult shifted = run_fathom(base + Words{"-c", "160", "--context-shift"}, options);
  EXPECT_EQ(shifted.exit_code, 0) << shifted.err;
}

// Every answer is one line.
TEST(Cli, ChatAnswersInJson) {
  ProgramOptions options;
  options.input = "Hello\nAnd \\\nthen?\n";
  const ProgramResult r = run_fathom(
      {"chat", "-m", kStories, "--chat-template", "chatml", "--temp", "0", "-n", "8", "--json"}, options);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  std::vector<nlohmann::json> answers;
  for (size_t begin = 0; begin < r.out.size(); begin = r.out.find('\n', begin) + 1)
    answers.push_back(nlohmann::json::parse(r.out.substr(begin, r.out.find('\n', begin) - begin)));
  ASSERT_EQ(answers.size(), 2u) << "a line that ends with a backslash goes on";
  EXPECT_EQ(answers[0].at("generated_tokens"), 8);
  EXPECT_FALSE(answers[1].at("text").get<std::string>().empty());
  EXPECT_EQ(answers[0].at("depth").size(), 8u);
}

TEST(Cli, ChatKeepsConversationsAndBudgets) {
  const ScratchFolder folder;
  const Words base{"chat", "-m", "builtin", "--chat-template", "chatml", "--temp", "0", "-n", "12"};
  ProgramOptions options;
  options.input = "Hello\n/save " + (folder / "talk.json") + "\n/budget 0.7\nWhy?\n/budget own\n/budget\n";
  const ProgramResult first = run_fathom(base + Words{"--json"}, options);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.err.find("fathom: budget 0.7\n"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("no budget: the method's own rule"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("multiply-adds ran"), std::string::npos) << first.err;
  const size_t line = first.out.find('\n');
  EXPECT_EQ(nlohmann::json::parse(first.out.substr(0, line)).at("skip_ratio"), 0);
  EXPECT_GT(nlohmann::json::parse(first.out.substr(line + 1)).at("skip_ratio"), 0.05);
  const auto kept = nlohmann::json::parse(read_text_file(folder / "talk.json")).at("messages");
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].at("content"), "Hello");
  options.input = "/load " + (folder / "talk.json") + "\n/retry\n";
  const ProgramResult again = run_fathom(base, options);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, kept[1].at("content").get<std::string>() + "\n");
  options.input = "/load " + folder.write("bad.json", "[1]") + "\n";
  EXPECT_NE(run_fathom(base, options).err.find("the list \"messages\""), std::string::npos);
  options.input = "/budget 0.01\n";
  EXPECT_EQ(run_fathom(base, options).exit_code, 1);
  options.input = "Hello\n";
  const ProgramResult drafted = run_fathom(base + Words{"--speculate", "2", "--draft", "exit"}, options);
  EXPECT_EQ(drafted.out, kept[1].at("content").get<std::string>() + "\n") << drafted.err;
}

// What people type who come from elsewhere.
TEST(Cli, OtherProgramsNamesAreUnderstood) {
  const Words usual{"generate", "-m", kStories, "-p", "Once upon", "-n", "4", "--temp", "0", "-q"};
  const Words other{"generate",      "-m", kStories,    "--prompt", "Once upon",  "--n_predict=4",
                    "--temperature", "0",  "--threads", "0",        "--ctx-size", "64",
                    "--seed",        "1",  "-q"};
  EXPECT_EQ(run_fathom(other).out, run_fathom(usual).out);
  expect_refused(usual + Words{"-ngl", "0"}, 2, "no option '-ngl': a model runs where --device says");
  expect_refused(usual + Words{"--lora", "x"}, 2, "--adapter");
  expect_refused(usual + Words{"--grammar", "x"}, 2, "grammars are for programs");
  expect_refused(usual + Words{"--json-schema=/nonexistent"}, 1, "/nonexistent");
  expect_refused(usual + Words{"-v"}, 2, "-q says less");
  const ProgramResult many = run_fathom({"generate", "-m", "/nonexistent", "-p", "Once", "-t", "900"});
  EXPECT_NE(many.err.find("900 threads on"), std::string::npos) << many.err;
}

TEST(Cli, LongTextsAreScoredInWindows) {
  const ScratchFolder folder;
  std::string ids = "[1";
  for (int i = 0; i < 99; ++i) ids += "," + std::to_string(260 + i * 7 % 200);
  const Words score{"score", "-m", kStories, "--ids", folder.write("ids.json", ids + "]"), "-c", "32"};
  expect_refused(score, 1, "score it in pieces with --window 32");
  const nlohmann::json all = run_fathom(score + Words{"--window", "32", "--json"}).json();
  ASSERT_EQ(all.at("logprobs").size(), 100u);
  EXPECT_EQ(all.at("scored_tokens"), 99);
  // The second window begins with the last token of the first.
  std::string second = "[" + all.at("ids")[31].dump();
  for (size_t i = 32; i < 63; ++i) second += "," + all.at("ids")[i].dump();
  const Words alone{"score", "-m", kStories, "--ids", folder.write("second.json", second + "]"), "--json"};
  const nlohmann::json part = run_fathom(alone).json();
  for (size_t i = 1; i < 32; ++i) EXPECT_EQ(part.at("logprobs")[i], all.at("logprobs")[31 + i]) << i;
  expect_refused(score + Words{"--window", "33"}, 2, "must fit the context");
}

TEST(Cli, BytesThatAreNoTextAreSaid) {
  const ProgramResult r = run_fathom({"generate", "-m", kStories, "-p", "ab\xff", "-n", "1"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_NE(r.err.find("byte 2 is 0xff"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace fathom
