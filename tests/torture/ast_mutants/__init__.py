"""Mutants nobody chose: small changes of the syntax tree, drawn by a seed over all modules.

    python -m tests.torture.ast_mutants              the published draw; survivors are printed
    python -m tests.torture.ast_mutants --count 15   a few of it
    python -m tests.torture.ast_mutants --only storage/files.py

`changes` finds what can be changed, `drawing` draws from it, `reaching` finds out which test runs
which line, `catching` runs those that run a changed line in a forked child (`processes`) of one
that has everything imported, `published` holds the survivors with the reason why each may live.
"""
