"""`tune`, `compare` and `explain` from the command line, on turn logs as the router writes them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from kvdiag.cli import main
from kvdiag.events import TurnRecord

if TYPE_CHECKING:
    from pathlib import Path


def turn_log(path: Path, *, seed: int, conversations: int = 40, slower: float = 1.0) -> Path:
    """Write conversations of four turns, each later one read back."""
    dice, lines = random.Random(seed), []
    for conversation in range(conversations):
        pace = slower * dice.lognormvariate(0, 0.3)
        for turn in range(1, 5):
            tokens = 800 * turn + dice.randint(0, 200)
            reused = 0 if turn == 1 else tokens - 150
            record = TurnRecord(
                ts=f"2026-11-29T08:{conversation % 60:02d}:{turn * 10:02d}.000Z",
                request_id=f"r-{conversation}-{turn}",
                conversation=f"conversation-{conversation:03d}",
                turn=turn,
                lookup="first_turn" if turn == 1 else "hit",
                gap_s=None if turn == 1 else dice.lognormvariate(2, 1),
                prompt_tokens=tokens,
                local_tokens=0,
                remote_tokens=reused,
                computed_tokens=tokens - reused,
                prefill_s=0.02 + 0.0002 * (tokens - reused),
                ttft_s=pace * (0.1 if reused else 0.4),
                status=200,
                cause="remote_hit" if reused else "first_turn",
            )
            lines.append(msgspec.json.encode(record) + b"\n")
    path.write_bytes(b"".join(lines))
    return path


def run(*arguments: object) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_tune_recommends_from_a_turn_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tune", turn_log(tmp_path / "turns.jsonl", seed=1), "--format", "json") == 0
    tuning = json.loads(capsys.readouterr().out)
    assert (tuning["turns"], tuning["gaps"]) == (160, 120)
    assert {item["setting"]: item["value"] is not None for item in tuning["advice"]} == {
        "decoder_kv_blocks_ttl": True,
        "router handle TTL": True,
        "kv_recompute_threshold": False,
    }


def test_tune_plots_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("tune", turn_log(tmp_path / "turns.jsonl", seed=1))
    assert "██" in capsys.readouterr().out


def test_tune_says_when_there_is_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tune", turn_log(tmp_path / "turns.jsonl", seed=1, conversations=3)) == 3
    assert "too thin: 9 gaps" in capsys.readouterr().out


@pytest.mark.parametrize("memory", ["lots", "-1GiB", "8 GiX", ""])
def test_tune_refuses_what_is_no_size(tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: str) -> None:
    assert run("tune", turn_log(tmp_path / "turns.jsonl", seed=1), "--memory", memory) == 2
    assert "is not a size; write it like 8GiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("slower", "code", "judged"), [(3.0, 1, "worse"), (0.3, 0, "better"), (1.0, 0, "within noise")]
)
def test_compare_exits_by_its_judgement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slower: float, code: int, judged: str
) -> None:
    a = turn_log(tmp_path / "a.jsonl", seed=1)
    b = turn_log(tmp_path / "b.jsonl", seed=1 if slower == 1.0 else 2, slower=slower)
    assert run("compare", a, b, "--format", "json") == code
    rows = {row["measure"]: row["change"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["TTFT, later turns"] == judged


def test_compare_is_inconclusive_on_too_few_turns(tmp_path: Path) -> None:
    a, b = (turn_log(tmp_path / f"{name}.jsonl", seed=1, conversations=2) for name in "ab")
    assert run("compare", a, b) == 3


def test_compare_of_one_log_without_a_holdout_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compare", turn_log(tmp_path / "a.jsonl", seed=1)) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "was held out from reuse; set the router's holdout" in said.err
    assert run("compare", str(tmp_path / "a.jsonl"), "--format", "json") == 3
    assert json.loads(capsys.readouterr().out)["schema"] == "kvdiag.comparison/1"


def test_explain_tells_a_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "conversation-007", turn_log(tmp_path / "turns.jsonl", seed=1)) == 0
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("turn ")] == [
        ["turn", str(n)] for n in "1234"
    ]
    assert "turns.jsonl:29" in out


def test_explain_exits_1_when_a_turn_has_a_fault(tmp_path: Path) -> None:
    log = turn_log(tmp_path / "turns.jsonl", seed=1)
    log.write_text(log.read_text().replace('"cause":"remote_hit"', '"cause":"missing_metadata"'))
    assert run("explain", "conversation-007", log) == 1


@pytest.mark.parametrize("arguments", [("tune",), ("compare",), ("explain", "x")])
@pytest.mark.parametrize("kind", ["missing", "usage"])
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], kind: str
) -> None:
    extra = [tmp_path / "gone.log", *([tmp_path / "gone.log"] if arguments == ("compare",) else [])]
    assert run(*arguments, *(extra if kind == "missing" else ["--nonsense"])) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert said.out == ""
    if kind == "missing":
        assert said.err.count("\n") == 1
        assert "gone.log" in said.err


@pytest.mark.parametrize("verb", ["tune", "explain", "compare"])
def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    log = turn_log(tmp_path / "turns.jsonl", seed=1)
    log.write_text(log.read_text().replace("conversation-0", "\\u001b]0;x\\u0007\\u202econversation-0"))
    run(*{"tune": ("tune", log), "explain": ("explain", "r-7-1", log), "compare": ("compare", log, log)}[verb])
    said = capsys.readouterr()
    assert not set(said.out + said.err) & set("\x1b\x07\u202e")


@pytest.mark.parametrize("verb", ["tune", "compare", "explain"])
def test_each_verb_runs_as_a_process(tmp_path: Path, verb: str) -> None:
    log = str(turn_log(tmp_path / "turns.jsonl", seed=1))
    arguments = {"tune": [log], "compare": [log, log], "explain": ["r-7-1", log]}[verb]
    done = subprocess.run(
        [sys.executable, "-m", "kvdiag", verb, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
