"""What an executor reads: pieces of a log, opened where they lie and decoded by the kernels.

    task           what one Spark task reads, the same for batches and for streams
    piece          what every kind of piece does: reading over gaps, and keeping what is wanted
    segment_piece  a range of a segment file: opened, scanned, gathered into Arrow columns

A task is a few pieces, about as large as the user wants a task to be. Its rows are Arrow batches
in the columns of `lamina.spark.columns`; Spark takes them as they are, without a Python object per
row.

Rules.
1. A Python worker imports as little as it needs: not the store, and Numba only where a kernel
   runs. A test measures what importing costs, because every worker of every query pays it.
2. A piece gives the same rows whenever it is read. A file that retention took since planning is
   read from the archive, or ends the task with the reason of the gap.
3. Records that a query does not get are counted and reported to the driver, never left out
   silently.
4. A topic that was deleted and created again since planning is refused: its offsets mean something
   else now.

Where to look: which columns are decoded is decided in `piece`, how tasks are packed in
`lamina.spark.plan`, and what a missing range means in `lamina.spark.gaps`.
"""
