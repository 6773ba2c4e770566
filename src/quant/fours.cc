#include "quant/fours.h"

#include <cstring>

#include "base/format.h"
#include "quant/formats.h"

namespace fathom {
namespace {

// A block of 32: f16 numbers at its beginning, bytes of integers after them, and the bits of those that
// differ in fours.
template <int kScales_, int kBytes_, uint8_t kFlip_>
struct Parts {
  static constexpr int kScales = kScales_, kBytes = kBytes_, kBlock = 2 * kScales + kBytes;
  static constexpr uint8_t kFlip = kFlip_;
};

// f(Parts of the format).
template <class F>
void with_parts(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kQ8_0:
      return f(Parts<1, 32, 0>{});
    case DType::kQ4_0:
      return f(Parts<1, 16, 0x88>{});
    case DType::kQ4_1:
      return f(Parts<2, 16, 0>{});
    default:
      fail("{} has no layout in fours", name_of(dtype));
  }
}

// Bytes of one row that stand together; where they are in its block, and in the record.
constexpr int kPiece = 8;
template <class P>
constexpr int piece_in_block(int i) {
  return 2 * P::kScales + kPiece * i;
}
constexpr int piece_in_record(int i, int row) {
  return kPiece * (4 * i + row);
}
template <class P>
constexpr int scale_in_record(int i, int row) {
  return 4 * P::kBytes + 2 * (4 * i + row);
}

template <class P>
void copy_piece(const uint8_t* from, uint8_t* to) {
  uint64_t piece;
  std::memcpy(&piece, from, kPiece);
  piece ^= P::kFlip * uint64_t{0x0101010101010101};
  std::memcpy(to, &piece, kPiece);
}

template <class P>
void put_block(const uint8_t* block, int row, uint8_t* record) {
  for (int i = 0; i < P::kBytes / kPiece; ++i)
    copy_piece<P>(block + piece_in_block<P>(i), record + piece_in_record(i, row));
  for (int i = 0; i < P::kScales; ++i) std::memcpy(record + scale_in_record<P>(i, row), block + 2 * i, 2);
}

template <class P>
void take_block(const uint8_t* record, int row, uint8_t* block) {
  for (int i = 0; i < P::kBytes / kPiece; ++i)
    copy_piece<P>(record + piece_in_record(i, row), block + piece_in_block<P>(i));
  for (int i = 0; i < P::kScales; ++i) std::memcpy(block + 2 * i, record + scale_in_record<P>(i, row), 2);
}

}  // namespace

bool has_fours(DType dtype) {
  return dtype == DType::kQ8_0 || dtype == DType::kQ4_0 || dtype == DType::kQ4_1;
}

void rows_to_fours(DType dtype, const uint8_t* rows, int64_t k, uint8_t* fours) {
  with_parts(dtype, [&]<class P>(P) {
    const int64_t blocks = k / 32, stride = blocks * P::kBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      for (int row = 0; row < 4; ++row)
        put_block<P>(rows + row * stride + b * P::kBlock, row, fours + 4 * b * P::kBlock);
    }
  });
}

void fours_to_rows(DType dtype, const uint8_t* fours, int64_t k, uint8_t* rows) {
  with_parts(dtype, [&]<class P>(P) {
    const int64_t blocks = k / 32, stride = blocks * P::kBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      for (int row = 0; row < 4; ++row)
        take_block<P>(fours + 4 * b * P::kBlock, row, rows + row * stride + b * P::kBlock);
    }
  });
}

void decode_row_of_fours(DType dtype, const uint8_t* fours, int row, float* out, int64_t k) {
  with_parts(dtype, [&]<class P>(P) {
    uint8_t block[P::kBlock];
    for (int64_t b = 0; b < k / 32; ++b) {
      take_block<P>(fours + 4 * b * P::kBlock, row, block);
      decode_row(dtype, block, out + 32 * b, 32);
    }
  });
}

}  // namespace fathom
