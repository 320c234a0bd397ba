"""`python -m routecodex`: the same as the command."""

from routecodex.cli import main

main(prog_name="routecodex")
