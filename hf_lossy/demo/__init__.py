"""The page: what a lossy law does to a text, side by side, token by token.

:func:`build_demo` makes the page for a :class:`Backend`; :func:`launch` serves it. Both need the extra ``demo``. What the
controls do is in ``compare``, ``law_view``, ``trade_off`` and ``models``, without gradio; ``page`` connects them.
"""

from __future__ import annotations

from typing import Any

from .models import Backend, Models

__all__ = ["Backend", "Models", "build_demo", "launch"]


def build_demo(backend: Backend | None = None) -> Any:
    """The page as ``gr.Blocks``.

    Raises:
        LossyError: gradio is not installed, or the first models can't be loaded.
    """
    return _page().build(backend or Backend())


def launch(demo: Any, **kwargs: Any) -> Any:
    """``demo.launch(**kwargs)`` with the page's style and without anything fetched from elsewhere."""
    return _page().launch(demo, **kwargs)


def _page() -> Any:
    import importlib.util

    from ..errors import LossyError

    for package in ("gradio", "plotly"):
        if importlib.util.find_spec(package) is None:
            raise LossyError(f"the demo needs {package}, which is not installed: pip install 'hf-lossy[demo]'")
    from . import page

    return page
