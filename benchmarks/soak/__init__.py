"""Long runs: nothing leaks, nothing is lost, nothing is claimed twice, every turn is accounted for."""
