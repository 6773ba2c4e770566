#!/usr/bin/env python3
"""Writes tests/data/eval/tasks.json: made-up documents in the form of public datasets, as lm-evaluation-harness asks them.

    pip install lm-eval==0.4.13 transformers==4.57.3 datasets==4.4.1 evaluate==0.4.6
    python tools/make_task_goldens.py [--squad-metric FOLDER]

Every prompt, choice and score comes from the harness's own task objects; only the download of their data is replaced by
the documents below. FOLDER: a copy of metrics/squad_v2 of the repository huggingface/evaluate, where there is no network.
"""

import argparse
import collections
import json
import pathlib

import datasets
import evaluate
import lm_eval.tasks
from lm_eval.api.samplers import FirstNSampler
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.tasks.squadv2 import task as squad

ROOT = pathlib.Path(__file__).resolve().parent.parent
TASKS = pathlib.Path(lm_eval.tasks.__file__).parent


def problems(*questions):
    """RACE's dataset holds its problems as Python prints them."""
    return str([{"question": q, "answer": a, "options": list(o)} for q, a, o in questions])


def arc(name, question, key, labels, *texts):
    return {"id": name, "question": question, "choices": {"text": list(texts), "label": list(labels)}, "answerKey": key}


def copa(premise, question, first, second, label, idx):
    return {"premise": premise, "choice1": first, "choice2": second, "question": question, "idx": idx, "label": label}


def wic(word, first, second, start, label, idx):
    at = {"start1": start, "start2": 0, "end1": start + len(word), "end2": len(word)}
    return {"word": word, "sentence1": first, "sentence2": second, **at, "idx": idx, "label": label}


def nli(uid, premise, hypothesis, label):
    return {"uid": uid, "premise": premise, "hypothesis": hypothesis, "label": label, "reason": ""}


def commitment(premise, hypothesis, label, idx):
    return {"premise": premise, "hypothesis": hypothesis, "idx": idx, "label": label}


def story(name, sentences, endings, right):
    return {
        "story_id": name,
        **{f"input_sentence_{i + 1}": s for i, s in enumerate(sentences)},
        **{f"sentence_quiz{i + 1}": s for i, s in enumerate(endings)},
        "answer_right_ending": right,
    }


def record(passage, query, entities, answers, idx):
    return {"passage": passage, "query": query, "entities": entities, "answers": answers, "idx": {"passage": idx, "query": idx}}


def trivia(question, value, aliases):
    return {"question": question, "answer": {"value": value, "aliases": aliases}}


def squad_doc(name, title, context, question, answers):
    return {
        "id": name,
        "title": title,
        "context": context,
        "question": question,
        "answers": {"text": answers, "answer_start": [context.find(a) for a in answers]},
    }


RACE = [
    {
        "article": 'The mill stood by the river. "It is old," said the miller\'s son.\nNobody came.',
        "answer": "",
        "problems": problems(
            ("The mill stood  _  .", "B", ("on a hill", "by the river", "in town", "at sea")),
            ("Who said \"it's old\"?", "D", ("nobody", "the miller", "a guest", "the miller's son")),
            ("Nobody  _  .", "A", ("came", "left\\stayed", 'said "no"', "slept\tlate")),
        ),
    },
    {
        "article": "A caf\u00e9 opened at No. 5.\u00a0It sold soup\u2026",
        "answer": "",
        "problems": problems(
            ("What did the caf\u00e9\u200b sell?", "C", ("tea", "bread", "soup \u00a0", "\U0001f41f fish\nand more"))
        ),
    },
]
ANLI = [
    nli("a", "Ann has two cats.", "Ann has pets.", 0),
    nli("b", 'It was "late", she said.', "She was at home.", 1),
    nli("c", "The lake is frozen.", "The lake is warm.", 2),
]
RTE = [
    {"sentence1": "Ann, of \u00c9vian, has two cats.", "sentence2": "Ann has pets.", "label": 0, "idx": 0},
    {"sentence1": 'It was "late",\u00a0she said. ', "sentence2": "She was\tat home.", "label": 1, "idx": 1},
]
CB = [
    commitment("``Who knows?'' Do we assume there is a caf\u00e9? ", "there is a caf\u00e9", 2, 0),
    commitment("A: It rained.\nB: Uh-huh, I think it did.", "it rained", 0, 1),
    commitment("Tom doubts that the lake froze.", " the lake \u201cfroze\u201d", 1, 2),
]
RECORD = [
    record(
        " Rome fell, said Mr. Gibbon of London.\nAll of the \u00c9lys\u00e9e knew.\n@highlight\nRome fell\n@highlight\nGibbon wrote it down \n",
        "It was @placeholder that wrote of @placeholder's sources",
        ["Rome", "Gibbon", "London", "\u00c9lys\u00e9e", "Gibbon", "Mr. Gibbon"],
        ["Mr. Gibbon", "Gibbon", "Gibbon"],
        0,
    ),
    record("The Thames rose\u00a0", "@placeholder was wet", ["The Thames", "Thames", "the city of Oxford"], ["The Thames"], 1),
    record("Nobody came.\n@highlight\nNo one.", "Who is @placeholder?", ["A", "B b c"], ["C c b"], 2),
    record("Bern won.\n@highlight\nBern", "@placeholder won", ["Bern", "Basel"], ["Bern", "Aarau"], 3),
]
SQUAD = [
    squad_doc("q1", "Bridges", "The bridge of 1890 is red.", "When was it built?", ["1890", "of 1890"]),
    squad_doc("q2", "Bridges", "The bridge of 1890 is red.", "Who built it?", []),
    squad_doc("q3", "Na\u00efve art", "The painter Rousseau saw no jungle.", "Who saw no jungle?", ["The painter Rousseau", "Rousseau"]),
    squad_doc("q4", "Bridges", "The bridge of 1890 is red.", "Where is it?", []),
    squad_doc("q5", "Bridges", "The bridge of 1890 is red.", "What is red?", ["The", "bridge"]),
    squad_doc("q0", "Bridges", "The bridge of 1890 is red.", "Which one?", ["The", "bridge"]),
    squad_doc("q6", "Roads", "The road ends.", "Why?", []),
    squad_doc("q7", "Roads", "The road ends.", "What ends?", ["The road", "road"]),
]
# What a model might write, and the log-likelihood that it gives to " unanswerable".
SQUAD_RESULTS = [(" 1890.", -3.0), ("", -3.5), (" a Rousseau, painter", -2.0), (" in the town", -2.5), (" the red\u2014bridge A", -900.0), (" the", -4.0)]

# name -> YAML of the harness, its documents, those that examples are taken from (None: the same)
CASES = {
    "anli_r1": ("anli/anli_r1.yaml", ANLI[:2], ANLI[2:]),
    "anli_r2": ("anli/anli_r2.yaml", ANLI[2:], ANLI[:1]),
    "anli_r3": ("anli/anli_r3.yaml", ANLI[1:2], ANLI[:1]),
    "arc_easy": (
        "arc/arc_easy.yaml",
        [
            arc("A1", "What floats?", "C", "ABCD", "a stone", "an anvil", 'a "cork"', "the miller's iron"),
            arc("A2", " Which is 1 \u00b0C? ", "2", "123", "ice \u00e0 la mode", "cold\u00a0water", "steam"),
        ],
        [arc("A3", "What burns?", "A", "ABCDE", "wood", "water", "sand", "stone", "air")],
    ),
    "copa": (
        "super_glue/copa/default.yaml",
        [
            copa("The man slipped. ", "cause", "The floor was wet.", "He was tall.", 0, 0),
            copa("\u00a0It rained\u2026", "effect", "\u00c9lodie stayed in.", "NASA went home.", 1, 1),
        ],
        [copa("The cup broke.", "cause", "It fell.", "It was blue.", 0, 2)],
    ),
    "glue_rte": ("glue/rte/default.yaml", RTE, None),
    "race": ("race/race.yaml", RACE, None),
    "record": ("super_glue/record/default.yaml", RECORD[:3], RECORD[3:]),
    "storycloze": (
        "storycloze/storycloze_2016.yaml",
        [
            story("s1", ["Tom ran.", "He fell.", "It hurt.", "He cried."], ["He was sad.", "He flew."], 1),
            story("s2", ["Ann cooked. ", "It\u2019s soup.", "She ate.", "More?"], ["Ann slept.", "Ann had more."], 2),
        ],
        [story("s3", ["A.", "B.", "C.", "D."], ["E.", "F."], 2)],
    ),
    "superglue_cb": ("super_glue/cb/default.yaml", CB, None),
    "webqs": (
        "webqs/webqs.yaml",
        [
            {"url": "u/1", "question": "who built it?", "answers": ["Smith and Sons", "Smith", "Anna", "Smit"]},
            {"url": "u/2", "question": "where is caf\u00e9 x?", "answers": ["\u00c9vian", "Evian"]},
        ],
        [{"url": "u/3", "question": "what is red?", "answers": ["the bridge", "roses"]}],
    ),
    "wic": (
        "super_glue/wic/default.yaml",
        [
            wic("bank", "A caf\u00e9 on the bank.", "bank on it", 14, 0, 0),
            wic("Runs", "Runs of luck.", "runs", 0, 1, 1),
        ],
        [wic("go", "We go.", "go", 3, 1, 2)],
    ),
}
# Questions that are answered in writing: name -> YAML of the harness, its documents, each of which is the other's example
WRITTEN = {
    "nq_open": (
        "nq_open/nq_open.yaml",
        [
            {"question": "who wrote he ain't heavy", "answer": ["Bobby Scott", "Bob Russell"]},
            {"question": "where is caf\u00e9 x", "answer": ['the "\u00c9lys\u00e9e", it\'s said']},
        ],
    ),
    "triviaqa_3k": (
        "triviaqa/default.yaml",
        [
            trivia("Which vegetable is a Pearl Pickler?", "Onion", ["Onion skins", "Onion", "\u00c1llium"]),
            trivia('"Who sang ""Achy Breaky Heart""', "Billy Ray Cyrus", ["Billy Ray Cyrus", "Cyrus's [band]"]),
        ],
    ),
}
# Made-up log-likelihoods of each choice, and whether greedy decoding writes it.
SCORES = {
    "record": [[-4, -3, -9, -8, -7], [-1, -2, -2.5], [-2, -1]],
    "webqs": [[(-2, False), (-5, True)], [(-1, False), (-3, False)]],
}


def boolq(passage, question, label, idx):
    return {"passage": passage, "question": question, "idx": idx, "label": label}


def openbook(name, stem, key, *texts):
    return {"id": name, "question_stem": stem, "choices": {"text": list(texts), "label": list("ABCD")}, "answerKey": key}


def hellaswag(label, first, second, right, *endings):
    return {"activity_label": label, "ctx_a": first, "ctx_b": second, "endings": list(endings), "label": str(right)}


def wsc(text, pronoun, options, label):
    return {"text": text, "pronoun": pronoun, "pronoun_loc": text.index(f" {pronoun} ") + 1, "options": options, "label": label}


# Tasks whose files hold their prompts (docs/evaluation.md): name -> YAML of the harness, a document, an example before it.
PROMPTED = {
    "arc_challenge": (
        "arc/arc_challenge.yaml",
        arc("A1", "What floats?", "C", "ABCD", "a stone", "an anvil", 'a "cork"', "iron"),
        arc("A3", "What burns?", "1", "123", "wood", "water", "sand"),
    ),
    "boolq": (
        "super_glue/boolq/default.yaml",
        boolq("Bern -- Bern is a city.\u00a0It is old.", "is bern a city", 1, 0),
        boolq("Oil -- Oil floats.", "does oil sink", 0, 1),
    ),
    "hellaswag": (
        "hellaswag/hellaswag.yaml",
        hellaswag("Rowing", "A man rows. ", "he", 2, "sinks [x] fast.", "[title] flies.", "goes on.", "eats  soup."),
        hellaswag("Baking", "Ann has flour.", "", 0, "She bakes.", "She rows.", "It rains.", "He naps."),
    ),
    "openbookqa": (
        "openbookqa/openbookqa.yaml",
        openbook("7-1", "The sun is", "B", "cold", "a star", "near", "small"),
        openbook("7-2", "A frog can", "D", "fly", "read", "burn", "swim"),
    ),
    "piqa": (
        "piqa/piqa.yaml",
        {"goal": "boil water,\u2026", "sol1": "heat it", "sol2": "cool it", "label": 0},
        {"goal": "cut bread", "sol1": "use a spoon", "sol2": "use a knife", "label": 1},
    ),
    "winograd_wsc273": (
        "wsc273/default.yaml",
        wsc("The cup did not fit in the box because it was too big.", "it", ["The cup", "The box"], 0),
        wsc("Ann thanked Eve for the soup that she had cooked.", "she", ["Ann", "Eve"], 1),
    ),
    "winogrande": (
        "winogrande/default.yaml",
        {"sentence": "Tom paid Ben because _ was kind.", "option1": "Tom", "option2": "Ben", "answer": "2"},
        {"sentence": "The jar beat the can since the _ was new.", "option1": "jar", "option2": "can", "answer": "1"},
    ),
}


def line_of(task, doc):
    """The document as our files have it, with the harness's own prompt."""
    text, target = task.doc_to_text(doc), task.doc_to_target(doc)
    if isinstance(text, int):  # both contexts and one ending
        if "sentence" in doc:
            return {"ctx": doc["sentence"], "choices": [doc["option1"], doc["option2"]], "gold": text}
        return {"context_options": task.doc_to_choice(doc), "continuation": target.strip(), "gold": text}
    return {"ctx": text, "choices": task.doc_to_choice(doc), "gold": target}


def prompted_golden(yaml, doc, example):
    config = load_yaml(TASKS / yaml)
    asked, shown = examples_of(config)
    splits = {asked: [doc, example], shown: [example]} if asked != shown else {asked: [doc, example]}
    for split in ("training_split", "validation_split"):
        splits.setdefault(config.get(split) or asked, [example])
    task = task_of(config, splits)
    docs = list(task.eval_docs)
    task.sampler = FirstNSampler(docs[1:] if asked == shown else list(task.fewshot_docs()))
    out = {"split": asked, "example_split": shown, "line": line_of(task, docs[0]), "example": line_of(task, docs[1])}
    for shots in (0, 1):
        requests = task.construct_requests(docs[0], task.fewshot_context(docs[0], num_fewshot=shots))
        out[f"asked_{shots}"] = [list(r.arguments) for r in requests]
    return out


def task_of(config, splits):
    class Offline(config if isinstance(config, type) else ConfigurableTask):
        def download(self, *_, **__):
            self.dataset = datasets.DatasetDict({k: datasets.Dataset.from_list(v) for k, v in splits.items()})

    task = Offline() if isinstance(config, type) else Offline(config=config)
    task.sampler = FirstNSampler(list(task.fewshot_docs()))  # the harness draws at random
    return task


def examples_of(config):
    """The split that the harness takes examples from, and the one that it asks."""
    asked = config.get("test_split") or config["validation_split"]
    shown = config.get("fewshot_split") or config.get("training_split") or config.get("validation_split") or asked
    return asked, shown


def requests_of(task, doc, shots):
    """The context, which all requests share, and what each asks for after it."""
    requests = task.construct_requests(doc, task.fewshot_context(doc, num_fewshot=shots))
    contexts, asked = zip(*(r.arguments for r in (requests if isinstance(requests, list) else [requests])))
    assert len(set(contexts)) == 1
    return contexts[0], asked


def golden_of(name, yaml, docs, shown):
    config = load_yaml(TASKS / yaml)
    asked, other = examples_of(config)
    splits = {asked: docs, other: shown or docs}
    for split in ("training_split", "validation_split"):
        splits.setdefault(config.get(split) or asked, shown or docs)
    task = task_of(config, splits)
    out = {"split": asked, "docs": docs}
    if shown:
        out |= {"example_split": other, "examples": shown}
    out["items"] = []
    for i, doc in enumerate(task.eval_docs):
        context, choices = requests_of(task, doc, 0)
        item = {"context": context, "choices": choices}
        target = task.doc_to_target(doc)
        if not shown:  # the harness would show the item itself, too
            task.sampler = FirstNSampler([other for other in docs if other != doc])
        if not isinstance(target, list):  # the harness itself stops at examples with several right answers
            item["one_shot"], _ = requests_of(task, doc, 1)
        item["gold"] = target if isinstance(target, (int, list)) else (task.doc_to_choice(doc) + [target]).index(target)
        item["lengths"] = [len(choice) for choice in task.doc_to_choice(doc)]
        if name in SCORES:
            scores = [s if isinstance(s, tuple) else (s, False) for s in SCORES[name][i]]
            item |= {"scores": scores, "results": task.process_results(doc, scores)}
        out["items"].append(item)
    return out


def written_golden(yaml, docs):
    """Documents as our files have them, TriviaQA's with the harness's own prompt."""
    config = load_yaml(TASKS / yaml)
    task = task_of(config, {split: docs for split in examples_of(config)})
    out = {"docs": [], "items": []}
    for doc in task.eval_docs:
        context, (rules,) = requests_of(task, doc, 0)
        item = {"context": context, "until": rules["until"], "answers": task.doc_to_target(doc)}
        task.sampler = FirstNSampler([other for other in docs if other != doc])
        item["one_shot"], _ = requests_of(task, doc, 1)
        answer = doc["answer"]
        if isinstance(answer, dict):
            doc = {"context": context, "answer": answer["value"], "aliases": answer["aliases"]}
        out["docs"].append(doc)
        out["items"].append(item)
    return out


class Squad(squad.SQuAD2):
    """The harness passes its examples' templates, too, which SQuAD2 does not expect."""

    def doc_to_text(self, doc, *_):
        return super().doc_to_text(doc)

    def doc_to_target(self, doc, *_):
        return super().doc_to_target(doc)


def squad_golden(metric):
    docs, shown = SQUAD[:6], SQUAD[6:]
    squad._squad_metric = lambda predictions, references: evaluate.load(metric).compute(
        predictions=list(predictions), references=list(references)
    )
    out = {"split": "validation", "docs": docs, "example_split": "train", "examples": shown, "items": []}
    answers = collections.defaultdict(list)
    task = task_of(Squad, {"validation": docs, "train": shown})
    for doc, (text, logprob) in zip(docs, SQUAD_RESULTS):
        context, (rules, no_answer) = requests_of(task, doc, 0)
        item = {"context": context, "until": rules["until"], "no_answer": no_answer, "text": text, "logprob": logprob}
        item["two_shot"], _ = requests_of(task, doc, 2)  # one without an answer, one with
        out["items"].append(item)
        for key, value in task.process_results(doc, (text, (logprob, False))).items():
            answers[key].append(value)
    out["metrics"] = {key: aggregate(answers[key]) for key, aggregate in task.aggregation().items()}
    return out


def lettered_golden():
    """Questions with lettered choices and GSM8K's, as their templates lay them out. There is none for a generative PIQA."""
    doc = {
        "id": "1",
        "question": " Where does a  fish swim?",
        "choices": {"label": list("ABCDE"), "text": ["in water", "on land", "a \u201csky\u201d", "d", "e "]},
        "answerKey": "A",
    }
    config = load_yaml(TASKS / "commonsense_qa/default.yaml")
    task = task_of(config, {"validation": [doc], "train": [doc]})
    sum_ = {"question": "Tom has 2 and gets 3.\nHow many?", "answer": "2+3=<<2+3=5>>5\n#### 5"}
    gsm8k = task_of(load_yaml(TASKS / "gsm8k/gsm8k.yaml"), {"test": [sum_], "train": [sum_]})
    subject = {"question": " Which is  red? ", "choices": ["a", "b ", "\u201cc\u201d", "d"], "answer": 2, "subject": "art"}
    mmlu = task_of(load_yaml(TASKS / "mmlu/generative/_default_template_yaml"), {"test": [subject], "dev": [subject]})
    return {
        "mmlu": {"doc": subject, "prompt": mmlu.fewshot_context(subject, num_fewshot=0)},
        "commonsenseqa": {"doc": doc, "prompt": task.fewshot_context(doc, num_fewshot=0)},
        "gsm8k": {"doc": sum_, "prompt": gsm8k.fewshot_context(sum_, num_fewshot=0)},
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--squad-metric", default="squad_v2")
    metric = parser.parse_args().squad_metric
    goldens = {name: golden_of(name, *case) for name, case in CASES.items()}
    goldens |= {name: written_golden(*case) for name, case in WRITTEN.items()}
    goldens["squadv2"] = squad_golden(metric)
    goldens["lettered"] = lettered_golden()
    goldens["prompted"] = {name: prompted_golden(*case) for name, case in PROMPTED.items()}
    out = ROOT / "tests/data/eval/tasks.json"
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in goldens.items()]
    out.write_text("{" + ",\n".join(lines) + "}\n")
    print(out, out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
