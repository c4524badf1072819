"""A prompt agrees with what is held exactly as far as its tokens, and all that changes their KV, are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.connector.digest import PrefixDigest, Salt

BLOCK = 16
NOTHING = Salt()


def held(total: int = 1000, prompt: int = 900, salt: Salt = NOTHING) -> PrefixDigest:
    return PrefixDigest.of(range(total), prompt, BLOCK, salt)


@pytest.mark.parametrize(
    ("prompt", "agreed", "parted"),
    [
        pytest.param(list(range(1000)), 1000, False, id="identical"),
        pytest.param(list(range(1200)), 1000, False, id="goes on"),
        pytest.param(list(range(500)), 496, False, id="ends inside"),
        pytest.param([7, *range(1, 1000)], 0, True, id="other first token"),
        pytest.param([*range(500), 7, *range(501, 1000)], 496, True, id="edited in the middle"),
        pytest.param([*range(900), 7, 7, 7, 7, 7], 900, True, id="other first token of the response"),
        pytest.param([*range(950), 7, *range(951, 1000)], 948, True, id="edited inside the response"),
        pytest.param(list(range(5000, 6000)), 0, True, id="unrelated"),
        pytest.param([], 0, False, id="empty"),
        pytest.param([3, *range(1, 999), 3], 0, True, id="same end, other start"),
    ],
)
def test_agreement_ends_at_the_last_equal_cut(prompt: list[int], agreed: int, parted: bool) -> None:  # noqa: FBT001
    agreement = held().agreement(prompt, NOTHING)
    assert (agreement.tokens, agreement.parted) == (agreed, parted)


@pytest.mark.parametrize("total", [1, 15, 16, 17, 129, 4096, 32_768, 200_000])
def test_any_length_fits_in_two_kilobytes_and_survives_its_text_form(total: int) -> None:
    digest = PrefixDigest.of(range(total), total - total // 3, BLOCK, NOTHING)
    text = digest.encode()
    assert len(text) < 2048
    assert PrefixDigest.decode(text) == digest
    assert digest.agreement(range(total), NOTHING).tokens == total


@pytest.mark.parametrize(
    ("decode", "prefill"),
    [
        pytest.param(Salt(b"adapter-a"), Salt(b"adapter-b"), id="adapter"),
        pytest.param(Salt(b"", ((0, b"cat"),)), Salt(b"", ((0, b"dog"),)), id="image"),
        pytest.param(Salt(b"tenant-a"), NOTHING, id="cache salt"),
    ],
)
def test_equal_tokens_under_another_salt_do_not_agree(decode: Salt, prefill: Salt) -> None:
    assert held(salt=decode).agreement(range(1000), prefill).tokens == 0
    assert held(salt=decode).agreement(range(1000), decode).tokens == 1000


def test_an_image_changes_only_what_follows_it() -> None:
    cat, dog = Salt(b"", ((512, b"cat"),)), Salt(b"", ((512, b"dog"),))
    assert held(salt=cat).agreement(range(1000), dog).tokens == 512


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=300), st.integers(0, 300), st.integers(0, 300), st.integers(0, 2**32)
)
def test_never_agrees_beyond_the_first_difference(tokens: list[int], prompt: int, at: int, other: int) -> None:
    if not tokens:
        return
    at %= len(tokens)
    edited = [*tokens[:at], other % 2**32, *tokens[at + 1 :]]
    digest = PrefixDigest.of(tokens, min(prompt, len(tokens)), 4, NOTHING)
    agreement = digest.agreement(edited, NOTHING)
    if edited == tokens:
        assert agreement.tokens == len(tokens)
    else:
        assert agreement.tokens <= at
        assert agreement.parted


@given(
    st.one_of(
        st.text(), st.integers(), st.none(), st.from_regex(r"\d{1,9}\.\d{1,9}\.\d{1,9}\.\d{1,9}\.[A-Za-z0-9+/=]*")
    )
)
def test_any_text_is_a_digest_or_none(text: object) -> None:
    digest = PrefixDigest.decode(text)
    assert digest is None or digest.encode() == text or PrefixDigest.decode(digest.encode()) == digest


def test_a_token_that_is_none_raises() -> None:
    with pytest.raises(OverflowError):
        PrefixDigest.of([1, -1], 1, BLOCK, NOTHING)
