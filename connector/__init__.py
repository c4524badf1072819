"""The instrumented vLLM connector. `KvdiagNixlConnector` needs vLLM and is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdiag.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from kvdiag.connector.connector import KvdiagNixlConnector

__all__ = ["KvdiagNixlConnector"]


def __getattr__(name: str) -> object:
    """Import the class that `kv_connector_module_path: kvdiag.connector` names."""
    if "Push" in name:
        raise InputError(
            f"{name} is not instrumented: pushed KV has no way back to prefill. Set kv_connector to KvdiagNixlConnector, "
            "which pulls, or leave kv_connector_module_path out to run vLLM's NixlPushConnector"
        )
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
