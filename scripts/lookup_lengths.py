"""What a prompt lookup finds in texts, and how fast its draft lengths are there. Prints JSON.

    .venv/bin/python scripts/lookup_lengths.py NAME=FILE ... [--tokenizer FOLDER]

A target that writes exactly a given text, after its first 64 tokens, verifies what the package's own lookup drafts; only the
time of its forwards is made up, from a few curves of the kinds that machines have. A JSON-lines file is a text a line, its
strings joined; any other file is one text. `acceptance`: of the candidates after k matching tokens that were looked at, the
share that the text went on with, and how many these were. `speed`: tokens a second of `expected` in units of the best fixed
`prompt_lookup_num_tokens`, and which one that was, by curve.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer

from hf_lossy.drafting import PromptLookupDraft
from hf_lossy.drafting.schedule import Costs, ExpectedLookup, Schedule
from hf_lossy.loading import models_folder

CURVES = {
    "a small model on two CPU cores": {1: 1.0, 2: 1.05, 3: 1.10, 4: 1.45, 8: 1.84, 21: 3.2},
    "free": {1: 1.0, 21: 1.0},
    "mild": {1: 1.0, 8: 1.2, 21: 1.6},
    "steep": {1: 1.0, 2: 1.5, 4: 2.0, 8: 3.0, 21: 7.0},
}
"""Time of a forward over n tokens, in that of a forward over one."""
FIXED = (0, 1, 2, 3, 4, 5, 7, 10, 14, 20)
SHOWN = (1, 2, 3, 4, 6, 8, 12, 16)
PROMPT = 64


def texts(path: Path) -> Iterator[str]:
    """The texts of a file."""
    if path.suffix != ".jsonl":
        yield path.read_text()
        return
    for line in path.read_text().splitlines():
        yield "\n".join(strings(json.loads(line)))


def strings(value: object) -> Iterator[str]:
    """All strings in a JSON value, in order."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(inner)


class Counting(Schedule):
    """Drafts all that fits after every match, and counts the candidates that were looked at by (matched, accepted)."""

    def __init__(self) -> None:
        super().__init__(ExpectedLookup.MOST)
        self.looks, self.matched = Counter[tuple[int, bool]](), 0

    def offer(self, matched: Sequence[int], most: int) -> list[int]:
        self.matched = matched[0]
        return [most if n else 0 for n in matched]

    def update(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        for j in range(min(accepted[0] + 1, drafted[0])):
            self.looks[min(self.matched + j, PromptLookupDraft.LONGEST), j < accepted[0]] += 1


def rounds(ids: torch.Tensor, schedule: Schedule) -> Counter[int]:
    """How many rounds drafted how much, until the text was written."""
    draft, length, found = PromptLookupDraft(schedule), PROMPT, Counter[int]()
    while length < ids.shape[1]:
        drafted = draft.propose(ids, [length], min(schedule.length, ids.shape[1] - length - 1)).tokens[0]
        same = drafted == ids[0, length : length + len(drafted)]
        kept = int(same.long().cumprod(0).sum())
        schedule.update([len(drafted)], [kept])
        found[len(drafted)] += 1
        length += kept + 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="NAME=FILE", help="texts; a name may come several times")
    parser.add_argument("--tokenizer", default=models_folder() / "smollm2-135m", help="default: %(default)s")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    sets: dict[str, list[torch.Tensor]] = {}
    for name, _, path in (one.partition("=") for one in options.sets):
        for text in texts(Path(path)):
            ids = tokenizer(text, return_tensors="pt", verbose=False).input_ids
            sets.setdefault(name, []).extend([ids] if ids.shape[1] > PROMPT else [])
    found = {}
    for name, corpus in sets.items():
        counting, speed = Counting(), {}
        for ids in corpus:
            rounds(ids, counting)
        fixed = {n: sum((rounds(ids, Schedule(n)) for ids in corpus), Counter[int]()) for n in FIXED}
        for kind, curve in CURVES.items():
            costs = Costs(curve, {1: 0.0})
            seconds = costs.reads(ExpectedLookup.MOST + 1)
            took = {n: sum(seconds[width] * count for width, count in made.items()) for n, made in fixed.items()}
            mine = sum(seconds[n] * count for ids in corpus for n, count in rounds(ids, ExpectedLookup(costs)).items())
            best = min(took, key=lambda n: took[n])
            speed[kind] = {"of_best": round(took[best] / mine, 3), "best": best, "of_7": round(took[7] / mine, 3)}
        looks = counting.looks
        counts = {k: (looks[k, True], looks[k, True] + looks[k, False]) for k in SHOWN}
        found[name] = {
            "texts": len(corpus),
            "tokens": sum(ids.shape[1] - PROMPT for ids in corpus),
            "acceptance": {k: {"share": round(a / n, 3), "of": n} for k, (a, n) in counts.items() if n},
            "speed": speed,
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
