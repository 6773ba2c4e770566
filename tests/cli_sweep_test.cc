// fathom sweep, as a person's shell runs it: killed, gone on with, refused.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "program.h"
#include "support/test_paths.h"
#include "tuned_gates.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Without what the clock says.
Json timeless(Json json) {
  if (!json.is_structured()) return json;
  if (json.is_object()) {
    for (const char* key :
         {"seconds", "tokens_per_s", "decode_tokens_per_s", "dense_decode_tokens_per_s", "speed_up"})
      json.erase(key);
  }
  for (Json& one : json) one = timeless(one);
  return json;
}

class SweepVerb : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("fathom-sweep-verb-" + std::to_string(getpid()));
    ASSERT_NO_FATAL_FAILURE(tune_gates(folder_));
    fs::copy(at("gates"), at("uncalibrated"), fs::copy_options::recursive);
    const auto calibrated =
        run_fathom({"calibrate", "-m", kStories, "--adapter", at("gates"), "--data", at("text.txt"),
                    "--window", "128", "--tokens", "2048", "-q", "--budgets", "0.9,0.7"});
    ASSERT_EQ(calibrated.exit_code, 0) << calibrated.err;
    std::ofstream items(at("stories.jsonl"));
    const char* const starts[] = {"Once upon a time, there was a", "Tom had a", "The cat sat on the"};
    for (int i = 0; i < 40; ++i) {
      const Json item{{"ctx", std::string(static_cast<size_t>(i), '.') + " " + starts[i % 3]},
                      {"choices", {"little girl", "xq zj", "big dog"}},
                      {"gold", i % 2}};
      items << item.dump() << "\n";
    }
    std::ofstream(at("short.txt")) << text_of(at("text.txt")).substr(0, 600);
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static std::string at(const std::string& name) { return (folder_ / name).string(); }
  // What the units were measured to do, each file for another text.
  static std::vector<fs::path> measured(const std::string& name) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(at(name))) {
      if (entry.path().filename().string().starts_with("measured-")) files.push_back(entry.path());
    }
    return files;
  }
  // What `more` says stands for what the command has of the same name.
  static Words command(const std::string& out, const Words& more = {}) {
    Words words{"-m",        kStories,       "--tasks",        at("stories.jsonl") + "," + at("short.txt"),
                "--budgets", "1,0.8",        "--seeds",        "2",
                "--data",    at("text.txt"), "--order-tokens", "512"};
    for (const std::string& word : more) {
      const auto own = std::find(words.begin(), words.end(), word);
      if (own != words.end()) words.erase(own, own + 2);
    }
    return Words{"sweep", "-q", "--adapter", at("gates"), "-o", at(out)} + words + more;
  }
  static Json results(const std::string& out) { return Json::parse(text_of(at(out) + "/results.json")); }
  // A sweep that nothing disturbs.
  static const Json& expected() {
    static const Json json = [] {
      const ProgramResult r = run_fathom(command("whole"));
      if (r.exit_code != 0) throw std::runtime_error(r.err);
      return timeless(results("whole"));
    }();
    return json;
  }
  static void expect_refused(const ProgramResult& r, int exit_code, const std::string& part) {
    SCOPED_TRACE(r.err);
    EXPECT_EQ(r.exit_code, exit_code);
    EXPECT_EQ(r.out, "");
    std::string err = r.err;
    if (err.starts_with("fathom: warning: no PNG figures"))  // a machine without gnuplot
      err = err.substr(err.find('\n') + 1);
    EXPECT_TRUE(err.starts_with("fathom: "));
    EXPECT_EQ(err.find('\n'), err.size() - 1);
    EXPECT_NE(err.find(part), std::string::npos) << part;
  }

  static inline fs::path folder_;
};

TEST_F(SweepVerb, WritesResultsTablesAndCurves) {
  const Json& json = expected();
  ASSERT_EQ(json["tasks"].size(), 2u);
  EXPECT_EQ(json["tasks"][0]["metric"], "acc");
  EXPECT_EQ(json["tasks"][1]["metric"], "token_perplexity");
  for (const char* name : {"results.json", "results.md", "results.tex", "quality-stories-jsonl.svg",
                           "quality-short-txt.svg", "index.html"})
    EXPECT_FALSE(text_of(at("whole") + "/" + name).empty()) << name;
  for (const Json& point : json["points"]) {
    if (point["kind"] != "method") continue;
    EXPECT_NEAR(point["block_flops"], point["budget"], 0.1)
        << "short items, another text than it was calibrated on";
    EXPECT_EQ(point.contains("random"), point["budget"] < 1);
    ASSERT_TRUE(point.contains("shallow"));
    if (point["budget"] == 1) {
      EXPECT_GT(point["net_flops"], 1) << "gates cost something";
      continue;
    }
    EXPECT_NEAR(point["random"]["skip_ratio"], point["skip_ratio"], 0.05);
    EXPECT_NEAR(point["shallow"]["net_flops"], point["net_flops"], 1e-9);
  }
  // Again: nothing is run, nothing changes; the rows on stdout.
  const ProgramResult again = run_fathom(command("whole", {"--json"}));
  EXPECT_EQ(again.json(), results("whole"));
  const ProgramResult table = run_fathom(command("whole"));
  EXPECT_NE(table.out.find("| gates  |    0.8"), std::string::npos) << table.out;
}

// kill -9 while it runs; the same command goes on, and ends where it would have ended.
TEST_F(SweepVerb, GoesOnAfterKillNine) {
  bool killed = false;
  for (int attempt = 0; attempt < 5 && !killed; ++attempt) {
    const std::string out = "killed-" + std::to_string(attempt);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Words words = Words{FATHOM_BINARY} + command(out);
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      setenv("FATHOM_MODELS", FATHOM_SOURCE_DIR "/models", 1);
      if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(99);
      execv(argv[0], argv.data());
      _exit(99);
    }
    const auto lines = [&] {
      const std::string text = text_of(at(out) + "/items.jsonl");
      return std::count(text.begin(), text.end(), '\n');
    };
    int status = 0;
    while (lines() < 12 && waitpid(child, &status, WNOHANG) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (fs::exists(at(out) + "/results.json")) continue;  // too late: it had ended
    killed = true;
    const std::string kept = text_of(at(out) + "/items.jsonl");
    EXPECT_EQ(run_fathom(command(out)).exit_code, 0);
    EXPECT_EQ(timeless(results(out)), expected());
    EXPECT_TRUE(text_of(at(out) + "/items.jsonl").starts_with(kept.substr(0, kept.rfind('\n') + 1)))
        << "what was kept was not run again";
  }
  EXPECT_TRUE(killed);
}

// A file that may not grow, as on a full disk: by an error, and (the signal not ignored) by death inside a
// line.
TEST_F(SweepVerb, AFullDiskLosesNothing) {
  expected();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  for (const bool ignored : {true, false}) {
    const std::string out = ignored ? "full" : "cut";
    const auto handler = std::signal(SIGXFSZ, ignored ? SIG_IGN : SIG_DFL);
    rlimit limit = before;
    limit.rlim_cur = 9001;
    setrlimit(RLIMIT_FSIZE, &limit);
    const ProgramResult r = run_fathom(command(out));
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    // Whatever it inherited, the program hears of the limit from the write.
    expect_refused(r, 1, "what was done before is kept: the same command goes on from there");
    EXPECT_FALSE(fs::exists(at(out) + "/results.json"));
    EXPECT_EQ(run_fathom(command(out)).exit_code, 0);
    EXPECT_EQ(timeless(results(out)), expected());
  }
}

TEST_F(SweepVerb, WithoutGnuplotTheRestIsWritten) {
  expected();
  fs::remove_all(at("no-plot"));
  fs::create_directories(at("no-plot"));
  fs::copy(at("whole") + "/items.jsonl", at("no-plot") + "/items.jsonl");
  ProgramOptions no_programs;
  no_programs.environment = {"PATH=/nonexistent"};
  const ProgramResult r = run_fathom(command("no-plot", {"--json"}), no_programs);
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_NE(r.err.find("no PNG figures, only SVG and HTML: "), std::string::npos) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  EXPECT_TRUE(fs::exists(at("no-plot") + "/index.html"));
  EXPECT_FALSE(fs::exists(at("no-plot") + "/quality-stories-jsonl.png"));
}

TEST_F(SweepVerb, SmokeIsSmall) {
  const Json json = run_fathom(command("smoke", {"--smoke", "--json"})).json();
  EXPECT_EQ(json["tasks"][0]["n"], 8);
  EXPECT_EQ(json["seeds"], 1);
  // Alone it may measure the order on next to nothing, and says so.
  const ProgramResult r = run_fathom({"sweep", "-m", kStories, "--adapter", at("gates"), "--tasks",
                                      at("stories.jsonl"), "--budgets", "0.8", "--smoke", "-o", at("bare")});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.err.find("--smoke without --data: the order of units is measured on 96 tokens"),
            std::string::npos)
      << r.err;
}

// The order of units is measured on the text that was given, once for each text.
TEST_F(SweepVerb, TheOrderIsMeasuredOnce) {
  expected();
  ASSERT_EQ(measured("whole").size(), 1u);
  const std::string file = measured("whole")[0].string(), kept = text_of(file);
  const Json json = Json::parse(kept);
  EXPECT_EQ(json["tokens"], 512);
  EXPECT_EQ(json["values"].size(), 1u);
  EXPECT_EQ(json["values"]["harm"].size(), 10u);
  EXPECT_EQ(results("whole")["settings"]["order of units"], "once, on 512 tokens of " + at("text.txt"));
  Words words = command("whole");
  std::erase(words, "-q");
  EXPECT_EQ(run_fathom(words).err.find("measuring which units"), std::string::npos) << "it is there";
  EXPECT_EQ(text_of(file), kept);
  // Another search, and a text that is too short for what is asked.
  ProgramResult r = run_fathom(
      command("whole", {"--order", "greedily", "--order-tokens", "16384", "--data", at("short.txt")}));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.err.find("tokens, of 16384 to measure the order of units on (--order-tokens): all are used"),
            std::string::npos)
      << r.err;
  ASSERT_EQ(measured("whole").size(), 2u);
  for (const fs::path& path : measured("whole")) {
    if (path == file) continue;
    const Json greedy = Json::parse(text_of(path.string()));
    EXPECT_GT(greedy["values"].size(), 1u) << "again after each unit that went";
    EXPECT_GT(greedy["tokens"], 100);
    EXPECT_LT(greedy["tokens"], 512);
  }
  // The first one again: the same results, from what was kept.
  EXPECT_EQ(run_fathom(command("whole")).exit_code, 0);
  EXPECT_EQ(text_of(file), kept);
  EXPECT_EQ(timeless(results("whole")), expected());
}

// As `calibrate` reads it: JSONL as documents, several files by their weights, tokens from all over each.
TEST_F(SweepVerb, TheOrderIsMeasuredOnTextAsCalibrateReadsIt) {
  const auto order = [](const Words& data) {
    const ProgramResult r =
        run_fathom(command("texts", Words{"--tasks", at("short.txt"), "--baselines", "shallow"} + data));
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(measured("texts").size(), 1u);
    Json json = Json::parse(text_of(measured("texts").at(0).string()));
    fs::remove(measured("texts")[0]);
    EXPECT_EQ(json["tokens"], 512);
    return json;
  };
  const auto write_documents = [](const std::string& pet) {
    std::ofstream lines(at("pets.jsonl")), text(at("pets.txt"));
    for (int i = 0; i < 30; ++i) {
      std::string document;
      for (int n = 0; n < 8; ++n)
        document += "Tom saw " + pet + " number " + std::to_string(i * n) + " and gave it a name. ";
      lines << Json{{"text", document}}.dump() << "\n";
      text << document << "\n<|endoftext|>\n";
    }
  };
  write_documents("cat");
  EXPECT_EQ(order({"--data", at("pets.jsonl")}), order({"--data", at("pets.txt")}));

  const Words both{"--data", at("text.txt") + ":3", "--data", at("pets.jsonl")};
  const Json three_to_one = order(both);
  EXPECT_EQ(results("texts")["settings"]["order of units"],
            "once, on 512 tokens of " + at("text.txt") + ":3, " + at("pets.jsonl"));
  EXPECT_NE(order({"--data", at("text.txt"), "--data", at("pets.jsonl")})["key"], three_to_one["key"]);
  write_documents("dog");
  EXPECT_NE(order(both)["key"], three_to_one["key"]) << "the key is of what the files hold";

  // One sequence of a long file comes from its middle.
  const auto write_long = [](size_t begin, size_t end) {
    std::string text;
    for (int i = 0; i < 4; ++i) text += text_of(at("text.txt"));
    std::replace(text.begin() + static_cast<ptrdiff_t>(begin), text.begin() + static_cast<ptrdiff_t>(end),
                 'e', 'a');
    std::ofstream(at("long.txt")) << text;
  };
  write_long(0, 0);
  const Words book{"--data", at("long.txt")};
  const Json of_book = order(book);
  write_long(0, 2000);
  EXPECT_EQ(order(book), of_book);
  write_long(28000, 52000);
  EXPECT_NE(order(book)["key"], of_book["key"]);
}

// Every method's point says how far it is from dense and its baselines, with paired errors, in words, too.
TEST_F(SweepVerb, DifferencesAreSaid) {
  for (const Json& point : expected()["points"]) {
    const Json& differences = point["differences"];
    EXPECT_EQ(differences.contains("dense"), point["kind"] != "dense");
    for (const char* with : {"random", "shallow"}) {
      ASSERT_EQ(differences.contains(with), point.contains(with));
      if (!point.contains(with)) continue;
      for (const auto& [name, one] : differences[with].items()) {
        const double difference = point["metrics"][name]["value"].get<double>() -
                                  point[with]["metrics"][name]["value"].get<double>();
        EXPECT_NEAR(one["value"], difference, 1e-9);
        if (one["stderr"].is_null()) continue;
        const bool level = difference == 0 || std::abs(difference) < 1.96 * one["stderr"].get<double>();
        EXPECT_EQ(one["verdict"] == "level", level) << one;
      }
    }
  }
  const std::string page = text_of(at("whole") + "/index.html"), table = text_of(at("whole") + "/results.md");
  EXPECT_NE(table.find("| against shallower"), std::string::npos) << table;
  EXPECT_NE(table.find(" level |"), std::string::npos) << table;
  EXPECT_NE(page.find("difference to dense"), std::string::npos);
  EXPECT_FALSE(text_of(at("whole") + "/difference-stories-jsonl.svg").empty());
}

// Adapters reach different budgets, and one command compares them.
TEST_F(SweepVerb, ABudgetThatAnAdapterDoesNotReachIsLeftOut) {
  const Words words = command("reach", {"--budgets", "0.8,0.5", "--baselines", "none"});
  const ProgramResult r = run_fathom(words);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.err.find("gates: a budget of 0.5 is below the smallest of the calibration table, 0.7; that "
                       "point is left out"),
            std::string::npos)
      << r.err;
  std::vector<double> budgets;
  const Json json = results("reach");
  for (const Json& point : json["points"]) {
    if (point["kind"] == "method") budgets.push_back(point["budget"]);
  }
  EXPECT_EQ(budgets, (std::vector<double>{0.8, 0.8})) << "one for each task";
}

// Ctrl-C while the order is measured: within one unit's pass.
TEST_F(SweepVerb, MeasuringTheOrderCanBeInterrupted) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Words words =
        Words{FATHOM_BINARY} + command("interrupted", {"--order", "greedily", "--order-tokens", "16384"});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    setenv("FATHOM_MODELS", FATHOM_SOURCE_DIR "/models", 1);
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(99);
    execv(argv[0], argv.data());
    _exit(99);
  }
  int status = 0;
  while (!fs::exists(at("interrupted") + "/items.jsonl") && waitpid(child, &status, WNOHANG) == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  kill(child, SIGINT);
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  for (const fs::path& file : measured("interrupted"))  // what was done is kept whole
    EXPECT_TRUE(Json::accept(text_of(file.string()))) << file;
}

TEST_F(SweepVerb, RefusesInOneLine) {
  expected();
  const auto refused = [&](const Words& words, int code, const std::string& part) {
    expect_refused(run_fathom(words), code, part);
  };
  const Words start{"sweep", "-m", kStories, "--tasks", at("stories.jsonl")};
  refused(start + Words{"--adapter", at("gates")}, 2, "-o must name the folder");
  refused(start + Words{"-o", at("none")}, 2, "sweep needs a method");
  refused(command("none", {"--budgets", "0.8,2"}), 2, "--budgets must be numbers above 0 and at most 1");
  refused(command("none", {"--budgets", "0.8,,1"}), 2, "--budgets must be a list");
  refused(command("none", {"--baselines", "luck"}), 2, "--baselines must be of random, shallow, or none");
  refused(command("none", {"--device", "abacus"}), 2, "--device must be cpu, cuda or cuda:N, got 'abacus'");
  refused(start + Words{"--adapter", at("uncalibrated"), "--budgets", "0.8", "-o", at("none")}, 1,
          "needs a calibration table: make one with fathom calibrate -m ");
  refused(start + Words{"--adapter", at("gates"), "--budgets", "0.5", "-o", at("none")}, 1,
          "gates: a budget of 0.5 is below the smallest of the calibration table, 0.7");
  std::ofstream(at("bad.jsonl")) << text_of(at("stories.jsonl")) << "{\"ctx\":\n";
  refused(command("none", {"--tasks", at("bad.jsonl")}), 1, "bad.jsonl:41: ");
  refused(command("stories.jsonl"), 1, "the folder cannot be made");
  refused(start + Words{"--adapter", at("gates"), "--data", at("text.txt"), "-o", "/proc/nowhere"}, 1,
          "/proc/nowhere: the folder cannot be made");
  refused(start + Words{"--adapter", at("gates"), "-o", at("none")}, 2,
          "the shallow baseline needs --data FILE, the text that the method was calibrated on");
  refused(command("none", {"--order", "twice"}), 2, "--order");
  EXPECT_FALSE(fs::exists(at("none")));
  std::ofstream(at("empty.txt")) << "";
  refused(command("no-text", {"--data", at("empty.txt")}), 1, "empty.txt: the text is empty");
  refused(command("no-text", {"--data", at("nowhere.txt")}), 1, "nowhere.txt");
  // What is kept belongs to other inputs.
  const std::string whole = text_of(at("whole") + "/items.jsonl");
  refused(command("whole", {"--limit", "30"}), 1, "made with another task ");
  refused(command("whole", {"-c", "200"}), 1, "made with another settings (context 512");
  const ProgramResult other = run_fathom(command("whole", {"--dtype", "q8_0"}));  // after a warning
  EXPECT_NE(other.err.find("made with another model of dense"), std::string::npos) << other.err;
  EXPECT_EQ(text_of(at("whole") + "/items.jsonl"), whole);
}

}  // namespace
}  // namespace fathom
