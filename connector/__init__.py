"""The instrumented vLLM connector. `KvdiagNixlConnector` needs vLLM and is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdiag.errors import MissingExtraError

if TYPE_CHECKING:
    from kvdiag.connector.connector import KvdiagNixlConnector

__all__ = ["KvdiagNixlConnector"]


def __getattr__(name: str) -> object:
    """Import the class that `kv_connector_module_path: kvdiag.connector` names."""
    if name != "KvdiagNixlConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import vllm  # noqa: F401, PLC0415 - only engines have it
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise MissingExtraError(name, "vllm") from None
    from kvdiag.connector.connector import KvdiagNixlConnector  # noqa: PLC0415 - needs vLLM

    return KvdiagNixlConnector
