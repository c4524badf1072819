"""How long decode should keep blocks when its memory is bounded: one arrival process, one budget, several TTLs."""
