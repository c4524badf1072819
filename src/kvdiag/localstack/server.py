"""`python -m kvdiag.localstack.server ARGUMENTS`: vLLM's API server, with engines that share a machine of few cores.

NIXL's Python API sets `pthrDelay = 0` (nixl 1.5.1, `nixl_agent.__init__`): each engine's progress thread polls without
pause and so keeps one core busy for as long as the engine lives. On a machine with few cores every test waits for that.

vLLM's NIXL worker binds the thread that it is made on to the last core of the machine where engines compute on CPUs
(0.32, `nixl/base_worker.py`). That thread computes the model too, so two engines share one core while the others idle:
a prompt of 50 ms was seen to wait 10 s until decode had nothing to write.
"""

from __future__ import annotations

import importlib
import os
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


def keep_every_core() -> None:
    """Let nothing in this process bind threads to cores."""
    os.sched_setaffinity = lambda _pid, _cores: None


if __name__ == "__mp_main__":  # the engine core, where the agent lives: vLLM spawns it, and it loads this module anew
    rest_between_polls()
    keep_every_core()

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
