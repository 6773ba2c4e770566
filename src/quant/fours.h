// Weights in fours: four rows side by side, as the products of one and of a few activation rows want them.
// Made once, when a model is loaded; files never hold it. A matrix takes as many bytes as before, and four
// rows still begin where they did, so whole fours may be split off.
//
// A record is 32 elements of four rows, without padding between records:
//   q8_0         for each 8 elements, those of rows 0, 1, 2, 3 (4 x 32 bytes); their scales (4 f16)
//   q4_0, q4_1   the 16 bytes of nibbles in two halves: the first 8 bytes of rows 0, 1, 2, 3 and then the
//                others (64 bytes); their scales (4 f16); q4_1: their minima (4 f16)
// q4_0's nibbles are signed there (q - 8 in two's complement).
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace fathom {

bool has_fours(DType dtype);

// Four rows of k elements, dense, to fours and back.
void rows_to_fours(DType dtype, const uint8_t* rows, int64_t k, uint8_t* fours);
void fours_to_rows(DType dtype, const uint8_t* fours, int64_t k, uint8_t* rows);

// One of the four as f32.
void decode_row_of_fours(DType dtype, const uint8_t* fours, int row, float* out, int64_t k);

}  // namespace fathom
