#include "serve/shutdown.h"

#include <gtest/gtest.h>

#include <thread>

#include "serve/http_rig_test.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;

// A reply that the API has finished is on its way for as long as its client reads, within the time.
TEST(Shutdown, LetsASlowReaderFinish) {
  Api api({});
  HttpRig rig;
  TestClient client(rig.port(), 4096);
  client.send(http_get("/wait"));
  const std::string body(8 << 20, 'x');
  rig.reply()->send(200, "text/plain", body);
  rig.let_go();
  EXPECT_EQ(api.active(), 0);
  std::thread ending([&] { shut_down(api, *rig.server, 20s); });
  std::this_thread::sleep_for(2500ms);
  const TestResponse response = client.response();
  EXPECT_TRUE(response.whole);
  EXPECT_EQ(response.body.size(), body.size());
  client.close();
  ending.join();
}

TEST(Shutdown, EndsWhereNothingIsLeft) {
  Api api({});
  HttpRig rig;
  const auto begin = std::chrono::steady_clock::now();
  shut_down(api, *rig.server, 60s);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

}  // namespace
}  // namespace fathom
