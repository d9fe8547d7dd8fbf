"""The only code that touches an object store: get, put, list and delete, through obstore.

The engine is written against the small protocol `Objects`. `s3://`, `gs://`, `az://` and
`memory://` are `ObstoreObjects`; a directory is `object_directory.DirectoryObjects`, which syncs
what it writes (obstore's does not, and the archive may hold the only copy).

Rules.
1. A failure that may pass is tried three times, with 100 and 200 ms between (document 001), here
   and nowhere else. What is refused for good (exists, changed, missing, no right) is not repeated.
2. `create` never overwrites. A try whose answer was lost makes the next one find its own object:
   a caller that gets ObjectConflict reads back before it concludes that another writer won.
3. A large object is uploaded in parts under a `staging/` key and then copied to its key on the
   condition that nothing is there: S3 has no other conditional way to finish an upload in parts.
4. A body shorter than was asked for is a failure, never data. If the object itself is shorter, that
   is damage (CorruptData), which no further try will mend.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from lamina.errors import (
    ArchiveRefused,
    ArchiveUnavailable,
    CorruptData,
    InvalidRequest,
    ObjectConflict,
    ObjectMissing,
)
from lamina.storage.paths import STAGING

if TYPE_CHECKING:
    from obstore.store import ClientConfig
    from typing_extensions import Buffer

TRIES = 3
BACKOFF_MS = 100
PART_BYTES = 8 << 20
SINGLE_PUT_BYTES = 16 << 20
"""Larger objects go in parts: a part that fails is small, and parts go side by side."""
REQUEST_TIMEOUT = "30s"
CONNECT_TIMEOUT = "5s"

_Result = TypeVar("_Result")
_CONDITIONAL = ("creating", "replacing")
_WRITING = (*_CONDITIONAL, "uploading")
_CONDITION_FAILED = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
_REFUSED_FOR_GOOD = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnknownConfigurationKeyError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object in a listing. `modified_ms` is by the store's clock."""

    key: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A small object, and the tag that a conditional replacement of it names."""

    data: bytes
    etag: str


class Ranges(Protocol):
    """What parts of objects are read from."""

    url: str

    def read_range(self, key: str, start: int, end: int) -> Buffer:
        """Reads exactly the bytes from start to end; raises ObjectMissing.

        Raises CorruptData if the object ends before that: no try will ever find more of it.
        """

    def size(self, key: str) -> int:
        """Returns an object's size in bytes; raises ObjectMissing."""


class Objects(Ranges, Protocol):
    """An object store below one prefix. Keys are relative, with slashes."""

    def read(self, key: str) -> Stored:
        """Reads a small object whole; raises ObjectMissing."""

    def create(self, key: str, data: Buffer) -> None:
        """Puts an object where none is; raises ObjectConflict where one is."""

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        """Replaces what the tag names (None: nothing) and returns the new tag.

        Raises ObjectConflict if another one was faster.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yields every object below a prefix, in no order."""

    def delete(self, key: str) -> None:
        """Deletes an object; one that is not there is deleted already."""


def refuse_cut_off(objects: Objects, key: str, end: int) -> None:
    """Raises CorruptData if an object is shorter than a range of it should be."""
    size = objects.size(key)
    if size < end:
        raise CorruptData(
            "the object is cut off",
            path=f"{objects.url}/{key}",
            position=size,
            expected=f"at least {end} bytes",
            found=f"{size} bytes",
        )


def open_objects(url: str, **options: Any) -> Objects:
    """Opens `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `memory://`.

    Credentials and endpoints come from AWS_*, GOOGLE_* and AZURE_*, as obstore reads them. Options
    are obstore's, for programs that have them elsewhere than in the environment.
    """
    return _opened(url, options, {"timeout": REQUEST_TIMEOUT, "connect_timeout": CONNECT_TIMEOUT})


def open_hasty(url: str, patience_ms: int) -> Objects:
    """Opens the same for callers that come back by themselves: each request is tried once.

    It is given up when the patience is over, whatever becomes of it.
    """
    patience = f"{patience_ms}ms"
    return _opened(url, {}, {"timeout": patience, "connect_timeout": patience}, tries=1)


def _opened(
    url: str, options: Mapping[str, Any], times: ClientConfig, tries: int = TRIES
) -> Objects:
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        return ObstoreObjects(url, MemoryStore())
    if scheme not in _STORES:
        raise InvalidRequest(
            f"no object store is known for {url!r}; use s3://bucket/prefix, gs://bucket/prefix or"
            " az://container/prefix"
        )
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise InvalidRequest(f"{url!r} names no bucket; use {scheme}://bucket/prefix")
    kind, endpoint_variable, defaults = _STORES[scheme]
    endpoint = str(options.get("endpoint") or os.environ.get(endpoint_variable, ""))
    client: ClientConfig = {**times, "allow_http": endpoint.startswith("http://")}
    try:
        store = kind(
            bucket,
            prefix=prefix.strip("/") or None,
            client_options=client,
            retry_config={"max_retries": 0},
            **{**defaults, **options},
        )
    except exceptions.BaseError as error:
        raise InvalidRequest(f"{url}: {_first_line(error)}") from error
    return ObstoreObjects(url, store, tries=tries)


_S3: dict[str, Any] = {"copy_if_not_exists": "multipart"}
_STORES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "s3": (S3Store, "AWS_ENDPOINT_URL", _S3),
    "s3a": (S3Store, "AWS_ENDPOINT_URL", _S3),
    "gs": (GCSStore, "GOOGLE_ENDPOINT_URL", {}),
    "az": (AzureStore, "AZURE_STORAGE_ENDPOINT", {}),
}
"""By scheme: obstore's store, the variable that may name an endpoint, and what S3 must be told."""


def _tag_of(about: Any) -> str:
    """Returns what names this content of an object: some stores go by tags, Google's by numbers."""
    tag, version = about["e_tag"] or "", about.get("version")
    return tag if version is None else f"{version}{_BESIDE}{tag}"


def _condition(tag: str) -> dict[str, str]:
    """Returns the condition that an object is still what a tag of `_tag_of` names."""
    version, beside, e_tag = tag.rpartition(_BESIDE)
    return {"e_tag": e_tag, "version": version} if beside else {"e_tag": tag}


_BESIDE = "\n"


class ObstoreObjects:
    """An object store that obstore reaches."""

    def __init__(
        self,
        url: str,
        store: Any,
        sleep: Callable[[float], None] = time.sleep,
        tries: int = TRIES,
    ) -> None:
        self.url = url
        self._store = store
        self._sleep = sleep
        self._tries = tries

    def read(self, key: str) -> Stored:
        """Reads a small object whole; raises ObjectMissing."""

        def once() -> Stored:
            found = obstore.get(self._store, key)
            data = bytes(found.bytes())
            if len(data) != found.meta["size"]:
                raise _Short(f"{len(data)} bytes of {found.meta['size']}")
            return Stored(data, _tag_of(found.meta))

        return self._try("reading", key, once)

    def read_range(self, key: str, start: int, end: int) -> Buffer:
        """Reads exactly the bytes from start to end; raises ObjectMissing, or CorruptData."""

        def once() -> Buffer:
            data: Buffer = obstore.get_range(self._store, key, start=start, end=end)
            found = memoryview(data).nbytes
            if found != end - start:
                raise _Short(f"{found} bytes of {end - start}")
            return data

        try:
            return self._try("reading", key, once)
        except ArchiveUnavailable:
            with contextlib.suppress(ArchiveUnavailable):
                refuse_cut_off(self, key, end)
            raise

    def size(self, key: str) -> int:
        """Returns an object's size in bytes; raises ObjectMissing."""
        return self._try("asking for", key, lambda: obstore.head(self._store, key)["size"])

    def create(self, key: str, data: Buffer) -> None:
        """Puts an object where none is; raises ObjectConflict where one is."""
        view = memoryview(data).cast("B")
        if view.nbytes <= SINGLE_PUT_BYTES:
            self._try("creating", key, lambda: self._put(key, view, mode="create"))
            return
        staged = f"{STAGING}/{uuid.uuid4().hex}"
        try:
            self._try("uploading", key, lambda: self._put_parts(staged, view))
            self._try("creating", key, lambda: self._copy(staged, key))
        finally:
            self._forget(staged)

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        """Replaces what the tag names (None: nothing) and returns the new tag."""
        mode: Any = "create" if etag is None else _condition(etag)
        return self._try("replacing", key, lambda: self._put(key, memoryview(data), mode=mode))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yields every object below a prefix, in no order."""

        def once() -> Sequence[ObjectInfo]:
            return [
                ObjectInfo(
                    about["path"], about["size"], int(about["last_modified"].timestamp() * 1000)
                )
                for page in obstore.list(self._store, prefix or None)
                for about in page
            ]

        yield from self._try("listing", prefix, once)

    def delete(self, key: str) -> None:
        """Deletes an object; one that is not there is deleted already."""

        def once() -> None:
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

        self._try("deleting", key, once)

    # ------------------------------------------------------------------ one try

    def _put(self, key: str, view: memoryview, mode: Any) -> str:
        return _tag_of(obstore.put(self._store, key, view, mode=mode, use_multipart=False))

    def _put_parts(self, key: str, view: memoryview) -> None:
        obstore.put(self._store, key, view, use_multipart=True, chunk_size=PART_BYTES)

    def _copy(self, source: str, key: str) -> None:
        obstore.copy(self._store, source, key, overwrite=False)

    def _forget(self, staged: str) -> None:
        """Deletes a staged upload if that is possible now; `tier clean` finds what is left."""
        try:
            obstore.delete(self._store, staged)
        except (exceptions.BaseError, OSError):
            return

    def _try(self, doing: str, key: str, once: Callable[[], _Result]) -> _Result:
        for number in range(self._tries):
            try:
                return once()
            except FileNotFoundError as error:
                if doing in _WRITING:
                    raise ArchiveRefused(
                        f"{self.url}: {doing} {key} is refused: {_first_line(error)}"
                    ) from error
                raise ObjectMissing(f"{self.url}: there is no {key}") from error
            except _CONDITION_FAILED as error:
                if doing in _CONDITIONAL:
                    raise ObjectConflict(f"{self.url}: {key} is not as it was expected") from error
                self._pause(doing, key, number, error)  # there was no condition
            except _REFUSED_FOR_GOOD as error:
                raise ArchiveRefused(
                    f"{self.url}: {doing} {key} is refused: {_first_line(error)}"
                ) from error
            except (exceptions.BaseError, _Short, OSError) as error:
                self._pause(doing, key, number, error)
        raise AssertionError("the last try returns or raises")

    def _pause(self, doing: str, key: str, number: int, error: Exception) -> None:
        if number + 1 == self._tries:
            self._give_up(doing, key, error)
        self._sleep((BACKOFF_MS << number) / 1000)

    def _give_up(self, doing: str, key: str, error: Exception) -> NoReturn:
        raise ArchiveUnavailable(
            f"{self.url}: {doing} {key} failed: {_first_line(error)}"
        ) from error


class _Short(Exception):
    """The store gave fewer bytes than it should have."""


_METADATA_SERVICE = "http://169.254.169.254/"
"""Who is asked for credentials when the environment has none; it answers inside of a cloud only."""
_NO_KEYS = "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def _first_line(error: Exception) -> str:
    text = (str(error).splitlines() or [type(error).__name__])[0][:300]
    return f"{text}; {_NO_KEYS}" if _METADATA_SERVICE in text else text
