#include "serve/api.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/build_info.h"
#include "base/format.h"
#include "serve/exchange.h"
#include "serve/model_names.h"
#include "serve/random_id.h"
#include "serve/request_maker.h"
#include "serve/token_text.h"
#include "serve/tokenizer_routes.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kJson = "application/json";
constexpr std::string_view kModelPath = "/v1/models/";

struct Route {
  std::string_view path;
  std::string_view method;
};
constexpr std::array kRoutes{
    Route{"/v1/chat/completions", "POST"},
    Route{"/v1/completions", "POST"},
    Route{"/v1/models", "GET"},
    Route{"/tokenize", "POST"},
    Route{"/detokenize", "POST"},
    Route{"/tokenizer_info", "GET"},
    Route{"/health", "GET"},
    Route{"/version", "GET"},
    Route{"/metrics", "GET"},
    Route{kModelPath, "GET"},
};

// Null: there is no such path.
const Route* route_of(const std::string& path) {
  for (const Route& route : kRoutes) {
    const bool same = route.path == kModelPath ? path.starts_with(kModelPath) : path == route.path;
    if (same) return &route;
  }
  return nullptr;
}

// %2F as '/', as a model's name in a path may have it.
std::string without_percents(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool coded =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += coded ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (coded) i += 2;
  }
  return out;
}

OrderedJson model_json(const std::string& name, const ServedModel& served) {
  OrderedJson json;
  json["id"] = name;
  json["object"] = "model";
  json["created"] = served.created;
  json["owned_by"] = "fathom";
  json["max_model_len"] = served.context;
  json["layers"] = served.layers();
  json["budgets"] = OrderedJson::array();
  for (const float budget : served.grid) json["budgets"].push_back(shortest_decimal(budget));
  return json;
}

OrderedJson models_json(const std::vector<std::string>& names, const ServedModel& served) {
  OrderedJson json{{"object", "list"}, {"data", OrderedJson::array()}};
  for (const std::string& name : names) json["data"].push_back(model_json(name, served));
  return json;
}

// The prompts' texts where they are to be echoed.
std::vector<std::string> echoes_of(const CompletionRequest& fields, const Tokenizer& tokenizer) {
  std::vector<std::string> echoes;
  if (!fields.echo) return echoes;
  for (const Prompt& prompt : fields.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    echoes.push_back(ids ? tokenizer.decode(*ids) : std::get<std::string>(prompt));
  }
  return echoes;
}

ReplyHead head_of(const GenerationFields& fields, const Request& first, const ExchangePlan& plan,
                  const std::string& model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = plan.record.id,
          .model = fields.model.empty() ? model : fields.model,
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .seed = first.sampler.seed,
          .budget = plan.usage.budget,
          .include_usage = fields.include_usage,
          .log_probs = fields.log_probs,
          .depth = fields.depth};
}

// What both kinds of requests plan alike.
ExchangePlan plan_of(const GenerationFields& fields, const std::vector<Request>& requests,
                     std::shared_ptr<const ServedModel> served, RequestRecord record) {
  ExchangePlan plan;
  plan.record = std::move(record);
  plan.stream = fields.stream;
  plan.include_usage = fields.include_usage;
  plan.answers = fields.answers;
  plan.usage.budget = requests.front().budget ? requests.front().budget : served->budget;
  for (const Request& request : requests) {
    plan.prompts.push_back(request.prompt);
    plan.usage.prompt_tokens += std::ssize(request.prompt);
  }
  plan.served = std::move(served);
  return plan;
}

// What the engine itself refuses is drafts that it cannot make: the rest was checked before.
std::vector<Answer> submit(Engine& engine, Request request) {
  const std::optional<DraftOptions> drafts = request.speculate;
  try {
    return engine.submit(std::move(request));
  } catch (const UserError& error) {
    if (!drafts) throw;
    const std::string field = drafts->kind ? "draft" : "speculate";
    refuse_field(field, fmt::format("{}: {}", field, error.what()));
  }
}

}  // namespace

Api::Api(ApiOptions options)
    : state_(std::make_shared<ApiState>(std::move(options))),
      worker_(state_->options.unparsed_requests, state_->options.unparsed_bytes) {}

Api::~Api() {
  worker_.stop();
  state_->exchanges.clear();
}

void Api::serve(ServedModel served) {
  state_->set_served(std::make_shared<const ServedModel>(std::move(served)));
}

void Api::drain() {
  state_->draining = true;
}

void Api::cut() {
  for (const auto& exchange : state_->exchanges.all()) exchange->cut();
}

int64_t Api::active() const {
  return worker_.unfinished() + state_->exchanges.count();
}

void Api::settle() const {
  worker_.wait();
}

void Api::refused(const HttpRefusal& refusal) {
  state_->metrics.reply(refusal.status);
  const std::optional<int64_t> left_out = state_->refusal_lines.next(state_->options.now());
  if (!left_out) return;
  RequestRecord record;
  record.id = refusal.id;
  record.client_id = refusal.client_id;
  record.method = printable(refusal.method, 20);
  record.path = printable(refusal.path);
  record.status = refusal.status;
  record.error = refusal.message;
  if (*left_out > 0) record.error += fmt::format(" ({} refusals before this one have no line)", *left_out);
  state_->log(record);
}

void Api::handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
  const auto held = std::make_shared<const HttpRequest>(std::move(request));
  guard(*held, *reply, [&] {
    const Route* route = route_of(held->path);
    const bool has_body = route && route->method == "POST" && held->method == "POST";
    if (!has_body) return answer(*held, reply);
    const auto job = [this, held, reply] { guard(*held, *reply, [&] { answer(*held, reply); }); };
    if (!worker_.post(held->body.size(), job))
      throw EngineBusy("too many requests wait to be parsed: try again later");
  });
}

// Whatever `call` throws becomes the reply.
void Api::guard(const HttpRequest& request, HttpReply& reply, const std::function<void()>& call) {
  const std::string retry = std::to_string(state_->options.retry_seconds);
  try {
    call();
  } catch (const ApiError& error) {
    HttpHeaders headers;
    if (error.status() == 503) headers.emplace_back("Retry-After", retry);
    send_error(request, reply, error, std::move(headers));
  } catch (const EngineBusy& error) {
    send_error(request, reply, ApiError(429, error.what(), "", "busy"), {{"Retry-After", retry}});
  } catch (const UserError& error) {
    send_error(request, reply, ApiError(400, error.what()));
  } catch (const std::bad_alloc&) {
    send_error(request, reply, ApiError(500, "out of memory", "", "internal_error"));
  } catch (const std::exception& error) {
    send_error(request, reply, ApiError(500, error.what(), "", "internal_error"));
  }
}

void Api::answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const Route* route = route_of(request.path);
  if (!route)
    throw ApiError(404, fmt::format("there is nothing at {}", printable(request.path)), "", "not_found");
  if (request.method != route->method) {
    const std::string allowed(route->method);
    return send_error(
        request, *reply,
        ApiError(405, fmt::format("{} takes {}, got {}", route->path, allowed, printable(request.method)), "",
                 "method_not_allowed"),
        {{"Allow", allowed}});
  }
  if (route->path == "/v1/chat/completions") return generate(request, reply, true);
  if (route->path == "/v1/completions") return generate(request, reply, false);
  answer_plainly(request, *reply, std::string(route->path));
}

std::shared_ptr<const ServedModel> Api::ready_model() const {
  std::shared_ptr<const ServedModel> served = state_->served();
  if (!served) throw ApiError(503, "the model is still being loaded", "", "loading");
  if (state_->draining) throw ApiError(503, "the server is shutting down", "", "shutting_down");
  return served;
}

void Api::answer_plainly(const HttpRequest& request, HttpReply& reply, const std::string& route) {
  if (route == "/metrics") {
    const std::shared_ptr<const ServedModel> served = state_->served();
    const EngineStats stats = served ? served->engine->stats() : EngineStats();
    return send(request, reply, "text/plain; version=0.0.4; charset=utf-8",
                state_->metrics.text(served ? &stats : nullptr, state_->model_name()));
  }
  if (route == "/version")
    return send(request, reply, kJson,
                to_line(OrderedJson{{"version", build_info().version}, {"commit", build_info().commit}}));
  const std::shared_ptr<const ServedModel> served = ready_model();
  const ApiOptions& options = state_->options;
  std::string body;
  if (route == "/health") body = R"({"status":"ok"})";
  if (route == "/v1/models") body = to_line(models_json(options.names, *served));
  if (route == "/tokenize") body = tokenize_reply(request.body, *served, options);
  if (route == "/detokenize") body = detokenize_reply(request.body, *served, options);
  if (route == "/tokenizer_info") body = tokenizer_info_reply(*served);
  if (route == kModelPath) {
    const std::string name = without_percents(std::string_view(request.path).substr(kModelPath.size()));
    if (std::find(options.names.begin(), options.names.end(), name) == options.names.end())
      unknown_model(name);
    body = to_line(model_json(name, *served));
  }
  send(request, reply, kJson, std::move(body));
}

void Api::generate(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply, bool chat) {
  const std::shared_ptr<const ServedModel> served = ready_model();
  const ApiOptions& options = state_->options;
  const RequestMaker maker(*served, options, [this] { return state_->load(); });
  RequestRecord record = record_of(request, chat ? "chatcmpl" : "cmpl");
  if (options.log_prompts) record.prompt = request.body;

  std::vector<Request> requests;
  ExchangePlan plan;
  if (chat) {
    const ChatRequest fields = parse_chat_request(request.body, options.limits);
    check_model_name(fields.model, options.names);
    requests = maker.chat(fields, request.key, request.arrived);
    plan = plan_of(fields, requests, served, std::move(record));
    plan.format = chat_format(head_of(fields, requests.front(), plan, state_->model_name()), *served);
  } else {
    const CompletionRequest fields = parse_completion_request(request.body, options.limits);
    check_model_name(fields.model, options.names);
    requests = maker.completion(fields, request.key, request.arrived);
    plan = plan_of(fields, requests, served, std::move(record));
    plan.format = completion_format(head_of(fields, requests.front(), plan, state_->model_name()), *served);
    plan.echoes = echoes_of(fields, served->tokenizer());
  }
  plan.arrived = request.arrived;
  std::vector<Answer> answers;
  for (Request& each : requests) {
    for (Answer& answer : submit(*served->engine, std::move(each))) answers.push_back(std::move(answer));
  }
  std::make_shared<Exchange>(state_, reply, std::move(plan), std::move(answers))->start();
}

RequestRecord Api::record_of(const HttpRequest& request, const char* prefix) const {
  RequestRecord record;
  record.id = random_id(prefix);
  record.method = request.method;
  record.path = request.path;
  record.key = request.key;
  record.client_id = request.client_id;
  return record;
}

void Api::send(const HttpRequest& request, HttpReply& reply, std::string type, std::string body) {
  RequestRecord record = record_of(request, "req");
  reply.send(200, std::move(type), std::move(body), {record.id_header()});
  state_->metrics.reply(200);
  if (request.path == "/health" || request.path == "/metrics") return;  // asked every few seconds
  record.status = 200;
  record.total_seconds = std::chrono::duration<double>(state_->options.now() - request.arrived).count();
  state_->log(record);
}

void Api::send_error(const HttpRequest& request, HttpReply& reply, const ApiError& error,
                     HttpHeaders headers) {
  RequestRecord record = record_of(request, "req");
  headers.push_back(record.id_header());
  reply.send(error.status(), kJson, error_json(error), std::move(headers));
  state_->metrics.reply(error.status());
  if (request.path == "/health" && error.status() == 503) return;
  record.status = error.status();
  record.error = error.what();
  record.total_seconds = std::chrono::duration<double>(state_->options.now() - request.arrived).count();
  state_->log(record);
}

}  // namespace fathom
