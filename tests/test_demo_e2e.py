"""The demo in a browser: headless Chromium drives the served page as a visitor does.

`make test-demo` runs these, and `make screenshots` has them write the pictures of the README.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import hf_lossy
from hf_lossy.demo.compare import laws
from hf_lossy.embedded import clock_sums

ROOT = Path(__file__).parent.parent
PROMPT = "14 4 1 1 21 :"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECOND = 1000
pytestmark = pytest.mark.e2e


@contextlib.contextmanager
def served(*command: str) -> Iterator[str]:
    """The address of a page that a command serves on the port after it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", *command, str(port)], cwd=ROOT)
    try:
        for _ in range(3000):
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            with contextlib.suppress(OSError), urllib.request.urlopen(address) as answer:
                assert b"hf_lossy" in answer.read()
                break
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served("tests.demo_server") as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert found, f"none of {', '.join(CHROMIUM)} is installed: make test-demo installs Debian's chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, url):
    """Open the page as another visitor; an error in its scripts fails the test."""
    contexts, broken = [], []

    def opened(width: int = 1280, height: int = 900):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}))
        page = contexts[-1].new_page()
        page.set_default_timeout(120 * SECOND)
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.goto(url)
        page.wait_for_selector("#run")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert broken == []


def choose(page, name: str, value: str) -> None:
    """Pick an entry of a dropdown."""
    page.click(f"#{name} input")
    page.get_by_role("option", name=value, exact=True).click()


def tab(page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def run(page, prompt: str | None = None) -> None:
    """Press Run and wait for the end of that run, not of the one before."""
    if prompt is not None:
        page.fill("#prompt textarea", prompt)
    page.evaluate("document.querySelector('#status div[role]').dataset.old = 1")
    page.click("#run")
    page.wait_for_selector("#status div[role]:not([data-old]) >> text=/^(done|stopped)/")


def tokens(page, column: int) -> list[tuple[str, str, str]]:
    """Text, classes and tip of each token of a column."""
    found = page.locator(f"#column-{column} .hl-tokens .hl-tok")
    return found.evaluate_all("all => all.map(e => [e.innerText, e.className, e.dataset.tip])")


def set_slider(page, name: str, value: float) -> None:
    box = page.locator(f"#{name} input[type=number]")
    box.fill(str(value))
    box.press("Tab")


# --- what a visitor does ----------------------------------------------------------------------------------------------


def test_a_comparison_is_typed_run_and_read(visit):
    page = visit()
    run(page, PROMPT)
    assert "done" in page.inner_text("#status")
    words = set(clock_sums.WORDS)
    for column in (1, 2, 3):
        found = tokens(page, column)
        assert 8 <= len(found) <= 24
        colours = {c for _, classes, _ in found for c in classes.split()} & {
            "hl-target",
            "hl-accepted",
            "hl-replaced",
            "hl-bonus",
        }
        assert colours == {"hl-target"} if column == 1 else "hl-accepted" in colours
        assert set("".join(text for text, _, _ in found).split()) <= words
        shown = page.inner_text(f"#column-{column}")
        assert re.search(r"✓ right: 9|✗ wrong: it is 9", shown)
        for name in ("tokens/s", "speed-up", "block efficiency", "TV(π, p)", "sequence KL", "max log π/p"):
            assert re.search(re.escape(name) + r"\s+-?[\d.]+", shown), name
    assert "first difference" in page.inner_text(".hl-legend")
    assert all(any("hl-split" in classes for _, classes, _ in tokens(page, c)) for c in (1, 2))


def test_a_token_under_the_pointer_tells_its_probabilities(visit):
    page = visit()
    run(page, PROMPT)
    third = page.locator("#column-3 .hl-tokens .hl-tok").nth(2)
    third.hover()
    told = third.evaluate("e => getComputedStyle(e, '::after').content")
    assert re.search(r"p [\d.<]+.*q [\d.<]+.*π [\d.<]+", told)
    assert "acceptance" in told
    page.mouse.move(0, 0)
    assert third.evaluate("e => getComputedStyle(e, '::after').content") == "none"
    third.focus()  # a tap, or the keyboard
    assert "acceptance" in third.evaluate("e => getComputedStyle(e, '::after').content")


def test_colours_change_without_another_run(visit):
    page = visit()
    run(page, PROMPT)
    before = [text for text, _, _ in tokens(page, 3)]
    page.get_by_label("overshoot").check()
    page.wait_for_selector("#column-3 .hl-tok[class*=hl-over]")
    assert [text for text, _, _ in tokens(page, 3)] == before
    assert all(re.search(r"hl-over\d", classes) for _, classes, _ in tokens(page, 3))


def test_columns_are_set_and_copied_as_code(visit):
    page = visit()
    page.get_by_label("4", exact=True).check()
    page.wait_for_selector("#law-4", state="visible")
    choose(page, "law-4", "speccascade")
    page.wait_for_selector("#strength-4 >> text=p_base")
    set_slider(page, "strength-4", 0.3)
    run(page, PROMPT)
    assert page.inner_text("#column-4 h4") == "speccascade(0.3)"
    page.get_by_text("Copy as code").nth(3).click()
    page.wait_for_selector("text=verification_config")
    code = page.locator(".cm-content >> visible=true").inner_text()
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.split() == "".join(text for text, _, _ in tokens(page, 4)).split()


def test_every_law_of_the_registry_can_be_chosen(visit):
    page = visit()
    page.click("#law-2 input")
    offered = page.get_by_role("option").all_inner_texts()
    assert [text.replace("✓", "").strip() for text in offered] == laws()


def bars(page) -> list[tuple[str, float, str]]:
    """Name, width of π's bar in percent, and region of each token in the law tab."""
    return page.locator("#law-view .hl-bar").evaluate_all(
        "all => all.map(e => [e.querySelector('.hl-name').innerText, "
        "parseFloat(e.querySelector('i.hl-pi').style.width), e.dataset.region])"
    )


def become(page, read, right) -> None:
    """Wait until what is read is right."""
    for _ in range(200):
        if right(seen := read()):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"it stayed at {seen}")


def until(page, change, before) -> None:
    """Wait until what is read differs from before."""
    become(page, change, lambda seen: seen != before)


def test_the_law_follows_its_slider(visit):
    page = visit()
    tab(page, "Law")
    before = bars(page)
    assert len(before) == 6
    assert {region for _, _, region in before} == {"between"}
    set_slider(page, "law-strength", 1)
    widths = "all => all.map(e => ['p', 'pi'].map(n => parseFloat(e.querySelector('i.hl-' + n).style.width)))"
    become(
        page,
        lambda: page.locator("#law-view .hl-bar").evaluate_all(widths),
        lambda shown: len(shown) == 6 and all(p == pytest.approx(pi, abs=0.02) for p, pi in shown),  # strict: π = p
    )
    handle, before = page.locator("#law-strength input[type=range]"), bars(page)
    handle.focus()
    for _ in range(30):
        handle.press("ArrowLeft")
    until(page, lambda: bars(page), before)
    choose(page, "law", "min_p")  # while the slider's last drawings may still be on their way
    become(page, lambda: {region for _, _, region in bars(page)}, lambda regions: "outside A" in regions)
    page.fill("#hand-p textarea, #hand-p input", "1 2 x")
    page.wait_for_selector("#law-view [role=alert]")
    assert "no weight" in page.inner_text("#law-view")
    page.fill("#hand-p textarea, #hand-p input", "1 2 3 4 5 6")
    page.wait_for_selector("#law-view .hl-bar")


def test_the_law_tab_goes_through_the_last_run(visit):
    page = visit()
    run(page, PROMPT)
    tab(page, "Law")
    page.wait_for_selector("#law-view >> text=where column")
    before = page.inner_text("#law-view")
    page.locator("#law-position input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    until(page, lambda: page.inner_text("#law-view"), before)
    assert "where column" in page.inner_text("#law-view")


def test_a_run_can_be_stopped_and_the_next_one_is_whole(visit):
    page = visit()
    tab(page, "Models")
    page.get_by_label("Slow", exact=True).check()
    page.wait_for_selector("#models-status >> text=in use: Slow")
    tab(page, "Compare")
    page.fill("#prompt textarea", PROMPT)
    page.click("#run")
    page.wait_for_selector("#column-1 .hl-written")
    page.wait_for_selector("#column-3 progress")
    page.click("#stop")
    page.wait_for_selector("#status >> text=stopped")
    stopped = len(tokens(page, 1))
    assert 0 < stopped < 20
    assert page.locator("#column-1 .hl-figures").count() == 1  # what there is has its figures
    assert "hl-target" in tokens(page, 1)[0][1]
    tab(page, "Models")
    page.get_by_label("Clock sums (embedded, tiny)").check()
    page.wait_for_selector("#models-status >> text=in use: Clock sums")
    tab(page, "Compare")
    run(page, PROMPT)
    assert "done" in page.inner_text("#status")
    assert len(tokens(page, 1)) > stopped


def test_errors_are_told_and_the_page_goes_on(visit):
    page = visit()
    for prompt, words in (
        ("", "the prompt is empty"),
        ("good morning", "'good' is not one of"),
        ("${1+1}", "'${1+1}' is not one of"),  # text, and no template to gradio
        ("1 " * 60 + ":", "more than the 64"),
    ):
        page.fill("#prompt textarea", prompt)
        page.click("#run")
        page.wait_for_selector(f"#status [role=alert] >> text={words}")
    tab(page, "Models")
    page.get_by_label("Others, by name").check()
    page.fill("#own-target textarea, #own-target input", "no-such-user/no-such-model")
    page.click("#load")
    page.wait_for_selector("#models-status [role=alert] >> text=can't be loaded")
    tab(page, "Trade-off")
    page.fill("#folder textarea, #folder input", "/nowhere")
    page.click("#show-results")
    page.wait_for_selector("#results-problem [role=alert] >> text=no summary.json")
    tab(page, "Compare")
    run(page, PROMPT)
    assert "done" in page.inner_text("#status")


def test_named_models_are_checked_before_they_are_loaded(visit):
    page = visit()
    tab(page, "Models")
    page.get_by_label("Others, by name").check()
    page.fill("#own-target textarea, #own-target input", str(hf_lossy.embedded.path("arithmetic")))
    page.fill("#own-draft textarea, #own-draft input", str(hf_lossy.embedded.path("arithmetic", "draft-shortcut")))
    page.click("#check")
    page.wait_for_selector("#models-status >> text=fits")
    assert "54 / 54 tokens, the same" in page.inner_text("#checks")
    page.click("#load")
    page.wait_for_selector("#models-status >> text=in use: target")
    tab(page, "Compare")
    run(page, PROMPT)
    assert "done" in page.inner_text("#status")


def test_two_visitors_do_not_see_each_others_runs(visit):
    one, two = visit(), visit()
    run(one, PROMPT)
    mine = tokens(one, 3)
    assert two.locator(".hl-tokens").count() == 0
    run(two, "3 9 27 6 30 :")
    assert tokens(one, 3) == mine
    assert tokens(two, 3) != mine
    one.get_by_label("overshoot").check()
    one.wait_for_selector("#column-3 .hl-tok[class*=hl-over]")
    assert [text for text, _, _ in tokens(one, 3)] == [text for text, _, _ in mine]
    assert two.locator(".hl-tok[class*=hl-over]").count() == 0


# --- the command, and the pictures --------------------------------------------------------------------------------------


def test_the_command_serves_the_page(browser):
    with served("hf_lossy", "demo", "--port") as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("#run")
        run(page, PROMPT)
        assert len(tokens(page, 2)) > 8
        page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_pictures_of_the_tabs(visit, width, tmp_path):
    """Nothing is wider than the window; the pictures go into $SCREENSHOTS where it is set."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page = visit(width)
    if width > 1000:
        page.get_by_label("4", exact=True).check()
    page.get_by_text("Sampling and draft length").click()
    page.locator("#seed input").fill("2")
    page.get_by_text("Sampling and draft length").click()
    for column in range(1, 5 if width > 1000 else 4):
        page.get_by_text("Coupling and draft").nth(column - 1).click()
        choose(page, f"draft-{column}", "shortcut")
        page.get_by_text("Coupling and draft").nth(column - 1).click()
    run(page, PROMPT)
    run(page, PROMPT)  # again, when everything is warm
    for name in ("Compare", "Law", "Trade-off", "Models"):
        tab(page, name)
        if name == "Trade-off":
            page.wait_for_selector(".js-plotly-plot .legend")
        page.wait_for_timeout(SECOND)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than the window"
        file = folder / f"demo-{name.lower()}-{width}.png"
        page.screenshot(path=file, full_page=True)
        with Image.open(file) as picture:
            picture.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
                file, optimize=True
            )
        assert file.stat().st_size < 200_000
