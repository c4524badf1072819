"""`python -m kvdiag`."""

from kvdiag.cli import main

main()
