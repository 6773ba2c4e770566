#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "ops/attention/append_kv.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/row_set_cpu.h"

namespace fathom {
namespace {

// Converts rows of floats into a pool's type.
class PoolWriter {
 public:
  PoolWriter(Tensor& pool, const Tensor& rows, const RowKernels& kernels)
      : to_(pool.data<std::byte>()),
        from_(rows.data<float>()),
        type_(pool.dtype()),
        kernels_(kernels),
        width_(pool.dim(1) * pool.dim(2)),
        bytes_(pool.dim(1) * row_bytes(type_, pool.dim(2))) {}

  // Blocks lie along head_dim and a head is whole blocks, so a slot's heads convert as one row.
  void write(int64_t slot, int64_t row) const {
    std::byte* to = to_ + slot * bytes_;
    const float* from = from_ + row * width_;
    switch (type_) {
      case DType::kF16:
        return kernels_.to_f16(from, to, width_);
      case DType::kBF16:
        return kernels_.to_bf16(from, to, width_);
      case DType::kQ8_0:
        return kernels_.to_q8_0(from, to, width_);
      default:
        std::memcpy(to, from, static_cast<size_t>(bytes_));
    }
  }

 private:
  std::byte* to_;
  const float* from_;
  DType type_;
  const RowKernels& kernels_;
  int64_t width_, bytes_;
};

struct EntryLists {
  KvView& kv;
  KvPages& pages;
  const int32_t *positions, *sequence;  // (batch rows)
  const float* bias;                    // (batch rows); null: 0
  const KvView* below;

  // Lists `row` as the newest entry of its sequence, in a slot of its own or in that of the layer below.
  int32_t list(int64_t row, bool own) const {
    const int64_t sequences = kv.entries.dim(0), capacity = kv.entries.dim(1), seq = sequence[row];
    if (seq < 0 || seq >= sequences) fail("append_kv: sequence must be in [0, {}), got {}", sequences, seq);
    int32_t& length = kv.lengths.data<int32_t>()[seq];
    if (length >= capacity) fail("append_kv: sequence {} is full: {} entries of {}", seq, length, capacity);
    const int64_t at = seq * capacity + length;
    const int64_t slot = own ? own_slot(seq) : shared_slot(row, seq);
    kv.entries.data<int32_t>()[at] = static_cast<int32_t>(slot);
    kv.positions.data<int32_t>()[at] = positions[row];
    // Not only when there is one: an entry that was taken back may have left its own.
    if (kv.bias) kv.bias.data<float>()[at] = bias ? bias[row] : 0.0f;
    ++length;
    return static_cast<int32_t>(slot);
  }

 private:
  int64_t own_slot(int64_t seq) const {
    const int64_t most = pages.table.dim(1);
    int32_t& taken = pages.taken.data<int32_t>()[seq];
    if (taken / pages.page >= most)
      fail("append_kv: sequence {} is full: {} slots in {} pages of {}", seq, taken, most, pages.page);
    const int64_t page = pages.table.data<int32_t>()[seq * most + taken / pages.page];
    const int64_t slot = page * pages.page + taken % pages.page;
    if (slot < 0 || slot >= kv.k.dim(0) || slot >= kv.v.dim(0)) {
      fail("append_kv: slot must be in [0, {}), got {} for sequence {}", kv.k.dim(0), slot, seq);
    }
    ++taken;
    return slot;
  }

  int64_t shared_slot(int64_t row, int64_t seq) const {
    const int64_t first = seq * below->entries.dim(1);
    const int32_t* begin = below->positions.data<int32_t>() + first;
    const int32_t* end = begin + below->lengths.data<int32_t>()[seq];
    const int32_t* found = std::lower_bound(begin, end, positions[row]);
    if (found == end || *found != positions[row])
      fail("append_kv: the layer below has no entry of position {} to share", positions[row]);
    return below->entries.data<int32_t>()[first + (found - begin)];
  }
};

// slots[i]: where kept row i's key and value go.
void list_entries(const EntryLists& lists, const KeptRows& kept, const KeptRows& present, int32_t* slots) {
  if (!lists.below) {
    for (int64_t i = 0; i < kept.count; ++i) slots[i] = lists.list(kept[i], true);
    return;
  }
  int64_t next = 0;  // of the kept rows; their ids ascend
  for (int64_t i = 0; i < present.count; ++i) {
    const int64_t row = present[i];
    const bool own = next < kept.count && kept[next] == row;
    const int32_t slot = lists.list(row, own);
    if (own) slots[next++] = slot;
  }
}

}  // namespace

void append_kv_kernel(CpuBackend dev, KvView& kv, KvPages& pages, const Tensor& k, const Tensor& v,
                      const RowSet& kept, const Tensor& positions, const Tensor& sequence,
                      const AppendExtras& extras, Tensor& slots) {
  const KeptRows rows(kept);
  int32_t* slot = slots.data<int32_t>();
  const EntryLists lists{kv,
                         pages,
                         positions.data<int32_t>(),
                         sequence.data<int32_t>(),
                         extras.bias ? extras.bias.data<float>() : nullptr,
                         extras.below};
  list_entries(lists, rows, KeptRows(extras.present ? *extras.present : RowSet::all(positions.dim(0))), slot);
  if (rows.count == 0) return;
  const RowKernels& kernels = row_kernels(dev.isa);
  const PoolWriter keys(kv.k, k, kernels), values(kv.v, v, kernels);
  dev.pool.parallel_for(rows.count, row_grain(kv.k.dim(1) * kv.k.dim(2)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      keys.write(slot[i], i);
      values.write(slot[i], i);
    }
  });
}

}  // namespace fathom
