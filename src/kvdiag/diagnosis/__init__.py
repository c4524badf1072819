"""Logs in, causes out: readers turn bytes into events, rules turn events into a report."""

from __future__ import annotations

from kvdiag.diagnosis.options import Options
from kvdiag.diagnosis.pipeline import classify
from kvdiag.diagnosis.report import Report

__all__ = ["Options", "Report", "classify"]
