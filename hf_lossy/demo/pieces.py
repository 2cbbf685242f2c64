"""The text of single tokens."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"
"""What a tokenizer gives for the first bytes of a character."""


class Pieces:
    """What each token adds to a text: decoding single tokens loses spaces, and characters of several tokens.

    Args:
        tokenizer: of the tokens.
        before: tokens that come before the first one; the last few of them tell whether it begins with a space.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self._window = list(before)[-8:]
        self._text = tokenizer.decode(self._window)

    def next(self, token: int) -> str:
        """The text of a token if it came next; a character of several tokens goes to the last of them, "⋯" to the others."""
        text = self.tokenizer.decode([*self._window, token])
        stem = self._text.rstrip(UNFINISHED)
        piece = text[len(stem) :] if text.startswith(stem) else self.tokenizer.decode([token])
        return "⋯" if piece.endswith(UNFINISHED) else piece

    def add(self, token: int) -> str:
        """The same, for the token that does come next."""
        piece = self.next(token)
        self._window.append(token)
        if piece != "⋯":
            self._window = self._window[-8:]
        self._text = self.tokenizer.decode(self._window)
        return piece
