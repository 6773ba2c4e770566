#include "base/sha256.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

std::string sha256(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.hex();
}

// FIPS 180-4's examples, and what sha256sum says of lengths around a block's end.
TEST(Sha256, KnownValues) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, InPiecesAsAtOnce) {
  std::string text(1000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  for (size_t size : {55, 56, 57, 63, 64, 65, 119, 120, 1000}) {
    const std::string whole = sha256(text.substr(0, size));
    Sha256 pieces;
    for (size_t i = 0; i < size; i += 13)
      pieces.add(std::string_view(text).substr(i, std::min<size_t>(13, size - i)));
    EXPECT_EQ(pieces.hex(), whole) << size;
  }
  EXPECT_EQ(sha256(text.substr(0, 56)), "9b20501dfd1d99161c257950f3444f3e49230c351c5c8e0943ef369f85f5205d");
  EXPECT_EQ(sha256(text.substr(0, 119)), "7a6589821178918ca8d9edaba5abfc1e9b2669564f4469b66885379c1530b2c8");
  EXPECT_EQ(sha256(text), "89f4ff56a25dd1db06a4ce6033603775d705fb96f30f8693733fef602a1ca532");
}

}  // namespace
}  // namespace fathom
