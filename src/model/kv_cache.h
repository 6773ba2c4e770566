// Keys and values of many sequences: pages of one pool shared by all layers and sequences, and per layer and
// sequence the list of entries that exist, each with its own position. A row that leaves nothing in a layer
// takes no entry; one that copies a layer below lists that layer's slot. Sequences that begin alike can
// share pages (fork); a sequence that writes to a shared page copies it first. In a layer with a window,
// pages whose entries no row to come can see go back to the pool; the lists keep their numbering.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/page_pool.h"
#include "ops/attention/append_kv.h"
#include "ops/rows/write_numbers.h"

namespace fathom {

struct KvCacheOptions {
  int64_t sequences = 1;
  int64_t context = 0;  // entries per sequence and layer at most; 0: the model's
  DType k_type = DType::kF16, v_type = DType::kF16;
  bool key_bias = false;  // room for one with each entry (SkipPolicy::has_key_bias)
  int64_t pages = 0;      // of the pool, for all layers and sequences; 0: as many as full contexts need
  // Rows of a sequence in one pass at most; 0: as many as the context holds. A layer with a window then needs
  // pages for its window and these.
  int64_t pass_rows = 0;
};

// The pool has no room for the rows. Nothing was changed: try again when other sequences have left.
class CacheFull : public UserError {
 public:
  using UserError::UserError;
};

// What rows leave in a layer, compacted by `own`. Rows that are not in it leave nothing, or share the entry
// of a layer below.
struct NewEntries {
  Tensor k, v;  // f32 (capacity, kv_heads, head_dim)
  RowSet own = RowSet::none(0);
  Tensor key_bias{};                // f32 (batch rows); undefined: 0
  bool others_share = false;        // with the nearest layer below that has the same RoPE (copied_layer)
  const RowSet* present = nullptr;  // of the others: the rows that share; null: all
};

class KvCache {
 public:
  static constexpr int64_t kPage = 64;  // entries
  static int64_t pages_for(int64_t entries) { return (entries + kPage - 1) / kPage; }
  // Pages that a sequence of `rows` rows holds at most, in all layers together.
  static int64_t pages_for_rows(const ModelConfig& config, int64_t rows, int64_t pass_rows);

  KvCache(Context& ctx, const ModelConfig& config, const KvCacheOptions& options);

  int64_t sequences() const { return options_.sequences; }
  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t context() const { return options_.context; }
  int64_t pages() const { return pool_.size(); }
  int64_t rows(int32_t sequence) const {
    return rows_[static_cast<size_t>(sequence)];
  }  // fed so far: the next position

  int64_t pass_rows() const { return options_.pass_rows > 0 ? options_.pass_rows : options_.context; }
  int64_t longest() const;  // rows of a sequence that has the whole pool for itself and skips nothing
  // Pages that a sequence takes on the way from `held` rows to `rows`, if it skips nothing.
  int64_t pages_between(int64_t held, int64_t rows) const;

  // Makes room for `rows` more rows of a sequence in every layer, before the pass that appends them, and for
  // those that truncate_layer() took from a layer. More than the context is a UserError, more than the pool a
  // CacheFull.
  void reserve(Context& ctx, int32_t sequence, int64_t rows);
  // Would reserve() find room, in the context and in the pool, if every row left an entry in every layer?
  bool fits(int32_t sequence, int64_t rows) const;

  // Sends what reserve(), fork() and truncate() changed in the lists since the last pass: in one copy,
  // however many sequences changed. A pass begins with it; append() and whatever reads the lists do it, too.
  void send_changes(Context& ctx);

  // Appends to the lists of one layer, in the pass after reserve().
  void append(Context& ctx, int64_t layer, const Batch& batch, const NewEntries& entries);

  // Gives back the pages that were reserved and that no entry came to use: after a pass, not between
  // reserve() and its pass. Costs nothing where no row ever skipped; on CUDA it waits for the device.
  // `spoke`: a row whose decisions were the sequence's (PolicyState::settle); a layer without its entry is
  // emptied.
  void settle(Context& ctx, int32_t sequence, int64_t spoke = -1);

  // Can the sequence be cut at `position`, and go on? Not where a window's entries before it are gone.
  bool keeps(int32_t sequence, int64_t position) const;

  // `to`, which is empty, gets the first `position` rows of `from` and shares their pages. What either of
  // them does later, the other does not see.
  void fork(Context& ctx, int32_t from, int32_t to, int64_t position);

  // Forgets the entries at `position` and after; 0 empties the sequence. keeps() must hold for fork() and
  // truncate(), else they are UserErrors.
  void truncate(Context& ctx, int32_t sequence, int64_t position);
  // In one layer only; rows() stays. Where entries are shared with layers above, those must have forgotten
  // theirs: go from the top down.
  void truncate_layer(Context& ctx, int64_t layer, int32_t sequence, int64_t position);

  KvView& layer(int64_t index) { return layers_[static_cast<size_t>(index)].view; }

  int64_t bytes_per_entry() const;  // of one layer
  int64_t bytes_held() const;       // pages in use, each once
  // What the rows fed would hold if none skipped and none was shared: in layers with a window what it sees.
  int64_t bytes_dense() const;

 private:
  // Of one sequence in one layer, as far as the host knows it.
  struct Held {
    std::vector<int32_t> pages;
    int64_t slots = 0;      // taken at most: exact after settle() and truncate()
    int64_t rows = 0;       // positions that slots were reserved for
    int64_t gone = 0;       // pages at the front that were given back: a window has passed them
    int64_t gone_rows = 0;  // positions from here on still have their entries
  };
  struct Layer {
    KvView view;
    KvPages pages;
    std::vector<Held> held;  // (sequences)
  };
  Held& held(int64_t layer, int32_t sequence) {
    return layers_[static_cast<size_t>(layer)].held[static_cast<size_t>(sequence)];
  }
  int64_t first_seen(int64_t layer, int64_t rows) const;
  int64_t passed_pages(int64_t layer, const Held& held) const;
  void release_passed(Context& ctx, int64_t layer, int32_t sequence);
  void check_kept(int32_t sequence, int64_t position) const;
  bool copies_page(const Held& held) const;
  int64_t pages_needed(int32_t sequence, int64_t rows) const;
  void write(const Tensor& list, int64_t index, int64_t value);
  void write_page(int64_t layer, int32_t sequence, int64_t index);
  void copy_last_page(Context& ctx, int64_t layer, int32_t sequence);
  void keep_entries(Context& ctx, int64_t layer, int32_t sequence, int64_t position);
  void keep_slots(Held& held, int64_t slots);
  int64_t length(Context& ctx, int64_t layer, int32_t sequence);
  int64_t entries_before(Context& ctx, int64_t layer, int32_t sequence, int64_t position);
  int64_t own_slots(Context& ctx, int64_t layer, int32_t sequence, int64_t entries);
  int64_t last_position(Context& ctx, int64_t layer, int32_t sequence);
  std::span<int32_t> read(Context& ctx, Tensor& list, int64_t row, int64_t count);
  void check_sequence(int32_t sequence) const;

  KvCacheOptions options_;
  std::vector<int32_t> windows_;  // (layers); 0: all of the past
  std::vector<int64_t> copied_;   // (layers): copied_layer() of each
  PagePool pool_;
  std::vector<Layer> layers_;
  // i32, one tensor: lengths_ and taken_ (layers, sequences), entries listed and the slots of own pages that
  // they took; then the tables of all layers' pages.
  Tensor numbers_, lengths_, taken_;
  std::vector<NumberWrite> changes_;  // of numbers_, not yet on the device
  std::vector<int64_t> rows_;
  bool skips_ = false, shares_ = false;  // some row left no entry; some row shares a lower layer's
  std::vector<int32_t> host_;            // scratch, CUDA only
};

}  // namespace fathom
