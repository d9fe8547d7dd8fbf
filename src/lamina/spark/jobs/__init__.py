"""The jobs of `lamina pipeline`: bulk work on topics, each one Spark job with one commit."""
