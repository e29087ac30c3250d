"""Databases of episodes: a real SQLite database is prepared once, and every episode forks a copy of its own.

Invariants: a fork shares nothing with the prepared database or with another fork; it lives in memory and is gone when
its connection is closed. The digest is a function of the rows alone: not of their order, of how the file is laid out or
of what was tried and undone.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from agentgym_rtmc.errors import TaskError

_DIGEST_BYTES = 8


class PreparedDatabase:
    """A database as the bytes of its file. Forking copies them, so threads may fork at the same time."""

    def __init__(self, image: bytes) -> None:
        self._image = image

    @classmethod
    def build(cls, fill: Callable[[sqlite3.Connection], object]) -> PreparedDatabase:
        """Make a database: `fill` gets an empty one and writes schema and rows."""
        with closing(sqlite3.connect(":memory:")) as connection:
            fill(connection)
            connection.commit()
            return cls(connection.serialize())

    @classmethod
    def load(cls, path: Path | str) -> PreparedDatabase:
        """Read a database file, which stays as it is. Raises TaskError where there is none."""
        try:
            # A copy by SQLite's own backup also takes in what still stands in a write-ahead log.
            with (
                closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(":memory:")) as copy,
            ):
                source.backup(copy)
                image = bytearray(copy.serialize())
        except sqlite3.Error as error:
            raise TaskError(f"{path} is no readable SQLite database: {error}") from error
        # The header's file format version: 2 asks for a write-ahead log, which a copy in memory cannot have.
        image[18:20] = b"\1\1"
        return cls(bytes(image))

    def save(self, path: Path | str) -> None:
        """Write the database as a file that any SQLite can open."""
        Path(path).write_bytes(self._image)

    def fork(self) -> sqlite3.Connection:
        """Return a connection to a private copy in memory; every statement is a transaction of its own until BEGIN.

        It may be used by different threads, one at a time.
        """
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.deserialize(self._image)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def __len__(self) -> int:
        """Return the size of the file in bytes."""
        return len(self._image)


def table_names(connection: sqlite3.Connection) -> list[str]:
    """Names of all tables, sorted, without SQLite's own."""
    rows = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return sorted(name for (name,) in rows)


def state_digest(connection: sqlite3.Connection, tables: Iterable[str] | None = None) -> str:
    """Digest of the rows of some tables (default: all), 16 hexadecimal characters; equal rows, equal digest."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for table in table_names(connection) if tables is None else sorted(tables):
        quoted = '"' + table.replace('"', '""') + '"'
        rows = sorted(map(repr, connection.execute(f"SELECT * FROM {quoted}")))
        digest.update(f"{table}\0{len(rows)}\0".encode())
        digest.update("\n".join(rows).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
