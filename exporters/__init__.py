"""Sinks for what router and connector observe: Prometheus, JSONL, OpenTelemetry."""
