"""Databases in files: the cell has a copy of each that it may write."""

# Paths are the cell's, as text.
# ruff: noqa: PTH100, PTH110, PTH116, PTH123

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import weakref
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.effects.files import ScratchFiles
from gpumem_magic.isolation.telling import Effects, described

_URI = 6
"""Where sqlite3.connect has its argument "uri", after the name."""

_LITERAL = re.compile(r"(\b(?:to|export\s+database)\s+)?'([^'\n]+)'", re.IGNORECASE)
"""A text in SQL, and the words that say that it is written."""

_ATTACHED = re.compile(
    r"((?:^|;)(?:\s|--.*\n|/\*[\s\S]*?\*/)*(?:attach(?:\s+database)?|vacuum(?:\s+\w+)?\s+into)\s+)"
    r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[?:@$]\w*)",
    re.IGNORECASE,
)
"""A statement of SQLite, and the name of the file that it is about."""

_IN_MEMORY = "memory"
"""Where the journal of a database of before lies, beside whose file none can."""

_JOURNAL = re.compile(r"(\bpragma\s+(?:\w+\.)?journal_mode\s*(?:=|\()\s*['\"]?)\w+", re.IGNORECASE)
"""A statement of SQLite that says where a journal lies."""

_HEAD = 100
"""Bytes at the start of a database of SQLite that tell of it."""


class Databases:
    """Those of SQLite, DuckDB and SQLAlchemy."""

    def __init__(self, effects: Effects, files: ScratchFiles) -> None:
        self._effects = effects
        self._files = files
        self._opened: set[int] = set()  # by id: those of before have theirs already
        self._met: set[int] = set()

    def install(self, arrivals: Arrivals) -> None:
        """Replace it in what is loaded, and in what will be."""
        effects, expect = self._effects, arrivals.expect
        effects.wrap(sqlite3.Connection, "__init__", self._connecting)
        for owner in (sqlite3.Connection, sqlite3.Cursor):
            for name in ("execute", "executescript", "executemany"):
                effects.wrap(owner, name, self._attaching)
        expect("duckdb", self._install_duckdb)
        expect(
            "sqlalchemy.engine.base",
            lambda module: effects.replace(module.Engine, "raw_connection", _connecting_anew),
        )

    def _install_duckdb(self, module: Any) -> None:
        for owner in (module, module.DuckDBPyConnection):
            for name in ("sql", "execute", "query"):
                self._effects.wrap(owner, name, self._querying)

    def _connecting(
        self, original: Any, /, connection: Any, database: Any, *args: Any, **kwargs: Any
    ) -> None:
        if len(args) > _URI:
            args, kwargs["uri"] = (*args[:_URI], *args[_URI + 1 :]), args[_URI]
        is_uri = bool(kwargs.get("uri")) and str(database).startswith("file:")
        if not is_uri and not self._files.fits(database):
            place, kwargs["uri"] = f"file:{quote(os.path.abspath(database))}?mode=ro", True
        else:
            place = self._place_of_database(database, is_uri)
        original(connection, place, *args, **kwargs)
        self._opened.add(id(connection))

    def _place_of_database(self, name: Any, is_uri: bool) -> Any:
        if not is_uri:
            return name if name in (":memory:", "") else self._database(name)
        _, mark, query = name.partition("?")
        path = unquote(urlsplit(name).path)
        if path == ":memory:" or "mode=memory" in query:
            return name
        reads = "mode=ro" in query or "immutable=1" in query
        place = self._files.path(path) if reads else self._database(path)
        return f"file:{quote(place)}{mark}{query}"

    def _attaching(self, original: Any, /, owner: Any, sql: Any, *parameters: Any) -> Any:
        """`original`, given a statement of SQLite that names a database where it lies."""

        def placed(found: re.Match[str]) -> str:
            nonlocal parameters
            before, name = found.groups()
            given: Any = parameters[0] if parameters else ()
            if name[0] in "'\"":
                path = name[1:-1].replace(name[0] * 2, name[0])
            elif name[0] == "?" and given:
                path, *rest = given
                parameters = (rest,)
            elif name[1:] in given:
                path = given[name[1:]]
            else:  # SQLite has its own words for it
                return found[0]
            place = str(self._attached(path, is_new="into" in before.lower()))
            return "{}'{}'".format(before, place.replace("'", "''"))

        connection = getattr(owner, "connection", owner)
        if (
            id(connection) not in self._opened and id(connection) not in self._met
        ):  # deep in an engine or a model
            self._met.add(id(connection))
            _keep_journal_in_memory(connection)
        if isinstance(sql, str):
            sql = _ATTACHED.sub(placed, sql)
            if _JOURNAL.search(sql) and self._is_of_before(connection):
                sql = _JOURNAL.sub(rf"\1{_IN_MEMORY}", sql)
        return original(owner, sql, *parameters)

    def _is_of_before(self, connection: sqlite3.Connection) -> bool:
        return id(connection) not in self._opened and not _is_written_ahead(connection)

    def _attached(self, path: Any, is_new: bool) -> Any:
        if not is_new:
            return self._place_of_database(path, str(path).startswith("file:"))
        self._files.tell(f"vacuum into {path!r}")
        return self._files.written(path, whole=False)

    def _querying(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`original`, given a text in SQL that names files where they lie."""

        def place(found: re.Match[str]) -> str:
            before, path = found.groups()
            if not before:
                return f"'{self._files.path(path)}'" if os.path.exists(path) else found[0]
            self._files.tell(f"copy to {path!r}")
            return f"{before}'{self._files.written(path, whole=False)}'"

        placed = [_LITERAL.sub(place, each) if isinstance(each, str) else each for each in args]
        return original(*placed, **kwargs)

    def _database(self, path: Any) -> Any:
        """Where it is written, with what belongs to it."""
        if isinstance(path, (str, os.PathLike)):
            for beside in (f"{os.fspath(path)}-wal", f"{os.fspath(path)}-journal"):
                if os.path.exists(beside):
                    self._files.written(beside, whole=True)
        before = _state_of_database(self._files.path(path))
        place = self._files.written(path, whole=True)
        if place is not path:
            told = described("sqlite3.connect", (path,))
            self._files.tell_if(told, lambda: _state_of_database(place) != before)
        return place


def _state_of_database(path: Any) -> tuple[bytes | None, int]:
    """Differs where something was written: its head counts changes, its log ahead grows."""
    head, ahead = None, 0
    with contextlib.suppress(OSError, TypeError, ValueError):
        with open(path, "rb") as file:
            head = file.read(_HEAD)
        ahead = os.stat(f"{os.fspath(path)}-wal").st_size
    return head, ahead


def keep_journals_in_memory(namespace: dict[str, Any]) -> None:
    """Databases of before are written in copies of their files, beside which no journal can lie."""
    for value in list(namespace.values()):
        if issubclass(type(value), sqlite3.Connection):
            _keep_journal_in_memory(value)


def _keep_journal_in_memory(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        if not _is_written_ahead(connection):
            sqlite3.Connection.execute(connection, f"pragma journal_mode = {_IN_MEMORY}")


def _is_written_ahead(connection: sqlite3.Connection) -> bool:
    """Whether what is written lies in a log ahead of the database."""
    found = sqlite3.Connection.execute(connection, "pragma journal_mode").fetchone()
    return [*found] == ["wal"]


def _connecting_anew(original: Any) -> Any:
    """Of an engine of SQLAlchemy from before, the connections to files are of the real ones."""
    known: weakref.WeakSet[Any] = weakref.WeakSet()

    def raw_connection(engine: Any) -> Any:
        if engine not in known:
            known.add(engine)
            name = engine.url.database
            if engine.dialect.name == "sqlite" and name and "memory" not in str(engine.url):
                engine.dispose(close=False)
        return original(engine)

    return raw_connection
