"""Settings: what is switched off, missing, or does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.faults.scenario import HEALTHY, Evidence, Expected, scenario, turn_lines

if TYPE_CHECKING:
    from benchmarks.faults.rig import Rig

_OFF_ON_DECODE: Final = Evidence("decode.log", "non-default args", "bidirectional_kv_xfer is False")
_OFF_ON_PREFILL: Final = Evidence("prefill.log", "non-default args", "bidirectional_kv_xfer is False")
_NO_CONNECTOR: Final = Evidence("prefill.log", "no KVConnector found", "prefill ignores the params")


def talks(rig: Rig) -> None:
    """Let one agent take four turns."""
    rig.talk(rig.agent("agent"), 4)


def streams(rig: Rig) -> None:
    """Let one agent take four streamed turns."""
    rig.talk(rig.agent("streaming", stream=True), 4)


def works_longer(rig: Rig) -> None:
    """Let two agents take five streamed turns each."""
    for number in range(2):
        rig.talk(rig.agent(f"agent-{number}", stream=True), 5, pause_s=1)


@scenario(
    Expected(
        "feature_off/decode",
        "Decode's start-up arguments switch the feature off, so its answers carry no handle; prefill has it on.",
        evidence=(_OFF_ON_DECODE,),
        also_wrong=("not_returned as if streaming were to blame", "feature_off/prefill"),
    ),
    stock=Expected(
        "feature_off/decode",
        "Nothing but decode's start-up arguments shows it: no read-back and no failure anywhere.",
        evidence=(_OFF_ON_DECODE,),
        also_wrong=("healthy",),
    ),
    engines=("prefill", "decode-off"),
)
def feature_off_on_decode(rig: Rig) -> None:
    """Decode was started without bidirectional_kv_xfer."""
    talks(rig)


@scenario(
    Expected(
        "feature_off/prefill",
        "Decode returns handles, prefill's start-up arguments switch the feature off.",
        evidence=(_OFF_ON_PREFILL, turn_lines("feature_off/prefill", "a handle came and was not used")),
        also_wrong=("feature_off/decode", "local_hit"),
    ),
    stock=Expected(
        "feature_off/prefill",
        "Nothing but prefill's start-up arguments shows it.",
        evidence=(_OFF_ON_PREFILL,),
        also_wrong=("healthy",),
    ),
    engines=("prefill-off", "decode"),
)
def feature_off_on_prefill(rig: Rig) -> None:
    """Prefill was started without bidirectional_kv_xfer; kvdiag's connector keeps turns from hanging."""
    talks(rig)


@scenario(
    Expected(
        "feature_off/no_connector",
        "Prefill says for every request that there is no connector; decode computes all prompts itself.",
        evidence=(_NO_CONNECTOR, turn_lines("feature_off/no_connector", "prefill's answer carried no params")),
        also_wrong=("missing_metadata",),
    ),
    stock=Expected(
        "feature_off/no_connector",
        "Prefill says for every request that there is no connector.",
        evidence=(_NO_CONNECTOR,),
        also_wrong=("missing_metadata",),
    ),
    engines=("prefill-bare", "decode"),
)
def no_connector_on_prefill(rig: Rig) -> None:
    """Prefill was started without --kv-transfer-config."""
    talks(rig)


@scenario(
    Expected(
        "missing_metadata/not_returned",
        "Both engines have the feature on and decode's streamed answers ended without params.",
        turns=3,
        also_wrong=("feature_off", "router_lost_state"),
    ),
    engines=("prefill", "decode-mute"),
)
def streams_return_no_handle(rig: Rig) -> None:
    """Decode (vLLM 0.32) runs without the streaming plug-in: its streamed answers carry no params."""
    streams(rig)


@scenario(
    engines=("prefill", "decode-mute"),
    keep=False,
)
def whole_answers_without_the_plug_in(rig: Rig) -> None:
    """Decode runs without the streaming plug-in, answers are not streamed."""
    talks(rig)


@scenario(
    Expected("local_hit", or_else=("healthy",)),
    stock=HEALTHY,
    engines=("prefill-narrow", "decode"),
)
def prefills_own_cache_covers_it(rig: Rig) -> None:
    """Prefill keeps its prefix cache, nothing is left to read back."""
    works_longer(rig)


@scenario(
    router=("--turn-log", "/dev/full"),
)
def disk_full_for_the_turn_log(rig: Rig) -> None:
    """The router's turn log is on a full disk."""
    talks(rig)


@scenario(
    engines=("prefill-disk-full", "decode"),
)
def disk_full_for_the_event_log(rig: Rig) -> None:
    """Prefill's event log is on a full disk."""
    works_longer(rig)
