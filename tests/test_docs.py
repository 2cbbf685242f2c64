"""Every code block of the README and the documentation runs.

- Python blocks run as they stand, in this process: those of README and CONTRIBUTING each by itself, those of a page of the
  documentation one after another, as they are read. A block with a title is a file; `test_the_law_of_the_docs` has it.
- Commands of shell blocks (and of indented blocks, which other indented text is not) are run where :data:`RUN` has the
  command, with its arguments behind, which make it small; all others are only parsed, by the parser that would read them.
- Names of models on the Hub stand for the embedded ones (:data:`HUB`, :data:`PLACEHOLDERS`), and data sets for one made
  here: nothing can be downloaded, and no block is left out for it.
"""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml
from markdown_it import MarkdownIt

import hf_lossy
from hf_lossy import embedded
from hf_lossy.cli import app

from .test_cli import run  # noqa: F401  a fixture

ROOT = Path(__file__).parent.parent
ALONE = ["README.md", "CONTRIBUTING.md"]
"""Pages whose Python blocks each stand alone."""
PAGES = [*ALONE, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]

HUB = {
    "Qwen/Qwen2.5-7B-Instruct": "target",
    "Qwen/Qwen2.5-0.5B-Instruct": "draft-natural",
    "HuggingFaceTB/SmolLM2-360M-Instruct": "target",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "draft-natural",
    "meta-llama/Llama-3.1-8B-Instruct": "target",
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": "eagle3",
}
"""Models on the Hub that blocks may name: the part of the embedded pair that stands for each."""
PLACEHOLDERS = {"TARGET": "target", "DRAFT": "draft-natural", "HEAD": "eagle3"}
RUN = {
    "compare": ("--prompts", "1", "--max-new-tokens", "8", "--threads", "1"),
    "evaluate": ("--limit", "2", "--max-new-tokens", "8", "--threads", "1"),
    "laws": (),
    "report": (),
}
"""Commands of hf-lossy that are run, with what is put behind to make them small. The others are only parsed: inspect and
bench, which time forwards for as long as that takes; they are run in test_cli.py and test_bench.py."""
SHELL = ("bash", "console", "sh", "shell")
PROGRAMS = ("hf-lossy", "make", "pip", "python", "uv", "accelerate", ".ci/run")


@dataclass(frozen=True)
class Block:
    """A code block: its language (empty where it is indented), its title, and where it begins."""

    language: str
    title: str | None
    code: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language, *more = shlex.split(token.info) or [""]
            options = dict(option.partition("=")[::2] for option in more)
            yield Block(language, options.get("title"), token.content, token.map[0] + (token.type == "fence"))


def commands(block: Block) -> list[list[str]]:
    """The commands of a block as lists of arguments, without comments."""
    lines = block.code.replace("\\\n", " ").splitlines()
    found = [shlex.split(line.strip().removeprefix("$ "), comments=True) for line in lines]
    found = [words for words in found if words]
    if block.language in SHELL:
        assert all(words[0] in PROGRAMS for words in found), f"line {block.line}: no rule for one of {found}"
    return [words for words in found if words[0] in PROGRAMS]


@pytest.fixture(scope="session")
def hub(tmp_path_factory) -> dict[str, str]:
    """The folders that stand for models on the Hub: the embedded ones, with what an instruct model's have besides."""
    root = tmp_path_factory.mktemp("hub")
    folders = {}
    for part in sorted({*HUB.values()}):
        folder = root / part
        shutil.copytree(embedded.path("arithmetic", part), folder)
        if (folder / "tokenizer_config.json").is_file():
            config = json.loads((folder / "tokenizer_config.json").read_text())
            config |= {"model_input_names": ["input_ids", "attention_mask"]}
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} : {% endfor %}")
        folders[part] = str(folder)
    return folders


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """An empty folder to be in, with one record for every task that a command may name."""
    monkeypatch.chdir(tmp_path)
    record = {"question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"}
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps(record) + "\n")
    return tmp_path


def run_python(code: str, page: str, line: int, namespace: dict[str, object]) -> None:
    exec(compile("\n" * line + code, page, "exec"), namespace)
    assert not hf_lossy.generation.is_enabled(), f"{page}: the block at line {line} leaves generate() patched"


def parse(args: list[str]) -> str:
    """The name of the command that hf-lossy's own parser takes the arguments for; an error where it refuses them."""
    group = typer.main.get_command(app)
    with group.context_class(group) as context:
        name, command, rest = group.resolve_command(context, list(args))
        command.make_context(name, rest, parent=context)
    return name


def parse_script(path: str, args: list[str], monkeypatch, capsys) -> None:
    """Every option must be one that the script's --help lists."""
    monkeypatch.setattr(sys, "argv", [path, "--help"])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / path), run_name="__main__")
    assert not stop.value.code
    said = capsys.readouterr().out
    assert not [arg for arg in args if arg.startswith("--") and arg not in said]


def try_command(words: list[str], hub: dict[str, str], run, monkeypatch, capsys) -> bool:  # noqa: F811
    """Run or parse a command; whether it was run."""
    program, *args = words
    parts = HUB | PLACEHOLDERS
    args = [hub[parts[arg]] if arg in parts else arg for arg in args]
    if program == "hf-lossy":
        if "..." in args or not args:
            raise AssertionError(f"{words}: not a whole command")
        name = parse(args)
        if name not in RUN:
            return False
        small = list(RUN[name])
        if "--task" in args and "clock_sums" not in args and "--data" not in args:
            small += ["--data", "."]
        result = run(*args, *small)
        assert result.returncode == 0, result.stderr
        return True
    if program == "make":
        targets = (ROOT / "Makefile").read_text()
        assert all("=" in target or f"\n{target}: " in targets for target in args), words
    elif program == "pip":
        extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M))
        for arg in args:
            name, bracket, wanted = arg.rstrip("]").partition("[")
            assert not bracket or name not in ("hf-lossy", ".") or set(wanted.split(",")) <= extras, words
    elif program == "accelerate":
        from accelerate.commands.launch import launch_command_parser

        assert args[0] == "launch"
        launched = launch_command_parser().parse_args(args[1:])
        assert (launched.module, launched.training_script) == (True, "hf_lossy")
        parse(launched.training_script_args)
    elif program in ("python", "uv"):
        path, *options = args[1:] if program == "uv" else args
        parse_script(path, options, monkeypatch, capsys)
    else:
        assert (ROOT / program).is_file()
    return False


def try_page(page: str, text: str, hub, workplace, run, monkeypatch, capsys, record_property) -> None:  # noqa: F811
    counts = {"python": 0, "run": 0, "parsed": 0}
    namespace: dict[str, object] = {}
    for block in blocks(text):
        if block.language == "python" and block.title is None:
            code = block.code
            for name, part in HUB.items():
                code = code.replace(f'"{name}"', repr(hub[part]))
            if page in ALONE:
                namespace = {}
            run_python(code, page, block.line, namespace)
            counts["python"] += 1
        elif block.language == "yaml":
            assert yaml.safe_load(block.code)
            if block.title:
                (workplace / block.title).write_text(block.code)
        elif block.language in SHELL or not block.language:
            for words in commands(block):
                counts["run" if try_command(words, hub, run, monkeypatch, capsys) else "parsed"] += 1
        else:
            assert block.language in ("python", "text"), f"{page}: no rule for {block.language} at line {block.line}"
    record_property("documentation", counts)


@pytest.mark.parametrize("page", PAGES)
def test_page(page, hub, workplace, run, monkeypatch, capsys, record_property):  # noqa: F811
    try_page(page, (ROOT / page).read_text(), hub, workplace, run, monkeypatch, capsys, record_property)


# --- the pages made from the registry --------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch):
    """scripts/docs/registry.py"""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "docs")
    return importlib.import_module("registry")


@pytest.mark.parametrize("name", hf_lossy.laws())
def test_page_of_a_law(name, registry, hub, workplace, run, monkeypatch, capsys, record_property):  # noqa: F811
    text = registry.page(name)
    try_page(f"laws/{name}.md", text, hub, workplace, run, monkeypatch, capsys, record_property)
    cls = hf_lossy.laws.law_class(name)
    for parameter in cls().parameters():
        assert f"| `{parameter}` |" in text
    assert f"matched baseline | [`{cls().matched_baseline()}`]" in text or "matched baseline | itself" in text
    for formula in registry.formulas(cls):
        assert formula.replace("“", "").replace("”", "").isascii()  # every symbol is known
        assert formula.count("{") == formula.count("}")
    for style in registry.STYLES.values():
        assert "</svg>" in registry.position(name, style)
        assert "</svg>" in registry.overshoot(name, style)


def test_formulas_become_tex(registry):
    lenience = hf_lossy.laws.law_class("lenience")
    (block,) = registry.formulas(lenience)
    assert r"\pi & =y+(1-\textstyle\sum y)\cdot (p-q)_{+}/\textstyle\sum (p-q)_{+}" in block
    assert r"y& =\min (q,\ p/\ell )" in block


def test_the_laws_between_target_and_draft_waste_nothing_and_the_others_do(registry):
    """On the pairs of the overview."""
    from hf_lossy.accounting import account

    p, q = registry.random_pairs()
    waste = {name: account(p, q, hf_lossy.law(name).induced(p, q)).wasted_distortion.max() for name in hf_lossy.laws()}
    between = {"lossless", "lenience", "cos", "adaptive_ensemble", "capped_ensemble", "gated_ceiling"}
    assert {name for name, most in waste.items() if most < 1e-9} == between


def test_the_law_of_the_docs(tmp_path):
    """Copied into laws/ it registers, obeys its strict setting, is found by the command line and has a page."""
    titled = [(page, block) for page in PAGES for block in blocks((ROOT / page).read_text()) if block.title]
    (code,) = [block.code for page, block in titled if block.language == "python"]
    package = tmp_path / "hf_lossy"
    subprocess.run(["cp", "-r", ROOT / "hf_lossy", package], check=True)
    (package / "laws" / "halfway.py").write_text(code)
    check = (
        "import torch, hf_lossy, registry; from hf_lossy.cli.common import parse_law;"
        "p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6]);"
        "pi = parse_law('halfway=0.5').induced(p, q);"
        "assert torch.allclose(pi, (p * q).sqrt() / (p * q).sqrt().sum());"
        "assert 'halfway' in hf_lossy.laws() and hf_lossy.Halfway(0).is_strict and hf_lossy.Halfway.reference;"
        "assert registry.page('halfway').startswith('# halfway') and '(halfway.md)' in registry.index();"
        "assert registry.position('halfway', registry.STYLES['dark'])"
    )
    paths = f"{tmp_path}:{ROOT / 'scripts' / 'docs'}"
    env = {"PYTHONPATH": paths, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", check]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert result.returncode == 0, result.stderr


# --- names and links -------------------------------------------------------------------------------------------------


def test_the_readme_names_every_law():
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in hf_lossy.laws())


def test_choosing_a_law_names_every_law():
    text = (ROOT / "docs" / "choosing.md").read_text()
    assert [name for name in hf_lossy.laws() if f"(laws/{name}.md)" not in text] == []


def test_the_evaluation_page_names_every_task():
    from hf_lossy.evaluation.tasks import names

    text = (ROOT / "docs" / "evaluation.md").read_text()
    assert all(f"| `{name}` |" in text for name in names())


def test_the_reference_documents_what_the_package_exports():
    documented = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    assert [name for name in hf_lossy._FROM if f"::: hf_lossy.{name}\n" not in documented] == []


@pytest.mark.parametrize("page", ALONE)
def test_links_lead_to_files(page):
    """Of the pages that MkDocs does not see."""
    tokens = [child for token in MarkdownIt().parse((ROOT / page).read_text()) for child in token.children or ()]
    links = [
        str(token.attrs.get("href") or token.attrs.get("src"))
        for token in tokens
        if token.type in ("link_open", "image")
    ]
    assert links
    relative = [link for link in links if not link.startswith(("http", "#"))]
    assert [link for link in relative if not (ROOT / link.partition("#")[0]).exists()] == []
