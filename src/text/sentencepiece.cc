#include "text/sentencepiece.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "text/bpe.h"
#include "text/growth.h"
#include "text/hf_parts.h"
#include "text/protobuf_reader.h"
#include "text/tokenizer_json.h"
#include "text/unigram.h"

namespace fathom {
namespace {

// Numbers as sentencepiece_model.proto has them.
enum PieceType {
  kNormalPiece = 1,
  kUnknownPiece = 2,
  kControlPiece = 3,
  kUserPiece = 4,
  kUnusedPiece = 5,
  kBytePiece = 6
};
enum ModelType { kUnigramModel = 1, kBpeModel = 2, kWordModel = 3, kCharModel = 4 };

struct Piece {
  std::string text;
  float score = 0;
  int type = kNormalPiece;
};

struct Model {
  std::vector<Piece> pieces;
  int type = kUnigramModel;
  bool byte_fallback = false;
  std::string unk_surface = " \u2047 ";
  std::string bos_piece = "<s>", eos_piece = "</s>";
  SentencePieceNormalizer normalizer;
};

Piece read_piece(std::string_view bytes, const std::string& where) {
  Piece piece;
  for (ProtobufReader in(bytes, where); in.next();) {
    if (in.field() == 1) piece.text = in.bytes();
    if (in.field() == 2) piece.score = in.float32();
    if (in.field() == 3) piece.type = in.int32();
  }
  if (!(piece.type >= kNormalPiece && piece.type <= kBytePiece)) {
    fail("{}: piece '{}' has the type {}, which is not known", where, printable(piece.text), piece.type);
  }
  require(!piece.text.empty(), "{}: a piece has no text", where);
  return piece;
}

void read_trainer_spec(std::string_view bytes, Model& model, const std::string& where) {
  for (ProtobufReader in(bytes, where); in.next();) {
    switch (in.field()) {
      case 3:
        model.type = in.int32();
        break;
      case 24:
        model.normalizer.space_as_suffix = in.boolean();
        break;
      case 35:
        model.byte_fallback = in.boolean();
        break;
      case 44:
        model.unk_surface = in.bytes();
        break;
      case 46:
        model.bos_piece = in.bytes();
        break;
      case 47:
        model.eos_piece = in.bytes();
        break;
      default:
        break;
    }
  }
}

void read_normalizer_spec(std::string_view bytes, Model& model, const std::string& where) {
  for (ProtobufReader in(bytes, where); in.next();) {
    switch (in.field()) {
      case 2:
        model.normalizer.map = Charsmap(in.bytes());
        break;
      case 3:
        model.normalizer.add_dummy_prefix = in.boolean();
        break;
      case 4:
        model.normalizer.remove_extra_whitespaces = in.boolean();
        break;
      case 5:
        model.normalizer.escape_whitespaces = in.boolean();
        break;
      default:
        break;
    }
  }
}

Model read_model(std::string_view bytes, const std::string& where) {
  Model model;
  for (ProtobufReader in(bytes, where); in.next();) {
    if (in.field() == 1) model.pieces.push_back(read_piece(in.bytes(), where));
    if (in.field() == 2) read_trainer_spec(in.bytes(), model, where);
    if (in.field() == 3) read_normalizer_spec(in.bytes(), model, where);
  }
  require(!model.pieces.empty(), "{}: not a SentencePiece model: it has no pieces", where);
  return model;
}

std::unique_ptr<TokenModel> build_model(const Model& model, Vocabulary vocabulary, int32_t unk,
                                        const std::string& where) {
  const size_t count = model.pieces.size();
  std::array<int32_t, 256> bytes{};
  bytes.fill(-1);
  if (model.byte_fallback) {
    bytes = byte_token_ids(vocabulary);
    for (const int32_t id : bytes) require(id >= 0, "{}: byte fallback needs a piece for each byte", where);
  }
  const auto in_text = [&](size_t id) {
    const int type = model.pieces[id].type;
    return type == kNormalPiece || type == kUserPiece || type == kUnusedPiece;
  };
  if (model.type == kUnigramModel) {
    UnigramOptions options;
    options.unk = unk;
    options.byte_ids = bytes;
    for (size_t id = 0; id < count; ++id) {
      options.scores.push_back(model.pieces[id].score);
      options.in_text.push_back(in_text(id) && model.pieces[id].type != kUnusedPiece);
      options.user_defined.push_back(model.pieces[id].type == kUserPiece);
    }
    return std::make_unique<UnigramModel>(std::move(vocabulary), std::move(options));
  }
  require(model.type == kBpeModel,
          "{}: a SentencePiece model of type {} is not supported, only unigram (1) and BPE (2) are", where,
          model.type);
  RankedBpeOptions options;
  options.unk = unk;
  options.byte_ids = bytes;
  std::vector<float> scores;
  for (const Piece& piece : model.pieces) scores.push_back(piece.score);
  options.ranks = ranks_of_scores(scores);
  for (size_t id = 0; id < count; ++id) {
    if (!in_text(id)) options.ranks[id] = BpeMerge::kNone;
    if (model.pieces[id].type == kUnusedPiece) options.split_again.push_back(static_cast<int32_t>(id));
    if (model.pieces[id].type == kUserPiece) options.whole_only.push_back(static_cast<int32_t>(id));
  }
  return std::make_unique<RankedBpeModel>(std::move(vocabulary), std::move(options));
}

void add_normalizer(Model& model, Normalizer& normalizer) {
  auto own = std::make_shared<SentencePieceNormalizer>(std::move(model.normalizer));
  auto symbols = std::make_shared<ByteTrie>();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == kUserPiece) symbols->add(model.pieces[id].text, static_cast<int32_t>(id));
  }
  normalizer.add([own, symbols](const std::string& text, size_t most) {
    const auto keep = [&](std::string_view at_text, size_t at) {
      int32_t id = -1;
      return symbols->empty() ? size_t{0} : symbols->longest(at_text, at, &id);
    };
    return own->apply(text, keep, most);
  });
}

// What a tokenizer_config.json beside the model says: whether BOS and EOS are added, the token for padding,
// and the chat template.
void read_spiece_config(const HfConfigText& text, TokenizerParts& parts, std::string& chat_template) {
  bool add_bos = parts.bos >= 0, add_eos = false;
  chat_template = text.chat_template;
  if (!text.tokenizer_config.empty()) {
    const auto config = read_json_tree(text.tokenizer_config, "tokenizer_config.json");
    add_bos = json_bool(*config, "add_bos_token", add_bos) && parts.bos >= 0;
    add_eos = json_bool(*config, "add_eos_token", add_eos) && parts.eos >= 0;
    if (const nlohmann::json* pad = json_field(*config, "pad_token"))
      parts.pad = parts.model->vocabulary().find(pad->is_object() ? json_string(*pad, "content")
                                                                  : json_string(*config, "pad_token"));
    const nlohmann::json* jinja = json_field(*config, "chat_template");
    if (chat_template.empty() && jinja != nullptr && jinja->is_string())
      chat_template = jinja->get<std::string>();
  }
  if (add_bos) parts.before = {parts.bos};
  if (add_eos) parts.after = {parts.eos};
}

}  // namespace

std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(std::string_view bytes, const HfConfigText& config,
                                                         const std::string& where) {
  Model model = read_model(bytes, where);
  TokenizerParts parts;
  parts.kind = model.type == kUnigramModel ? "SentencePiece unigram" : "SentencePiece BPE";
  Vocabulary vocabulary;
  vocabulary.reserve(model.pieces.size(), bytes.size());
  int32_t unk = -1;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const Piece& piece = model.pieces[i];
    vocabulary.add(piece.text, id);
    require(piece.type != kUnknownPiece || unk < 0, "{}: two pieces are the unknown one", where);
    if (piece.type == kUnknownPiece) unk = id;
    if (piece.type == kControlPiece) {
      parts.added.add({id, piece.text, true});
      if (piece.text == model.bos_piece) parts.bos = id;
      if (piece.text == model.eos_piece) parts.eos = id;
    }
  }
  require(vocabulary.distinct() == vocabulary.count(), "{}: a piece is there twice", where);
  require(unk >= 0, "{}: there is no unknown piece", where);
  require(model.unk_surface.size() <= kGrowthBytes, "{}: the unknown piece shows as {} bytes, more than {}",
          where, model.unk_surface.size(), kGrowthBytes);
  parts.shown_as[unk] = model.unk_surface;
  const SentencePieceNormalizer& spaces = model.normalizer;
  parts.decoder.add_byte_fallback();
  parts.decoder.add_sentencepiece(spaces.add_dummy_prefix || spaces.remove_extra_whitespaces,
                                  spaces.remove_extra_whitespaces);
  parts.model = build_model(model, std::move(vocabulary), unk, where);
  add_normalizer(model, parts.normalizer);
  std::string chat_template;
  read_spiece_config(config, parts, chat_template);
  auto tokenizer = std::make_shared<PipelineTokenizer>(std::move(parts));
  tokenizer->set_chat_template(std::move(chat_template));
  return tokenizer;
}

}  // namespace fathom
