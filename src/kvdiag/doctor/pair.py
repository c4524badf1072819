"""Prefill and decode driven by hand, as a router would drive them."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvdiag.causes import CAUSES
from kvdiag.context import TurnOutcome, parse
from kvdiag.doctor import readback
from kvdiag.doctor.checks import Result, judged, needs
from kvdiag.doctor.conversation import FIRST_PREFILL, BrokenLinkError

if TYPE_CHECKING:
    from kvdiag.doctor.conversation import Speaker, Turn
    from kvdiag.doctor.site import Service

_CONNECT_S: Final = 3.0


@dataclass
class Pair:
    """One prefill and one decode engine, and what talks to them. Methods raise BrokenLinkError at the broken link."""

    speaker: Speaker
    prefill: Service
    decode: Service
    addresses: list[tuple[str, int]] = field(default_factory=list)
    """The side channels that the engines have named so far."""

    @property
    def name(self) -> str:
        """Return how to call it in a message."""
        return f"{_netloc(self.prefill)}+{_netloc(self.decode)}"

    def read_back(self) -> Result:
        """Hold a conversation of two turns; return whether the second one was read back."""
        opening = self.speaker.opening()
        first = self.speaker.complete(self.prefill, opening, limit=1, params=FIRST_PREFILL)
        if not first.params.get("remote_engine_id"):
            raise BrokenLinkError("prefill returned no kv_transfer_params", "feature_off", "no_connector")
        self.addresses += _address(first.params)
        answered = self._handed_off(opening, first)
        if not answered.params.get("remote_block_ids"):
            raise BrokenLinkError("decode's answer carried no handle", "feature_off", "decode")
        self.addresses += _address(answered.params)
        before = readback.scraped(self.prefill)
        outcome = parse(TurnOutcome, self._second(answered).params)
        if outcome is not None:
            return judged(outcome.cause, outcome.detail, "driven by hand")
        if before is None or not readback.counts(before):
            return needs("reuse", "prefill's NIXL series")
        if readback.rose(self.prefill, before):
            return Result(
                check="reuse", state="ok", seen="driven by hand, prefill read the second turn's KV from decode"
            )
        raise BrokenLinkError("prefill had a handle and read nothing", "feature_off", "prefill")

    def streamed_handle(self) -> Result:
        """Return whether a streamed answer carries decode's handle."""
        params = self.speaker.chat(self.prefill, FIRST_PREFILL, stream=False)
        if not params.get("remote_engine_id"):
            raise BrokenLinkError("prefill returned no kv_transfer_params", "feature_off", "no_connector")
        if self.speaker.chat(self.decode, params, stream=True).get("remote_block_ids"):
            return Result(check="streaming_handles", state="ok", seen="decode's streamed answer carries its handle")
        raise BrokenLinkError("decode's streamed answer carries no handle", "missing_metadata", "not_returned")

    def side_channel(self, *, met: bool) -> Result:
        """Return whether the addresses that the engines name can be reached; `met` says that they reached each other."""
        if not self.addresses:
            return needs("side_channel", "engines that return kv_transfer_params")
        shown = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        if met:
            return Result(check="side_channel", state="ok", seen=f"the engines met at {shown}")
        apart = self.prefill.server.host != self.decode.server.host
        bad = [
            f"{host}:{port}"
            for host, port in self.addresses
            if (apart and _is_loopback(host)) or not _accepts(host, port)
        ]
        if not bad:
            return Result(check="side_channel", state="ok", seen=f"{shown} accept connections from here")
        remedy = CAUSES["peer_unreachable"].remedy("handshake_failed")
        return Result(check="side_channel", state="problem", seen=f"cannot be reached: {', '.join(bad)}", remedy=remedy)

    def _handed_off(self, opening: str, first: Turn) -> Turn:
        try:
            return self.speaker.complete(self.decode, opening, params=first.params)
        except BrokenLinkError as error:
            raise BrokenLinkError(f"the hand-off from prefill to decode failed: {error}", "upstream_error") from error

    def _second(self, answered: Turn) -> Turn:
        prompt = answered.followed_by()
        handle = answered.params | {"do_remote_decode": True, "do_remote_prefill": False}
        try:
            second = self.speaker.complete(self.prefill, prompt, limit=1, params=handle)
        except BrokenLinkError as error:
            raise BrokenLinkError(f"the turn with decode's handle failed: {error}", "feature_off", "prefill") from error
        if second.params:  # nobody else would read these blocks: their lapse would look like a fault in prefill's log
            self.speaker.complete(self.decode, prompt, limit=1, params=second.params)
        return second


def _netloc(service: Service) -> str:
    return service.server.url.partition("://")[2]


def _address(params: dict[str, Any]) -> list[tuple[str, int]]:
    host, port = params.get("remote_host"), params.get("remote_port")
    try:
        return [(str(host), int(port))] if host and port else []
    except (TypeError, ValueError):
        return []


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
