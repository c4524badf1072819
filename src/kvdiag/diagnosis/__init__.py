"""Logs in, causes out: readers turn bytes into events, rules turn events into a report."""
