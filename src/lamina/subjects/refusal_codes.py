"""What the registry refuses, by the numbers that Confluent's clients know."""

from __future__ import annotations

from lamina.errors import InvalidRequest

SUBJECT_UNKNOWN = 40401
VERSION_UNKNOWN = 40402
SCHEMA_UNKNOWN = 40403
SUBJECT_DELETED = 40404
SUBJECT_NOT_DELETED = 40405
VERSION_DELETED = 40406
VERSION_NOT_DELETED = 40407
NO_LEVEL = 40408
NO_MODE = 40409
INCOMPATIBLE = 409
INVALID_SCHEMA = 42201
INVALID_VERSION = 42202
INVALID_LEVEL = 42203
INVALID_MODE = 42204
NOT_PERMITTED = 42205
IS_REFERENCED = 42206
INVALID_SUBJECT = 42208


class Refused(InvalidRequest):
    """A request that the registry refuses; its first three digits are the HTTP status."""

    def __init__(self, code: int, problem: str) -> None:
        super().__init__(problem)
        self.code = code


def no_subject(subject: str) -> Refused:
    """Returns the error for a subject without versions."""
    return Refused(SUBJECT_UNKNOWN, f"Subject '{subject}' not found.")


def no_version(version: int | str) -> Refused:
    """Returns the error for a version that a subject has not."""
    return Refused(VERSION_UNKNOWN, f"Version {version} not found.")
