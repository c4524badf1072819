"""Digests of a token sequence, by which prefill proves that its prompt starts with the tokens that decode holds.

A digest at position p covers tokens 0 to p, and everything beside the tokens that changes their KV (adapter, cache
salt, images). Cuts are made every `group` tokens, where the last prompt ended, some within the response after it, and
at the end. A prompt agrees with what is held up to the last cut whose digest is equal.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WIDTH: Final = 8
"""Bytes kept of each digest: two different sequences agree by chance once in 2**64."""
MAX_GROUPS: Final = 128
"""Groups at most, whatever the length, so that a handle stays below 2 kB."""
RESPONSE_CUTS: Final = 32
"""Cuts within the last response: how much of it the next prompt keeps is the first question about a reasoning model."""
_MAX_TEXT: Final = 2 * WIDTH * (MAX_GROUPS + RESPONSE_CUTS)
_MAX_TOKENS: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Salt:
    """What changes the KV of a sequence beside its token ids."""

    whole: bytes = b""
    """Adapter and cache salt."""
    parts: tuple[tuple[int, bytes], ...] = ()
    """Position and identity of each image or other embedded item, in order of position."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a prompt agrees with the tokens held."""

    tokens: int
    """Proven equal, up to a cut."""
    parted: bool
    """Known to differ after that; False where the prompt merely ends."""


@dataclass(frozen=True, slots=True)
class PrefixDigest:
    """The digests of `total` tokens, the first `prompt` of which were the prompt.

    `block` is the holder's block size in tokens: what is read must be whole blocks of it.
    """

    block: int
    group: int
    prompt: int
    total: int
    digests: bytes

    @classmethod
    def of(cls, tokens: Sequence[int], prompt: int, block: int, salt: Salt) -> Self:
        """Return the digest of these tokens. Raises OverflowError where one is not a token id."""
        total = len(tokens)
        group = block * max(1, -(-total // (block * MAX_GROUPS)))
        cuts = _cuts(group, min(prompt, total), total)
        return cls(block, group, min(prompt, total), total, b"".join(_chain(tokens, cuts, salt)))

    @classmethod
    def decode(cls, text: object) -> Self | None:
        """Return what `encode` wrote, or None where the text is not of that form."""
        if not isinstance(text, str) or len(text) > _MAX_TEXT:
            return None
        *numbers, digests = text.split(".")
        try:
            block, group, prompt, total = (int(number) for number in numbers)
            raw = base64.b64decode(digests, validate=True)
        except (ValueError, binascii.Error):
            return None
        if not (0 < block <= group and 0 <= prompt <= total and 0 < total < _MAX_TOKENS and group % block == 0):
            return None
        if total // group > MAX_GROUPS or len(raw) != WIDTH * len(_cuts(group, prompt, total)):
            return None
        return cls(block, group, prompt, total, raw)

    def encode(self) -> str:
        """Return one line of text, at most 2 kB."""
        numbers = f"{self.block}.{self.group}.{self.prompt}.{self.total}"
        return f"{numbers}.{base64.b64encode(self.digests).decode()}"

    def agreement(self, tokens: Sequence[int], salt: Salt) -> Agreement:
        """Return how far these tokens agree with the ones held."""
        cuts = [cut for cut in _cuts(self.group, self.prompt, self.total) if cut <= len(tokens)]
        agreed = 0
        for number, (cut, digest) in enumerate(zip(cuts, _chain(tokens, cuts, salt), strict=True)):
            if digest != self.digests[number * WIDTH : (number + 1) * WIDTH]:
                return Agreement(agreed, parted=True)
            agreed = cut
        return Agreement(agreed, parted=False)


def _cuts(group: int, prompt: int, total: int) -> list[int]:
    step = max(1, -(-(total - prompt) // RESPONSE_CUTS))
    return sorted({*range(group, total + 1, group), *range(prompt or step, total, step), total})


def _chain(tokens: Sequence[int], cuts: Sequence[int], salt: Salt) -> Iterator[bytes]:
    digest = hashlib.sha256(salt.whole)
    start = 0
    for cut in cuts:
        for position, identity in salt.parts:
            if start <= position < cut:
                digest.update(identity)
        digest.update(array("I", tokens[start:cut]))
        yield digest.copy().digest()[:WIDTH]
        start = cut
