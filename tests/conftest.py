"""What every test can rely on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let programs that tests start end on SIGINT: whatever a shell starts with `&` inherits that it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
