"""The demonstration behind `make demo` and `lamina demo`: one story on real files.

A package of its own beside `lamina`: it uses the public face as any program does, and adds the
command `demo` where it is installed. `story` is the thread of it, `formats` writes, damages and
verifies a file of each format, `pipeline` archives, queries and streams with Spark.
"""
