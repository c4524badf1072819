"""What may be read: only tokens proven equal, in whole blocks, and only where the blocks cover them."""

from __future__ import annotations

import pytest

from kvdiag.connector.digest import PrefixDigest, Salt
from kvdiag.connector.handle import Handle
from kvdiag.connector.plan import Layout, Plan, cut_blocks, expired, plan_read

BLOCK = 16
HELD = list(range(1000))
LAYOUT = Layout(block_size=BLOCK, divisible=True, block_bytes=1, blocks=1000)


def handle(tokens: int = 1000, blocks: int = 63) -> Handle:
    return Handle("engine", "request", tokens, [list(range(blocks))], "d:1", None)


def plan(prompt: list[int], *, layout: Layout = LAYOUT, of: Handle | None = None, block: int = BLOCK) -> Plan:
    digest = PrefixDigest.of(HELD, 900, block, Salt())
    return plan_read(of or handle(), len(prompt), digest, digest.agreement(prompt, Salt()), layout)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param([*HELD, 1, 2], Plan("as_is", 1000, position=1000), id="goes on"),
        pytest.param(
            [*HELD[:950], 0, *HELD[951:]], Plan("cut", 944, "prefix_diverged", "in_response", 948), id="response"
        ),
        pytest.param(
            [*HELD[:500], 0, *HELD[501:]], Plan("cut", 496, "prefix_diverged", "in_history", 496), id="history"
        ),
        pytest.param([0, *HELD], Plan("release", 0, "prefix_diverged", "in_history", 0), id="unrelated"),
        pytest.param(HELD[:500], Plan("cut", 496, position=496), id="ends inside"),
        pytest.param(HELD[:7], Plan("release", 0, position=0), id="ends inside the first block"),
    ],
)
def test_only_the_common_prefix_is_offered(prompt: list[int], expected: Plan) -> None:
    assert plan(prompt) == expected


def test_layouts_that_cannot_be_cut_are_read_whole_or_not_at_all() -> None:
    hybrid = Layout(block_size=BLOCK, divisible=False, block_bytes=1, blocks=1000)
    assert plan([*HELD, 1], layout=hybrid).offer == "as_is"
    assert plan([*HELD[:950], 0, *HELD[951:]], layout=hybrid).offer == "release"


def test_a_cut_is_whole_in_the_blocks_of_both_engines() -> None:
    edited = [*HELD[:500], 0, *HELD[501:]]
    assert plan(edited, layout=Layout(block_size=64, divisible=True, block_bytes=1, blocks=1000)).tokens == 448


@pytest.mark.parametrize("prompt", [[*HELD, 1], [*HELD[:950], 0, *HELD[951:]]], ids=["whole", "cut"])
def test_blocks_that_do_not_cover_the_tokens_are_an_incomplete_handle(prompt: list[int]) -> None:
    short = plan(prompt, of=handle(blocks=10))
    assert (short.offer, short.cause, short.detail) == ("withhold", "missing_metadata", "incomplete")


def test_without_a_digest_upstreams_counting_stands() -> None:
    assert plan_read(handle(), 1200, None, None, LAYOUT).offer == "as_is"


def test_without_a_digest_a_shorter_prompt_is_not_read() -> None:
    """Upstream would pair the prompt's blocks with the last ones held."""
    assert plan_read(handle(), 500, None, None, LAYOUT) == Plan("release", 0, "prefix_diverged", "in_history")


def test_cut_blocks_keeps_the_leading_blocks_of_each_group() -> None:
    two = Handle("e", "r", 64, [[1, 2, 3, 4], [5, 6, 7, 8]], "d:1", None)
    assert cut_blocks(two, 33, BLOCK) == [[1, 2, 3], [5, 6, 7]]


@pytest.mark.parametrize(
    ("age_s", "ttl_s", "over"),
    [
        (0.0, 480, False),
        (473.9, 480, False),
        (474.0, 480, True),
        (1e9, 480, True),
        (None, 480, False),
        (5, None, False),
        (0, 5, True),
    ],
)
def test_expiry_leaves_upstreams_margin(age_s: float | None, ttl_s: float | None, over: bool) -> None:  # noqa: FBT001
    assert expired(age_s, ttl_s) is over
