"""`python -m kvdiag.localstack.server ARGUMENTS`: vLLM's API server, with a NIXL that leaves the processor to others.

NIXL's Python API sets `pthrDelay = 0` (nixl 1.5.1, `nixl_agent.__init__`): each engine's progress thread polls without
pause and so keeps one core busy for as long as the engine lives. On a machine with few cores every test waits for that.
"""

from __future__ import annotations

import importlib
import runpy
from typing import Any, Final, Protocol

PROGRESS_DELAY_US: Final = 1000


class AgentConfig(Protocol):
    """What of NIXL's binding is set here."""

    pthrDelay: int  # noqa: N815 - NIXL's name


def rest_between_polls() -> None:
    """Let the progress thread of every agent made from now on sleep between two looks."""
    bindings: Any = importlib.import_module("nixl_cu12._bindings")
    make = bindings.nixlAgent

    def rested(name: str, config: AgentConfig) -> object:
        config.pthrDelay = PROGRESS_DELAY_US
        return make(name, config)

    bindings.nixlAgent = rested


if __name__ == "__mp_main__":  # the engine core, where the agent lives: vLLM spawns it, and it loads this module anew
    rest_between_polls()

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
