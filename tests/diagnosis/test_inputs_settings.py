"""The settings that start-up lines state reach the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvdiag.diagnosis import classify

if TYPE_CHECKING:
    from pathlib import Path

LINE = (
    "(APIServer pid=1) INFO 11-29 08:00:00 [utils.py:300] non-default args: {{'kv_transfer_config': KVTransferConfig("
    "kv_connector='NixlConnector', engine_id='{role}', kv_role='{role}', kv_connector_extra_config="
    "{{'bidirectional_kv_xfer': True, 'decoder_kv_blocks_ttl': {ttl}, 'kv_recompute_threshold': {threshold}}})}}\n"
)


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        ((480, 64), (120, 256), (120, 64)),
        ((90, 16), (480, 32), (480, 16)),
        (None, (60, 32), (60, None)),
        ((60, 32), None, (None, 32)),
    ],
    ids=["both", "each role's own", "decode alone", "prefill alone"],
)
def test_decodes_ttl_and_prefills_threshold_count(
    tmp_path: Path,
    prefill: tuple[int, int] | None,
    decode: tuple[int, int] | None,
    expected: tuple[int | None, int | None],
) -> None:
    for role, name, values in (("kv_producer", "prefill", prefill), ("kv_consumer", "decode", decode)):
        if values:
            (tmp_path / f"{name}.log").write_text(LINE.format(role=role, ttl=values[0], threshold=values[1]))
    settings = classify([str(tmp_path)]).settings
    assert (settings.decoder_kv_blocks_ttl, settings.kv_recompute_threshold) == expected


def test_without_start_up_lines_nothing_is_assumed(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("nothing\n")
    settings = classify([str(tmp_path)]).settings
    assert settings.decoder_kv_blocks_ttl is None
    assert settings.router_handle_ttl is None


def test_the_time_covered_is_that_of_every_stamp_in_logs_one_after_the_other(tmp_path: Path) -> None:
    engine = LINE.format(role="kv_consumer", ttl=60, threshold=32)
    router = "2026-11-29 10:0{}:00 [INFO] disagg_proxy: Ready: 1 prefill, 1 decode instances\n"
    path = tmp_path / "both.log"
    path.write_text(engine + router.format(3) + router.format(1) + router.format(2))

    report = classify([str(path)])

    # vLLM's own line names no year; it is taken for that of its neighbours.
    assert (report.window.from_, report.window.to) == ("2026-11-29T08:00:00Z", "2026-11-29T10:03:00Z")
    assert (report.inputs[0].from_, report.inputs[0].to) == (report.window.from_, report.window.to)
