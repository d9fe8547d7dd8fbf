"""Public calls end in an answer or a LaminaError: arguments are held to the annotations.

A class that users call is decorated with `typed_calls`. Before one of its public methods runs, each
argument is checked against the annotation of its parameter (`int`, `str | None`, …), so that what
is no number never gets as far as a lock, a queue or a file. What the operating system refuses while
it runs comes out as Unavailable or StorageFull.

Rules.
1. A method is checked because it is public, not because somebody thought of it.
2. Annotations with a rule are checked here; a parameter of any other type is its method's business.
3. Numbers like numpy's become Python's own; a bool is no number.
4. A missing, unknown or repeated argument is a mistake in the program, not in its data: it stays
   Python's TypeError.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from lamina.errors import InvalidRequest, typed_errors


class PathLike(Protocol):
    """What `pathlib.Path` is, and everything else that the system takes for a path."""

    def __fspath__(self) -> str:
        """Returns the path as text."""
        ...


Location: TypeAlias = str | PathLike
"""A path, or a URL as text."""
Rule: TypeAlias = Callable[[str, Any], Any]
_Kind = TypeVar("_Kind")

WAIT_S_MAX = 1e9
"""What the system's clocks can count; longer waits are for ever."""
_WHOLE_MAX = 1 << 63


_SCHEMES = ("s3", "gs", "az", "file", "memory", "grpc", "grpc+tls")
"""How URLs begin that a user may take for paths."""


def wait_s(wait_ms: int) -> float:
    """Returns a wait in seconds that a lock or an event can take."""
    return min(wait_ms / 1000, WAIT_S_MAX)


def text(name: str, value: Any) -> str:
    """Checks text that can be stored: no half of a surrogate pair."""
    if type(value) is str and value.isascii():
        return value
    if not isinstance(value, str):
        raise _refused(name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name} is not valid text: {error}") from error
    return value


def whole(name: str, value: Any) -> int:
    """Checks a whole number of at most 64 bits."""
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise _refused(name, "a whole number", value)
        try:
            value = operator.index(value)
        except (TypeError, ValueError) as error:  # an array of many numbers has an index, too
            raise _refused(name, "a whole number", value) from error
    if not -_WHOLE_MAX <= value < _WHOLE_MAX:
        raise InvalidRequest(f"{name} must fit into 64 bits")
    return int(value)


def unsigned(name: str, value: Any) -> int:
    """Checks a whole number that uses all 64 bits, as ids do."""
    if type(value) is int and _WHOLE_MAX <= value < 2 * _WHOLE_MAX:
        return value
    if whole(name, value) < 0:
        raise _refused(name, "0 or more", value)
    return int(value)


def no_partition(topic: str, partitions: int, given: object) -> str:
    """Returns which partitions a topic has, to a caller that named another one."""
    known = f"partitions 0 to {partitions - 1}" if partitions > 1 else "one partition, 0"
    return f"topic {topic!r} has {known}, not {given}"


def seconds(name: str, value: Any) -> float:
    """Checks a number of seconds; endless ones become the longest that clocks can count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(name, "a number of seconds", value)
    if isinstance(value, float) and math.isnan(value):
        raise _refused(name, "a number of seconds", value)
    return float(min(max(value, -WAIT_S_MAX), WAIT_S_MAX))


def refuse_no_store(kind: str, given: Any, call: str) -> None:
    """Refuses what cannot be called as a store, such as the settings of a client of Kafka's."""
    if not callable(getattr(given, call, None)):
        raise InvalidRequest(
            f"a {kind} begins with a store, lamina.{kind}(lamina.connect('grpc://host:9300'), …),"
            f" not with a {type(given).__name__}"
        )


def location(name: str, value: Any) -> str:
    """Checks a path or URL; a `pathlib.Path` is one, too."""
    found = value.__fspath__() if hasattr(type(value), "__fspath__") else value
    if not isinstance(found, str):
        raise _refused(name, "a path or a URL", value)
    if not text(name, found) or "\0" in found:
        raise _refused(name, "a path or a URL", found)
    scheme = found.partition(":/")[0]
    if not isinstance(value, str) and scheme in _SCHEMES and not found.startswith(f"{scheme}://"):
        raise InvalidRequest(f"{name}: a Path drops a slash of {found!r}; give a URL as text")
    return found


def count(name: str, value: Any, least: int = 1) -> int:
    """Reads a setting that counts something, as a number or as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if whole(name, value) < least:
        raise _refused(name, f"{least} or more", value)
    return int(value)


def flag(name: str, value: Any) -> bool:
    """Checks a yes or no."""
    if not isinstance(value, bool):
        raise _refused(name, "True or False", value)
    return value


def raw(name: str, value: Any) -> bytes:
    """Checks bytes."""
    if not isinstance(value, bytes):
        raise _refused(name, "bytes", value)
    return value


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Checks a mapping from text."""
    if not isinstance(value, Mapping):
        raise _refused(name, "a mapping of settings", value)
    for key in value:
        text(f"a key of {name}", key)
    return value


def isolation(name: str, value: Any) -> str:
    """Checks which records a reader sees."""
    if value not in ("durable", "written") or not isinstance(value, str):
        raise _refused(name, "'durable' or 'written'", value)
    return value


def many(rule: Rule) -> Rule:
    """Makes the rule of a collection from that of its items; text is no collection of texts."""

    def check(name: str, value: Any) -> list[Any]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise _refused(name, "a list", value)
        try:
            items = list(value)
        except TypeError as error:  # an array without dimensions
            raise _refused(name, "a list", value) from error
        return [rule(f"an item of {name}", item) for item in items]

    return check


def _either(rules: Collection[Rule]) -> Rule:
    def check(name: str, value: Any) -> Any:
        refusals = []
        for rule in rules:
            try:
                return rule(name, value)
            except InvalidRequest as error:
                refusals.append(str(error))
        raise InvalidRequest("; ".join(refusals))

    return check


def _or_none(rule: Rule) -> Rule:
    def check(name: str, value: Any) -> Any:
        return None if value is None else rule(name, value)

    return check


RULES: Mapping[str, Rule] = {
    "str": text,
    "int": whole,
    "float": seconds,
    "bool": flag,
    "bytes": raw,
    "Isolation": isolation,
    "Mapping[str, Any]": mapping,
    "Iterable[int]": many(whole),
    "Sequence[int]": many(whole),
    "Collection[str]": many(text),
    "Iterable[str]": many(text),
}
"""What each annotation asks of an argument."""


def rule_of(annotation: object, more: Mapping[str, Rule]) -> Rule | None:
    """Returns the rule of an annotation as it is written; None where there is none."""
    if not isinstance(annotation, str):
        return None
    known = {**RULES, **more}
    names = [ast.unparse(part) for part in _alternatives(ast.parse(annotation, mode="eval").body)]
    kinds = [name for name in names if name != "None"]
    if not kinds or any(name not in known for name in kinds):
        return None
    found = known[kinds[0]] if len(kinds) == 1 else _either([known[name] for name in kinds])
    return _or_none(found) if len(kinds) < len(names) else found


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _alternatives(node.left) + _alternatives(node.right)
    return [node]


_USUAL: Mapping[Rule | None, type] = {text: str, whole: int}


def _is_plain(value: Any) -> bool:
    return bool(value.isascii() if type(value) is str else value.bit_length() < 64)


def typed_call(method: Callable[..., Any], more: Mapping[str, Rule]) -> Callable[..., Any]:
    """Wraps one method: arguments by their rules, errors of the operating system by their kind."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    ours = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    found = {each.name: rule_of(each.annotation, more) for each in ours}
    rules = {name: rule for name, rule in found.items() if rule is not None}
    order = [
        (each.name, rules.get(each.name)) for each in ours if each.kind is not each.KEYWORD_ONLY
    ]
    doing = method.__name__
    usual = tuple(itertools.takewhile(bool, (_USUAL.get(rule) for _, rule in order)))

    def checked(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        for name, value in named.items():
            if name in rules:
                named[name] = rules[name](name, value)
        if len(given) > len(order):
            return given  # Python says what is wrong
        return tuple(
            value if rule is None else rule(name, value)
            for (name, rule), value in zip(order, given, strict=False)
        )

    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        # Most calls name a topic, perhaps a partition: these are not looked at one by one.
        kinds = tuple(map(type, given))
        if named or kinds != usual[: len(given)] or not all(map(_is_plain, given)):
            given = checked(given, named)
        try:
            return method(self, *given, **named)
        except OSError as error:
            with typed_errors(doing):
                raise error

    return call


def typed_calls(
    more: Mapping[str, Rule] | None = None, *, leave: Collection[str] = ()
) -> Callable[[type[_Kind]], type[_Kind]]:
    """Decorates a class that users call; `leave` names methods that check for themselves."""

    def decorate(kind: type[_Kind]) -> type[_Kind]:
        for name, found in list(vars(kind).items()):
            if inspect.isfunction(found) and not name.startswith("_") and name not in leave:
                setattr(kind, name, typed_call(found, more or {}))
        return kind

    return decorate


class TypedCalls:
    """The base of what stores and groups can be asked: every class below it is decorated.

    A method that overrides another one shows that one's docstring to users: the contract is
    written down once, and an override's own docstring is for readers of its source.
    """

    __slots__ = ()
    _RULES: ClassVar[Mapping[str, Rule]] = {}

    def __init_subclass__(
        cls, *, rules: Mapping[str, Rule] | None = None, leave: Collection[str] = ()
    ) -> None:
        super().__init_subclass__()
        cls._RULES = {**cls._RULES, **(rules or {})}
        for name, found in vars(cls).items():
            overridden = next((each for each in cls.__mro__[1:] if name in vars(each)), None)
            if inspect.isfunction(found) and overridden is not None and name[0] != "_":
                found.__doc__ = vars(overridden)[name].__doc__
        typed_calls(cls._RULES, leave=leave)(cls)


def _refused(name: str, wanted: str, value: Any) -> InvalidRequest:
    return InvalidRequest(f"{name} must be {wanted}, not {_shown(value)}")


def _shown(value: Any) -> str:
    """A value as a message can carry it: neither endless, nor failing when it is shown."""
    if type(value) not in (str, bytes, int, float, bool, type(None)):
        return f"a {type(value).__name__}"
    try:
        shown = repr(value)
    except ValueError:  # an int of thousands of digits
        return "a huge number"
    return shown if len(shown) <= 100 else f"{shown[:100]}…"
