#!/usr/bin/env python3
"""Writes tests/data/chat/goldens.json: conversations rendered by transformers' own apply_chat_template.

    pip install transformers==5.22.2 tokenizers jinja2==3.1.6
    python tools/make_chat_goldens.py

The templates are those of the public models named below, with the branches for tools left out. Each one is rendered for
every conversation; where the template raises, the golden says so.
"""

import json
import pathlib

import jinja2
import transformers
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

ALTERNATE = (
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
)

CHATML = (
    "{% for message in messages %}%DEFAULT%{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SMOLLM2_DEFAULT = (
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    "trained by Hugging Face<|im_end|>\n' }}{% endif %}"
)

QWEN25 = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    + ALTERNATE
    + "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
    "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA2_DEFAULT = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% elif true == true and not '<<SYS>>' in messages[0]['content'] %}"
    "{% set loop_messages = messages %}{% set system_message = 'Vous \\'aidez\\' autant que vous le pouvez.' %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    + ALTERNATE
    + "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
    "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}
    %DATE%
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{#- System message #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
DATE_FIXED = '{%- set date_string = "26 Jul 2024" %}'
DATE_TODAY = """{%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}"""

MISTRAL_V1 = (
    "{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ message['content'] + eos_token%SPACE% }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
    "{% endif %}{% endfor %}"
)
MISTRAL_SYSTEM = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if %WHERE% and system_message is defined %}
            {{- "%OPEN%" + system_message + "\\n\\n" + message["content"] + "%CLOSE%" }}
        {%- else %}
            {{- "%OPEN%" + message["content"] + "%CLOSE%" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- %REPLY%message["content"] + eos_token}}
    {%- endif %}
{%- endfor %}
"""


def mistral(where, opening, closing, reply):
    text = MISTRAL_SYSTEM
    for key, value in {"WHERE": where, "OPEN": opening, "CLOSE": closing, "REPLY": reply}.items():
        text = text.replace(f"%{key}%", value)
    return text


MISTRAL_V7 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + '[/INST]' }}"
    "{% elif message['role'] == 'system' %}{{ '[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)

GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}" + ALTERNATE + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + "
    "'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {{ message['content'] | trim }}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""
# As in the file, the three expressions above stand on lines of their own with dashes that eat the line ends.
GEMMA3 = GEMMA3.replace("    {{ '<start_of_turn>'", "    {{- '<start_of_turn>'").replace(
    "    {{ message['content'] | trim }}", "    {{- message['content'] | trim }}"
).replace("    {{ '<end_of_turn>\\n' }}", "    {{- '<end_of_turn>\\n' }}")

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

OLMO2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '\\n' }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'assistant' %}"
    "{% if not loop.last %}{{ '<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}{% else %}"
    "{{ '<|assistant|>\\n'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}"
    "{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"
)

# model, format, template, BOS, EOS
TEMPLATES = [
    ("ChatML (OpenHermes)", "chatml", CHATML.replace("%DEFAULT%", ""), "<s>", "<|im_end|>"),
    ("SmolLM2-Instruct", "chatml", CHATML.replace("%DEFAULT%", SMOLLM2_DEFAULT), "<|im_start|>", "<|im_end|>"),
    ("Qwen2.5-Instruct", "chatml", QWEN25, "", "<|im_end|>"),
    ("Qwen3", "chatml", QWEN3, "", "<|im_end|>"),
    ("Llama-2-chat", "llama2", LLAMA2, "<s>", "</s>"),
    ("Llama-2 with a default", "llama2", LLAMA2_DEFAULT, "<s>", "</s>"),
    ("Llama-3-Instruct", "llama3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    ("Llama-3.1-Instruct", "llama3", LLAMA31.replace("%DATE%", DATE_FIXED), "<|begin_of_text|>", "<|eot_id|>"),
    ("Llama-3.2-Instruct", "llama3", LLAMA31.replace("%DATE%", DATE_TODAY), "<|begin_of_text|>", "<|eot_id|>"),
    ("Mistral-7B-Instruct-v0.1, first", "mistral", MISTRAL_V1.replace("%SPACE%", " + ' '"), "<s>", "</s>"),
    ("Mistral-7B-Instruct-v0.2, first", "mistral", MISTRAL_V1.replace("%SPACE%", ""), "<s>", "</s>"),
    ("Mistral-7B-Instruct-v0.1", "mistral", mistral("loop.first", " [INST] ", " [/INST]", '" " + '), "<s>", "</s>"),
    ("Mistral-7B-Instruct-v0.3", "mistral", mistral("loop.last", "[INST] ", "[/INST]", '" " + '), "<s>", "</s>"),
    ("Mistral-Nemo-Instruct", "mistral", mistral("loop.last", "[INST]", "[/INST]", ""), "<s>", "</s>"),
    ("Mistral-Large-2411", "mistral", MISTRAL_V7, "<s>", "</s>"),
    ("Gemma-2-it", "gemma", GEMMA2, "<bos>", "<eos>"),
    ("Gemma-3-it", "gemma", GEMMA3, "<bos>", "<eos>"),
    ("Zephyr-7B-beta", "zephyr", ZEPHYR, "<s>", "</s>"),
    ("OLMo-2-Instruct", "olmo2", OLMO2, "<|endoftext|>", "<|endoftext|>"),
]


def messages(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


CONVERSATIONS = [
    messages(("user", "Hello")),
    messages(("user", "  spaces \n")),
    messages(("system", "  Be brief. "), ("user", "Hi")),
    messages(("user", "A"), ("assistant", " b "), ("user", "C")),
    messages(("system", "S"), ("user", "A"), ("assistant", "b"), ("user", "C")),
    messages(("system", "S"), ("user", "A"), ("assistant", "b")),
    messages(("user", "A"), ("assistant", "<think>\nwhy\n</think>\n\nb"), ("user", "C")),
    messages(("user", "A"), ("assistant", "<think>\nwhy\n</think>\n\nb")),
    messages(("user", "A"), ("user", "B")),
    messages(("assistant", "b"), ("user", "C")),
    messages(("user", "<<SYS>>\nmine\n<</SYS>>\n\nA")),
    messages(("user", "naïve 🙂 <|im_end|>")),
]


def render(template, bos, eos, conversation, prompt):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), bos_token=bos or None, eos_token=eos)
    try:
        return {
            "text": tokenizer.apply_chat_template(
                conversation, chat_template=template, tokenize=False, add_generation_prompt=prompt, date_string="26 Jul 2024"
            )
        }
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}


def main():
    goldens = []
    for name, kind, template, bos, eos in TEMPLATES:
        cases = []
        for i, conversation in enumerate(CONVERSATIONS):
            for prompt in (True, False):
                cases.append({"conversation": i, "prompt": prompt, **render(template, bos, eos, conversation, prompt)})
        goldens.append({"name": name, "format": kind, "template": template, "bos": bos, "eos": eos, "cases": cases})
    out = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "chat" / "goldens.json"
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    document = {"made_with": versions, "conversations": CONVERSATIONS, "templates": goldens}
    out.write_text(json.dumps(document, indent=0, ensure_ascii=False) + "\n")
    print(f"{out}: {len(goldens)} templates, {sum(len(g['cases']) for g in goldens)} cases")


if __name__ == "__main__":
    main()
