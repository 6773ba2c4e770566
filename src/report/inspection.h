// Why a text's tokens ran what they ran: the papers' figures, from the trace of one pass over it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "infer/feeder.h"
#include "report/figures.h"
#include "report/table.h"
#include "report/token_class.h"

namespace fathom {

struct Inspection {
  std::string model, method, rule;  // rule: how it decided, in words
  std::vector<std::string> pieces;  // of each row: its token's text
  std::vector<uint8_t> special;     // 1: a special token
  std::vector<float> logprobs;      // of each token given those before; the first is not used
  std::vector<float> thresholds;    // (2L) of a calibrated budget; empty: the method's own rule
  const Trace& trace;
  Savings savings;
};

// A token of the vocabulary, over its places in the text.
struct TokenStats {
  std::string label;
  TokenClass token_class;
  int64_t count = 0;
  double value = 0, error = 0;  // mean over its places and their units; standard error over the places
  double skipped = 0;           // layers skipped, mean
};

// The numbers behind the figures. A value is the method's score, or, where it has none at all, 1 for a unit
// that ran and 0 for one that did not.
class InspectionStats {
 public:
  explicit InspectionStats(const Inspection& inspection);

  bool has_scores() const { return has_scores_; }
  size_t rows() const { return labels_.size(); }
  int64_t layers() const { return in_.trace.units() / 2; }
  const std::string& label(size_t row) const { return labels_[row]; }  // fit to be shown: "·the", "⏎"
  TokenClass token_class(size_t row) const { return classes_[row]; }
  float value(size_t row, int64_t unit) const;
  double row_value(size_t row) const;                     // mean over its units
  double skipped(size_t row) const;                       // layers
  double skip_ratio(int64_t unit) const;                  // over the rows
  double class_value(TokenClass of, int64_t unit) const;  // mean over the class; NaN: none
  std::vector<TokenStats> tokens() const;                 // by falling value

  Table token_table(const std::vector<TokenStats>& tokens) const;
  Table class_table() const;

 private:
  const Inspection& in_;
  bool has_scores_ = false;
  std::vector<std::string> labels_;
  std::vector<TokenClass> classes_;
};

// Writes trace.json, each figure, and index.html last.
void write_inspection(const Inspection& inspection, Figures& figures);

std::string trace_json(const Inspection& inspection, const InspectionStats& stats);

}  // namespace fathom
