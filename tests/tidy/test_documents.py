"""Pages and docstrings say what the code does: tables are layouts, dumps are golden files."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import lamina.formats
from lamina.formats.kernels.binary import Layout
from tests.tidy import documents
from tests.tidy.documents import Rotten

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "formats"
GOLDEN = ROOT / "tests" / "golden"
FORMATS = ("frame", "keratin", "wal", "strm", "kafka")
NOT_ON_DISK = {"IN_MEMORY", "OFFSET_ENTRY", "TIME_ENTRY"}
"""Public names of numpy record types that describe no file."""


WITHOUT_LAYOUT: dict[str, dict[str, str]] = {
    "lamina.formats.keratin.header": {"magic": "what the headers of all kinds of files share"},
}
"""Tables in docstrings that no layout of the module is, by first field, each with the reason."""


def pages() -> list[Path]:
    return sorted(PAGES.glob("*.md"))


def format_modules() -> list[str]:
    return [
        found.name
        for found in pkgutil.walk_packages(lamina.formats.__path__, "lamina.formats.")
        if not found.ispkg
    ]


def modules_of(format_name: str) -> list[ModuleType]:
    prefix = f"lamina.formats.{format_name}"
    names = [name for name in format_modules() if f"{name}.".startswith(f"{prefix}.")]
    return [importlib.import_module(name) for name in names]


# ---------------------------------------------------------------- the pages


@pytest.mark.parametrize("format_name", FORMATS)
def test_each_format_has_a_page(format_name: str) -> None:
    assert (PAGES / f"{format_name}.md").is_file()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_each_byte_table_of_a_page_is_its_layout(page: Path) -> None:
    assert documents.check_tables(page.read_text()), f"{page.name} has no byte table"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_each_layout_of_a_format_is_on_its_page(page: Path) -> None:
    described = {id(documents.resolve(path)) for path in documents.check_tables(page.read_text())}
    missing = [
        f"{module.__name__}.{name}"
        for module in modules_of(page.stem)
        for name, layout in documents.layouts_in(module).items()
        if id(layout) not in described and name not in NOT_ON_DISK
    ]
    assert not missing, f"{page.name} has no table for {missing}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_each_dump_of_a_page_is_its_golden_file(page: Path) -> None:
    for path, data in documents.dumps_of(page.read_text()).items():
        assert data == (ROOT / path).read_bytes(), f"{page.name}: the dump of {path}"


def test_each_golden_file_is_dumped_in_a_page() -> None:
    dumped = {path for page in pages() for path in documents.dumps_of(page.read_text())}
    golden = {str(path.relative_to(ROOT)) for path in GOLDEN.rglob("*") if path.is_file()}
    assert golden <= dumped, f"in no page: {sorted(golden - dumped)}"


@pytest.mark.parametrize("name", format_modules())
def test_byte_tables_in_docstrings_are_the_layouts(name: str) -> None:
    module = importlib.import_module(name)
    layouts = list(documents.layouts_in(module).values())
    exempt = frozenset(WITHOUT_LAYOUT.get(name, {}))
    tables = documents.check_docstring(module.__doc__ or "", layouts, exempt=exempt)
    source = inspect.getsource(module)
    defines_one = any(
        isinstance(node, ast.Call) and ast.unparse(node.func) == "Layout"
        for node in ast.walk(ast.parse(source))
    )
    assert tables or not defines_one, f"{name} defines a Layout without a byte table"


# ---------------------------------------------------------------- the checks can fail

SAMPLE = Layout("<", magic="u32", kind="u8", name="bytes[3]", offset="i64")
SAMPLE_DTYPE = np.dtype([("offset", "<i8"), ("length", ">u4")])
HERE = __name__
GOOD_PAGE = f"""
<!-- layout: {HERE}.SAMPLE -->
| at | size | field  | type     | meaning |
|----|------|--------|----------|---------|
|  0 |    4 | magic  | u32      | any     |
|  4 |    1 | kind   | u8       | any     |
|  5 |    3 | name   | bytes[3] | any     |
|  8 |    8 | offset | i64      | any     |

<!-- layout: {HERE}.SAMPLE_DTYPE -->
| at | size | field  | type | meaning |
|----|------|--------|------|---------|
|  0 |    8 | offset | i64  | any     |
|  8 |    4 | length | u32  | any     |

<!-- dump: golden=tests/golden/x.bin -->
```hexdump
00000000  01 5e 0b b1  ; magic
00000004  ff
00000005  0a0b         ; two more
```

<!-- dump: golden=tests/golden/x.json -->
```json
{{"a": 1}}
```
"""


def test_a_good_page_passes() -> None:
    assert documents.check_tables(GOOD_PAGE) == [f"{HERE}.SAMPLE", f"{HERE}.SAMPLE_DTYPE"]
    assert documents.dumps_of(GOOD_PAGE) == {
        "tests/golden/x.bin": bytes.fromhex("015e0bb1ff0a0b"),
        "tests/golden/x.json": b'{"a": 1}\n',
    }


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("|  8 |    8 | offset | i64      |", "|  9 |    8 | offset | i64      |"),
        ("|  4 |    1 | kind   | u8       |", "|  4 |    2 | kind   | u8       |"),
        ("|  0 |    4 | magic  | u32      |", "|  0 |    4 | magic  | i32      |"),
        ("| magic  |", "| majic  |"),
        ("|  8 |    8 | offset | i64      | any     |\n", ""),
        ("|  8 |    4 | length | u32  | any     |\n", ""),
        ("|  8 |    4 | length | u32  |", "|  8 |    4 | length | i32  |"),
        ("|  8 |    4 | length | u32  |", "|  8 |    8 | length | u64  |"),
        ("|  8 |    8 | offset | i64      |", "|  8 |    n | offset | i64      |"),
        ("SAMPLE -->\n| at |", "SAMPLE -->\n\n| at |"),
        ("SAMPLE -->", "FORMATS -->"),
    ],
)
def test_a_wrong_table_is_caught(good: str, bad: str) -> None:
    assert good in GOOD_PAGE
    with pytest.raises(Rotten):
        documents.check_tables(GOOD_PAGE.replace(good, bad, 1))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("00000004  ff", "00000003  ff"),
        ("00000004  ff", "00000004  fg"),
        ("```hexdump", "```"),
        ("00000005  0a0b", "five  0a0b"),
    ],
)
def test_a_wrong_dump_is_caught(good: str, bad: str) -> None:
    assert good in GOOD_PAGE
    with pytest.raises(Rotten):
        documents.dumps_of(GOOD_PAGE.replace(good, bad, 1))


DOCSTRING = """A file.

    | at | size | field  | type     | meaning |
    |----|------|--------|----------|---------|
    |  0 |    4 | magic  | u32      | any     |
    |  4 |    1 | kind   | u8       | any     |
    |  5 |    3 | name   | bytes[3] | any     |
    |  8 |    8 | offset | i64      | any     |
    | 16 | n    | value  | bytes    | any     |
    | …  |    4 | crc    | u32      | any     |
"""


def test_a_docstring_table_that_is_no_layout_is_caught_unless_it_is_marked() -> None:
    for rotten in (
        DOCSTRING.replace("kind ", "sort "),
        DOCSTRING + DOCSTRING.replace("magic", "m"),
    ):
        with pytest.raises(Rotten, match="no layout is"):
            documents.check_docstring(rotten, [SAMPLE])
    with pytest.raises(Rotten, match="no layout is"):
        documents.check_docstring(DOCSTRING, [])
    assert documents.check_docstring(DOCSTRING, [], exempt=frozenset({"magic"})) == 1


def test_a_marked_table_does_not_hide_a_wrong_one_and_a_stale_mark_is_caught() -> None:
    marked = frozenset({"magic"})
    wrong = DOCSTRING.replace("| u32      | any", "| i32      | any")
    with pytest.raises(Rotten, match="no layout is"):
        documents.check_docstring(wrong, [SAMPLE], exempt=marked)
    with pytest.raises(Rotten, match="no table needs"):
        documents.check_docstring(DOCSTRING, [SAMPLE], exempt=marked)


def test_a_docstring_table_may_have_fields_of_any_length_at_its_end() -> None:
    assert documents.check_docstring(DOCSTRING, [SAMPLE, SAMPLE_DTYPE]) == 1


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("| 16 | n    | value", "| 17 | n    | value"),
        ("| …  |    4 | crc", "| …  |    8 | crc"),
        ("| …  |    4 | crc", "| 20 |    4 | crc"),
        ("|  5 |    3 | name   | bytes[3]", "|  5 |    3 | name   | bytes[4]"),
        ("|  0 |    4 | magic  | u32", "|  0 |    4 | magic  | i32"),
    ],
)
def test_a_wrong_docstring_table_is_caught(good: str, bad: str) -> None:
    assert good in DOCSTRING
    with pytest.raises(Rotten):
        documents.check_docstring(DOCSTRING.replace(good, bad), [SAMPLE])
