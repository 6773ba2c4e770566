// How a server ends.
#pragma once

#include <chrono>

#include "serve/api.h"
#include "serve/http_server.h"

namespace fathom {

// Takes no more requests and lets those that are being answered end within `time`, to the last byte that
// their clients read. Requests that still run then get an error, and their connections close. Afterwards
// the model that `api` serves may go.
void shut_down(Api& api, HttpServer& server, std::chrono::seconds time);

}  // namespace fathom
