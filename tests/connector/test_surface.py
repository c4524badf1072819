"""A name that moved or changed its parameters is reported; one that gained some at the end is not."""

from __future__ import annotations

import pytest

from kvdiag.connector.surface import CONNECTOR, STREAMING, Method, missing

METHOD = Method("module", "Owner", "name", ("a", "b"))


@pytest.mark.parametrize(
    ("found", "lacking"),
    [
        (("a", "b"), []),
        (("a", "b", "c"), []),
        (("b", "a"), ["Owner.name(a, b)"]),
        (("a",), ["Owner.name(a, b)"]),
        (None, ["Owner.name(a, b)"]),
    ],
)
def test_missing(found: tuple[str, ...] | None, lacking: list[str]) -> None:
    assert missing((METHOD,), lambda _: found) == lacking


def test_no_method_is_listed_twice() -> None:
    names = [str(method) for method in (*CONNECTOR, *STREAMING)]
    assert len(names) == len(set(names))
