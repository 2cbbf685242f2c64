# /// script
# requires-python = ">=3.10"
# dependencies = ["hf_lossy", "numpy"]
# ///
"""Let a chat model write dialogues with itself: training data for an EAGLE-3 head, in the target's own distribution.

    python recipes/sample_dialogues.py --target smollm2 --tokens 1000000 --out data/smollm2

Magpie style (2406.08464): from the chat template's beginning the model writes the user's turn at T = 1, then its answer at
T = 0.7 and top-p 0.95, then the next user turn, and so on. To widen what is asked, most user turns begin with an opening
drawn from a list. Rows are decoded in large batches with one cache; every row is always at work. Each shard holds token ids
and which of them are answer tokens; an interrupted run goes on with the next shard.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import time
from collections import deque

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from hf_lossy.compat import CACHE_NAME
from hf_lossy.loading import load_model, load_pair

OPENINGS = """
What is|What are|How do I|How does|How can|Why do|Why is|When did|Where can|Who was|Can you explain|Explain|Describe|Compare
Summarize|Summarize the following text:|Rewrite the following sentence|Translate|Correct the grammar:|Write a story about
Write a poem about|Write a letter to|Write an email|Write a short essay on|Write a Python function that|Write a program
Give me a list of|List the|Name three|Suggest|Recommend|Plan|Help me|I need|I want to|I have|I am|My|Is it|Are there|Should I
Tell me about|Create a|Design a|Classify|Solve the equation|Calculate|If a train|A farmer has|What would happen if|Define
Give an example of|What's the difference between|In the context of|Once upon a time|Imagine|The|In|Generate|Extract|Identify
Convert|Complete the sentence:|Answer the question:|Read the passage:|You are|Act as|Pretend|Provide|Discuss|Develop|Choose
""".replace("\n", "|").split("|")


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


class Row:
    """One dialogue in the making: whose turn it is, and the tokens that the template dictates."""

    def __init__(self, pieces: tuple[list[int], list[int], list[int]], openings: list[list[int]], rng: random.Random):
        self.before, self.between, self.after = pieces
        self.openings, self.rng = openings, rng
        self.ids: list[int] = []
        self.answer: list[bool] = []
        self.forced: deque[int] = deque(self.before)
        self.answering = False
        self.turn = 0
        self._open()

    def _open(self) -> None:
        if self.rng.random() < 0.85:
            self.forced.extend(self.rng.choice(self.openings))

    def take(self, sampled: int, stop: int, longest_question: int) -> int:
        """The next token of the row: a dictated one, or the sampled one."""
        if self.forced:
            token, mine = self.forced.popleft(), False
        else:
            token, mine = sampled, self.answering
            self.turn += 1
            if not self.answering and self.turn > longest_question:
                token = stop  # a question without end is cut
            if token == stop:
                rest = self.after if self.answering else self.between
                self.forced.extend(rest[rest.index(stop) + 1 :])
                self.answering, self.turn = not self.answering, 0
                if not self.answering:
                    self._open()
        self.ids.append(token)
        self.answer.append(mine)
        return token


@torch.inference_mode()
def dialogues(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: int,
    length: int,
    rng: random.Random,
    longest_question: int = 64,
    keep: int = 64,
) -> tuple[np.ndarray, np.ndarray]:
    """``rows`` dialogues of ``length`` tokens: ids and the mask of answer tokens, both [rows, length]."""
    pieces = template_pieces(tokenizer)
    openings = [tokenizer(o.strip(), add_special_tokens=False)["input_ids"] for o in OPENINGS if o.strip()]
    stop = next(t for t in pieces[1] if t in pieces[2])  # the template's end of a turn
    table = [Row(pieces, openings, rng) for _ in range(rows)]
    cache = DynamicCache(config=model.config)
    shared = [row.take(0, stop, longest_question) for row in table for _ in range(len(pieces[0]))]
    fed = torch.tensor(shared).view(rows, -1)
    while len(table[0].ids) < length:
        logits = model(input_ids=fed, logits_to_keep=1, use_cache=True, **{CACHE_NAME: cache}).logits[:, -1]
        top, ids = logits.float().topk(keep, -1)
        answering = torch.tensor([row.answering for row in table])
        probs = (top / torch.where(answering, 0.7, 1.0)[:, None]).softmax(-1)
        behind = probs.cumsum(-1) - probs
        probs = probs.masked_fill(behind > torch.where(answering, 0.95, 0.99)[:, None], 0)
        choice = ids.gather(1, torch.multinomial(probs, 1)).squeeze(1).tolist()
        fed = torch.tensor([[row.take(t, stop, longest_question)] for row, t in zip(table, choice, strict=True)])
    return (
        np.array([r.ids for r in table], dtype=np.uint32),
        np.array([r.answer for r in table], dtype=bool),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2", help="a pair's name, a Hub id, a folder or a .gguf file")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="answer tokens to collect")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, default=320)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.target == "smollm2":
        pair = load_pair("smollm2", args.dtype)
        model, tokenizer = pair.target, pair.tokenizer
    else:
        model, tokenizer = load_model(args.target, args.dtype)
    args.out.mkdir(parents=True, exist_ok=True)
    collected, start, began = 0, 0, time.time()
    for shard in range(1_000_000):
        path = args.out / f"shard-{shard:04d}.npz"
        if path.exists():
            collected += int(np.load(path)["answer"].sum())
            began, start = time.time(), collected
            continue
        if collected >= args.tokens:
            break
        rng = random.Random(f"{args.seed}-{shard}")
        torch.manual_seed(rng.getrandbits(31))
        ids, answer = dialogues(model, tokenizer, args.rows, args.length, rng)
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, ids=ids, answer=answer)
        temporary.replace(path)
        collected += int(answer.sum())
        rate = (collected - start) / (time.time() - began)
        print(
            f"{path.name}: {collected} answer tokens, {rate:.0f}/s, {(args.tokens - collected) / rate:.0f} s left",
            flush=True,
        )
        if shard == 0:
            print(tokenizer.decode(ids[0]))
    settings = {k: str(v) for k, v in vars(args).items()}
    (args.out / "settings.json").write_text(json.dumps({**settings, "answer_tokens": collected}, indent=2) + "\n")


if __name__ == "__main__":
    main()
