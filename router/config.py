"""Settings from a TOML or YAML file, the environment and flags, each mistake with its key and its place."""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import yaml

from kvdiag.errors import InputError
from kvdiag.router import discovery
from kvdiag.router.redis import Server
from kvdiag.router.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENVIRONMENT: Final = "KVDIAG_ROUTER__"
"""Two underscores: Kubernetes sets KVDIAG_ROUTER_PORT and the like for a service of that name."""
_TABLE: Final = re.compile(r"\s*\[([\w.]+)\]")

_SECRETS: Final = {("hash_key",), ("store", "url")}
"""Settings whose values no message repeats."""

Tree = dict[str, Any]
Place: TypeAlias = "Callable[[tuple[str, ...]], str]"
"""Tells where the setting with these keys was given."""


def load(path: Path | None, environment: Mapping[str, str], flags: Tree) -> Settings:
    """Return the settings: flags win over the environment, that over the file, that over defaults.

    Raises:
        InputError: a file cannot be read, a key does not exist, a value cannot be used.

    """
    values: Tree = {}
    if path is not None:
        tree, place = _read(path)
        _merge(values, _checked(tree, Settings, place, strict=True))
    tree = _from_environment(environment)
    _merge(values, _checked(tree, Settings, lambda keys: ENVIRONMENT + "__".join(keys).upper(), strict=False))
    _merge(values, _checked(flags, Settings, _flag, strict=True))
    settings: Settings = _build(Settings, values)
    _check(settings)
    return settings


def _read(path: Path) -> tuple[Tree, Place]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"configuration {path}: {reason}") from error
    is_yaml = path.suffix in {".yaml", ".yml"}
    try:
        tree = yaml.safe_load(text) if is_yaml else tomllib.loads(text)
    except (yaml.YAMLError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"configuration {path}: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise InputError(f"configuration {path}: a table of settings is expected")
    line = _yaml_line if is_yaml else _toml_line
    return tree, lambda keys: f"{path}:{line(text, keys)}: {'.'.join(keys)}"


def _toml_line(text: str, keys: tuple[str, ...]) -> int:
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = header[1]
        key = line.split("=", 1)[0].strip().strip("\"'") if "=" in line else None
        here = table.split(".") if table else []
        if [*here, key] == list(keys) or (header and here == list(keys)) or key == ".".join(keys):
            return number
    return 1


def _yaml_line(text: str, keys: tuple[str, ...]) -> int:
    node, line = yaml.compose(text), 1
    for key in keys:
        for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if name.value == key:
                node, line = value, name.start_mark.line + 1
                break
    return line


def _from_environment(environment: Mapping[str, str]) -> Tree:
    tree: Tree = {}
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT):
            *outer, last = name.removeprefix(ENVIRONMENT).lower().split("__")
            branch = tree
            for key in outer:
                branch = branch.setdefault(key, {})
            branch[last] = value
    return tree


def _checked(tree: Tree, kind: type[Any], place: Place, *, strict: bool, above: tuple[str, ...] = ()) -> Tree:
    """Return the tree with every value converted to its setting's type."""
    types = typing.get_type_hints(kind, include_extras=True)
    checked: Tree = {}
    for key, value in tree.items():
        keys = (*above, str(key))
        if key not in types:
            raise InputError(f"{place(keys)} is not a setting{_suggestion(str(key), list(types))}")
        if dataclasses.is_dataclass(types[key]):
            if not isinstance(value, dict):
                raise InputError(f"{place(keys)} is a table of settings, not a value")
            checked[key] = _checked(value, types[key], place, strict=strict, above=keys)
        else:
            checked[key] = _converted(value, types[key], keys, place, strict=strict)
    return checked


def _converted(value: object, kind: object, keys: tuple[str, ...], place: Place, *, strict: bool) -> object:
    if not strict and kind == tuple[str, ...] and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=_path)
    except msgspec.ValidationError as error:
        shown = "***" if keys in _SECRETS else repr(value)
        raise InputError(f"{place(keys)} = {shown} cannot be used: {error}") from error


def _flag(keys: tuple[str, ...]) -> str:
    return "--" + "-".join(keys).replace("_", "-").removesuffix("-s")


def _path(kind: type[Any], value: object) -> Path:
    """Return a path, the one kind of setting that msgspec does not know."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise NotImplementedError(kind)


def _suggestion(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(sorted(known))}"


def _merge(into: Tree, other: Tree) -> None:
    for key, value in other.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def _build(kind: type[Any], values: Tree) -> Any:  # noqa: ANN401 - the kind that was asked for
    types = typing.get_type_hints(kind)
    return kind(
        **{key: _build(types[key], value) if isinstance(value, dict) else value for key, value in values.items()}
    )


def _check(settings: Settings) -> None:
    """Refuse what is well-formed but cannot work."""
    for url in (*settings.prefill, *settings.decode):
        discovery.check(url)
    for role, urls in (("prefill", settings.prefill), ("decode", settings.decode)):
        if not urls and settings.engines_file is None:
            raise InputError(f"no {role} engine given; add --{role} http://HOST:PORT, or engines_file")
    if settings.store.kind == "redis":
        Server.parse(settings.store.url)
        if not settings.hash_key:
            raise InputError(
                "store.kind = 'redis' needs hash_key: the same secret on every replica, or they cannot find each "
                f"other's conversations (environment: {ENVIRONMENT}HASH_KEY)"
            )
