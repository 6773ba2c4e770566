"""The package `openai`, unchanged, against `fathom serve`."""
import contextlib
import io
import json
import math
import re
import tempfile
import unittest

import openai
import pydantic
from served import ROOT, Server, fathom

PROMPT = "The old man"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
GREEDY = {"prompt": PROMPT, "temperature": 0}


def setUpModule():
    global server, client
    server = Server("-c", "512", "--alias", "small", "--alias", "SmolLM2", "--chat-template", "chatml", "--speculate").__enter__()
    unittest.addModuleCleanup(server.__exit__)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def generated(*words):
    return json.loads(fathom("generate", "-m", "builtin", "-c", "512", "-p", PROMPT, "--json", *words))


class Completions(unittest.TestCase):
    def test_the_text_is_that_of_generate(self):
        got = client.completions.create(model="small", max_tokens=20, **GREEDY)
        want = generated("-n", "20", "--temp", "0")
        self.assertEqual(got.choices[0].text, want["text"])
        self.assertEqual(got.choices[0].finish_reason, "length")
        self.assertEqual((got.object, got.model), ("text_completion", "small"))
        self.assertEqual((got.usage.prompt_tokens, got.usage.completion_tokens), (3, 20))
        self.assertEqual(got.usage.total_tokens, 23)

    def test_a_budget_and_a_seed(self):
        got = client.completions.create(model="small", prompt=PROMPT, max_tokens=12, seed=5, extra_body={"budget": 0.7})
        want = generated("-n", "12", "-s", "5", "--temp", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--budget", "0.7")
        self.assertEqual(got.choices[0].text, want["text"])
        self.assertAlmostEqual(got.usage.budget, 0.7, places=5)
        self.assertGreater(got.usage.skip_ratio, 0)

    def test_a_stream_with_usage(self):
        whole = client.completions.create(model="small", max_tokens=16, **GREEDY)
        chunks = list(client.completions.create(model="small", max_tokens=16, stream=True,
                                                stream_options={"include_usage": True}, **GREEDY))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks[:-1]), whole.choices[0].text)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 16)
        self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))
        self.assertEqual(chunks[-2].choices[0].finish_reason, "length")
        self.assertEqual({chunk.id for chunk in chunks}, {chunks[0].id})

    def test_log_probabilities_with_echo(self):
        got = client.completions.create(model="small", max_tokens=4, logprobs=3, echo=True, **GREEDY)
        probs = got.choices[0].logprobs
        self.assertTrue(got.choices[0].text.startswith(PROMPT))
        self.assertEqual("".join(probs.tokens), got.choices[0].text)
        self.assertEqual([len(probs.tokens), len(probs.token_logprobs), len(probs.top_logprobs), len(probs.text_offset)], [7] * 4)
        self.assertIsNone(probs.token_logprobs[0])
        for token, own, top in list(zip(probs.tokens, probs.token_logprobs, probs.top_logprobs))[3:]:
            self.assertEqual(own, max(top.values()))  # greedy: the likeliest, digit for digit
            self.assertIn(token, top)
            self.assertGreaterEqual(len(top), 3)
        self.assertEqual(probs.text_offset[3], len(PROMPT))

    def test_prompts_of_every_kind(self):
        ids = server.post("/tokenize", {"prompt": PROMPT})["tokens"]
        kinds = [PROMPT, [PROMPT], ids, [ids], [PROMPT, "Once upon"], [ids, ids[:2]]]
        answers = [client.completions.create(model="small", prompt=kind, temperature=0, max_tokens=4) for kind in kinds]
        first = answers[0].choices[0].text
        for answer, kind in zip(answers, kinds):
            self.assertEqual(answer.choices[0].text, first, kind)
            self.assertEqual([choice.index for choice in answer.choices], list(range(len(answer.choices))))
        self.assertEqual([len(answer.choices) for answer in answers], [1, 1, 1, 1, 2, 2])

    def test_several_answers(self):
        got = client.completions.create(model="small", prompt=PROMPT, n=3, max_tokens=8, seed=1)
        self.assertEqual(sorted(choice.index for choice in got.choices), [0, 1, 2])
        self.assertEqual(len({choice.text for choice in got.choices}), 3)
        one = client.completions.create(model="small", prompt=PROMPT, max_tokens=8, seed=1)
        self.assertEqual(got.choices[0].text, one.choices[0].text)

    def test_stop(self):
        whole = client.completions.create(model="small", max_tokens=20, **GREEDY).choices[0].text
        stop = whole.split()[3]
        for streams in (False, True):
            got = client.completions.create(model="small", max_tokens=20, stop=[stop, "never"], stream=streams, **GREEDY)
            choices = [chunk.choices[0] for chunk in got] if streams else [got.choices[0]]
            self.assertEqual("".join(choice.text for choice in choices), whole[:whole.index(stop)])
            self.assertEqual(choices[-1].finish_reason, "stop")

    def test_speculation_changes_no_greedy_text(self):
        plain = client.completions.create(model="small", max_tokens=24, **GREEDY)
        drafted = client.completions.create(model="small", max_tokens=24, extra_body={"speculate": 4}, **GREEDY)
        self.assertEqual(plain.choices[0].text, drafted.choices[0].text)

    def test_bias(self):
        got = client.completions.create(model="small", max_tokens=3, logit_bias={"261": 100}, logprobs=0, **GREEDY)
        self.assertEqual(got.choices[0].text, server.post("/detokenize", {"tokens": [261] * 3})["prompt"])


class Chat(unittest.TestCase):
    def test_whole_and_stream(self):
        options = {"model": "small", "messages": CHAT, "temperature": 0, "max_tokens": 12}
        whole = client.chat.completions.create(**options)
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertEqual(whole.object, "chat.completion")
        chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage, whole.usage.model_copy(update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}))
        with client.chat.completions.stream(**options) as events:  # the package's own gathering of chunks
            for _ in events:
                pass
            self.assertEqual(events.current_completion_snapshot.choices[0].message.content, text)

    def test_log_probabilities(self):
        got = client.chat.completions.create(model="small", messages=CHAT, logprobs=True, top_logprobs=2, max_completion_tokens=5,
                                             temperature=0)
        entries = got.choices[0].logprobs.content
        self.assertEqual(len(entries), got.usage.completion_tokens)
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 2)
            self.assertEqual(entry.logprob, entry.top_logprobs[0].logprob)
            self.assertLessEqual(entry.logprob, 0)
            self.assertTrue(math.isfinite(entry.logprob))
        text = b"".join(bytes(entry.bytes) for entry in entries)
        self.assertTrue(text.decode(errors="replace").startswith(got.choices[0].message.content))

    def test_parts_and_the_role_developer(self):
        parts = [{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}, CHAT[1]]
        one, other = (client.chat.completions.create(model="small", messages=messages, temperature=0, max_tokens=6)
                      for messages in (CHAT, parts))
        self.assertEqual(one.choices[0].message.content, other.choices[0].message.content)

    def test_several_answers_as_a_stream(self):
        options = {"model": "small", "messages": CHAT, "n": 2, "seed": 3, "max_tokens": 8}
        whole = client.chat.completions.create(**options)
        texts = ["", ""]
        for chunk in client.chat.completions.create(stream=True, **options):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        self.assertEqual(texts, [choice.message.content for choice in sorted(whole.choices, key=lambda choice: choice.index)])


    def test_the_example_of_the_page(self):
        example, = re.findall(r"```python\n(.*?)```", (ROOT / "docs/serving.md").read_text(), re.S)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(example.replace("http://localhost:8080", server.url), {})
        self.assertRegex(said.getvalue(), r" 0\.\d+\n$")  # the share of multiply-adds that ran


class Pet(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=30)
    legs: list[bool] = pydantic.Field(min_length=2, max_length=2)


class Json(unittest.TestCase):
    def test_a_model_of_pydantic(self):
        got = client.chat.completions.parse(model="small", messages=CHAT, response_format=Pet, max_tokens=200, seed=2)
        self.assertEqual(got.choices[0].finish_reason, "stop")
        self.assertIsInstance(got.choices[0].message.parsed, Pet)
        self.assertEqual(list(json.loads(got.choices[0].message.content)), ["name", "age", "legs"])  # the schema's order

    def test_drafts_change_nothing(self):
        schema = {"type": "object", "properties": {"z": {"type": "integer", "minimum": 0, "maximum": 9}, "a": {"enum": ["x", "yy"]}},
                  "required": ["z", "a"], "additionalProperties": False}
        shape = {"type": "json_schema", "json_schema": {"name": "both", "strict": True, "schema": schema}}
        texts = [client.chat.completions.create(model="small", messages=CHAT, response_format=shape, temperature=0, max_tokens=80,
                                                extra_body=more).choices[0].message.content for more in ({}, {"speculate": 3})]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(list(json.loads(texts[0])), ["z", "a"])

    def test_any_object(self):
        got = client.chat.completions.create(model="small", messages=CHAT, response_format={"type": "json_object"}, max_tokens=300,
                                             temperature=0)
        self.assertTrue(got.choices[0].message.content.startswith("{"))
        if got.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(got.choices[0].message.content), dict)

    def test_what_a_schema_may_not_say(self):
        shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "multipleOf": 7}}}
        with self.assertRaises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="small", messages=CHAT, response_format=shape)
        self.assertIn("multipleOf", caught.exception.message)
        self.assertEqual(caught.exception.param, "response_format")


class Errors(unittest.TestCase):
    def refused(self, kind, status, param, **fields):
        with self.assertRaises(kind) as caught:
            client.completions.create(**{"model": "small", "prompt": "a", **fields})
        self.assertEqual((caught.exception.status_code, caught.exception.param), (status, param), caught.exception)
        return caught.exception

    def test_bad_requests(self):
        self.refused(openai.BadRequestError, 400, "temperature", temperature=-1)
        self.refused(openai.BadRequestError, 400, "max_tokens", max_tokens="many")
        self.refused(openai.BadRequestError, 400, "suffix", suffix="b")
        self.refused(openai.BadRequestError, 400, "best_of", best_of=2)
        self.refused(openai.BadRequestError, 400, "prompt", prompt=[[1, 2], "a"])
        self.refused(openai.BadRequestError, 400, "budget", extra_body={"budget": 0.01})
        with self.assertRaises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="small", messages=CHAT, tools=[{"type": "function", "function": {"name": "f"}}])
        self.assertEqual(caught.exception.param, "tools")

    def test_an_unknown_model(self):
        self.assertEqual(self.refused(openai.NotFoundError, 404, "model", model="other").code, "model_not_found")

    def test_a_deadline(self):
        with self.assertRaises(openai.APIStatusError) as caught:
            client.completions.create(model="small", prompt="a", max_tokens=400, extra_body={"ignore_eos": True, "timeout": 0.001})
        self.assertEqual(caught.exception.status_code, 504)

    def test_models(self):
        self.assertEqual([model.id for model in client.models.list()], ["small", "SmolLM2"])
        self.assertEqual(client.models.retrieve("small").object, "model")
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("other")


class AnotherServer(unittest.TestCase):
    def test_keys(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("alice:secret-one\n")
            keys.flush()
            with Server("--api-key-file", keys.name, "-c", "128") as closed:
                with self.assertRaises(openai.AuthenticationError):
                    openai.OpenAI(base_url=closed.url + "/v1", api_key="wrong", max_retries=0).models.list()
                named = openai.OpenAI(base_url=closed.url + "/v1", api_key="secret-one", max_retries=0)
                self.assertEqual(len(named.completions.create(model="builtin", prompt="a", max_tokens=1).choices), 1)

    def test_too_many(self):
        with Server("--queue", "1", "--parallel", "1", "-c", "512") as small:
            asks = openai.OpenAI(base_url=small.url + "/v1", api_key="none", max_retries=0)
            with self.assertRaises(openai.BadRequestError):  # more than can ever wait
                asks.completions.create(model="builtin", prompt="a", n=8, max_tokens=100)
            with self.assertRaises(openai.RateLimitError) as caught:
                for _ in range(20):  # a quick machine may be done with the first request before the second comes
                    with asks.completions.create(model="builtin", prompt="a", n=2, max_tokens=500, stream=True,
                                                 extra_body={"ignore_eos": True}) as both:
                        next(iter(both))
                        asks.completions.create(model="builtin", prompt="a", max_tokens=1)
            self.assertIn("retry-after", caught.exception.response.headers)


if __name__ == "__main__":
    unittest.main()
