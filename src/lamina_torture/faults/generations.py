"""F26 and F28: deleting, and the soak: one store through many crashes, each on the last one's."""

from __future__ import annotations

import random
from dataclasses import replace

from lamina.store.store import Store
from lamina_torture import losing
from lamina_torture.losing import Crashes, made
from lamina_torture.promises import Life, life_of, read, verify
from lamina_torture.rows import ALL, Rounds, Trial, row
from lamina_torture.scribe import Moment, Scribe
from lamina_torture.workloads import MORE, TOPIC, random_workload, unsynced

ERASURES = (
    "append+delete",
    "append+delete+snapshot",
    "append+roll+delete",
    "write+delete+snapshot",
    "append+snapshot+delete",
    "append+snapshot+delete+snapshot",
    "append+snapshot+delete+append+snapshot",
    "append+delete+reopen",
    "append+roll+delete+snapshot+reopen",
    "append+snapshot+delete+kill+snapshot",
)
GENERATIONS = 6
GENERATION_OPERATIONS = 6


@row("F26", "delete", formats=("wal",), invariants="I1 I2 I8", rounds=Rounds(50, 600, ALL))
def delete(trial: Trial) -> None:
    """Records are deleted by their tag; power is lost at each step of that and of what follows."""

    def choose(moment: Moment, luck: random.Random) -> list[str]:
        return ["killed", *losing.reordered(moment, luck, 1), *losing.names_only(moment, luck)]

    Crashes(trial).run(ERASURES, choose, whole=True)


@row("F28", "generations", invariants="I1 I2 I3 I4 I5 I6 I7 I8", rounds=Rounds(4, 30, 6000))
def generations(trial: Trial) -> None:
    """One store is used and crashed again and again, at any step and in any way, by one seed."""
    for number in range(trial.rounds):
        with trial.case(number, "stores") as wanted:
            if wanted:
                trial.counts["crashes"] += _live(trial.format, trial.luck(number))


def _live(format_name: str, luck: random.Random) -> int:
    scribe = Scribe(format_name)
    scribe.open()
    for _ in range(GENERATIONS):
        scribe.moments.clear()
        for name in random_workload(luck, GENERATION_OPERATIONS).split("+"):
            if TOPIC not in scribe.opened.topics():
                _begin_again(scribe)
            MORE[name](scribe)
        scribe.look()
        scribe.note()
        moment = luck.choice(scribe.moments)
        files = made(
            moment.disk, luck.choice(("dropped", "killed", f"seed-{luck.getrandbits(30)}"))
        )
        scribe.files.before = None
        scribe.opened.close()
        scribe.store, scribe.files, scribe.promise = None, files, dict(moment.promise)
        scribe.shards = luck.randint(1, 3)
        scribe.store = scribe.open_on(files)
        verify(scribe.store, scribe.promise)
        _take_up(scribe, scribe.store)
        files.before = scribe._before
    scribe.files.before = None
    scribe.opened.close()
    return GENERATIONS


def _begin_again(scribe: Scribe) -> None:
    """Creates the topic; how many of its name there were, the store knows."""
    scribe.files.before = None
    config = {"segment.bytes": 1024, **unsynced(scribe.format_name)}
    scribe.opened.create_topic(TOPIC, format=scribe.format_name, config=config)
    epoch = scribe.opened.describe_topic(TOPIC).epoch
    scribe.deleted[TOPIC] = epoch - 1
    scribe.promise[TOPIC] = (Life.begun(epoch, scribe.format_name),)
    scribe.files.before = scribe._before


def _take_up(scribe: Scribe, store: Store) -> None:
    """Takes what is there now for what was promised: it was durable, or it is gone for good."""
    for topic, lives in list(scribe.promise.items()):
        if topic not in store.topics():
            scribe.promise[topic] = (None,)
            continue
        life = life_of(lives, store.describe_topic(topic).epoch)
        assert life is not None
        scribe.deleted[topic] = life.epoch - 1
        scribe.promise[topic] = (_as_found(life, store, topic),)


def _as_found(life: Life, store: Store, topic: str) -> Life:
    earliest, end = store.earliest_offset(topic), store.latest_offset(topic)
    there = read(store, topic).keys()
    holes = frozenset(at for at in range(earliest, end) if at not in there)
    stamped = life.stamped
    if stamped is not None and stamped[1] + stamped[2] > end:
        stamped = None
    group = [each for each in store.groups() if each[0] == topic]
    committed = store.describe_group(*group[0]).partitions[0].committed if group else 0
    return replace(
        life,
        values=life.values[: end - life.first],
        durable=end,
        gone=earliest,
        going=earliest,
        deleted=life.deleted | holes,
        deleting=frozenset(),
        stamped=stamped,
        committed=committed,
        committing=committed,
    )
