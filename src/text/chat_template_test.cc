#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

nlohmann::json goldens() {
  std::ifstream in(FATHOM_TEST_DATA "/chat/goldens.json");
  return nlohmann::json::parse(in);
}

std::vector<ChatMessage> messages_in(const nlohmann::json& list) {
  std::vector<ChatMessage> messages;
  for (const auto& m : list) messages.push_back({m.at("role"), m.at("content")});
  return messages;
}

// Every template, conversation for conversation, against transformers' apply_chat_template
// (tools/make_chat_goldens.py).
TEST(ChatTemplate, RendersWhatTransformersRenders) {
  const nlohmann::json file = goldens();
  int checked = 0, refused = 0;
  for (const auto& golden : file.at("templates")) {
    ChatTemplate chat =
        ChatTemplate::recognise(golden.at("template").get<std::string>(), golden.at("bos"), golden.at("eos"));
    chat.set_date("26 Jul 2024");
    EXPECT_EQ(chat.format().name, golden.at("format").get<std::string>()) << golden.at("name");
    for (const auto& c : golden.at("cases")) {
      const auto messages = messages_in(file.at("conversations").at(c.at("conversation").get<size_t>()));
      SCOPED_TRACE(golden.at("name").get<std::string>() + ", conversation " + c.at("conversation").dump());
      if (c.contains("error")) {
        EXPECT_THROW(chat.render(messages, c.at("prompt")), UserError) << c.at("error");
        ++refused;
      } else {
        EXPECT_EQ(chat.render(messages, c.at("prompt")).text, c.at("text").get<std::string>());
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 350);
  EXPECT_GE(refused, 20);
}

TEST(ChatTemplate, TheDateIsTodayWhereTheTemplateAsksForIt) {
  const nlohmann::json file = goldens();
  for (const auto& golden : file.at("templates")) {
    const std::string name = golden.at("name");
    if (!name.starts_with("Llama-3.")) continue;
    const ChatTemplate chat =
        ChatTemplate::recognise(golden.at("template").get<std::string>(), golden.at("bos"), golden.at("eos"));
    const std::string text = chat.render(std::vector<ChatMessage>{{"user", "x"}}, true).text;
    EXPECT_EQ(text.find("Today Date: 26 Jul 2024") != std::string::npos, name == "Llama-3.1-Instruct")
        << text;
  }
}

TEST(ChatTemplate, NamedFormatsRender) {
  const std::vector<ChatMessage> talk{{"system", "S"}, {"user", "U"}, {"assistant", "A"}, {"user", "V"}};
  const auto text = [&](const char* name) {
    return ChatTemplate::named(name, "<s>", "</s>").render(talk, true).text;
  };
  EXPECT_EQ(
      text("chatml"),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
      "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(text("llama2"), "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]");
  EXPECT_EQ(text("mistral"), "<s>[INST] S\n\nU [/INST] A</s>[INST] V [/INST]");
  EXPECT_EQ(text("gemma"),
            "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
            "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(text("zephyr"),
            "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|user|>\nV</s>\n<|assistant|>\n");
  EXPECT_EQ(text("olmo2"),
            "<s><|system|>\nS\n<|user|>\nU\n<|assistant|>\nA</s>\n<|user|>\nV\n<|assistant|>\n");
  EXPECT_TRUE(text("llama3").starts_with("<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"))
      << text("llama3");
}

void expect_refused(std::string_view jinja) {
  try {
    ChatTemplate::recognise(jinja, "<s>", "</s>");
    FAIL() << jinja;
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("chatml, llama2, llama3, mistral, gemma, zephyr, olmo2"),
              std::string::npos);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(ChatTemplate, UnknownTemplatesAreRefusedWithTheList) {
  expect_refused("");
  expect_refused("{{ messages }}\n\x1b[31m");
  expect_refused(
      "{{ '<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + '<|im_end|>' }}");  // Phi-4
  expect_refused(
      "{{'<|user|>' + '\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n'}}");  // Phi-3
  expect_refused("{{'<｜User｜>' + message['content'] + '<｜Assistant｜>'}}");                    // DeepSeek
  expect_refused("{{ '<|turn>user' }}");
  // ChatML's marks, and another text between them than ChatML has.
  const auto turn = [](const std::string& between) {
    return "{% for message in messages %}{{'<|im_start|>' + message['role'] + " + between +
           "}}{% endfor %}{{ '<|im_start|>assistant\\n' }}";
  };
  const std::string plain = turn(R"('\n' + message['content'] + '<|im_end|>' + '\n')");
  EXPECT_EQ(ChatTemplate::recognise(plain, "", "").format().name, "chatml");
  for (const char* other :
       {R"('\nAnswer in French: ' + message['content'] + '<|im_end|>\n')",
        R"(': ' + message['content'] + '<|im_end|>\n')", R"('\n' + message['content'] + '<|im_end|>')",
        R"('\n' + message['content'] + ' /end<|im_end|>\n')",
        R"('\n' + message['content'] + date + '<|im_end|>\n')"})
    expect_refused(turn(other));
  expect_refused(plain + "{{ '<|im_start|>assistant\\nSure! ' }}");
  expect_refused("{{ system_message }}" + plain);
  expect_refused("{# <|im_start|> #}{{ messages }}");
  expect_refused("<|im_start|>");
  EXPECT_THROW(ChatTemplate::named("alpaca", "", ""), UsageError);
}

TEST(ChatTemplate, HostileTemplatesDoNotHang) {
  expect_refused("{{ '" + std::string(1 << 20, '\\'));
  std::string empty_sets = "<<SYS>>[INST]";
  for (int i = 0; i < 50000; ++i) empty_sets += "system_message=''";
  EXPECT_EQ(ChatTemplate::recognise(empty_sets, "", "").format().name, "llama2");
  const std::string open = "<|im_start|>{{ '<|im_start|>system\n";
  expect_refused(open + std::string(1 << 20, 'x'));
  std::string marks;
  for (int i = 0; i < 50000; ++i) marks += "<|im_start|>user\n{{ content }}<|im_end|>\n{";
  expect_refused(marks + "{");
}

TEST(ChatTemplate, BadConversationsAreRefused) {
  const ChatTemplate chat = ChatTemplate::named("chatml", "", "");
  EXPECT_THROW(chat.render(std::vector<ChatMessage>{}, true), UserError);
  EXPECT_THROW(chat.render(std::vector<ChatMessage>{{"tool", "x"}}, true), UserError);
}

}  // namespace
}  // namespace fathom
