#include "ops/attention/append_kv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "ops/kernels/kept_rows_test.h"
#include "quant/formats.h"

namespace fathom {
namespace {

constexpr int64_t kSlots = 24, kKvHeads = 2, kDim = 32, kSequences = 3, kCapacity = 10, kPage = 4;

KvView empty_view(DType dtype) {
  KvView kv;
  kv.k = Tensor::owned(Device::kCpu, dtype, {kSlots, kKvHeads, kDim});
  kv.v = Tensor::owned(Device::kCpu, dtype, {kSlots, kKvHeads, kDim});
  kv.entries = Tensor::owned(Device::kCpu, DType::kI32, {kSequences, kCapacity});
  kv.positions = Tensor::owned(Device::kCpu, DType::kI32, {kSequences, kCapacity});
  kv.lengths = Tensor::owned(Device::kCpu, DType::kI32, {kSequences});
  return kv;
}

// Sequence 0 has pages 5, 0; and so on.
KvPages pages(Context& ctx, std::vector<int32_t> taken = {0, 0, 0}) {
  return {ints(ctx, {5, 0, 0, 3, 1, 0, 4, 2, 0}, {kSequences, 3}), ints(ctx, taken, {kSequences}), kPage};
}

Tensor normals(Context& ctx, int64_t rows, uint32_t stream, float scale = 1.0f) {
  Rng rng(7, {stream, 0, 0});
  std::vector<float> values(static_cast<size_t>(rows * kKvHeads * kDim));
  for (float& value : values) value = rng.normal() * scale;
  return Tensor::from(ctx, values, {rows, kKvHeads, kDim});
}

std::vector<float> slot_values(const Tensor& pool, int64_t slot) {
  std::vector<float> values(kKvHeads * kDim);
  const int64_t bytes = row_bytes(pool.dtype(), kKvHeads * kDim);
  decode_row(pool.dtype(), pool.data<std::byte>() + slot * bytes, values.data(), kKvHeads * kDim);
  return values;
}

TEST(AppendKv, RowsBecomeTheNewestEntriesOfTheirSequences) {
  for (const int threads : {1, 2, 3}) {
    Context ctx({.threads = threads});
    KvView kv = empty_view(DType::kF32);
    kv.bias = Tensor::owned(Device::kCpu, DType::kF32, {kSequences, kCapacity});
    kv.bias.data<float>()[2 * kCapacity] = 9.0f;  // of an entry that was taken back
    kv.lengths.data<int32_t>()[0] = 3;            // one more on its first page
    const Tensor k = normals(ctx, 5, 1), v = normals(ctx, 5, 2);
    KvPages room = pages(ctx, {3, 0, 0});
    append_kv(ctx, kv, room, k, v, RowSet::all(5), ints(ctx, {30, 100, 31, 7, 101}, {5}),
              ints(ctx, {0, 1, 0, 2, 1}, {5}));
    const int32_t* lengths = kv.lengths.data<int32_t>();
    EXPECT_EQ(std::vector<int32_t>(lengths, lengths + 3), (std::vector<int32_t>{5, 2, 1}));
    struct Want {
      int64_t row, sequence, entry, slot;
      int32_t position;
    };
    for (const Want& want : {Want{0, 0, 3, 5 * 4 + 3, 30}, Want{2, 0, 4, 0, 31}, Want{1, 1, 0, 12, 100},
                             Want{4, 1, 1, 13, 101}, Want{3, 2, 0, 16, 7}}) {
      const int64_t at = want.sequence * kCapacity + want.entry;
      EXPECT_EQ(kv.entries.data<int32_t>()[at], want.slot);
      EXPECT_EQ(kv.positions.data<int32_t>()[at], want.position);
      const float* row = k.data<float>() + want.row * kKvHeads * kDim;
      EXPECT_EQ(slot_values(kv.k, want.slot), std::vector<float>(row, row + kKvHeads * kDim));
      row = v.data<float>() + want.row * kKvHeads * kDim;
      EXPECT_EQ(slot_values(kv.v, want.slot), std::vector<float>(row, row + kKvHeads * kDim));
    }
    EXPECT_EQ(kv.bias.data<float>()[2 * kCapacity], 0.0f);
  }
}

TEST(AppendKv, OnlyKeptRowsEnter) {
  Context ctx({.threads = 2});
  KvView kv = empty_view(DType::kF32);
  const Tensor k = normals(ctx, 4, 1), v = normals(ctx, 4, 2);
  const RowSet kept = RowSet::some(ints(ctx, {1, 3, 0, 0}, {4}), ints(ctx, {2}, {1}));
  KvPages at = pages(ctx);
  append_kv(ctx, kv, at, k, v, kept, ints(ctx, {10, 11, 12, 13}, {4}), ints(ctx, {0, 0, 0, 0}, {4}));
  EXPECT_EQ(kv.lengths.data<int32_t>()[0], 2);
  EXPECT_EQ(kv.positions.data<int32_t>()[0], 11);
  EXPECT_EQ(kv.positions.data<int32_t>()[1], 13);
  EXPECT_EQ(slot_values(kv.k, 21)[0], k.data<float>()[kKvHeads * kDim]);  // the second compacted row
  append_kv(ctx, kv, at, k, v, RowSet::none(4), {}, {});
  EXPECT_EQ(kv.lengths.data<int32_t>()[0], 2);
  EXPECT_EQ(at.taken.data<int32_t>()[0], 2);
}

// Rows that share take no slot of their own: those that do not stand close together. The entry below is found
// by its position, wherever it stands in its list.
TEST(AppendKv, OthersShareTheEntryBelow) {
  Context ctx({.threads = 2});
  KvView below = empty_view(DType::kF32), kv = empty_view(DType::kF32);
  kv.k = below.k;
  kv.v = below.v;
  const Tensor k = normals(ctx, 4, 1), v = normals(ctx, 4, 2), sequence = ints(ctx, {0, 0, 0, 0}, {4});
  KvPages under = pages(ctx);
  append_kv(ctx, below, under, normals(ctx, 1, 3), normals(ctx, 1, 3), RowSet::all(1), ints(ctx, {9}, {1}),
            ints(ctx, {0}, {1}));  // a row that was hidden above
  const Tensor positions = ints(ctx, {10, 11, 12, 13}, {4});
  append_kv(ctx, below, under, k, v, RowSet::all(4), positions, sequence);
  KvPages at{ints(ctx, {1, 0, 0, 3, 1, 0, 4, 2, 0}, {kSequences, 3}), ints(ctx, {0, 0, 0}, {kSequences}),
             kPage};
  const RowSet kept = RowSet::some(ints(ctx, {1, 3, 0, 0}, {4}), ints(ctx, {2}, {1}));
  append_kv(ctx, kv, at, k, v, kept, positions, sequence, {{}, &below});
  const int32_t* entries = kv.entries.data<int32_t>();
  EXPECT_EQ(std::vector<int32_t>(entries, entries + 4), (std::vector<int32_t>{21, 4, 23, 5}));
  EXPECT_EQ(kv.lengths.data<int32_t>()[0], 4);
  EXPECT_EQ(at.taken.data<int32_t>()[0], 2);
  EXPECT_THROW(append_kv(ctx, kv, at, {}, {}, RowSet::none(1), ints(ctx, {14}, {1}), ints(ctx, {0}, {1}),
                         {{}, &below}),
               UserError);
}

TEST(AppendKv, EveryPoolTypeRoundsAsTheFormatDoes) {
  for (const Isa isa : supported_isas()) {
    setenv("FATHOM_ISA", name_of(isa), 1);
    Context ctx({.threads = 1});
    unsetenv("FATHOM_ISA");
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kQ8_0}) {
      for (const float scale : {1.0f, 1e-6f, 0.0f, 3000.0f}) {
        KvView kv = empty_view(dtype);
        const Tensor k = normals(ctx, 1, 3, scale), v = normals(ctx, 1, 4, scale);
        KvPages at = pages(ctx);
        append_kv(ctx, kv, at, k, v, RowSet::all(1), ints(ctx, {0}, {1}), ints(ctx, {1}, {1}));
        for (const auto& [pool, rows] : {std::pair{&kv.k, &k}, std::pair{&kv.v, &v}}) {
          std::vector<std::byte> want(static_cast<size_t>(row_bytes(dtype, kKvHeads * kDim)));
          encode_row(dtype, rows->data<float>(), want.data(), kKvHeads * kDim);
          const std::byte* got = pool->data<std::byte>() + 12 * static_cast<int64_t>(want.size());
          EXPECT_TRUE(std::equal(want.begin(), want.end(), got))
              << name_of(isa) << " " << name_of(dtype) << " " << scale;
        }
      }
    }
  }
}

TEST(AppendKv, RefusesWhatDoesNotFit) {
  Context ctx({.threads = 1});
  KvView kv = empty_view(DType::kF32);
  const Tensor k = normals(ctx, 1, 1), position = ints(ctx, {0}, {1});
  KvPages at = pages(ctx);
  const auto append = [&](int32_t sequence) {
    append_kv(ctx, kv, at, k, k, RowSet::all(1), position, ints(ctx, {sequence}, {1}));
  };
  EXPECT_THROW(append(-1), UserError);
  EXPECT_THROW(append(3), UserError);
  const auto message = [&] {
    try {
      append(1);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  at.taken.data<int32_t>()[1] = 3 * kPage;
  EXPECT_EQ(message(), "append_kv: sequence 1 is full: 12 slots in 3 pages of 4");
  kv.lengths.data<int32_t>()[1] = kCapacity;
  EXPECT_EQ(message(), "append_kv: sequence 1 is full: 10 entries of 10");
  EXPECT_THROW(append_kv(ctx, kv, at, normals(ctx, 2, 1), k, RowSet::all(1), position, position), UserError);
  kv.k = Tensor::owned(Device::kCpu, DType::kQ4_0, {kSlots, kKvHeads, kDim});
  EXPECT_THROW(append(0), UserError);
}

}  // namespace
}  // namespace fathom
