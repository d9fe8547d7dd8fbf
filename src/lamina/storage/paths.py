"""The names of files: built here, parsed here, and nowhere else. parse(build(x)) = x.

    data/
      meta/{broker.id,checkpoint.json,archive.json,cold.json,seat.json,snapshot-<n>.bin,lock,
            recovery.json,reserve,groups.json,group-settings.json,producers.json}
      topics/<topic>/{topic.json,schemas.json}
      topics/<topic>/<partition>/segments/<base:020>.{log,idx,timeidx,tidx,tomb}
      topics/<topic>/<partition>/manifest.bin
      wal/[shard-NN/]{CURRENT,wal-<n>.log}
      segments/<topic_id hex>/seg-<first_seq:020>.{data,idx}
      groups/<topic-partition>_<group>.{snap,delta}
      groups/offsets.log
      transactions/<number:020>.{staged,commit}
      sink/of-<application>/{state.json,<number>/{commit.json,<uuid>.part}}
      sink/inbox/<uuid>.{json,done}
      positions/of-<group>.json                                those of readers without a store
      quarantine/diverged-<epoch>/                             a directory, and its report.json
      quarantine/
      erasing/<topic>/<partition>/<base:020>/                  copies that an erasure is making

    and in the object store, below its prefix (the first is document 001's):
      data/<topic>/<partition>/<base:020>.seg, rewritten <base:020>.<generation>.seg,
      by a broker of a cluster <base:020>.<epoch>.<generation>.seg
      data/<topic>/<partition>/{manifest.json,ledger.json}
      data/<topic>/<partition>/state/{<name>,offsets.log}
      data/<topic>/{topic.json,schemas.json}
      staging/<upload>
      lease.json, tail/{<seq:020>.tail,boundary.json}                  of a cluster
      proof.json, and while a proof is under way proof/<id>/<number>

Rules.
1. A name that does not parse returns None, never an exception: a stray file is somebody else's.
2. What a user named (topic, group) reaches the disk only through `topic_name` or percent-encoding.
3. Paths are joined and taken apart with what is here: no other package imports `os.path`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from lamina.errors import InvalidRequest

join, split = os.path.join, os.path.split
parent, base_name = os.path.dirname, os.path.basename
absolute, relative = os.path.abspath, os.path.relpath
SEPARATOR = os.sep
META = "meta"
TOPICS = "topics"
SEGMENTS = "segments"
GROUPS = "groups"
WAL = "wal"
QUARANTINE = "quarantine"
DIVERGED_REPORT = "report.json"
POSITIONS = "positions"
POSITION_TAKEN = ".taken"
ERASING = "erasing"
TRANSACTIONS = "transactions"
STAGED, DECIDED = "staged", "commit"
SINK = "sink"
SINK_INBOX = "sink/inbox"
SINK_LOCK = "sink/lock"
SINK_STATE = "state.json"
SINK_COMMIT = "commit.json"
SINK_PART, SINK_ASKED, SINK_ANSWERED = ".part", ".json", ".done"
JOB_PLAN = "plan.json"
BROKER_ID = "meta/broker.id"
CHECKPOINT = "meta/checkpoint.json"
ARCHIVE_LOCATION = "meta/archive.json"
COLD_LOCATION = "meta/cold.json"
SEAT = "meta/seat.json"
LOCK = "meta/lock"
FLIGHT_SOCKET, HTTP_SOCKET = "flight.sock", "http.sock"
RECOVERY_REPORT = "meta/recovery.json"
ROSTER = "meta/groups.json"
COMMITTED_OFFSETS = "groups/offsets.log"
RESERVE = "meta/reserve"
PRODUCER_IDS = "meta/producers.json"
GROUP_SETTINGS = "meta/group-settings.json"
MANIFEST = "manifest.bin"
TOPIC_SETTINGS = "topic.json"
TOPIC_SCHEMAS = "schemas.json"
LEDGER = "ledger.json"
PRODUCERS = "producers.log"
CURRENT = "CURRENT"
ARCHIVE = "data"
STAGING = "staging"
ARCHIVE_PROOF = "proof.json"
PROOFS = "proof"
LEASE = "lease.json"
TAILS = "tail"
TAIL_BOUNDARY = "tail/boundary.json"
ARCHIVE_MANIFEST = "manifest.json"
ARCHIVE_STATE = "state"

TOPIC_NAME_MAX = 249
SEGMENT_SUFFIXES = ("log", "idx", "timeidx", "tidx", "tomb")
INDEX_SUFFIXES = SEGMENT_SUFFIXES[1:4]
RECORD_SUFFIXES = ("log", "data", "seg")
"""Of files that hold records: a segment, a wal topic's segment, an archived object."""
TEMPORARY_SUFFIX = ".tmp"
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")
FILE_NAME_MAX = 255 - len(TEMPORARY_SUFFIX)
"""What file systems allow, with room for the temporary name of a replacement."""
_NUMBER_END = 1 << 63
_SEGMENT = re.compile(rf"([0-9]{{20}})\.({'|'.join(SEGMENT_SUFFIXES)})")
_WAL_FILE = re.compile(r"wal-([0-9]{1,19})\.log")
_WAL_SEGMENT = re.compile(r"seg-([0-9]{20})\.(data|idx)")
_WAL_TOPIC = re.compile(r"[0-9a-f]{16}")
_TRANSACTION = re.compile(rf"([0-9]{{20}})\.({STAGED}|{DECIDED})")
_SNAPSHOT = re.compile(r"snapshot-([0-9]{1,19})\.bin")
_SHARD = re.compile(r"shard-([0-9]{2,9})")
_GROUP = re.compile(r"([A-Za-z0-9.%-]+)-([0-9]{1,19})_([A-Za-z0-9.%-]+)\.(snap|delta)")
_OBJECT = re.compile(
    r"data/([^/]+)/([0-9]{1,19})/([0-9]{20})(?:\.([0-9]{1,18}))?(?:\.([0-9]{1,9}))?\.seg"
)

_TAIL = re.compile(rf"{TAILS}/([0-9]{{20}})\.tail")


def suffix_of(path: str) -> str:
    """Returns what is behind the last dot of a file's name; "" if there is none."""
    return os.path.splitext(path)[1][1:]


def beside(path: str, suffix: str) -> str:
    """Names the file of the same segment or group that has another suffix."""
    return f"{os.path.splitext(path)[0]}.{suffix}"


def topic_name(name: str) -> str:
    """Checks a topic's name; one that could leave the directory is refused."""
    if not _is_topic_name(name):
        raise InvalidRequest(
            f"topic name {name!r} is refused: letters, digits, '.', '_' and '-' are allowed,"
            f" at most {TOPIC_NAME_MAX}, and not '.' or '..'"
        )
    return name


def _is_topic_name(name: str) -> bool:
    allowed = _TOPIC_NAME.fullmatch(name) and len(name) <= TOPIC_NAME_MAX
    return bool(allowed) and name not in (".", "..")


def _number(digits: str) -> int | None:
    """Reads an offset or a count; none exceeds 63 bits, so a name with a larger one is not ours."""
    number = int(digits)
    return number if number < _NUMBER_END else None


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file of a partition's segment."""

    base_offset: int
    suffix: str

    @property
    def name(self) -> str:
        """The file's name: the base offset in 20 digits, so that names sort as numbers."""
        return f"{self.base_offset:020}.{self.suffix}"


def segments_directory(data: str, topic: str, partition: int) -> str:
    """Returns the directory of a partition's segment files."""
    return f"{data}/{TOPICS}/{topic}/{partition}/{SEGMENTS}"


@lru_cache(maxsize=1 << 15)  # readers that follow a writer list the same names again and again
def segment_file(name: str) -> SegmentFile | None:
    """Parses the name of a segment's file."""
    match = _SEGMENT.fullmatch(name)
    base_offset = _number(match[1]) if match else None
    return SegmentFile(base_offset, match[2]) if match and base_offset is not None else None


def wal_file(index: int) -> str:
    """Names a file of the write-ahead log."""
    return f"wal-{index}.log"


def wal_file_index(name: str) -> int | None:
    """Parses the name of a file of the write-ahead log."""
    match = _WAL_FILE.fullmatch(name)
    return _number(match[1]) if match and wal_file(int(match[1])) == name else None


class WalSegmentFile(NamedTuple):
    """A file of a wal topic's materialised segment."""

    first_sequence: int
    suffix: str

    @property
    def name(self) -> str:
        """The file's name: `seg-` and the first sequence in 20 digits."""
        return f"seg-{self.first_sequence:020}.{self.suffix}"


def wal_segment_file(name: str) -> WalSegmentFile | None:
    """Parses the name of a wal topic's segment file."""
    match = _WAL_SEGMENT.fullmatch(name)
    first = _number(match[1]) if match else None
    return WalSegmentFile(first, match[2]) if match and first is not None else None


class TransactionFile(NamedTuple):
    """What a transaction holds: `staged` while it may be dropped, `commit` once it is decided."""

    number: int
    suffix: str

    @property
    def name(self) -> str:
        """The file's name: the transaction's number in 20 digits."""
        return f"{self.number:020}.{self.suffix}"


def transaction_file(name: str) -> TransactionFile | None:
    """Parses the name of a transaction's file."""
    match = _TRANSACTION.fullmatch(name)
    number = _number(match[1]) if match else None
    return TransactionFile(number, match[2]) if match and number is not None else None


def wal_topic_directory(topic_id: int) -> str:
    """Names a wal topic's directory under `segments/`: its id, never its name."""
    return f"{topic_id:016x}"


def wal_topic_id(name: str) -> int | None:
    """Parses the name of a wal topic's directory."""
    return int(name, 16) if _WAL_TOPIC.fullmatch(name) else None


def snapshot_file(number: int) -> str:
    """Names a metadata snapshot."""
    return f"snapshot-{number}.bin"


def snapshot_number(name: str) -> int | None:
    """Parses the name of a metadata snapshot."""
    match = _SNAPSHOT.fullmatch(name)
    return _number(match[1]) if match and snapshot_file(int(match[1])) == name else None


def shard_directory(shard: int) -> str:
    """Names a shard's directory under `wal/`."""
    return f"shard-{shard:02}"


def shard_number(name: str) -> int | None:
    """Parses the name of a shard's directory."""
    match = _SHARD.fullmatch(name)
    return int(match[1]) if match and shard_directory(int(match[1])) == name else None


@dataclass(frozen=True, slots=True)
class GroupFile:
    """A file of a consumer group's state for one partition.

    Raises InvalidRequest for a group whose file could not be named.
    """

    topic: str
    partition: int
    group: str
    suffix: str

    def __post_init__(self) -> None:
        if not self.group or not _is_text(self.group) or len(self.name) > FILE_NAME_MAX:
            raise InvalidRequest(
                f"group name {self.group!r} is refused: it must be text, not empty, and short"
                f" enough for a file name of {FILE_NAME_MAX} bytes together with the topic's"
            )

    @property
    def name(self) -> str:
        """The file's name; all but letters, digits, '.' and '-' percent-encoded."""
        return f"{_encoded(self.topic)}-{self.partition}_{_encoded(self.group)}.{self.suffix}"


def group_file(name: str) -> GroupFile | None:
    """Parses the name of a group's file."""
    match = _GROUP.fullmatch(name)
    if match is None:
        return None
    try:
        topic, group = (unquote_to_bytes(part).decode() for part in (match[1], match[3]))
        parsed = GroupFile(topic, int(match[2]), group, match[4])
    except (UnicodeDecodeError, InvalidRequest):
        return None
    return parsed if parsed.name == name else None


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(text: str) -> str:
    kept = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-"
    return "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in text.encode())


def sink_directory(application: str) -> str:
    """Names the directory of an application that writes through the Spark sink."""
    name = f"of-{_encoded(application)}" if _is_text(application) else ""
    if not application or not name or len(name) > FILE_NAME_MAX:
        raise InvalidRequest(
            f"application {application!r} is refused: it must be text, not empty, and short enough"
            f" for a file name of {FILE_NAME_MAX} bytes"
        )
    return f"{SINK}/{name}"


def sink_application(name: str) -> str | None:
    """Parses the name of an application's directory below `sink/`."""
    if not name.startswith("of-"):
        return None
    try:
        application = unquote_to_bytes(name[3:]).decode()
        return application if sink_directory(application) == f"{SINK}/{name}" else None
    except (UnicodeDecodeError, InvalidRequest):
        return None


def position_file(group: str) -> str:
    """Names the file that a reader without a store leaves its position in."""
    name = f"of-{_encoded(group)}.json" if _is_text(group) else ""
    if not group or not name or len(name) > FILE_NAME_MAX - len(POSITION_TAKEN):
        raise InvalidRequest(
            f"group {group!r} is refused: it must be text, not empty, and short enough"
            f" for a file name of {FILE_NAME_MAX} bytes"
        )
    return f"{POSITIONS}/{name}"


def position_group(name: str) -> str | None:
    """Parses the name of a file below `positions/`: the group."""
    if not name.startswith("of-") or not name.endswith(".json"):
        return None
    try:
        group = unquote_to_bytes(name[3:-5]).decode()
        return group if position_file(group) == f"{POSITIONS}/{name}" else None
    except (UnicodeDecodeError, InvalidRequest):
        return None


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The key of an archived segment in the object store.

    An object that takes the place of others that began at the same offset is of a later generation.
    A broker of a cluster adds the epoch of its lease: no other broker ever makes a key of that
    epoch, so a key is never used twice, whoever was paused for however long.
    """

    topic: str
    partition: int
    base_offset: int
    generation: int = 0
    epoch: int = 0

    @property
    def name(self) -> str:
        """The key below the store's prefix; the first generation's is that of document 001."""
        later = f".{self.generation}" if self.generation or self.epoch else ""
        later = f".{self.epoch}{later}" if self.epoch else later
        return f"data/{self.topic}/{self.partition}/{self.base_offset:020}{later}.seg"


def object_key(name: str) -> ObjectKey | None:
    """Parses the key of an archived segment."""
    match = _OBJECT.fullmatch(name)
    base_offset = _number(match[3]) if match else None
    if match is None or base_offset is None or not _is_topic_name(match[1]):
        return None
    numbers = [int(each) for each in match.groups()[3:] if each is not None]  # generation is last
    epoch, generation = [0, 0, *numbers][-2:]
    parsed = ObjectKey(match[1], int(match[2]), base_offset, generation, epoch)
    return parsed if parsed.name == name else None


def tail(seq: int) -> str:
    """Names the object of one window of a cluster's log."""
    return f"{TAILS}/{seq:020}.tail"


def tail_seq(key: str) -> int | None:
    """Parses the key of a window: its slot."""
    match = _TAIL.fullmatch(key)
    return _number(match[1]) if match else None


def diverged(epoch: int) -> str:
    """Names where a directory goes that was served in an epoch, and differs from the cluster's."""
    return f"{QUARANTINE}/diverged-{epoch}"


def archive_topic_settings(topic: str) -> str:
    """Names the archived copy of a topic's own file."""
    return f"{ARCHIVE}/{topic}/{TOPIC_SETTINGS}"


def archive_topic_schemas(topic: str) -> str:
    """Names the archived copy of a topic's schemas."""
    return f"{ARCHIVE}/{topic}/{TOPIC_SCHEMAS}"


def archived_topic(key: str) -> str | None:
    """Parses the key of anything that is archived of a topic: the topic's name."""
    parts = key.split("/")
    if len(parts) < 3 or parts[0] != ARCHIVE or not _is_topic_name(parts[1]):
        return None
    return parts[1]


def archive_partition(topic: str, partition: int) -> str:
    """Names the prefix of everything that is archived of a partition."""
    return f"{ARCHIVE}/{topic}/{partition}"


def archive_manifest(topic: str, partition: int) -> str:
    """Names the list of a partition's archived segments."""
    return f"{archive_partition(topic, partition)}/{ARCHIVE_MANIFEST}"


def archive_ledger(topic: str, partition: int) -> str:
    """Names the archived copy of a partition's ledger."""
    return f"{archive_partition(topic, partition)}/{LEDGER}"


def archived_ledger(key: str) -> tuple[str, int] | None:
    """Parses the key of the archived copy of a ledger: (topic, partition)."""
    found = _in_partition(key, 1)
    return found[:2] if found is not None and archive_ledger(*found[:2]) == key else None


def _in_partition(key: str, depth: int) -> tuple[str, int, str] | None:
    """Parses what lies so many names below an archived partition: with the last of the names."""
    parts = key.split("/")
    if len(parts) != 3 + depth or not re.fullmatch("[0-9]{1,19}", parts[2]):
        return None
    return (parts[1], int(parts[2]), parts[-1]) if _is_topic_name(parts[1]) else None


def archive_state(topic: str, partition: int, name: str) -> str:
    """Names an archived file of a group, as earlier releases kept them."""
    return f"{archive_partition(topic, partition)}/{ARCHIVE_STATE}/{_encoded(name)}"


def archive_group(topic: str, partition: int, group: str) -> str:
    """Names the archived copy of a group's state in a partition."""
    return f"{archive_partition(topic, partition)}/{ARCHIVE_STATE}/{_encoded(group)}.json"


def archive_offsets(topic: str, partition: int) -> str:
    """Names the archived copy of what classic groups have committed in a partition."""
    prefix = f"{archive_partition(topic, partition)}/{ARCHIVE_STATE}"
    return f"{prefix}/{base_name(COMMITTED_OFFSETS)}"


def archived_group(key: str) -> tuple[str, int, str] | None:
    """Parses the key of the archived copy of a group's state: (topic, partition, group)."""
    found = _in_partition(key, 2)
    if found is None or not found[2].endswith(".json"):
        return None
    try:
        parsed = *found[:2], unquote_to_bytes(found[2].removesuffix(".json")).decode()
    except UnicodeDecodeError:
        return None
    return parsed if archive_group(*parsed) == key else None


def archived_state(key: str) -> tuple[str, int, str] | None:
    """Parses the key of an archived file of a group: (topic, partition, the file's name)."""
    found = _in_partition(key, 2)
    if found is None:
        return None
    try:
        parsed = *found[:2], unquote_to_bytes(found[2]).decode()
    except UnicodeDecodeError:
        return None
    return parsed if archive_state(*parsed) == key else None
