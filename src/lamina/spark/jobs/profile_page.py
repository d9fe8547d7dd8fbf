"""A profile as one HTML page with plots: drawn here as SVG, needing nothing from anywhere.

Rule: whatever a record or a name holds is text on this page. It passes `html.escape`, and the
page's policy allows no script, no frame and no request.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from lamina.spark.jobs.profile import TOP_KEYS, Profile, key_text, size_name
from lamina.spark.jobs.profile_measures import LATE_NAMES, Measure

ROW, LEFT, WIDTH, RIGHT = 24, 190, 520, 150
STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #66727f; --bar: #2f7f86;
  --line: #d8dee4; --page: #fbfaf7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #97a3af; --bar: #54b1b8;
  --line: #323f4b; --page: #16191d; } }
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  max-width: 900px; margin: 2.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem; }
p { color: var(--soft); margin: .2rem 0 1rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: .8rem; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; font-size: 1.15rem;
  font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } text { fill: var(--ink); font: 13px system-ui, sans-serif; }
.note { fill: var(--soft); } rect { fill: var(--bar); } line { stroke: var(--line); }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

Bar = tuple[str, int, str]
"""A label, a number, and what is written behind the bar."""


def page(found: Profile) -> str:
    """Draws the page."""
    whole, topic = found.whole, found.topic
    exact = found.keys.error == 0
    facts = [
        ("records", f"{whole.records:,}"),
        ("bytes", f"{whole.size_bytes:,}"),
        ("mean size", f"{whole.size_bytes / whole.records:,.1f} B" if whole.records else "-"),
        ("distinct " + found.key_name, f"{'' if exact else 'over '}{found.keys.distinct:,}"),
        ("without " + found.key_name, f"{whole.keyless:,}"),
        ("tombstones", f"{whole.tombstones:,}"),
        ("late at most", f"{whole.late_max_ms:,} ms"),
    ]
    listed = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts)
    parts = [
        f"<h1>{_text(topic.name)}</h1><p>format {_text(topic.format)}, {len(topic.extents)}"
        f" partitions</p><dl>{listed}</dl>",
        _plot("Records by partition", _partitions(found), "An even log has bars of one length."),
        _plot("Sizes", _sizes(whole), "Key and value together, in powers of two."),
        _plot("Lateness", _late(whole), "How long before the latest time seen in its partition."),
        _plot(f"The {TOP_KEYS} most frequent keys", _keys(found), _accuracy(found)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{_text(topic.name)}: a profile</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _partitions(found: Profile) -> list[Bar]:
    return [
        (str(number), each.records, f"{each.records:,}  ({each.size_bytes:,} B)")
        for number, each in found.partitions.items()
    ]


def _sizes(whole: Measure) -> list[Bar]:
    used = [bucket for bucket, count in enumerate(whole.sizes) if count]
    span = range(used[0], used[-1] + 1) if used else range(0)
    return [(size_name(at), int(whole.sizes[at]), f"{int(whole.sizes[at]):,}") for at in span]


def _late(whole: Measure) -> list[Bar]:
    return [
        (name, int(count), f"{int(count):,}")
        for name, count in zip(LATE_NAMES, whole.late, strict=True)
    ]


def _keys(found: Profile) -> list[Bar]:
    total = found.whole.records or 1
    return [
        (key_text(key), count, f"{count:,}  ({count / total:.1%})")
        for key, count in found.keys.top(TOP_KEYS)
    ]


def _accuracy(found: Profile) -> str:
    if found.keys.error == 0:
        return "Counted exactly."
    return f"Each count may be too low, by at most {found.keys.error:,}."


def _plot(title: str, bars: Sequence[Bar], note: str) -> str:
    """Draws horizontal bars from one scale."""
    head = f"<h2>{_text(title)}</h2><p>{_text(note)}</p>"
    if not bars:
        return f"{head}<p>none</p>"
    most = max(1, *(number for _, number, _ in bars))
    height = ROW * len(bars) + 8
    drawn = [
        f'<svg viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" role="img"'
        f' aria-label="{_text(title)}"><line x1="{LEFT}" y1="0" x2="{LEFT}" y2="{height}"/>'
    ]
    for row, (label, number, behind) in enumerate(bars):
        y, length = ROW * row + 4, WIDTH * number / most
        middle = y + ROW / 2 + 1
        short = label if len(label) <= 24 else f"{label[:23]}…"
        drawn.append(
            f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{_text(short)}'
            f"<title>{_text(label)}</title></text>"
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{ROW - 8}" rx="2"/>'
            f'<text class="note" x="{LEFT + length + 8:.1f}" y="{middle}">{_text(behind)}</text>'
        )
    return f"{head}{''.join(drawn)}</svg>"


def _text(value: str) -> str:
    return html.escape(value, quote=True)
