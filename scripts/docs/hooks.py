"""What MkDocs does besides: pages from the registry of laws, and pages for what is there to be shown.

MkDocs reads this file (``hooks:`` in mkdocs.yml) with its folder on the path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import registry
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from hf_lossy.laws import listed

GENERATED: dict[str, str] = {}
"""The pages made here, which link checks and tests see as any other."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the laws, and to the navigation what was found: laws, results, screenshots."""
    for path, content in (*registry.pages(), *registry.plots()):
        files.append(File.generated(config, path, content=content))
    docs = Path(config.docs_dir)
    results = sorted(path for path in docs.glob("results/*/*.md") if path.name in ("README.md", "table.md"))
    shots = sorted(docs.glob("images/*.png"))
    if shots:
        files.append(File.generated(config, "screenshots.md", content=screenshots(shots)))
    nav: list[Any] = []
    for entry in config.nav or []:
        nav.append(entry)
        title = next(iter(entry))
        if title == "Laws":
            entry[title] = ["laws/index.md", *({name: f"laws/{name}.md"} for name in listed())]
        elif title == "Benchmarks":
            found = {path.parent: path for path in reversed(results)}  # README.md before table.md
            entry[title] = [
                "benchmarks.md",
                *({folder.name: str(path.relative_to(docs))} for folder, path in sorted(found.items())),
                *([{"Screenshots": "screenshots.md"}] if shots else []),
            ]
    config.nav = nav
    return files


def screenshots(shots: list[Path]) -> str:
    """A page of pictures."""
    parts = ["# Screenshots"]
    for shot in shots:
        name = shot.stem.replace("-", " ").replace("_", " ")
        parts += [f"## {name}", f"![{name}](images/{shot.name})"]
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the repository that are not in the site become plain text: there is no address for them here."""
    docs = Path(config.docs_dir)
    here = (docs / page.file.src_uri).parent

    def plain(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = (here / target.partition("#")[0]).resolve()
        outside = docs.resolve() not in path.parents
        return text if outside and path.exists() else match.group()

    return re.sub(r"(?<!!)\[([^\]]*)\]\(((?!https?:|mailto:|#)[^)\s]+)\)", plain, markdown)
