"""F22: machines of a cluster that lose their way to the bucket, their power, or their turn.

Two machines with disks of their own and one object store. Again and again the one that holds the
cluster is cut off (what it sent is carried out later, or never), killed, asked to hand over, or
fenced by force, while clients append at whichever answers. What was answered as archived is there
in the end, at its offset; what was answered before a hand-over, too; and no machine answers after
its successor has begun to.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from lamina.api import Acks
from lamina.config import WriterSettings
from lamina.errors import ArchiveUnavailable, LaminaError, NotPrimary
from lamina.storage.objects import ObjectInfo, Objects, Stored, open_objects
from lamina.store.cluster_life import Charter, Membership, Replica
from lamina.store.seat import Seat
from lamina.store.store import Store
from lamina_torture.histories import Operation, judge
from lamina_torture.rows import Rounds, Trial, demand, row, violated
from lamina_torture.simulated import SimulatedFiles

TTL_MS = 500
TAIL_MS = 20
PATIENCE_S = 60.0
FAILOVERS = 5
CLIENTS = 3
TOPIC = "orders"
DATA = "/srv/data"
FATES = ("cut", "cut", "killed", "power lost", "handed over", "fenced")
_Result = TypeVar("_Result")


class Way:
    """A machine's way to the object store: open, cut for a while, or gone for good."""

    def __init__(self, objects: Objects, luck: random.Random) -> None:
        self.url = objects.url
        self._objects, self._luck = objects, luck
        self._open = threading.Event()
        self._open.set()
        self._is_gone = False
        self._counting = threading.Lock()
        self._left = 0
        self._came = threading.Event()

    def cut_at(self, call: int) -> None:
        """Cuts the way just before a call to come; 1 is the next one."""
        with self._counting:
            self._left = call

    def wait_cut(self) -> None:
        """Waits until that call has come."""
        demand(self._came.wait(PATIENCE_S), "I12", "a machine asks the object store nothing more")

    def cut(self) -> None:
        """Has requests wait from now on."""
        self._open.clear()

    def mend(self) -> None:
        """Lets those go on that wait: some of them are carried out now, so late as it is."""
        self._open.set()

    def end(self) -> None:
        """Has every later request fail."""
        self._is_gone = True
        self._open.set()

    def _go(self, call: Callable[[], _Result]) -> _Result:
        with self._counting:
            self._left -= 1
            if self._left == 0:
                self.cut()
                self._came.set()
        was_cut = not self._open.is_set()
        self._open.wait()
        if was_cut and self._luck.random() < 0.5:
            call()
            raise ArchiveUnavailable("the answer came too late")
        if self._is_gone or was_cut:
            raise ArchiveUnavailable("the object store is out of reach")
        return call()

    def read(self, key: str) -> Stored:
        """Passes it on."""
        return self._go(lambda: self._objects.read(key))

    def read_range(self, key: str, start: int, end: int) -> Any:
        """Passes it on."""
        return self._go(lambda: self._objects.read_range(key, start, end))

    def size(self, key: str) -> int:
        """Passes it on."""
        return self._go(lambda: self._objects.size(key))

    def create(self, key: str, data: Any) -> None:
        """Passes it on."""
        return self._go(lambda: self._objects.create(key, data))

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        """Passes it on."""
        return self._go(lambda: self._objects.replace(key, data, etag))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Passes it on."""
        return iter(self._go(lambda: [*self._objects.list(prefix)]))

    def delete(self, key: str) -> None:
        """Passes it on."""
        return self._go(lambda: self._objects.delete(key))


class Machine:
    """One process of the cluster, with its disk and its way; its doors are `append`."""

    ttl_ms = TTL_MS
    tail_ms = TAIL_MS

    def __init__(self, name: str, objects: Objects, luck: random.Random) -> None:
        self.name, self._objects, self._luck = name, objects, luck
        self.files = SimulatedFiles()
        self.store: Store | None = None
        self._boot()

    def _boot(self) -> None:
        self.way = Way(self._objects, self._luck)
        charter = Charter("c", f"grpc://{self.name}:1", DATA, self.way, self.ttl_ms, self.tail_ms)
        self.membership = Membership(charter, self, self.files, opening=self._opened)
        self.membership.start()

    def _opened(self, seat: Seat) -> Store:
        writer = WriterSettings(flush_ms=50)
        return Store(DATA, files=self.files, archive=self.way, writer=writer, seat=seat)

    def serve(self, store: Store) -> None:
        """Is given the store."""
        self.store = store

    def drain(self) -> None:
        """Has no calls that wait for long."""

    def retract(self) -> None:
        """Forgets the store."""
        self.store = None

    def follow(self, replica: Replica | None) -> None:
        """Has none."""

    def append(self, value: bytes, acks: Acks) -> tuple[int, int, int]:
        """Appends as a door does; returns the offset, and which epoch answers, and since when.

        That is the moment just before it is asked for the last time whether it may.
        """
        refusal, store = self.membership.refusal(), self.store
        if refusal is not None or store is None:
            raise refusal or NotPrimary("there is no store yet")
        epoch = self.membership.member.epoch
        offset = store.append(TOPIC, value, partition=0, acks=acks, timeout_s=5).base_offset
        asked_ns = time.monotonic_ns()
        refusal = self.membership.refusal(was_begun=True)
        if refusal is not None:
            raise NotPrimary(str(refusal), was_begun=True)
        return offset, epoch, asked_ns

    def is_holder(self) -> bool:
        """Returns whether it answers."""
        return self.store is not None and self.membership.refusal() is None

    def lose_power(self, how: Literal["kept", "dropped"]) -> None:
        """Ends the process, and starts it again on what its disk has kept."""
        zombie, self.store = self.membership, None
        self.files = self.files.snapshot().crash(how)
        self.way.end()
        zombie.stop()
        self._boot()

    def end(self) -> None:
        """Ends the process in order."""
        self.way.mend()
        self.membership.stop()


@dataclass(frozen=True, slots=True)
class Answer:
    """An append that was answered."""

    epoch: int
    asked_ns: int
    told_ns: int
    acks: Acks
    offset: int
    value: bytes


@dataclass
class Cluster:
    """The machines, their clients, and what those were told."""

    machines: list[Machine]
    luck: random.Random
    history: list[Operation] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    forced: set[int] = field(default_factory=set)
    """Epochs that were ended by force: their holder learns of it later."""
    stop: threading.Event = field(default_factory=threading.Event)
    problems: list[str] = field(default_factory=list)

    def holder(self) -> Machine:
        """Waits until one of the machines answers."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for each in self.machines:
                if each.is_holder():
                    return each
            time.sleep(0.005)
        told = [each.membership.status() for each in self.machines]
        raise AssertionError(f"nobody takes the cluster over: {told}")

    def begin(self, format_name: str) -> None:
        """Makes the topic, and appends a first record; again where a slow machine lost its turn."""
        config = {"segment.bytes": 4096, "archive.delay.ms": 0, "archive.object.bytes": 1024}
        deadline = time.monotonic() + PATIENCE_S
        for count in itertools.count():
            demand(time.monotonic() < deadline, "I12", "no machine makes a topic")
            store = self.holder().store
            with contextlib.suppress(LaminaError):
                if store is not None and TOPIC not in store.topics():
                    store.create_topic(TOPIC, format=format_name, config=config)
            self._append("first", b"first.%d" % count, "archived")
            if self.history and self.history[-1].outcome == "ok":
                return

    def use(self, number: int, acks: Acks) -> None:
        """Is a client: appends value after value, at whichever machine answers."""
        try:
            for count in itertools.count():
                if self.stop.is_set():
                    return
                self._append(f"client {number}", b"%d.%d" % (number, count), acks)
        except Exception as error:
            self.problems.append(f"client {number}: {type(error).__name__}: {error}")

    def _append(self, client: str, value: bytes, acks: Acks) -> None:
        machine = next((each for each in self.machines if each.is_holder()), None)
        if machine is None:
            time.sleep(0.005)
            return
        began_ns, found, outcome = time.monotonic_ns(), -1, "info"
        try:
            found, epoch, asked_ns = machine.append(value, acks)
            self.answers.append(Answer(epoch, asked_ns, time.monotonic_ns(), acks, found, value))
            outcome = "ok" if acks == "archived" else "info"
        except NotPrimary as error:
            outcome = "info" if error.was_begun else "fail"
        except LaminaError:
            time.sleep(0.005)
        placed = ((found, value.decode()),) if outcome == "ok" else ()
        ended_ns = time.monotonic_ns()
        self.history.append(
            Operation(
                *("send", client, 0, began_ns, ended_ns, outcome),  # type: ignore[arg-type]
                values=(value.decode(),),
                found=placed,
            )
        )

    # ------------------------------------------------------------------ what happens to them

    def fail_over(self, fate: str) -> None:
        """Lets something happen to the holder, and waits for the next one."""
        holder = self.holder()
        other = next(each for each in self.machines if each is not holder)
        epoch = holder.membership.member.epoch
        if fate == "cut":
            holder.way.cut()
            self.until_after(epoch, other)
            holder.way.mend()
        elif fate in ("killed", "power lost"):
            holder.lose_power("kept" if fate == "killed" else "dropped")
        elif fate == "handed over":
            self._hand_over(holder, other, epoch)
        else:
            self.forced.add(epoch)
            other.membership.promote(by_force=True)
        self.until_after(epoch)

    def _hand_over(self, holder: Machine, other: Machine, epoch: int) -> None:
        before = list(self.answers)
        try:
            holder.membership.hand_over(PATIENCE_S)
        except NotPrimary:  # it has lost the cluster meanwhile: the machine is slow
            return
        other.membership.promote(by_force=False)
        there = self.read(self.holder())
        lost = [
            each
            for each in before
            if each.epoch == epoch and there.get(each.offset) != each.value.decode()
        ]
        if lost and not self._was_fenced(holder, epoch):
            violated("I1", f"{lost[:3]} were answered before the hand-over, and are gone")

    def _was_fenced(self, machine: Machine, epoch: int) -> bool:
        """Waits until a machine has set an epoch aside: a slow one may lose its turn first."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if any(each["epoch"] == epoch for each in machine.membership.status()["diverged"]):
                return True
            time.sleep(0.1)
        return False

    def until_after(self, epoch: int, *machines: Machine) -> None:
        """Waits until a machine, of these if any are named, answers in a later epoch."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for each in machines or self.machines:
                if each.is_holder() and each.membership.member.epoch > epoch:
                    return
            time.sleep(0.005)
        told = [each.membership.status() for each in self.machines]
        raise AssertionError(f"nobody takes over from epoch {epoch}: {told}")

    # ------------------------------------------------------------------ the judgement

    def read(self, machine: Machine) -> dict[int, str]:
        """Reads everything at the machine that holds the cluster."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                store = machine.store
                assert store is not None, "it holds the cluster"
                return {
                    offset: value.decode()
                    for batch in store.scan(TOPIC, 0, 0)
                    for offset, value in zip(
                        batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True
                    )
                }
            except (LaminaError, AssertionError):
                if time.monotonic() > deadline:
                    raise
                machine = self.holder()

    def judge(self) -> None:
        """Raises where something does not hold."""
        demand(not self.problems, "I12", "; ".join(self.problems[:3]))
        final = self.read(self.holder())
        found = judge(self.history, {0: final})
        demand(not found, "I1", "; ".join(f"{each.rule}: {each.what}" for each in found[:3]))
        last: dict[int, int] = {}
        for each in self.answers:
            if each.epoch not in self.forced or each.acks == "archived":
                last[each.epoch] = max(last.get(each.epoch, 0), each.asked_ns)
        for each in self.answers:
            late = [
                epoch
                for epoch, asked_ns in last.items()
                if epoch < each.epoch and asked_ns > each.told_ns
            ]
            demand(not late, "I5", f"epoch {late} answered after epoch {each.epoch} had begun to")


@row(
    "F22",
    "failovers",
    formats=("keratin", "frame"),
    invariants="I1 I2 I3 I5 I12",
    rounds=Rounds(2, 3, 100),
)
def failovers(trial: Trial) -> None:
    """Of two machines of a cluster the one that holds it is cut off, killed, relieved or fenced."""
    for number in range(trial.rounds):
        with trial.case(number, "clusters") as wanted:
            if wanted:
                trial.counts["failovers"] += _live(trial.format, trial.luck(number))


@row(
    "F22",
    "every-call",
    formats=("keratin",),
    invariants="I1 I2 I3 I5 I12",
    rounds=Rounds(2, 40, 400),
)
def every_call(trial: Trial) -> None:
    """A machine is paused before its n-th request: while it holds the cluster, or takes it over."""
    for number in range(trial.rounds):
        with trial.case(number) as wanted:
            if wanted:
                with used(trial.format, trial.luck(number)) as cluster:
                    _pause(cluster, number // 2 + 1, is_taking=number % 2 == 1)
                trial.counts["pauses"] += 1


def _pause(cluster: Cluster, call: int, *, is_taking: bool) -> None:
    """Cuts a machine off before a request, until another one has held the cluster."""
    holder = cluster.holder()
    paused = next(each for each in cluster.machines if (each is holder) != is_taking)
    other = next(each for each in cluster.machines if each is not paused)
    epoch = holder.membership.member.epoch
    paused.way.cut_at(call)
    if is_taking:
        with contextlib.suppress(NotPrimary):  # it has lost the cluster meanwhile
            holder.membership.hand_over(PATIENCE_S)
        paused.membership.promote(by_force=False)
    paused.way.wait_cut()
    cluster.until_after(epoch, other)
    paused.way.mend()
    cluster.until_after(epoch)


def _live(format_name: str, luck: random.Random) -> int:
    with used(format_name, luck) as cluster:
        for _ in range(FAILOVERS):
            time.sleep(luck.random() * 0.2)
            cluster.fail_over(luck.choice(FATES))
    return FAILOVERS


@contextlib.contextmanager
def used(format_name: str, luck: random.Random) -> Iterator[Cluster]:
    """A cluster with clients that append; in the end it is judged."""
    objects = open_objects("memory://")
    machines = [Machine(name, objects, luck) for name in ("a", "b")]
    cluster = Cluster(machines, luck)
    clients: list[threading.Thread] = []
    try:
        cluster.begin(format_name)
        for number in range(CLIENTS):
            acks: Acks = "all" if number == 0 else "archived"
            client = threading.Thread(target=cluster.use, args=(number, acks), daemon=True)
            clients.append(client)
            client.start()
        yield cluster
        cluster.stop.set()
        for client in clients:
            client.join()
        cluster.judge()
    finally:
        cluster.stop.set()
        for each in machines:
            each.end()
