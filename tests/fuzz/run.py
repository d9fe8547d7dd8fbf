"""Runs targets for a number of inputs: `python -m tests.fuzz.run [--target NAME] [--inputs N]`.

With atheris, libFuzzer chooses what to change by the branches that an input reached in Lamina's
plain Python (kernels are compiled and show none); without it, inputs are drawn by the seed alone.
Either way the changes are those of `mutation.py`, and each input must end in a typed error or a
value that holds, within a second of computing and 64 MiB. What breaks that is kept under
`tests/fuzz/corpus`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import inspect
import pkgutil
import random
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lamina.formats
import lamina.server
import lamina.wire
from tests.fuzz.mutation import BYTES_MAX, finish, mutate
from tests.fuzz.target import Target

CORPUS = Path(__file__).parent / "corpus"
INPUT_S, INPUT_KIB = 1.0, 64 << 10
_PACKAGES = (lamina.formats, lamina.wire, lamina.server)


class Broken(Exception):
    """An input that took too long, took too much, or got an answer that is none."""


class Judge:
    """Runs inputs one after the other and keeps what breaks a promise."""

    def __init__(self, targets: list[Target]) -> None:
        self.targets = targets
        self.inputs = self.taken = 0
        for target in targets:  # compiles kernels, so that inputs are judged by their own cost
            source = random.Random(0)
            for seed in target.seeds():
                for data in (seed, *(mutate(seed, target, source) for _ in range(10))):
                    with contextlib.suppress(Exception):
                        target.run(data)

    def target_of(self, data: bytes) -> tuple[Target, bytes]:
        """The first byte says for whom an input is."""
        number = data[0] if data else 0
        return self.targets[number % len(self.targets)], data[1:]

    def judge(self, data: bytes) -> None:
        """Runs one input; raises what breaks a promise."""
        target, given = self.target_of(data)
        self.inputs += 1
        before = fresh_peak_kib()
        started = time.process_time()
        self.taken += target.run(given)
        refuse_cost(time.process_time() - started, peak_kib() - before)


def refuse_cost(seconds: float, grown_kib: int) -> None:
    if grown_kib > INPUT_KIB:
        raise Broken(f"memory grew by {grown_kib} KiB")
    if seconds > INPUT_S:
        raise Broken(f"it took {seconds:.2f} s")


def fresh_peak_kib() -> int:
    """Forgets the peak of earlier inputs; returns that of now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_kib()


def peak_kib() -> int:
    status = Path("/proc/self/status").read_bytes()
    return int(status[status.index(b"VmHWM:") + 6 :].split(None, 1)[0])


def kept(target: Target) -> list[bytes]:
    """What once broke a promise, or is worth starting from."""
    return [path.read_bytes() for path in sorted((CORPUS / target.name).glob("*"))]


def keep(target: Target, data: bytes) -> Path:
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    print(f"{target.name}: {path} breaks a promise", file=sys.stderr, flush=True)
    return path


def drawn(judge: Judge, inputs: int, seed: int) -> None:
    """Inputs by the seed alone: each starts from a seed or from what was taken before."""
    source = random.Random(seed)
    broken: dict[tuple[str, str, int | None], Exception] = {}
    pools = [[*target.seeds(), *kept(target)] for target in judge.targets]
    for _ in range(inputs):
        number = source.randrange(len(judge.targets))
        pool = pools[number]
        data = mutate(source.choice(pool), judge.targets[number], source)
        before = judge.taken
        try:
            judge.judge(bytes([number]) + data)
        except Exception as error:
            target, spot = judge.targets[number], traceback.extract_tb(error.__traceback__)[-1]
            if broken.setdefault((target.name, spot.filename, spot.lineno), error) is error:
                keep(target, data)
        if judge.taken > before and len(pool) < 200:
            pool.append(data)
    if broken:
        raise ExceptionGroup("inputs broke promises", list(broken.values()))


def guided(judge: Judge, inputs: int, seed: int) -> None:
    """Inputs by libFuzzer, which ends the process."""
    import atheris

    for function in plain_functions():
        atheris.instrument_func(function)
    first = [
        bytes([number]) + data
        for number, target in enumerate(judge.targets)
        for data in (*target.seeds(), *kept(target))
    ]

    def change(data: bytes, max_size: int, change_seed: int) -> bytes:
        source = random.Random(change_seed)
        if len(data) < 2:
            data = source.choice(first)
        target, given = judge.target_of(data)
        if source.random() < 0.25:
            given = finish(atheris.Mutate(given, max_size - 1), target, source)
        else:
            given = mutate(given, target, source)
        return (data[:1] + given)[:max_size]

    def judged(data: bytes) -> None:
        try:
            judge.judge(data)
        except Exception:
            keep(*judge.target_of(data))
            raise
        if judge.inputs == inputs:
            print(f"{judge.inputs} inputs, {judge.taken} taken", flush=True)

    options = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={BYTES_MAX + 1}", "-timeout=20"]
    options += ["-rss_limit_mb=4096", "-verbosity=0", "-artifact_prefix=/dev/null."]
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(first):
            (Path(folder) / str(number)).write_bytes(data)
        atheris.Setup([sys.argv[0], *options, folder], judged, custom_mutator=change)
        atheris.Fuzz()


def plain_functions() -> list[Callable[..., Any]]:
    """Lamina's own functions and methods that are not compiled."""
    found: dict[int, Any] = {}
    for package in _PACKAGES:
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            holders = [module, *(each for each in vars(module).values() if inspect.isclass(each))]
            for holder in holders:
                for each in vars(holder).values():
                    own = isinstance(each, types.FunctionType) and each.__module__ == info.name
                    if own and "formats.compile" not in info.name:
                        found[id(each.__code__)] = each
    return list(found.values())


def main() -> None:
    from tests.fuzz.decoders import DECODERS
    from tests.fuzz.doors import DOORS, opened

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", help="a decoder, `decoders` or `doors`")
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-atheris", action="store_true")
    given = parser.parse_args()
    names = given.target or ["decoders"]
    known = DECODERS | DOORS
    chosen = [
        *(DECODERS.values() if "decoders" in names else ()),
        *(DOORS.values() if "doors" in names else ()),
        *(known[name] for name in names if name in known),
    ]
    if not chosen:
        parser.error(f"there are {', '.join(('decoders', 'doors', *known))}")
    with opened(chosen):
        judge = Judge(chosen)
        if given.without_atheris or not has_atheris():
            drawn(judge, given.inputs, given.seed)
            print(f"{judge.inputs} inputs, {judge.taken} taken")
        else:
            guided(judge, given.inputs, given.seed)


def has_atheris() -> bool:
    try:
        import atheris
    except ImportError:
        return False
    return bool(atheris)


if __name__ == "__main__":
    main()
