#include "base/counters.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Counters, WorkOfDecidingIsCountedTwice) {
  Counters counters;
  counters.add({.madds = 10, .unit_rows = 3});
  EXPECT_FALSE(counters.deciding());
  {
    const PolicyWork deciding(counters);
    EXPECT_TRUE(counters.deciding());
    counters.add({.madds = 5});
  }
  EXPECT_EQ(counters.total().madds, 15u);
  EXPECT_EQ(counters.total().policy_madds, 5u);
  EXPECT_EQ(counters.total().unit_rows, 3u);
}

TEST(Counters, WhatADeviceAddsUpIsIncluded) {
  Counters counters;
  Work device{.madds = 100, .cache_bytes = 7, .policy_madds = 40};
  counters.include([&] { return device; });
  counters.add({.madds = 1});
  EXPECT_EQ(counters.total().madds, 101u);
  device.madds = 200;
  EXPECT_EQ(counters.total().madds, 201u);
  EXPECT_EQ(counters.total().cache_bytes, 7u);
  EXPECT_EQ(counters.total().policy_madds, 40u);
}

}  // namespace
}  // namespace fathom
