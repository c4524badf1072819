"""From measured unit costs to a large deployment: what breaks first, and how it is sharded."""
