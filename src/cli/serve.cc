// fathom serve: the engine behind HTTP, with OpenAI's API.
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "base/system_memory.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/savings_line.h"
#include "cli/serve_options.h"
#include "cli/verbs.h"
#include "infer/engine.h"
#include "infer/writer.h"
#include "serve/api.h"
#include "serve/http_server.h"
#include "serve/json_mask.h"
#include "serve/log_writer.h"
#include "serve/shutdown.h"

namespace fathom {
namespace {

using std::chrono::milliseconds;

// The listening line, on stdout: with port 0 it is how a caller learns the port.
void say_where(const ServeOptions& o, uint16_t port) {
  const bool bare = o.http.host.find(':') == std::string::npos;
  const std::string url = fmt::format("{}://{}:{}", o.http.tls_certificate.empty() ? "http" : "https",
                                      bare ? o.http.host : "[" + o.http.host + "]", port);
  if (o.model.json)
    print_json({{"url", url}, {"host", o.http.host}, {"port", port}});
  else
    print("listening on " + url + "\n");
}

// A vocabulary that cannot write JSON refuses the requests that ask for it, and serves the others.
MaskFactory json_masks(const Model& model) {
  try {
    const auto masks = std::make_shared<const JsonMasks>(*model.tokenizer, end_token_ids(model));
    return {.any_object = [masks] { return masks->any_object(); },
            .schema = [masks](const std::string& schema) { return masks->schema(schema); }};
  } catch (const UserError& error) {
    const auto refuse = [why = std::string(error.what())]() -> MaskMaker { throw UserError(why); };
    return {.any_object = refuse, .schema = [refuse](const std::string&) { return refuse(); }};
  }
}

// A model with its engine. The engine goes first.
struct Served {
  Session session;
  std::unique_ptr<Engine> engine;

  explicit Served(const ServeOptions& o) : session(o.model) {
    session.tokenizer();  // none: its error says what to give
    if (o.speculate) session.use_drafts({}, &interrupted());
    BatcherOptions how = session.engine_options();
    how.waiting = o.api.queue;
    how.most_answers = o.api.limits.choices;
    how.rows = std::max(how.rows, 2 * o.api.parallel);
    const bool on_cpu = o.model.device == "cpu";
    const int64_t bytes = o.cache_bytes > 0 ? o.cache_bytes : on_cpu ? available_memory() / 2 : 0;
    session.make_cache(-1, o.api.parallel, how.rows, bytes);
    engine = std::make_unique<Engine>(make_engine(session.feeder(), std::move(how)));
  }

  ServedModel model(const ServeOptions& o) {
    ServedModel served;
    served.model = &session.model();
    served.engine = engine.get();
    served.budgets = session.budgets();
    if (session.has_budget()) served.budget = static_cast<float>(session.budget());
    served.context = std::min(session.context(), session.feeder().cache().longest());
    served.masks = json_masks(session.model());
    from_option("--chat-template", [&] { complete(served, o.chat_template); });
    return served;
  }
};

// While it lives, messages and the lines of requests wait in memory for a stderr that is not read.
class LogToStderr {
 public:
  explicit LogToStderr(ServeOptions& o) : writer_(STDERR_FILENO) {
    const bool json = o.api.json_logs;
    set_log_sink([this, json](LogLevel level, std::string_view message) {
      const bool warns = level == LogLevel::kWarn;
      const char* name = warns ? "warning" : level == LogLevel::kInfo ? "info" : "debug";
      writer_.write(json ? json_message(name, message, std::chrono::system_clock::now())
                         : fmt::format("fathom: {}{}", warns ? "warning: " : "", message));
    });
    if (json && !o.model.quiet) o.api.log = [this](const std::string& line) { writer_.write(line); };
  }
  ~LogToStderr() { set_log_sink({}); }
  LogToStderr(const LogToStderr&) = delete;
  LogToStderr& operator=(const LogToStderr&) = delete;

 private:
  LogWriter writer_;
};

}  // namespace

int run_serve(const Arguments& arguments) {
  Args args(
      "serve", "Answers requests over HTTP, as OpenAI's API has them; every request chooses its depth.",
      "fathom serve -m builtin --port 8080\n"
      "  fathom serve -m SmolLM2-135M-Instruct.Q4_1.gguf --adapter models/smollm2-135m-priced --parallel 16");
  ServeOptions o;
  if (!parse_serve_options(args, o, arguments)) return 0;
  watch_termination();
  const LogToStderr log(o);
  Api api(o.api);
  HttpServer server(
      o.http,
      [&](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
        api.handle(std::move(request), reply);
      },
      [&](const HttpRefusal& refusal) { api.refused(refusal); });
  server.start();
  say_where(o, server.port());
  std::unique_ptr<Served> served;
  try {
    served = std::make_unique<Served>(o);
  } catch (const PrepareCancelled&) {
    return kInterruptedExit;
  }
  log_rule(served->session);
  ServedModel model = served->model(o);
  const int64_t context = model.context;
  api.serve(std::move(model));
  if (context < served->session.context())
    log_warn(fmt::format("the cache (--cache-size) has room for a context of {} only, the model has {}",
                         context, served->session.context()));
  log_info(fmt::format("ready: {} in {:.2f} s, {} places, a context of {}", printable(o.api.names.front()),
                       served->session.load_seconds(), o.api.parallel, context));
  while (!interrupted()) std::this_thread::sleep_for(milliseconds(50));
  shut_down(api, server, std::chrono::seconds(o.drain_seconds));
  if (interrupting_signal() != SIGTERM) return kInterruptedExit;
  forget_interrupt();  // being told to end is no failure
  return 0;
}

}  // namespace fathom
