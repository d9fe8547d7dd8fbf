"""`lamina demo`: the story in a directory of its own."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    data: Annotated[str, typer.Option(help="A directory to write the demonstration into.")] = (
        "demo-data"
    ),
) -> None:
    """Tells Lamina's story on real files: writes, damages, dumps and verifies each format."""
    from lamina_demo import story

    story.tell(data)
