#include "base/isa.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

namespace fathom {
namespace {

class IsaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("FATHOM_ISA")) before_ = value;
    unsetenv("FATHOM_ISA");
  }
  void TearDown() override {
    before_.empty() ? unsetenv("FATHOM_ISA") : setenv("FATHOM_ISA", before_.c_str(), 1);
  }
  std::string before_;
};

TEST_F(IsaTest, BestFirstAndScalarLast) {
  const std::vector<Isa> isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.back(), Isa::kScalar);
  EXPECT_EQ(choose_isa(), isas.front());
}

TEST_F(IsaTest, TheEnvironmentChooses) {
  for (const Isa isa : supported_isas()) {
    setenv("FATHOM_ISA", name_of(isa), 1);
    EXPECT_EQ(choose_isa(), isa);
  }
  setenv("FATHOM_ISA", "", 1);
  EXPECT_EQ(choose_isa(), supported_isas().front());
}

TEST_F(IsaTest, RefusesWhatTheMachineLacks) {
#if defined(__x86_64__)
  const char* foreign = "i8mm";
#else
  const char* foreign = "avx512";
#endif
  for (const char* name : {foreign, "sse\x1b", "Scalar"}) {
    setenv("FATHOM_ISA", name, 1);
    try {
      choose_isa();
      FAIL() << name;
    } catch (const UserError& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.rfind("FATHOM_ISA must be one of ", 0), 0u) << what;
      EXPECT_NE(what.find("scalar on this machine, got '" + printable(name) + "'"), std::string::npos)
          << what;
    }
  }
}

}  // namespace
}  // namespace fathom
