"""What can go wrong, sorted by what the caller should do about it.

    LaminaError
    ├── InvalidRequest        fix the call
    │   └── UnsupportedField    … or choose a format that keeps the field
    ├── Unavailable           try again later
    ├── Closed                reopen: closed, fenced or poisoned
    └── CorruptData           a human should look; names path, position, expected, found
        └── NewerFormat         … or a newer Lamina should

Exit codes, HTTP status and Spark's retries are tables over the four families (`EXIT_CODES` here).
"""

from __future__ import annotations


class LaminaError(Exception):
    """The base of every error that Lamina raises on purpose."""


class InvalidRequest(LaminaError):
    """The call cannot succeed as it was made; nothing was changed."""


class UnsupportedField(InvalidRequest):
    """The topic's format has no room for a field of the record."""


class Unavailable(LaminaError):
    """The call may succeed when it is made again; nothing was acknowledged."""


class Closed(LaminaError):
    """The object can no longer be used and must be opened again."""


class CorruptData(LaminaError):
    """Bytes on disk are not what they should be.

    `position` is the byte where the damage begins; `expected` and `found` say what is wrong.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str = "",
        position: int = 0,
        expected: str = "",
        found: str = "",
    ) -> None:
        self.problem = problem
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found
        super().__init__(problem)

    def __str__(self) -> str:
        where = f"{self.path}: byte {self.position}" if self.path else f"byte {self.position}"
        detail = f" (expected {self.expected}, found {self.found})" if self.expected else ""
        return f"{where}: {self.problem}{detail}"

    def at_path(self, path: str) -> CorruptData:
        """Returns the same finding with the file named; the formats themselves know no paths."""
        return type(self)(
            self.problem,
            path=path,
            position=self.position,
            expected=self.expected,
            found=self.found,
        )


class NewerFormat(CorruptData):
    """The file was written by a newer version: refused, never truncated."""


EXIT_CODES: dict[type[LaminaError], int] = {
    CorruptData: 1,
    InvalidRequest: 2,
    Unavailable: 3,
    Closed: 4,
}


def exit_code(error: LaminaError) -> int:
    """Returns the process exit code of an error's family."""
    return next(code for family, code in EXIT_CODES.items() if isinstance(error, family))
