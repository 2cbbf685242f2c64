"""What goes into a Hub repository: the files of a recipe, a head or a result folder, with their card; and the upload.

:func:`package` gathers and checks, and touches no network; :func:`upload` creates the repository, where it is not there, and
puts everything into one commit, by ``huggingface_hub``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, ModelCardData, constants, get_token
from huggingface_hub.utils import HFValidationError, validate_repo_id

from .cards import card_of
from .errors import LossyError

CARD = "README.md"
GENERATE = "custom_generate/generate.py"
PLACEHOLDER = "<user>/hf-lossy"
"""What the recipe's own card calls the repository."""
INLINE = re.compile(r"^# /// script$\s(^#(?:| .*)$\s)+^# ///$", re.MULTILINE)
"""The inline metadata of a single-file script (PEP 723)."""
SECRETS = {
    "a Hugging Face token": re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b"),
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "an AWS key": re.compile(rb"\bAKIA[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(rb"\bgh[pousr]_[A-Za-z0-9]{36,}\b"),
    "an API key": re.compile(rb"\bsk-[A-Za-z0-9_-]{32,}\b"),
}
SECRET_FILES = re.compile(
    r"\.env(\..+)?|\.netrc|id_(rsa|ed25519|ecdsa)|.+\.(pem|p12|pfx)|token|credentials", re.IGNORECASE
)
LEFT_OUT = re.compile(r"(^|/)(\.[^/]*|__pycache__|checkpoint\.pt|[^/]*\.(tmp|pyc))(/|$)")
"""Hidden files, caches and the state of unfinished training: they stay behind, and are listed."""
LARGEST = 500
"""Megabytes that a file may have unless told: ten times the largest this package makes."""


@dataclass(frozen=True)
class Package:
    """A repository to be.

    Attributes:
        repo: ``user/name``.
        kind: what it is, in words.
        files: what lies where: a path on disk, or text that was made.
        left_out: files of the folder that stay behind.
    """

    repo: str
    kind: str
    files: dict[str, Path | str]
    left_out: list[str]

    @property
    def card(self) -> str:
        """The text of the card."""
        card = self.files[CARD]
        return card if isinstance(card, str) else card.read_text(encoding="utf-8")

    def size(self, name: str) -> int:
        """Bytes of a file."""
        content = self.files[name]
        return len(content.encode()) if isinstance(content, str) else content.stat().st_size


def package(source: Path, repo: str, bench: Path | None = None, largest: int = LARGEST) -> Package:
    """Gather a repository's files, make its card, and check both.

    Args:
        source: a folder with ``custom_generate/generate.py``, a script with inline metadata, a head's folder, or a result
            folder.
        repo: ``user/name``.
        bench: for the card of a head or a result, the pair's file of ``hf-lossy bench --write``; it is uploaded too.
        largest: megabytes that a file may have.

    Raises:
        LossyError: a source that is none of these, a name the Hub does not allow, a card without metadata, files that are
            too large or hold something secret.
    """
    check_repo(repo)
    made = _package(source, repo, bench)
    if not ModelCard(made.card).data.to_dict():
        raise LossyError(
            f"{source}/{CARD} begins with no metadata: put license, library_name and tags between two lines ---"
        )
    for name in made.files:
        if made.size(name) > largest * 1e6:
            raise LossyError(
                f"{name} has {made.size(name) / 1e6:,.0f} MB, allowed are {largest}: move it out of {source}, or raise "
                "--largest if it belongs there"
            )
    for name, what in secrets(made):
        raise LossyError(f"{name} holds {what}: take it out before anything is uploaded (and revoke it if it ever was)")
    return made


def upload(made: Package, private: bool = False, endpoint: str | None = None) -> str:
    """Create the repository if it is not there, and put all files into one commit; returns the commit's address.

    Args:
        private: whether a repository that is created is private.
        endpoint: of the Hub; ``HF_ENDPOINT`` unless given.

    Raises:
        LossyError: no token, no network wanted, or what the Hub answered.
    """
    if constants.HF_HUB_OFFLINE:
        raise LossyError("HF_HUB_OFFLINE is set, and an upload needs the network: unset it, or leave out --upload")
    token = get_token()
    if token is None:
        raise LossyError("there is no Hub token: run hf auth login, or set HF_TOKEN to one that may write")
    api = HfApi(endpoint=endpoint, token=token, library_name="hf_lossy")
    operations = [
        CommitOperationAdd(name, content.encode() if isinstance(content, str) else content)
        for name, content in made.files.items()
    ]
    try:
        api.create_repo(made.repo, repo_type="model", private=private or None, exist_ok=True)
        commit = api.create_commit(made.repo, operations, commit_message=f"Upload {made.kind} with hf-lossy push")
    except Exception as error:  # whatever the Hub or the network says: nothing was committed; the cause is chained
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())[:300]
        raise LossyError(
            f"{made.repo} was not uploaded ({type(error).__name__}: {reason}): check the name, the token's rights and the "
            "network, then run the same command again"
        ) from error
    return str(commit.commit_url)


def check_repo(repo: str) -> None:
    """Raise unless a name is one that the Hub allows."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise LossyError(f"--repo {repo!r} is no name of a repository: {error}") from error
    if "/" not in repo:
        raise LossyError(f"--repo {repo!r} has no owner: give user/name or organization/name")


def secrets(made: Package) -> Iterator[tuple[str, str]]:
    """Name of each file that holds something secret, with where and what it is; never the secret itself."""
    for name, content in made.files.items():
        if SECRET_FILES.fullmatch(Path(name).name):
            yield name, "secrets by its name"
        if isinstance(content, Path) and b"\0" in _head(content):
            continue  # weights
        data = content.encode() if isinstance(content, str) else content.read_bytes()
        for number, line in enumerate(data.splitlines(), 1):
            for what, pattern in SECRETS.items():
                if pattern.search(line):
                    yield name, f"{what} in line {number}"


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8192)


# --- the kinds of sources --------------------------------------------------------------------------------------------


def _package(source: Path, repo: str, bench: Path | None) -> Package:
    if source.suffix == ".py" and source.is_file():
        return _script(source, repo)
    if (source / GENERATE).is_file():
        return _recipe(source, repo)
    if (source / "training.json").is_file() and (source / "config.json").is_file():
        return _carded(source, repo, "an EAGLE-3 head", "", bench)
    if (source / "summary.json").is_file():
        return _carded(source, repo, "evaluation results", f"{source.resolve().name}/", bench)
    state = "is none of what can be pushed" if source.exists() else "does not exist"
    raise LossyError(
        f"{source} {state}: give a folder with {GENERATE}, a script with inline metadata, a head's folder (config.json, "
        "training.json) or a result folder (summary.json)"
    )


def _recipe(folder: Path, repo: str) -> Package:
    files, left_out = _files(folder)
    if CARD not in files:
        raise LossyError(f"{folder} has no {CARD}: write one with the tag custom_generate, so that the Hub finds it")
    text = (folder / CARD).read_text(encoding="utf-8")
    if "custom_generate" not in (ModelCard(text).data.tags or []):
        raise LossyError(f"{folder}/{CARD} lacks the tag custom_generate: put it under tags, so that the Hub finds it")
    return Package(repo, "a generation recipe", files | {CARD: text.replace(PLACEHOLDER, repo)}, left_out)


def _script(script: Path, repo: str) -> Package:
    text = script.read_text(encoding="utf-8")
    if not INLINE.search(text):
        raise LossyError(
            f"{script} has no inline metadata: begin it with '# /// script', its dependencies and '# ///' (PEP 723), so "
            "that uv run installs what it needs"
        )
    said = ast.get_docstring(ast.parse(text))
    if not said:
        raise LossyError(f"{script} has no docstring: say what it does, for the card")
    data = ModelCardData(license="apache-2.0", library_name="hf_lossy", tags=["hf_lossy", "recipe", "uv-script"])
    address = f"{constants.ENDPOINT}/{repo}/resolve/main/{script.name}"
    card = (
        f"---\n{data.to_yaml()}\n---\n\n# {script.stem}\n\n{said}\n\n"
        "## Run it\n\nuv installs what the script names, hf-lossy from the package index:\n\n"
        f"    uv run {address} --help\n    hf jobs uv run {address} --help\n"
    )
    return Package(repo, "a recipe", {CARD: card, script.name: script}, [])


def _carded(folder: Path, repo: str, kind: str, under: str, bench: Path | None) -> Package:
    """A folder whose card is made from its files, with every file that the card names."""
    files, left_out = _files(folder)
    card = card_of([folder], bench)
    cited: dict[str, Path | str] = {file.label: file.path for file in card.files}
    return Package(
        repo, kind, {under + name: path for name, path in files.items()} | cited | {CARD: str(card)}, left_out
    )


def _files(folder: Path) -> tuple[dict[str, Path | str], list[str]]:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    left_out = [name for name in names if LEFT_OUT.search(name) and not SECRET_FILES.fullmatch(Path(name).name)]
    return {name: folder / name for name in names if name not in left_out}, left_out
