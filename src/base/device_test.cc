#include "base/device.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(ParseDevice, TakesTheNames) {
  EXPECT_EQ(parse_device("cpu")->device, Device::kCpu);
  EXPECT_EQ(parse_device("cuda")->device, Device::kCuda);
  EXPECT_EQ(parse_device("cuda")->index, 0);
  EXPECT_EQ(parse_device("cuda:3")->device, Device::kCuda);
  EXPECT_EQ(parse_device("cuda:3")->index, 3);
  for (const char* wrong : {"", "gpu", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda: 1",
                            "cuda:1024", "cuda:99999999999999999999", "cuda3", "guarded"})
    EXPECT_FALSE(parse_device(wrong)) << wrong;
}

}  // namespace
}  // namespace fathom
