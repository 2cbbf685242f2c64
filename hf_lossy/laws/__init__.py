"""Laws: what is emitted, (p, q) → π. One file a law, each registering itself. Torch only.

``hf_lossy.laws()`` lists the registered names; ``hf_lossy.laws.Lenience`` is a class. A file put into this folder with a
class under ``@register`` is found by itself.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types

from .base import Law, law, law_class, make, names, parameter, register

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

_ORDER = ("lossless", "collaborative", "truncation", "baseline")
for _name in names():
    globals()[law_class(_name).__name__] = law_class(_name)


def listed() -> list[str]:
    """The registered names, by family."""
    return sorted(names(), key=lambda name: _ORDER.index(law_class(name).family))


class _CallableModule(types.ModuleType):
    """The package folder and the function ``hf_lossy.laws()`` share a name; the module answers to both."""

    def __call__(self) -> list[str]:
        return listed()


sys.modules[__name__].__class__ = _CallableModule

__all__ = ["Law", "law", "law_class", "listed", "make", "names", "parameter", "register"]
