from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.errors import InputError
from kvdiag.router.config import load
from kvdiag.router.settings import Settings

ENGINES: dict[str, Any] = {"prefill": ("http://p:1",), "decode": ("http://d:1",)}
REDIS = {"KVDIAG_ROUTER__STORE__KIND": "redis", "KVDIAG_ROUTER__HASH_KEY": "k"}


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text(
        'prefill = ["http://f:1"]\ndecode = ["http://f:2"]\nport = 1\nhost = "h"\n[deadlines]\nreuse_s = 3\n'
    )
    environment = {
        "KVDIAG_ROUTER__PORT": "2",
        "KVDIAG_ROUTER__DEADLINES__STALL_S": "9.5",
        "KVDIAG_ROUTER__PREFILL": "http://e:1, http://e:2",
        "KVDIAG_ROUTER_PORT": "tcp://10.0.0.1:80",
    }
    settings = load(file, environment, {"port": 3})
    assert (settings.port, settings.host) == (3, "h")
    assert settings.prefill == ("http://e:1", "http://e:2")
    assert settings.decode == ("http://f:2",)
    assert (settings.deadlines.reuse_s, settings.deadlines.stall_s) == (3, 9.5)
    assert settings.deadlines.connect_s == 5


@pytest.mark.parametrize(
    ("text", "environment"),
    [('turn_log = "logs/turns.jsonl"', {}), ("", {"KVDIAG_ROUTER__TURN_LOG": "logs/turns.jsonl"})],
)
def test_paths_come_from_file_and_environment_too(tmp_path: Path, text: str, environment: dict[str, str]) -> None:
    file = tmp_path / "router.toml"
    file.write_text(text)
    assert load(file, environment, ENGINES).turn_log == Path("logs/turns.jsonl")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"port": 99999}, "--port = 99999 cannot be used"),
        ({"holdout": 2.0}, "--holdout = 2.0 cannot be used"),
        ({"handle_ttl_s": -1.0}, "--handle-ttl = -1.0 cannot be used"),
    ],
)
def test_flags_keep_the_bounds_of_their_settings(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(None, {}, ENGINES | flags)


def test_flags_bring_paths_ready_made() -> None:
    assert load(None, {}, ENGINES | {"turn_log": Path("logs/turns.jsonl")}).turn_log == Path("logs/turns.jsonl")


def test_yaml_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("prefill: [http://p:1]\ndecode: [http://d:1]\nstore:\n  max_entries: 7\n")
    assert load(file, {}, {}).store.max_entries == 7


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "host = 'x'\nprot = 1\n", "a.toml:2: prot is not a setting; did you mean port?"),
        (
            "a.toml",
            "[deadlines]\nconect_s = 1\n",
            "a.toml:2: deadlines.conect_s is not a setting; did you mean connect_s?",
        ),
        ("a.toml", "[store]\n\nkind = 'etcd'\n", "a.toml:3: store.kind = 'etcd' cannot be used: Invalid enum value"),
        ("a.toml", "holdout = 2\n", "a.toml:1: holdout = 2 cannot be used: Expected `float` <= 1"),
        ("a.toml", "port = 'x'\n", "a.toml:1: port = 'x' cannot be used: Expected `int`, got `str`"),
        ("a.toml", "limits = 3\n", "a.toml:1: limits is a table of settings, not a value"),
        ("a.toml", "port = \n", "configuration .*a.toml: Invalid value"),
        (
            "a.yaml",
            "host: x\nstore:\n  max_entires: 1\n",
            "a.yaml:3: store.max_entires is not a setting; did you mean max_entries?",
        ),
        ("a.toml", "hash_key = 5150\n", r"a.toml:1: hash_key = \*\*\* cannot be used: Expected `str \| null`"),
        ("a.yaml", "store:\n  url: 5150\n", r"a.yaml:2: store.url = \*\*\* cannot be used"),
        ("a.yaml", "- 1\n", "a.yaml: a table of settings is expected"),
        ("a.yaml", "{", "configuration .*a.yaml: "),
    ],
)
def test_a_mistake_is_named_with_its_key_and_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path / name, {}, ENGINES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "flags", "message"),
    [
        ({"KVDIAG_ROUTER__PROT": "1"}, ENGINES, "KVDIAG_ROUTER__PROT is not a setting; did you mean port"),
        (
            {"KVDIAG_ROUTER__DEADLINES__STALL_S": "-1"},
            ENGINES,
            "KVDIAG_ROUTER__DEADLINES__STALL_S = '-1' cannot be used",
        ),
        ({"KVDIAG_ROUTER__STORE__URL": "redis://:hunter2@h/x", **REDIS}, ENGINES, "store url 'redis://***@h/x'"),
        ({}, {}, "no prefill engine given"),
        ({}, {"prefill": ("http://p:1",)}, "no decode engine given"),
        ({}, {**ENGINES, "prefill": ("p:1",)}, "engine 'p:1' is not a URL"),
        ({}, {**ENGINES, "store": {"kind": "redis"}}, "needs hash_key"),
        ({}, {**ENGINES, "store": {"kind": "redis", "url": "x"}, "hash_key": "k"}, "store url 'x'"),
    ],
)
def test_what_cannot_work_is_refused(environment: dict[str, str], flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(None, environment, flags)
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.toml: No such file"):
        load(tmp_path / "nowhere.toml", {}, ENGINES)


@given(text=st.text(alphabet="abport =[]{}'\"\n:-#.1", max_size=60), suffix=st.sampled_from([".toml", ".yaml"]))
def test_any_file_gives_settings_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, text: str, suffix: str
) -> None:
    file = tmp_path_factory.mktemp("config") / f"a{suffix}"
    file.write_text(text)
    with contextlib.suppress(InputError):
        load(file, {}, ENGINES)


def test_the_example_lists_every_setting_with_its_default() -> None:
    example = Path(__file__).parents[2] / "router" / "router.example.toml"
    settings = load(example, {}, {})
    assert dataclasses.replace(settings, prefill=(), decode=()) == Settings()
    listed = set(re.findall(r"^(?:# )?(\w+) = ", example.read_text(), re.MULTILINE))
    tables = (Settings(), settings.limits, settings.deadlines, settings.store, settings.health)
    fields = {field.name for table in tables for field in dataclasses.fields(table)}
    assert listed == fields - {"limits", "deadlines", "store", "health"}
