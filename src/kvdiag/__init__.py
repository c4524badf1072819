"""Observability and diagnostics for bidirectional KV transfer in disaggregated vLLM."""

__version__ = "0.1.0"
