"""Live checks: what a deployment shows from outside, and a conversation that proves reuse."""

from __future__ import annotations

from kvdiag.doctor.checks import CHECKS, Check, Result
from kvdiag.doctor.proof import PROBED, probe
from kvdiag.doctor.site import Site, observe

__all__ = ["CHECKS", "PROBED", "Check", "Result", "Site", "observe", "probe"]
