# /// script
# requires-python = ">=3.10"
# dependencies = ["hf-lossy", "numpy"]
# ///
"""Let a model answer prompts, or write whole dialogues with itself: training data for an EAGLE-3 head, in the target's own
distribution.

    python recipes/sample_dialogues.py --target smollm2 --tokens 1000000 --out data/smollm2
    python recipes/sample_dialogues.py --target smollm2 --prompts prompts.jsonl --out data/smollm2-prompts
    python recipes/sample_dialogues.py --target arithmetic --tokens 600000 --out data/arithmetic

Without prompts, Magpie style (2406.08464): from the chat template's beginning the model writes the user's turn at T = 1,
then its answer, then the next user turn, and so on. To widen what is asked, most user turns begin with an opening drawn
from a list. With ``--prompts``, one a line (or a jsonl file with a field ``prompt``), each is answered once. The embedded
arithmetic target answers clock sums, none of them among those on which results are reported.

Rows are decoded in large batches with one cache, from the likeliest 64 tokens. Each shard holds token ids and which of them
are answer tokens; an interrupted run goes on with the next shard. ``meta.json`` says whose text it is and how it came about.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import random
import time
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from hf_lossy.compat import CACHE_NAME
from hf_lossy.embedded import clock_sums
from hf_lossy.errors import LossyError
from hf_lossy.loading import PAIRS, load_model, load_pair
from hf_lossy.provenance import write_json

OPENINGS = """
What is|What are|How do I|How does|How can|Why do|Why is|When did|Where can|Who was|Can you explain|Explain|Describe|Compare
Summarize|Summarize the following text:|Rewrite the following sentence|Translate|Correct the grammar:|Write a story about
Write a poem about|Write a letter to|Write an email|Write a short essay on|Write a Python function that|Write a program
Give me a list of|List the|Name three|Suggest|Recommend|Plan|Help me|I need|I want to|I have|I am|My|Is it|Are there|Should I
Tell me about|Create a|Design a|Classify|Solve the equation|Calculate|If a train|A farmer has|What would happen if|Define
Give an example of|What's the difference between|In the context of|Once upon a time|Imagine|The|In|Generate|Extract|Identify
Convert|Complete the sentence:|Answer the question:|Read the passage:|You are|Act as|Pretend|Provide|Discuss|Develop|Choose
""".replace("\n", "|").split("|")
QUESTION = (1.0, 0.99)
"""Temperature and top-p of the user turns that the model writes."""
LONGEST_QUESTION = 64
LIKELIEST = 64
REPORTED = {tuple(s) for s in clock_sums.problems(1000, seed=1)}
"""The clock sums of hf_lossy/loading.py, on which results are reported."""


def template_pieces(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[int]]:
    """Token ids of the chat template: what stands before a first user turn, between it and the answer, and between the
    answer and the next user turn."""
    user, reply = "\u241eU\u241e", "\u241eA\u241e"
    messages = [{"role": "user", "content": user}, {"role": "assistant", "content": reply}]
    text = tokenizer.apply_chat_template([*messages, messages[0]], tokenize=False)
    before, rest = text.split(user, 1)
    between, rest = rest.split(reply, 1)
    after = rest.split(user, 1)[0]
    return tuple(tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, between, after))


class Dialogue:
    """A dialogue in the making: whose turn it is, and the tokens that the template dictates."""

    done = False

    def __init__(self, pieces: tuple[list[int], list[int], list[int]], openings: list[list[int]], rng: random.Random):
        before, self.between, self.after = pieces
        self.stop = next(t for t in self.between if t in self.after)  # the template's end of a turn
        self.openings, self.rng = openings, rng
        self.ids: list[int] = []
        self.answer: list[bool] = []
        self.forced: deque[int] = deque(before)
        self.answering = False
        self.turn = 0
        self._open()

    def _open(self) -> None:
        if self.rng.random() < 0.85:
            self.forced.extend(self.rng.choice(self.openings))

    def take(self, sampled: int) -> int:
        """The next token of the row: a dictated one, or the sampled one."""
        if self.forced:
            token, mine = self.forced.popleft(), False
        else:
            token, mine = sampled, self.answering
            self.turn += 1
            if not self.answering and self.turn > LONGEST_QUESTION:
                token = self.stop  # a question without end is cut
            if token == self.stop:
                rest = self.after if self.answering else self.between
                self.forced.extend(rest[rest.index(self.stop) + 1 :])
                self.answering, self.turn = not self.answering, 0
                if not self.answering:
                    self._open()
        self.ids.append(token)
        self.answer.append(mine)
        return token


class Answer:
    """A prompt, its answer in the making, and padding after it."""

    answering = True

    def __init__(self, prompt: list[int], stops: set[int], pad: int):
        self.forced, self.stops, self.pad = deque(prompt), stops, pad
        self.ids: list[int] = []
        self.answer: list[bool] = []
        self.done = False

    def take(self, sampled: int) -> int:
        """The next token of the row: the prompt's, the sampled one, or padding."""
        if self.forced:
            token, mine = self.forced.popleft(), False
        else:
            token, mine = (self.pad, False) if self.done else (sampled, True)
            self.done = self.done or token in self.stops
        self.ids.append(token)
        self.answer.append(mine)
        return token


@torch.inference_mode()
def decode(
    model: PreTrainedModel, table: list[Dialogue] | list[Answer], length: int, answer: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Fill the rows up to ``length`` tokens, answers with this temperature and top-p: ids and the mask of answer tokens,
    both [rows, length]."""
    cache = DynamicCache(config=model.config)
    dictated = min(len(row.forced) for row in table)
    fed = torch.tensor([[row.take(0) for _ in range(dictated)] for row in table], device=model.device)
    while len(table[0].ids) < length and not all(row.done for row in table):
        logits = model(input_ids=fed, logits_to_keep=1, use_cache=True, **{CACHE_NAME: cache}).logits[:, -1]
        top, ids = logits.float().topk(min(LIKELIEST, logits.shape[-1]), -1)
        settings = [answer if row.answering else QUESTION for row in table]
        temperature, top_p = torch.tensor(settings, device=model.device).T
        probs = (top / temperature[:, None]).softmax(-1)
        behind = probs.cumsum(-1) - probs
        probs = probs.masked_fill(behind > top_p[:, None], 0)
        choice = ids.gather(1, torch.multinomial(probs, 1)).squeeze(1).tolist()
        fed = torch.tensor([[row.take(t)] for row, t in zip(table, choice, strict=True)], device=model.device)
    while len(table[0].ids) < length:
        for row in table:
            row.take(0)
    return np.array([r.ids for r in table], dtype=np.uint32), np.array([r.answer for r in table], dtype=bool)


def clock_sum_prompts(seed: int) -> Iterator[str]:
    """Clock sums without end, no two the same and none of them reported on."""
    rng, seen = random.Random(f"eagle3 {seed}"), set(REPORTED)
    while True:
        operands = tuple(clock_sums.problem(rng))
        if operands not in seen:
            seen.add(operands)
            yield clock_sums.prompt(operands)


def file_prompts(path: pathlib.Path, seed: int) -> list[str]:
    """The different prompts of a file, in random order."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if path.suffix == ".jsonl":
        lines = [json.loads(line)["prompt"] for line in lines]
    prompts = list(dict.fromkeys(lines))
    random.Random(seed).shuffle(prompts)
    return prompts


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """A prompt's tokens, in the chat template where there is one."""
    if not tokenizer.chat_template:
        return tokenizer(prompt)["input_ids"]
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """What ends an answer."""
    theirs = model.generation_config.eos_token_id
    stops = {tokenizer.eos_token_id, *(theirs if isinstance(theirs, list) else [theirs])}
    if tokenizer.chat_template:
        _, between, after = template_pieces(tokenizer)
        stops.add(next(t for t in between if t in after))
    return stops - {None}


def write_meta(folder: pathlib.Path, meta: dict[str, object]) -> None:
    """Say whose text a folder holds; refuse to mix it with other text."""
    path = folder / "meta.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    for name, value in meta.items():
        if before.get(name, value) != value:
            raise LossyError(
                f"{folder} holds text sampled with {name} {before[name]!r}, got {value!r}: choose another --out"
            )
    write_json(path, meta)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2", help="a pair's name, a Hub id, a folder or a .gguf file")
    parser.add_argument("--prompts", type=pathlib.Path, help="a prompt a line, or .jsonl with a field prompt")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="answer tokens to collect")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--temperature", type=float, help="of the answers (default 0.7; arithmetic 1)")
    parser.add_argument("--top-p", type=float, help="of the answers (default 0.95; arithmetic 1)")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, help="tokens of a row (default 320; arithmetic 32)")
    parser.add_argument("--dtype", help="of the target (default bfloat16; arithmetic float32)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    dtype = args.dtype or ("float32" if args.target.startswith("arithmetic") else "bfloat16")
    if args.target in PAIRS:
        pair = load_pair(args.target, dtype)
        model, tokenizer, sums = pair.target, pair.tokenizer, pair.arithmetic
    else:
        (model, tokenizer), sums = load_model(args.target, dtype), False
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    temperature = args.temperature or (1.0 if sums else 0.7)
    top_p = args.top_p or (1.0 if sums else 0.95)
    length = args.length or (32 if sums else 320)
    sampling = f"at T = {temperature:g}" + (f" and top-p {top_p:g}" if top_p < 1 else "")
    texts: Iterator[str] | None = None
    if args.prompts:
        prompts = file_prompts(args.prompts, args.seed)
        texts, source = iter(prompts), f"prompts of {args.prompts.name}"
        how = f"answers of the target {sampling} to {len(prompts)} prompts of {args.prompts.name}"
    elif sums:
        texts, source = clock_sum_prompts(args.seed), "clock sums"
        how = f"answers of the target {sampling} to clock sums, none of them among those that results are reported on"
    else:
        source = "magpie"
        how = (
            f"dialogues that the target wrote with itself (Magpie style, most user turns from a list of openings), "
            f"questions at T = {QUESTION[0]:g} and top-p {QUESTION[1]:g}, answers {sampling}"
        )
        if not tokenizer.chat_template:
            raise LossyError(f"{args.target} has no chat template to write dialogues in: give --prompts")
    args.out.mkdir(parents=True, exist_ok=True)
    meta = {"target": args.target, "vocab_size": model.config.get_text_config(decoder=True).vocab_size}
    meta |= {"source": source, "temperature": temperature, "top_p": top_p, "rows": args.rows, "length": length}
    write_meta(args.out, meta | {"dtype": dtype, "seed": args.seed, "how": how})
    encoded = (prompt_ids(tokenizer, text) for text in texts or ())
    short = (ids for ids in encoded if len(ids) <= length // 2)
    pieces = template_pieces(tokenizer) if texts is None else None
    openings = [tokenizer(o.strip(), add_special_tokens=False)["input_ids"] for o in OPENINGS if o.strip()]
    stops, pad = stop_tokens(model, tokenizer), tokenizer.pad_token_id or 0
    collected, start, began = 0, 0, time.time()
    for shard in itertools.count():
        path = args.out / f"shard-{shard:04d}.npz"
        mine = list(itertools.islice(short, args.rows))  # a finished shard used its prompts up
        if path.exists():
            collected += int(np.load(path)["answer"].sum())
            began, start = time.time(), collected
            continue
        if collected >= args.tokens:
            break
        rng = random.Random(f"{args.seed}-{shard}")
        torch.manual_seed(rng.getrandbits(31))
        if pieces is not None:
            table = [Dialogue(pieces, openings, rng) for _ in range(args.rows)]
        elif mine:
            table = [Answer(ids, stops, pad) for ids in mine]
        else:
            print(f"every prompt is answered: {collected} answer tokens")
            break
        ids, answer = decode(model, table, length, (temperature, top_p))
        temporary = path.with_name(f".{path.name}")
        np.savez_compressed(temporary, ids=ids, answer=answer)
        temporary.replace(path)
        collected += int(answer.sum())
        rate = (collected - start) / (time.time() - began)
        left = max(0, args.tokens - collected) / rate
        print(f"{path.name}: {collected} answer tokens, {rate:.0f}/s, {left:.0f} s left", flush=True)
        if shard == 0:
            print(tokenizer.decode(ids[0]))


if __name__ == "__main__":
    main()
