"""The recipes: scripts that bring their own dependencies, and the folder for transformers' custom_generate."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hf_lossy
from hf_lossy.hub import INLINE

from . import models

if sys.version_info >= (3, 11):
    import tomllib
else:  # huggingface_hub brings it there
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS = sorted((ROOT / "recipes").glob("*.py"))
FOLDER = ROOT / "recipes/custom_generate"


def metadata(script: Path) -> dict:
    """The inline metadata, read as PEP 723 says."""
    blocks = list(INLINE.finditer(script.read_text()))
    assert len(blocks) == 1
    lines = blocks[0].group(0).splitlines()[1:-1]
    return tomllib.loads("\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))


def imported(script: Path) -> set[str]:
    """The top-level modules that a script imports, the standard library's left out."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a single file has nothing beside it"
            found.add(str(node.module).split(".")[0])
    return found - sys.stdlib_module_names


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_brings_what_it_imports(script):
    found = metadata(script)
    assert set(found) == {"requires-python", "dependencies"}
    assert found["requires-python"] == PROJECT["requires-python"]
    requirements = [Requirement(text) for text in found["dependencies"]]
    (ours,) = (one for one in requirements if canonicalize_name(one.name) == PROJECT["name"])
    assert ours.extras <= PROJECT["optional-dependencies"].keys()
    brought = [
        *PROJECT["dependencies"],
        *(text for extra in ours.extras for text in PROJECT["optional-dependencies"][extra]),
    ]
    distributions = {canonicalize_name(one.name) for one in [*requirements, *map(Requirement, brought)]}
    known = importlib.metadata.packages_distributions()
    for module in imported(script):
        names = {"hf-lossy"} if module == "hf_lossy" else {canonicalize_name(name) for name in known[module]}
        assert names & distributions, f"{script.name} imports {module}, which its dependencies do not bring"
    for one in requirements:
        if one is not ours:
            modules = {module for module, names in known.items() if one.name in map(canonicalize_name, names)}
            assert modules & imported(script), f"{script.name} does not use {one.name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_says_what_it_is_for_and_runs_as_a_program(script):
    tree = ast.parse(script.read_text())
    said = ast.get_docstring(tree)
    assert said is not None
    assert f"recipes/{script.name}" in said
    assert script.read_text().rstrip().endswith('if __name__ == "__main__":\n    main()')


# --- the Hub folder --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_modules")
def test_requirements_are_checked(tmp_path):
    folder = tmp_path / "recipe"
    shutil.copytree(FOLDER, folder)
    requirements = folder / "custom_generate/requirements.txt"
    requirements.write_text(requirements.read_text() + "hf-lossy>=99\n")
    ids = models.char_tokenizer()("ab", return_tensors="pt")["input_ids"]
    with pytest.raises(ImportError, match=r"hf-lossy>=99 \(installed: "):
        models.target().generate(ids, custom_generate=str(folder), trust_remote_code=True, max_new_tokens=2)


@pytest.mark.usefixtures("_modules")
def test_the_relative_path_of_the_documentation_works_offline(monkeypatch):
    monkeypatch.chdir(ROOT)
    target, draft, tokenizer = hf_lossy.embedded.load("arithmetic")
    inputs = tokenizer("14 4 1 1 21 :", return_tensors="pt", return_token_type_ids=False)
    call = {"assistant_model": draft, "verification": "lossless", "do_sample": False, "max_new_tokens": 8}
    out = target.generate(
        **inputs,
        **call,
        custom_generate="recipes/custom_generate",
        trust_remote_code=True,
        return_dict_in_generate=True,
    )
    assert out.sequences.equal(target.generate(**inputs, do_sample=False, max_new_tokens=8))
    assert out.verification.block_efficiency > 1


def test_the_card_describes_every_new_argument_and_what_comes_back():
    card = (FOLDER / "README.md").read_text()
    new, back = card.split("## New arguments")[1].split("## What comes back")
    described = set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in new.splitlines() if "|" in line)))
    given = {field.name for field in dataclasses.fields(hf_lossy.Options)}
    transformers_own = {
        "assistant_model",
        "prompt_lookup_num_tokens",
        "assistant_tokenizer",
        "assistant_confidence_threshold",
        "num_assistant_tokens_schedule",
        "streamer",
        "tokenizer",
        "stop_strings",
    }
    assert described == given - transformers_own
    theirs = {field.name for field in dataclasses.fields(hf_lossy.LossyDecoderOnlyOutput)}
    from transformers.generation import GenerateDecoderOnlyOutput

    for name in theirs - {field.name for field in dataclasses.fields(GenerateDecoderOnlyOutput)}:
        assert f"`{name}`" in back
