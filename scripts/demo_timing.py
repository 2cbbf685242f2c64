"""How long the demo takes to its first token, and what it costs beside the same calls without it. Prints JSON.

    make demo-timing

Needs chromium. `start`: seconds from `make demo` (everything installed) to a served page, from there to the Run button, and
from a click on it to the first token, for each start. `ratios`: tokens/s of one column, and of one of three that stream
together (over its own seconds), in units of the same `generate` call; interleaved, median and quartiles over seeds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

import hf_lossy
from hf_lossy.bench.estimates import spread
from hf_lossy.demo.models import Backend
from hf_lossy.demo.runs import TARGET, Request, Way, prepared, stream
from hf_lossy.provenance import provenance

ROOT = Path(__file__).parents[1]
STARTS, SEEDS = 3, 30
WAYS = [
    Way(TARGET, None, "block", "natural"),
    *(Way(*law, "block", "natural") for law in (("lossless", None), ("lenience", 0.4))),
]


@contextmanager
def served() -> Iterator[tuple[str, float]]:
    """The page of `make demo`, and the seconds until it was there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, began = f"http://127.0.0.1:{port}", time.perf_counter()
    command = ["make", "demo", f"ARGS=--port {port}"]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        while True:
            assert process.poll() is None, "make demo ended"
            with suppress(OSError), urllib.request.urlopen(address) as answer:
                answer.read()
                break
            time.sleep(0.05)
        yield address, time.perf_counter() - began
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def start() -> dict[str, float]:
    """One start, to the first token."""
    browser_path = shutil.which("chromium")
    with served() as (address, page_served), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        began = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("#run")
        ready = time.perf_counter()
        page.click("#run")
        page.wait_for_selector(".hl-tok", state="attached")
        told = time.perf_counter()
        browser.close()
    return {"page_served": page_served, "run_button": ready - began, "first_token": told - ready}


def ratios() -> dict[str, dict[str, object]]:
    """Columns beside the calls that they make."""
    torch.set_num_threads(1)
    backend = Backend()
    models = backend.models("arithmetic")

    def request(ways: list[Way], seed: int) -> Request:
        return Request(models.prompts[seed % 4], False, ways, 1.0, 24, seed, 5)

    def direct(way: Way, seed: int) -> float:
        asked, pair = request([way], seed), models.pairs[way.draft]
        inputs, arguments = pair.inputs(asked.prompt), asked.arguments(pair, way)
        torch.manual_seed(seed)
        began = time.perf_counter()
        if way.law == TARGET:
            out = pair.target.generate(**inputs, **arguments)
        else:
            out = hf_lossy.generate(pair.target, **inputs, **arguments, generator=torch.Generator().manual_seed(seed))
        return (out.shape[1] - inputs["input_ids"].shape[1]) / (time.perf_counter() - began)

    def columns(ways: list[Way], seed: int) -> list[float]:
        asked = prepared("arithmetic", models, request(ways, seed))
        *_, run = stream(asked, models, backend.turns, lambda: False)
        return [output.tokens_per_second for output in run.outputs]

    columns(WAYS, 0)  # warm-up
    found: dict[str, dict[str, list[float]]] = {way.law: {"one_column": [], "of_three": []} for way in WAYS}
    for seed in range(SEEDS):
        together = columns(WAYS, seed)
        for way, rate in zip(WAYS, together, strict=True):
            before, alone, after = direct(way, seed), columns([way], seed)[0], direct(way, seed)
            unit = (before + after) / 2
            found[way.law]["one_column"].append(alone / unit)
            found[way.law]["of_three"].append(rate / unit)
    return {law: {name: spread(values) for name, values in both.items()} for law, both in found.items()}


if __name__ == "__main__":
    starts = [start() for _ in range(STARTS)]
    print(json.dumps({"start": starts, "ratios": ratios(), "provenance": provenance()}, indent=2))
