"""The cards of this repository: whose they are, what they are made from, where they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import LossyError
from .build import Card
from .embedded import embedded_card
from .figures import File
from .head import head_card
from .pair import Subject, pair_card
from .tables import Evaluation

RESULTS = Path("docs/results")
CARDS = Path("model_cards")
EMBEDDED = Path("hf_lossy/embedded/models")


@dataclass(frozen=True)
class Head:
    """A head of this repository: its folder, and the pair whose benchmark measured it."""

    name: str
    folder: Path
    pair: str


HEADS = (
    Head("head-arithmetic", EMBEDDED / "arithmetic/eagle3", "arithmetic-eagle3"),
    Head("head-smollm2-135m", Path("hf_lossy/assets/smollm2-135m-eagle3"), "smollm2-eagle3"),
)
_SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
_CODER, _SMALL_CODER = "Qwen/Qwen2.5-Coder-1.5B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct"
_SYNTHETIC = "One synthetic task: it shows mechanisms, not the size of effects on other models."


_SUM = 'inputs = tokenizer("14 4 1 1 21 :", return_tensors="pt", return_token_type_ids=False)'
_CHAT = """messages = [{"role": "user", "content": "What is the capital of France?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)"""
_LOCAL = "The weights that were measured are local copies (docs/benchmarks.md); they may differ from those of the Hub."


def _start(load: str, inputs: str, drafting: str, law: str = '"lenience"') -> str:
    return f"""
{load}
{inputs}
out = hf_lossy.generate(
    target,
    **inputs,
    {drafting},
    verification={law},
    do_sample=True,
    max_new_tokens=24,
    return_dict_in_generate=True,
)
print(tokenizer.decode(out.sequences[0]), out.verification.block_efficiency)
"""


def _embedded(load: str, drafting: str = "assistant_model=draft") -> str:
    return _start(f"import hf_lossy\n\n{load}", _SUM, drafting)


def _hub(target: str, draft: str = "") -> str:
    return f"""from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_lossy

tokenizer = AutoTokenizer.from_pretrained("{target}")
target = AutoModelForCausalLM.from_pretrained("{target}")
{draft}""".rstrip()


def _two_models(target: str, draft: str) -> str:
    load = _hub(target, f'draft = AutoModelForCausalLM.from_pretrained("{draft}")')
    return _start(load, _CHAT, "assistant_model=draft")


def _prompt_lookup(target: str) -> str:
    return _start(_hub(target), _CHAT, "prompt_lookup_num_tokens=7", '"lossless"')


SUBJECTS = (
    Subject(
        "arithmetic",
        "arithmetic (natural draft)",
        "the embedded arithmetic target",
        "its embedded draft natural",
        _embedded('target, draft, tokenizer = hf_lossy.embedded.load("arithmetic")'),
        notes=(_SYNTHETIC,),
    ),
    Subject(
        "arithmetic-shortcut",
        "arithmetic (shortcut draft)",
        "the embedded arithmetic target",
        "its embedded draft shortcut",
        _embedded('target, draft, tokenizer = hf_lossy.embedded.load("arithmetic", "shortcut")'),
        notes=("The draft's bias was planted to make distortion visible: effects are larger than with real drafts.",),
    ),
    Subject(
        "arithmetic-eagle3",
        "arithmetic (EAGLE-3 head)",
        "the embedded arithmetic target",
        "its EAGLE-3 head",
        _embedded(
            'target, _, tokenizer = hf_lossy.embedded.load("arithmetic")\n'
            'head = hf_lossy.embedded.head("arithmetic", target)',
            "assistant_model=head",
        ),
        notes=(
            _SYNTHETIC,
            "This head's likeliest tokens are mostly right, so that accuracy may rise with the distortion.",
        ),
    ),
    Subject(
        "qwen-coder",
        "qwen-coder 1.5B/0.5B",
        "Qwen2.5-Coder-1.5B-Instruct",
        "Qwen2.5-Coder-0.5B-Instruct",
        _two_models(_CODER, _SMALL_CODER),
        base_model=(_CODER, _SMALL_CODER),
        language=("en", "code"),
        local=("qwen-1.5b", "qwen-0.5b"),
        notes=(_LOCAL,),
    ),
    Subject(
        "smollm2",
        "smollm2-135m (prompt lookup)",
        "SmolLM2-135M-Instruct",
        "prompt lookup",
        _prompt_lookup(_SMOLLM2),
        base_model=(_SMOLLM2,),
        local=("smollm2-135m",),
        notes=("Prompt lookup has no q: laws that need one do not apply.", _LOCAL),
    ),
    Subject(
        "smollm2-eagle3",
        "smollm2-135m (EAGLE-3 head)",
        "SmolLM2-135M-Instruct",
        "the EAGLE-3 head that comes with hf_lossy",
        _start(
            "from pathlib import Path\n\n"
            + _hub(
                _SMOLLM2,
                'folder = Path(hf_lossy.__file__).parent / "assets" / "smollm2-135m-eagle3"\n'
                "head = hf_lossy.Eagle3Head.from_pretrained(folder, target)",
            ),
            _CHAT,
            "assistant_model=head",
        ),
        base_model=(_SMOLLM2,),
        local=("smollm2-135m", "smollm2-135m-eagle3"),
        notes=("Few prompts of a few dozen tokens: the intervals are wide.", _LOCAL),
    ),
)
"""The pairs that cards know by name."""


def cards(root: Path) -> dict[Path, Card]:
    """Every card of the repository, by where it is written, relative to ``root``.

    A head's is written twice: among the cards, and beside the weights, where its ``training.json`` has a shorter name. A
    result folder of a pair that :data:`SUBJECTS` doesn't know gets a card too.

    Raises:
        LossyError: ``root`` is no checkout of this repository, or a result file can't be read.
    """
    if not (root / RESULTS).is_dir():
        raise LossyError(
            f"{root} has no folder {RESULTS}: run this in a checkout of hf_lossy, or give a folder of results"
        )
    found: dict[Path, Card] = {}
    for head in HEADS:
        training, bench = root / head.folder / "training.json", _bench(root, head.pair)
        found[CARDS / f"{head.name}.md"] = head_card(File(training, f"{head.folder.as_posix()}/training.json"), bench)
        found[head.folder / "README.md"] = head_card(File(training, "training.json"), bench)
    for folder in sorted(path for path in (root / EMBEDDED).iterdir() if path.is_dir()):
        models = sorted(folder.glob("*/training.json"), key=lambda path: path.parent.name != "target")
        files = [File(path, path.relative_to(root).as_posix()) for path in models if path.parent.name != "eagle3"]
        found[CARDS / f"models-{folder.name}.md"] = embedded_card(folder.name, files)
    evaluations = [
        Evaluation(path.parent, path.parent.relative_to(root).as_posix())
        for path in sorted((root / RESULTS).rglob("summary.json"))
    ]
    known = {subject.name: subject for subject in (*map(subject_of, evaluations), *SUBJECTS)}
    for subject in known.values():
        mine, bench = [one for one in evaluations if subject_of(one).name == subject.name], _bench(root, subject.name)
        if mine or bench is not None:
            found[CARDS / f"pair-{subject.name}.md"] = pair_card(subject, mine, bench)
    return found


def subject_of(one: Evaluation) -> Subject:
    """Whose evaluation it is: a pair of :data:`SUBJECTS` by its name or its folders, or one made from its settings."""
    settings = one.file.get("settings")
    local = tuple(Path(settings[part]).name for part in ("target", "draft") if settings.get(part))
    for subject in SUBJECTS:
        if one.pair in (subject.name, subject.called) or (local and local == subject.local):
            return subject
    target, draft = settings.get("target") or one.pair, settings.get("draft") or "prompt lookup"
    hub = tuple(source for source in (settings.get("target"), settings.get("draft")) if source and _is_hub_id(source))
    name = "-".join(local).lower() or one.pair.split(" ")[0]
    start = _two_models(target, draft) if settings.get("draft") else _prompt_lookup(target)
    return Subject(name, one.pair, Path(target).name, Path(draft).name, start, base_model=hub)


def card_of(folders: Sequence[Path], bench: Path | None = None) -> Card:
    """The card of a head's folder, or of result folders of one pair, whose files it calls by their folders' names.

    Args:
        folders: one with ``training.json``, or some with ``summary.json``.
        bench: the pair's file of ``hf-lossy bench --write``; a head of this repository has its own unless given.

    Raises:
        LossyError: a folder that is neither, or results of several pairs.
    """
    measured = None if bench is None else File(bench)
    if len(folders) == 1 and (folders[0] / "training.json").is_file():
        return head_card(File(folders[0] / "training.json"), measured or _bench_of_head(folders[0].resolve()))
    for folder in folders:
        if not (folder / "summary.json").is_file():
            raise LossyError(f"{folder} is neither a head (training.json) nor a result folder (summary.json)")
    evaluations = [Evaluation(folder, folder.resolve().name) for folder in folders]
    subjects = {subject_of(one).name: subject_of(one) for one in evaluations}
    if len(subjects) > 1:
        raise LossyError(f"the folders hold results of several pairs, {', '.join(subjects)}: make a card for each")
    return pair_card(next(iter(subjects.values())), evaluations, measured)


def write_all(root: Path) -> list[Path]:
    """Write every card of the repository, and a list of them; returns what changed, relative to ``root``."""
    made = cards(root)
    texts = {path: str(card) for path, card in made.items()} | {CARDS / "README.md": index(made)}
    changed = [path for path, text in texts.items() if not _says(root / path, text)]
    for path in changed:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(texts[path], encoding="utf-8")
    return changed


def index(made: dict[Path, Card]) -> str:
    """The list of the cards in their folder."""
    lines = [
        f"- [{card.card.text.strip().splitlines()[0].removeprefix('# ')}]({path.name})"
        for path, card in sorted(made.items())
        if path.parent == CARDS
    ]
    return "# Model cards\n\nMade by `make cards` from the result files that each names.\n\n" + "\n".join(lines) + "\n"


def _says(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _bench(root: Path, pair: str) -> File | None:
    path = RESULTS / "bench" / f"{pair}.json"
    return File(root / path, path.as_posix()) if (root / path).is_file() else None


def _bench_of_head(folder: Path) -> File | None:
    for head in HEADS:
        if folder.parts[-len(head.folder.parts) :] == head.folder.parts:
            return _bench(folder.parents[len(head.folder.parts) - 1], head.pair)
    return None


def _is_hub_id(source: str) -> bool:
    return source.count("/") == 1 and not source.startswith((".", "/", "~")) and not Path(source).exists()
