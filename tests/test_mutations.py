"""The tests themselves are tested: with a known bug put back they turn red. Minutes; `make slow`."""

from __future__ import annotations

import shutil

import pytest

from .mutate import BUGS, ROOT, noticed, put_back, tried


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_still_has_its_place(bug, tmp_path):
    """The line that a bug replaces is there, and what comes out is Python."""
    (tmp_path / bug.file).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / "hf_lossy" / bug.file, tmp_path / bug.file)
    put_back(bug, tmp_path)
    compile((tmp_path / bug.file).read_text(), bug.file, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("tests", sorted({bug.tests for bug in BUGS}), ids=" ".join)
def test_without_a_bug_the_tests_are_green(tests):
    status, output = tried(tests)
    assert status == 0, output


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_noticed(bug):
    seen, output = noticed(bug)
    assert seen, output
