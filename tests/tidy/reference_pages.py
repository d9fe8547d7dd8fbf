"""The documentation as a site: the pages of docs/, and reference pages made from the code.

    make site      docs/*.md, README.md, CHANGELOG.md, what is made here → build/site/docs
                   → zensical → build/site/site

What is made from the code is made when the site is built, so that it cannot be behind the code:
the public face from its docstrings, every setting, every error with what to do, every metric, every
command with its options.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import typer

import lamina
from lamina import config, errors
from lamina.api.group_api import GroupApi
from lamina.api.store_api import StoreApi
from lamina.cli.main import app
from lamina.groups.settings_book import ShareGroupSettings
from lamina.server.broker import Broker
from lamina.server.http_errors import STATUS
from lamina.server.setting_table import ServerSettings
from lamina.server.settings import variable_of
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REPOSITORY = "https://lamina.example/source"
NAV: dict[str, dict[str, str]] = {
    "Start": {
        "Lamina": "index.md",
        "The tour": "start.md",
        "Concepts": "concepts.md",
        "FAQ": "faq.md",
        "Comparison, and when not to use it": "comparison.md",
    },
    "Guides": {
        "The log": "log.md",
        "Wal topics": "wal.md",
        "Typed topics": "typed.md",
        "Consumer groups": "groups.md",
        "The archive": "tier.md",
        "Spark": "spark.md",
        "Spark jobs": "pipeline.md",
        "Bulk jobs": "pipeline-bulk.md",
        "Other engines": "engines.md",
        "The server": "server.md",
        "Kafka clients": "kafka.md",
        "Moving from Kafka": "moving-from-kafka.md",
        "The console": "console.md",
        "The command line": "cli.md",
        "asyncio": "asyncio.md",
        "Testing your program": "testing.md",
    },
    "Operate": {
        "Running a server": "operate.md",
        "Several servers, one archive": "cluster.md",
        "What stopped new users": "people.md",
    },
    "Reference": {
        "API": "reference/api.md",
        "Settings": "reference/settings.md",
        "Errors": "reference/errors.md",
        "Metrics": "reference/metrics.md",
        "Commands": "reference/commands.md",
    },
    "Formats": {},
    "Trust": {
        "Reliability": "reliability.md",
        "The track record": "track-record.md",
        "Measured beside the field": "field.md",
        "Measured": "measured.md",
        "How it grows": "scale.md",
    },
    "Development": {"Architecture": "architecture.md", "Changelog": "changelog.md"},
}
"""The site's pages by section; formats and decisions are listed as they are found."""
_CONFIG = """\
[project]
site_name = "Lamina"
site_description = "A durable, segmented event log for Python and Spark."
docs_dir = "docs"
site_dir = "site"
extra_css = ["names.css"]
nav = {nav}

[project.theme]
features = ["navigation.sections", "navigation.top", "search.highlight", "content.code.copy"]

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle.icon = "lucide/sun-moon"
toggle.name = "Switch to light"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Follow the system"
"""
_STYLE = "td:first-child code { white-space: nowrap; word-break: normal; }\n"
"""A name in a table is one word: `LaminaError` is not broken after its `o`."""
SETTINGS: dict[str, type[config.Settings]] = {
    "Topics": config.TopicSettings,
    "Writers": config.WriterSettings,
    "The write-ahead log": config.WalSettings,
    "Files": config.FileSettings,
    "Share groups": ShareGroupSettings,
    "The server": ServerSettings,
}
REMEDIES = {
    "LaminaError": "Catch one of the four families below it.",
    "InvalidRequest": "Fix the call. Repeating it unchanged fails again.",
    "UnsupportedField": "Leave the field out, or use a topic whose format keeps it (keratin).",
    "UnknownTopic": "Check the name (`known` lists some that exist), or create the topic.",
    "TopicExists": "Use the topic that is there; pass `exist_ok=True` if you expect one.",
    "UnknownRouter": "Check the name, or create the router.",
    "UnknownGroup": "Check the name, or open the group first with `store.group`.",
    "OffsetOutOfRange": "Start at `earliest_offset` or at `latest_offset`.",
    "OutOfSequence": "Continue at `producer_position`, with the next sequence number.",
    "DuplicateSequence": "Nothing: the batch is stored.",
    "NotAllowed": "Use a key with the scope and prefix that the message names.",
    "Unavailable": "Try again later, with a pause that grows.",
    "QueueFull": "Wait for outstanding appends, or raise the writer's queue limits.",
    "Locked": "Close the other process, or open with `read_only=True`.",
    "StorageFull": "Free disk space or trim; reading goes on meanwhile.",
    "Busy": "Repeat after `retry_after_s`; clients of Lamina do so themselves.",
    "ArchiveUnavailable": "Wait for the object store; appending and local reading go on.",
    "ArchiveRefused": "Give the credentials the missing right, or create the bucket.",
    "ObjectConflict": "Read what the other writer stored, then decide.",
    "ObjectMissing": "Check the key; the object may not be there yet.",
    "Closed": "Open the store, group or client again.",
    "Fenced": "Stop: a newer instance took over. Start again as a new one.",
    "Poisoned": "Reopen the store. Recovery finds out what reached the disk.",
    "CorruptData": "Run `lamina verify`; restore the range from the archive or a backup.",
    "NewerFormat": "Use the Lamina version that wrote the data, or a newer one.",
    "RecordsMissing": "Continue at `end`; `reason` says why the range is gone.",
}


def error_kinds() -> list[type[errors.LaminaError]]:
    """Every error of errors.py, each below its parent."""

    def below(kind: type[errors.LaminaError]) -> Iterator[type[errors.LaminaError]]:
        yield kind
        for each in kind.__subclasses__():
            if each.__module__ == errors.__name__:
                yield from below(each)

    return list(below(errors.LaminaError))


def _cell(text: object) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def _table(heads: list[str], rows: list[list[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines) + "\n"


# ---------------------------------------------------------------- the public face


def _signature(name: str, what: Any) -> str:
    try:
        signature = str(inspect.signature(what))
    except (TypeError, ValueError):
        return name
    signature = re.sub(r"'([A-Za-z_][\w.\[\], |]*)'", r"\1", signature)
    line = f"{name}{signature}"
    if len(line) <= 96:
        return line
    inner, _, result = signature.rpartition(")")
    parts = ",\n    ".join(re.split(r", (?![^\[]*\])", inner[1:]))
    return f"{name}(\n    {parts},\n){result}"


def _described(name: str, what: Any, level: str = "###") -> str:
    text = inspect.getdoc(what) or ""
    return f"{level} `{name}`\n\n```\n{_signature(name, what)}\n```\n\n{text}\n"


def public_methods(kind: type) -> dict[str, Any]:
    """The methods and properties of a class that a program may use, in the order of the source."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        for name, what in vars(base).items():
            if name in found:
                continue
            plain = inspect.unwrap(what.__func__ if isinstance(what, staticmethod) else what)
            if not name.startswith("_") and (
                inspect.isfunction(plain) or isinstance(what, property)
            ):
                found[name] = what
    return found


def _methods(kind: type, prefix: str) -> str:
    parts = []
    for name, what in public_methods(kind).items():
        if isinstance(what, property):
            parts.append(f"### `{prefix}.{name}`\n\n{inspect.getdoc(what) or ''}\n")
        else:
            parts.append(_described(f"{prefix}.{name}", what))
    return "\n".join(parts)


def api_page() -> str:
    """`import lamina`: every public name; then the store and the group, method by method."""
    parts = ["# API\n\nMade from the docstrings. `import lamina` gives these names:\n"]
    for name in sorted(lamina.__all__, key=lambda name: (not name.islower(), name)):
        what = getattr(lamina, name)
        if inspect.isclass(what) or inspect.isfunction(what):
            text = inspect.getdoc(what) or ""
            parts.append(f"### `lamina.{name}`\n\n```\n{_signature(name, what)}\n```\n\n{text}\n")
        else:
            parts.append(f"### `lamina.{name}`\n\n```\n{what}\n```\n")
    parts.append(
        "## A store\n\n`lamina.open`, `lamina.connect` and a read-only store return objects with"
        " these methods.\n\n" + _methods(StoreApi, "store")
    )
    parts.append("## A group\n\n`store.group` returns one.\n\n" + _methods(GroupApi, "group"))
    return "\n".join(parts)


# ---------------------------------------------------------------- settings, errors, metrics


def settings_page() -> str:
    """Every setting of every table, with default, unit and consequence."""
    parts = [
        "# Settings\n\nMade from the code; `lamina config` prints the same. -1 means no limit.\n"
    ]
    for title, kind in SETTINGS.items():
        rows: list[list[object]] = []
        for row in kind.explained():
            names = {key: name for name, key in kind.environment.items()}
            if kind is ServerSettings:
                names = {row["key"]: variable_of(row["key"])}
            variable = names.get(row["key"])
            default = "(empty)" if row["default"] == "" else f"`{row['default']}`"
            known = f"`{variable}`" if variable else ""
            rows.append([f"`{row['key']}`", default, row["unit"], row["consequence"], known])
        heads = ["setting", "default", "unit", "what it does", "environment"]
        parts.append(f"## {title}\n\n{inspect.getdoc(kind)}\n\n{_table(heads, rows)}")
    return "\n".join(parts)


def remedy(kind: type[errors.LaminaError]) -> str:
    """What to do about an error: the table's words, else those of the tree in errors.py."""
    if kind.__name__ in REMEDIES:
        return REMEDIES[kind.__name__]
    line = re.search(rf"── {kind.__name__} +…?(.+)", errors.__doc__ or "")
    first = remedy(kind.__mro__[1]).partition(".")[0].partition(", or")[0]
    return f"{first}, {line[1].strip()}." if line else remedy(kind.__mro__[1])


def _by_family(table: dict[Any, int], kind: type) -> int | None:
    return next((table[each] for each in kind.__mro__ if each in table), None)


def errors_page() -> str:
    """Every error with its meaning, what to do, its exit code and its HTTP status."""
    rows: list[list[object]] = [
        [
            f"`{kind.__name__}`",
            (inspect.getdoc(kind) or "").partition("\n\n")[0],
            remedy(kind),
            _by_family(errors.EXIT_CODES, kind) or "–",
            _by_family(STATUS, kind),
        ]
        for kind in error_kinds()
    ]
    heads = ["error", "what happened", "what to do", "exit code", "HTTP"]
    tree = (errors.__doc__ or "").split("\n\n")[1]
    return (
        "# Errors\n\nEvery error that Lamina raises on purpose is a `LaminaError` from"
        f" `lamina.errors`, sorted by what the caller should do:\n\n```\n{tree}\n```\n\n"
        + _table(heads, rows)
    )


def metric_families() -> list[Any]:
    """What `/metrics` has, read from a store with a topic, a group and a record."""
    with Store("/data", files=SimulatedFiles()) as store:
        store.create_topic("t")
        store.append("t", [b"x"])
        store.group("t", "g")
        broker = Broker(ServerSettings(), None)
        broker.serve(store)
        broker.metrics.count("append", "ok")
        return list(broker.metrics._registry.collect())


def metrics_page() -> str:
    """Every metric with its kind, labels and meaning."""
    rows: list[list[object]] = []
    for family in metric_families():
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        suffix = "_total" if family.type == "counter" else ""
        name = f"`{family.name}{suffix}`"
        rows.append([name, family.type, ", ".join(labels), family.documentation])
    return (
        "# Metrics\n\n`GET /metrics` on the HTTP port, in Prometheus' text format. A key with a"
        " prefix gets the gauges of its topics only.\n\n"
        + _table(["metric", "kind", "labels", "meaning"], rows)
    )


# ---------------------------------------------------------------- the command line


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command with its words, in the order of the help."""
    if hasattr(group, "commands"):
        for name, command in group.commands.items():
            yield from commands(command, (*words, name))
    elif not group.hidden:
        yield " ".join(words), group


def commands_page() -> str:
    """Every command with its arguments and options."""
    parts = ["# Commands\n\nMade from the code. [The command line](../cli.md) is the guide.\n"]
    for words, command in commands(typer.main.get_command(app)):
        parts.append(f"## `lamina {words}`\n\n{inspect.cleandoc(command.help or '')}\n")
        rows: list[list[object]] = []
        for each in command.params:
            if getattr(each, "hidden", False):
                continue
            names = [*each.opts, *each.secondary_opts]
            name = each.name if each.param_type_name == "argument" else ", ".join(names)
            rows.append([f"`{name}`", getattr(each, "help", None) or ""])
        if rows:
            parts.append(_table(["option", "meaning"], rows))
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "api": api_page,
    "settings": settings_page,
    "errors": errors_page,
    "metrics": metrics_page,
    "commands": commands_page,
}
"""The reference pages by their names."""


# ---------------------------------------------------------------- the site


def for_site(text: str) -> str:
    """A page as the site has it: anchors as its generator makes them, files by their address."""
    text = re.sub(r"(\]\([^)#]*#[^)]*?)-+\)", r"\1)", text)
    text = re.sub(
        r"\]\(\.\./((?:src|tests|benchmarks|examples|deploy)/[^)]*)\)", rf"]({REPOSITORY}/\1)", text
    )
    text = re.sub(r"\]\(\.\./README\.md(#[^)]*)?\)", r"](index.md\1)", text)
    return text.replace("](../CHANGELOG.md)", "](changelog.md)")


def write(folder: Path) -> None:
    """Puts everything that the site is made of into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder)
    for page in folder.rglob("*.md"):
        page.write_text(for_site(page.read_text()))
    home = (
        (ROOT / "README.md")
        .read_text()
        .replace("](docs/", "](")
        .replace("](LICENSE)", f"]({REPOSITORY}/LICENSE)")
    )
    home = re.sub(r"\]\((formats|decisions)\)", lambda found: f"]({found[1]}/index.md)", home)
    (folder / "index.md").write_text(for_site(home.replace("](CHANGELOG.md)", "](changelog.md)")))
    (folder / "changelog.md").write_text((ROOT / "CHANGELOG.md").read_text())
    formats = sorted(each.stem for each in (DOCS / "formats").glob("*.md"))
    lines = [f"- [{name}]({name}.md)" for name in formats]
    (folder / "formats" / "index.md").write_text("# Formats\n\n" + "\n".join(lines) + "\n")
    (folder / "decisions" / "README.md").rename(folder / "decisions" / "index.md")
    (folder / "names.css").write_text(_STYLE)
    (folder / "reference").mkdir()
    for name, make in PAGES.items():
        (folder / "reference" / f"{name}.md").write_text(make())


def sections(folder: Path) -> dict[str, dict[str, str]]:
    """The navigation over the pages that there are; one that no section names is a guide."""
    found = {title: dict(pages) for title, pages in NAV.items()}
    for name, title in (("formats", "Formats"), ("decisions", "Development")):
        pages = sorted((folder / name).glob("*.md"), key=lambda page: (page.stem != "index", page))
        for page in pages:
            label = f"{name.title()}" if page.stem == "index" else page.stem
            found[title][label] = f"{name}/{page.name}"
    listed = {page for pages in found.values() for page in pages.values()}
    for page in sorted(folder.rglob("*.md")):
        where = page.relative_to(folder).as_posix()
        if where not in listed:
            found["Guides"][page.read_text().partition("\n")[0].lstrip("# ")] = where
    return {
        title: {label: page for label, page in pages.items() if (folder / page).exists()}
        for title, pages in found.items()
    }


def configuration(folder: Path) -> str:
    """The generator's settings, for a folder of pages."""
    entries = []
    for title, pages in sections(folder).items():
        lines = ", ".join(f'{{ "{label}" = "{page}" }}' for label, page in pages.items())
        entries.append(f'  {{ "{title}" = [{lines}] }},')
    return _CONFIG.replace("{nav}", "[\n" + "\n".join(entries) + "\n]")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write(target / "docs")
    (target / "zensical.toml").write_text(configuration(target / "docs"))
