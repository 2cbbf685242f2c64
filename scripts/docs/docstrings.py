"""A griffe extension: the few reStructuredText marks of the docstrings, in Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe
from markup import linked

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):`~?([\w.]+)`")


class Roles(griffe.Extension):
    """``:class:`x``` becomes a link where ``x`` is documented, ``text::`` before an indented block ``text:``, and an arXiv
    number a link."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every object with its docstring read."""
        if obj.docstring is None:
            return

        def link(match: re.Match[str]) -> str:
            name = match.group(1)
            try:
                identifier = obj.resolve(name)
            except griffe.NameResolutionError:
                identifier = name
            shown = name.removeprefix("hf_lossy.")
            return f'<autoref identifier="{identifier}" optional><code>{shown}</code></autoref>'

        text = re.sub(r"::(\n\s*\n)", r":\1", ROLE.sub(link, obj.docstring.value))
        obj.docstring.value = linked(text)
