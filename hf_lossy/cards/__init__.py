"""Model cards of heads, of the embedded models and of verified pairs, made from result files.

``figures``: text in which every figure was read from a file, and text with a bare number is refused. ``build``: the sections
of a card, its metadata and the table of its files. ``tables``: the tables of ``hf-lossy bench`` and ``evaluate`` results.
``head``, ``embedded``, ``pair``: the three kinds of cards. ``catalogue``: the cards of this repository.
"""

from __future__ import annotations

from .build import Card
from .catalogue import card_of, cards, write_all
from .figures import File
from .head import head_card

__all__ = ["Card", "File", "card_of", "cards", "head_card", "write_all"]
