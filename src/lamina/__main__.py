"""`python -m lamina`: the command line, where the script `lamina` is not on the path."""

from lamina.cli.main import main

main()
