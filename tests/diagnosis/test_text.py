"""What is shown of a line that is too long."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.text import EVIDENCE_CHARS, ends


@pytest.mark.parametrize("length", [10, EVIDENCE_CHARS, EVIDENCE_CHARS + 1, 5000])
def test_both_ends_of_a_record_are_kept(length: int) -> None:
    text = "begin" + "." * (length - 8) + "end"
    shown = ends(text)
    assert (shown.startswith("begin"), shown.endswith("end")) == (True, True)
    assert len(shown) == min(length, EVIDENCE_CHARS - 1 if length > EVIDENCE_CHARS else length)
