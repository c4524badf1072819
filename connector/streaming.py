"""vLLM plug-in `kvdiag_streaming`: streamed answers return decode's handle too.

Until 0.32 only whole answers carry `kv_transfer_params`, so a streamed turn never leaves a handle for the next one.
This adds it to the chunk that carries the `finish_reason`, as vLLM does by itself from 0.33 on. Requests without
`kv_transfer_params` are left alone. `VLLM_PLUGINS` without this name turns it off.
"""

from __future__ import annotations

import inspect
import logging
import multiprocessing
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_log = logging.getLogger("vllm.kvdiag.streaming")
_MARK: Final = "_kvdiag_streaming"
_ENGINE_PROCESSES: Final = ("EngineCore", "VllmWorker", "Worker")
_START: Final = "data: {"
_END: Final = "}\n\n"


def register() -> None:
    """Patch the OpenAI server of this process, where there is one and it needs it. Never raises."""
    if multiprocessing.current_process().name.startswith(_ENGINE_PROCESSES):
        return
    try:
        _patch()
    except Exception:  # noqa: BLE001 - a plug-in that fails must not keep the server from starting
        _log.warning("kvdiag_streaming is off: this vLLM's OpenAI server is not as expected", exc_info=True)


def _patch() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse  # noqa: PLC0415 - heavy
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat  # noqa: PLC0415
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion  # noqa: PLC0415

    if "kv_transfer_params" in ChatCompletionStreamResponse.model_fields:
        return
    _wrap(OpenAIServingChat, "chat_completion_stream_generator", "result_generator", lambda output: output)
    _wrap(OpenAIServingCompletion, "completion_stream_generator", "result_generator", lambda output: output[1])


def _wrap(owner: type, name: str, source: str, output_of: Callable[[Any], Any]) -> None:
    """Let a generator method of `owner`, whose outputs come from the argument `source`, add the handle."""
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return
    signature = inspect.signature(original)
    if source not in signature.parameters or "request" not in signature.parameters:
        raise TypeError(f"{owner.__name__}.{name} takes {signature}")

    def generate(*arguments: Any, **options: Any) -> AsyncIterator[str]:  # noqa: ANN401 - upstream's
        bound = signature.bind(*arguments, **options)
        if not getattr(bound.arguments["request"], "kv_transfer_params", None):
            stream: AsyncIterator[str] = original(*arguments, **options)
            return stream
        tee = Tee(bound.arguments[source], output_of)
        bound.arguments[source] = tee
        return with_handle(original(*bound.args, **bound.kwargs), tee)

    setattr(generate, _MARK, True)
    setattr(owner, name, generate)


class Tee:
    """Passes outputs on and keeps the latest `kv_transfer_params` among them."""

    def __init__(self, outputs: AsyncIterator[Any], output_of: Callable[[Any], Any]) -> None:
        self._outputs = outputs
        self._output_of = output_of
        self.handle: dict[str, Any] | None = None

    def __aiter__(self) -> Tee:
        """Return the iterator."""
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - upstream's output
        """Return the next output."""
        item = await anext(self._outputs)
        self.handle = getattr(self._output_of(item), "kv_transfer_params", None) or self.handle
        return item

    async def aclose(self) -> None:
        """Close what is behind, as upstream does when the client goes away."""
        close = getattr(self._outputs, "aclose", None)
        if close is not None:
            await close()


async def with_handle(stream: AsyncIterator[str], tee: Tee) -> AsyncIterator[str]:
    """Return the stream, the handle added to each chunk that carries a `finish_reason`."""
    async for chunk in stream:
        yield chunk if tee.handle is None else add_handle(chunk, tee.handle)


def add_handle(chunk: str, handle: dict[str, Any]) -> str:
    """Return the event with the handle in its object; any event that does not end a choice comes back as it is."""
    if not (chunk.startswith(_START) and chunk.endswith(_END)) or '"finish_reason"' not in chunk:
        return chunk
    try:
        choices = msgspec.json.decode(chunk[len("data: ") :], type=_Chunk).choices
        if not any(choice.finish_reason for choice in choices):
            return chunk
        return f'{chunk[: -len(_END)]},"kv_transfer_params":{msgspec.json.encode(handle).decode()}{_END}'
    except (msgspec.DecodeError, TypeError):
        return chunk


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
