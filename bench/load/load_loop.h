// Many requests to one server, at the same time and from one thread, and how long each took.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom {

struct Server {
  std::string name;
  std::string host = "127.0.0.1";  // an address of IPv4
  uint16_t port = 8080;
};

struct LoadPlan {
  Server server;
  std::string path = "/v1/completions";
  std::vector<std::string> bodies;
  // Seconds after the start at which each request is sent (open loop). Empty: a request is sent when one of
  // `clients` is free (closed loop).
  std::vector<double> arrivals = {};
  int64_t clients = 1;
  double timeout = 600;  // seconds without a byte from any reply
};

// Seconds since the run began.
struct LoadTimes {
  double sent = 0;             // the arrival in an open loop, although the socket may come later
  double first = 0, last = 0;  // tokens
  double end = 0;
  std::vector<double> gaps = {};  // between the events of two tokens
  int64_t tokens = 0;             // as the server's `usage` says, else its events
  double budget = 1;              // likewise
  double cached = 0;              // tokens of the prompt that the server had already
  std::string error = {};         // "": the reply came whole
};

std::vector<LoadTimes> run_load(const LoadPlan& plan);

// Sends one request and returns the whole reply. A status other than 200 is a UserError.
std::string ask(const Server& server, const std::string& path, const std::string& body);

}  // namespace fathom
