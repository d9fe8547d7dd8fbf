"""Every user meets every damage in every tier: what a cell promises, and the check of it.

    axes        formats, tiers, damages and users: the four axes, and which cells exist
    promise     what must hold in a cell: served, reported, kept, refused
    templates   the data directories and archives that are damaged, made once per format
    damages     a bit, a cut, a file that is gone, foreign or newer, a page that is not delivered
    readers, changers, commands, doors, kafka_door, lookers, beside, sparks
                the users: scans and groups, retention and rolls, the command line, the server,
                doctor and verify, schemas and transactions, Spark's source and jobs
    users       all of them by name
    ground      a copy of a template for one cell
    judge       holds what a user saw against the promise
    table       the cells as a table for docs/reliability.md
    known       defects that cells still meet: printed in the docs until they are mended

A test fails when a format, a tier, a command or a public method of a store is not on its axis, so
that a new one cannot be forgotten.

Rules.
1. Sound copies are served wherever they are; damage is reported where it is; nothing is hidden.
2. What cannot be read now is never entered as lost.
3. Bytes that may be the only copy are kept before they are replaced.
4. A cell is judged by the public face alone: what a user could see.
"""
