"""The fault matrix: every cause provoked on the real pair, and held against what each way of looking at it says."""
