"""`python -m ddu` is `ddu`."""

from ddu.cli import main

main()
