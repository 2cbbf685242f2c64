"""hf-lossy push: what is gathered, what is refused, and uploads to a Hub on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, constants
from typer.testing import CliRunner

import hf_lossy
from hf_lossy.cli import app
from hf_lossy.hub import package, upload

from .hub_stub import TOKEN, Hub

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes/custom_generate"
SCRIPT = ROOT / "recipes/train_eagle3.py"
HEAD = ROOT / "hf_lossy/embedded/models/arithmetic/eagle3"
RESULT = ROOT / "docs/results/eagle3-pitfall"
BENCH = "docs/results/bench/arithmetic-eagle3.json"
REPO = "someone/some-name"
SOURCES = {"recipe": RECIPE, "script": SCRIPT, "head": HEAD, "result": RESULT}
A_TOKEN = "hf_" + "q" * 34


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub to upload to, with a token, and no other one within reach."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # read from the environment when huggingface_hub is imported
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stub speaks LFS, what a client without hf_xet uses
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with Hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        yield server


# --- gathering -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOURCES)
def test_a_package_has_its_files_and_a_card(kind):
    made = package(SOURCES[kind], REPO)
    expected = {
        "recipe": {"README.md", "custom_generate/generate.py", "custom_generate/requirements.txt"},
        "script": {"README.md", "train_eagle3.py"},
        "head": {"README.md", "config.json", "model.safetensors", "training.json", BENCH},
        "result": {"README.md", *(f"eagle3-pitfall/{path.name}" for path in RESULT.iterdir())},
    }
    assert set(made.files) == expected[kind]
    card = ModelCard(made.card)
    assert card.data.license == "apache-2.0"
    assert card.data.tags
    if kind in ("head", "result"):
        for name in re.findall(r"`([^`\n]+\.(?:json|yaml))`", made.card):
            assert name in made.files, f"the card names {name}, which is not uploaded"
    assert "<user>" not in made.card
    if kind == "head":
        assert made.card == (HEAD / "README.md").read_text()
        other = package(HEAD, REPO, ROOT / "docs/results/bench/smollm2-eagle3.json")
        assert "smollm2-eagle3.json" in other.files
    if kind == "recipe":
        assert f'custom_generate="{REPO}"' in made.card
        assert "custom_generate" in card.data.tags
    if kind == "script":
        assert f"uv run {constants.ENDPOINT}/{REPO}/resolve/main/train_eagle3.py" in made.card
        assert "Train an EAGLE-3 head" in made.card


def test_hidden_files_and_caches_stay_behind_and_are_listed(tmp_path):
    folder = tmp_path / "recipe"
    shutil.copytree(RECIPE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".git/config", "custom_generate/__pycache__/x.pyc", ".DS_Store"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    made = package(folder, REPO)
    assert made.left_out == [".DS_Store", ".git/config", "custom_generate/__pycache__/x.pyc"]
    assert not set(made.left_out) & set(made.files)


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("name", "has no owner: give user/name"),
        ("a/b/c", "is no name of a repository"),
        ("some one/x", "is no name of a repository"),
        ("user/na--me", "is no name of a repository"),
        ("", "is no name of a repository"),
    ],
)
def test_a_wrong_repository_name_is_refused(repo, message):
    with pytest.raises(hf_lossy.LossyError, match=message):
        package(RECIPE, repo)


def test_what_can_not_be_pushed_is_refused(tmp_path):
    with pytest.raises(hf_lossy.LossyError, match=r"does not exist: give a folder with custom_generate/generate\.py"):
        package(tmp_path / "none", REPO)
    with pytest.raises(hf_lossy.LossyError, match="is none of what can be pushed"):
        package(tmp_path, REPO)
    script = tmp_path / "s.py"
    script.write_text('"""Says hello."""\n')
    with pytest.raises(hf_lossy.LossyError, match=r"no inline metadata.*PEP 723"):
        package(script, REPO)
    script.write_text("# /// script\n# dependencies = []\n# ///\nprint()\n")
    with pytest.raises(hf_lossy.LossyError, match="no docstring"):
        package(script, REPO)
    folder = tmp_path / "recipe"
    shutil.copytree(RECIPE, folder)
    card = (folder / "README.md").read_text()
    (folder / "README.md").write_text(card.replace("tags: [custom_generate]", "tags: [other]"))
    with pytest.raises(hf_lossy.LossyError, match="lacks the tag custom_generate"):
        package(folder, REPO)
    (folder / "README.md").unlink()
    with pytest.raises(hf_lossy.LossyError, match=r"has no README\.md"):
        package(folder, REPO)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", f"first\nmine is {A_TOKEN}\n", "notes.txt holds a Hugging Face token in line 2"),
        ("custom_generate/generate.py", f"KEY = '{'AKIA' + 'Q' * 16}'\n", "holds an AWS key in line 1"),
        ("key.txt", "-----BEGIN RSA PRIVATE KEY-----\n", "holds a private key in line 1"),
        ("weights.txt", "ghp_" + "a" * 36, "holds a GitHub token"),
        (".env", "X=1", r"\.env holds secrets by its name"),
        ("server.pem", "x", r"server\.pem holds secrets by its name"),
    ],
    ids=["hub", "aws", "key", "github", "env", "pem"],
)
def test_secrets_are_refused_and_not_repeated(name, content, message, tmp_path):
    folder = tmp_path / "recipe"
    shutil.copytree(RECIPE, folder)
    (folder / name).write_text(content)
    with pytest.raises(hf_lossy.LossyError, match=message) as error:
        package(folder, REPO)
    assert A_TOKEN not in str(error.value)


def test_no_committed_source_holds_a_secret():
    for source in SOURCES.values():
        package(source, REPO)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    folder = tmp_path / "recipe"
    shutil.copytree(RECIPE, folder)
    with (folder / "states.bin").open("wb") as file:
        file.truncate(3_000_001)  # a hole: takes no space
    with pytest.raises(hf_lossy.LossyError, match=r"states\.bin has 3 MB, allowed are 2"):
        package(folder, REPO, largest=2)
    assert "states.bin" in package(folder, REPO, largest=4).files


# --- uploading -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own LFS upload
@pytest.mark.parametrize("kind", SOURCES)
def test_everything_arrives_in_one_commit(kind, hub):
    made = package(SOURCES[kind], REPO)
    assert upload(made) == f"{hub.url}/{REPO}/commit/1"
    assert hub.elsewhere == []
    assert [repo for repo, _ in hub.commits] == [REPO]
    arrived = hub.repos[REPO]
    assert set(arrived) == set(made.files)
    for name, content in made.files.items():
        assert arrived[name] == (content.encode() if isinstance(content, str) else content.read_bytes()), name
    assert len(hub.blobs) == (kind == "head")  # the weights went by LFS, the rest in the commit
    assert not hub.private[REPO]


def test_a_second_upload_goes_to_the_same_repository(hub):
    upload(package(RECIPE, REPO), private=True)
    upload(package(SCRIPT, REPO))
    assert hub.private[REPO]
    assert len(hub.commits) == 2
    assert {"train_eagle3.py", "custom_generate/generate.py"} <= set(hub.repos[REPO])


def test_what_the_hub_refuses_is_told(hub, monkeypatch):
    made = package(RECIPE, REPO)
    monkeypatch.setenv("HF_TOKEN", "another-token")
    with pytest.raises(
        hf_lossy.LossyError, match=rf"{REPO} was not uploaded .*401.*check the name, the token's rights"
    ):
        upload(made)
    assert hub.repos == {}
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.fails = f"/api/models/{REPO}/commit"
    with pytest.raises(hf_lossy.LossyError, match=r"was not uploaded .*500"):
        upload(made)
    assert hub.repos == {REPO: {}}
    made.files["README.md"] = "---\nlicense: [1]\n---\n"
    with pytest.raises(hf_lossy.LossyError, match="license"):
        upload(made)
    assert hub.commits == []


def test_no_token_no_network_and_no_server(hub, monkeypatch):
    made = package(RECIPE, REPO)
    with pytest.raises(hf_lossy.LossyError, match="was not uploaded"):
        upload(made, endpoint="http://127.0.0.1:9")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(hf_lossy.LossyError, match="no Hub token: run hf auth login, or set HF_TOKEN"):
        upload(made)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(hf_lossy.LossyError, match="HF_HUB_OFFLINE is set"):
        upload(made)
    assert hub.repos == {}


def test_the_command_shows_what_it_would_upload(hub):
    result = CliRunner().invoke(app, ["push", str(RESULT), "--repo", REPO])
    assert result.exit_code == 0
    for path in RESULT.iterdir():
        assert re.search(rf"eagle3-pitfall/{re.escape(path.name)} .*\b{path.stat().st_size:,}\b", result.stdout)
    assert package(RESULT, REPO).card in result.stdout
    assert "dry run: nothing was uploaded" in result.stdout
    assert (hub.repos, hub.elsewhere) == ({}, [])


def test_the_command_as_a_user_runs_it(tmp_path):
    """HF_ENDPOINT and HF_TOKEN from the environment."""
    with Hub() as hub:
        settings = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path)}
        settings |= {"HF_HUB_DISABLE_TELEMETRY": "1", "COLUMNS": "200"}
        env = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")} | settings
        command = [sys.executable, "-m", "hf_lossy", "push", str(HEAD), "--repo", REPO, "--upload"]
        sent = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
        assert sent.returncode == 0, sent.stderr
        assert f"uploaded: {hub.url}/{REPO}/commit/1" in sent.stdout
        assert f"{(HEAD / 'model.safetensors').stat().st_size:,}" in sent.stdout
        assert hub.repos[REPO]["model.safetensors"] == (HEAD / "model.safetensors").read_bytes()
        assert hub.elsewhere == []
