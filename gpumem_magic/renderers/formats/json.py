"""Reports as JSON and back: format 1. Sizes are bytes, times seconds; nothing is rounded."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from gpumem_magic.values.findings import Timeline
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

FORMAT = 1
_COLUMNS = types.MappingProxyType(
    {"time": "float64", "allocated": "int64", "reserved": "int64", "line": "int32"}
)


_MOST = 1 << 60
"""No size, count or time in a report is larger."""
_LATEST = 253_000_000_000.0
"""Seconds since 1970 until the year 9987, the last times that Python can show."""
_RARE = ("uncounted", "likely", "eager")
"""Fields that are written only where they are neither 0 nor None."""
_SIGNED = ("net", "saving")
"""Fields that may be negative."""


def to_dict(report: Report) -> dict[str, Any]:
    """The report as plain values that JSON has, with its format number."""
    encoded: dict[str, Any] = encode(report)
    return {"format": FORMAT, **encoded}


def from_dict(data: Mapping[str, Any]) -> Report:
    """The report that `to_dict` made `data` of. Raises ValueError that says what is wrong."""
    if not isinstance(data, Mapping):
        raise ValueError("not a report of gpumem_magic")
    _check_format(data)
    report: Report = _Reader().read(Report, data, "report")
    points = len(report.timeline.allocated)
    if report.oom and report.oom.point is not None and not 0 <= report.oom.point < points:
        raise ValueError("report.oom.point lies outside the timeline")
    return report


def dumps(report: Report) -> str:
    """One report as JSON."""
    return json.dumps(to_dict(report), allow_nan=False)


def all_to_dict(reports: Sequence[Report]) -> dict[str, Any]:
    """Many reports as plain values, with their format number."""
    return {"format": FORMAT, "reports": [to_dict(report) for report in reports]}


def dumps_all(reports: Sequence[Report], more: Mapping[str, Any] | None = None) -> str:
    """Many reports as JSON; `more`: plain values that stand beside them."""
    return json.dumps({**all_to_dict(reports), **(more or {})}, allow_nan=False)


def loads(text: str) -> tuple[Report, ...]:
    """What `dumps` or `dumps_all` wrote, as reports. Raises ValueError that says what is wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError("not a report of gpumem_magic")
    _check_format(data)
    many = data.get("reports", [data])
    if not isinstance(many, list):
        raise ValueError("not a history of gpumem_magic: reports should be a list")
    return tuple(from_dict(one) for one in many)


def _check_format(data: Mapping[str, Any]) -> None:
    number = data.get("format")
    if type(number) is not int or number < 1:
        raise ValueError("not a report of gpumem_magic: it has no format number")
    if number > FORMAT:
        raise ValueError(
            f"written by a newer gpumem_magic (format {number}); this one reads up to {FORMAT}: "
            "upgrade with pip install -U gpumem-magic"
        )


def encode(value: Any) -> Any:
    """A value of this package as plain values: fields by name, a member of an Enum as its value."""
    if isinstance(value, Timeline):
        return _encode_timeline(value)
    if is_dataclass(value):
        told = {field.name: getattr(value, field.name) for field in _told(value)}
        return {name: encode(held) for name, held in told.items() if held or name not in _RARE}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {encode(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _told(value: Any) -> list[Field[Any]]:
    """The fields that an answer is equal by: what it was made of beside them is not written."""
    return [field for field in fields(value) if field.compare]


def _encode_timeline(line: Timeline) -> dict[str, Any]:
    columns = {name: getattr(line, name).tolist() for name in _COLUMNS}
    held = {
        kind.value: line.by_category[:, index].tolist()
        for index, kind in enumerate(Category)
        if len(line.by_category) and line.by_category[:, index].any()
    }
    return {**columns, "by_category": held, "peak": int(line.peak)}


class _Reader:
    """Builds values of annotated types out of JSON, and names the place of what does not fit."""

    def __init__(self) -> None:
        self._hints: dict[type, dict[str, Any]] = {}

    def read(self, kind: Any, data: Any, place: str) -> Any:
        origin = get_origin(kind)
        if origin in (Union, types.UnionType):
            inner = next(arg for arg in get_args(kind) if arg is not type(None))
            return None if data is None else self.read(inner, data, place)
        if origin is tuple:
            return self._tuple(get_args(kind), data, place)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._mapping(get_args(kind), data, place)
        if kind is Timeline:
            return _decode_timeline(_expect(dict, data, place), place)
        if is_dataclass(kind) and isinstance(kind, type):
            return self._dataclass(kind, _expect(dict, data, place), place)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _member(kind, data, place)
        return _plain(kind, data, place)

    def _dataclass(self, kind: type[Any], data: dict[str, Any], place: str) -> Any:
        if kind not in self._hints:
            self._hints[kind] = get_type_hints(kind)
        values = {}
        for field in _told(kind):
            inner = f"{place}.{field.name}"
            if field.name in data:
                values[field.name] = self.read(
                    self._hints[kind][field.name], data[field.name], inner
                )
            elif field.default is MISSING and field.default_factory is MISSING:
                raise ValueError(f"{inner} is missing")
        return kind(**values)

    def _tuple(self, kinds: tuple[Any, ...], data: Any, place: str) -> tuple[Any, ...]:
        items = _expect(list, data, place)
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(items)
        if len(kinds) != len(items):
            raise ValueError(f"{place} should have {len(kinds)} values")
        pairs = enumerate(zip(kinds, items, strict=True))
        return tuple(self.read(kind, item, f"{place}[{i}]") for i, (kind, item) in pairs)

    def _mapping(self, kinds: tuple[Any, ...], data: Any, place: str) -> dict[Any, Any]:
        items = _expect(dict, data, place).items()
        return {
            self.read(kinds[0], key, place): self.read(kinds[1], value, f"{place}[{key!r}]")
            for key, value in items
        }


def _plain(kind: type, data: Any, place: str) -> Any:
    if kind is float and isinstance(data, int):
        data = float(_within(_expect(int, data, place), place))
    data = _expect(kind, data, place)
    return _within(data, place) if kind in (int, float) else data


def _within(number: float, place: str) -> float:
    """`number`, if a report can have it there. Raises ValueError for infinity and its like."""
    most = _LATEST if isinstance(number, float) else _MOST
    least = -most if place.rpartition(".")[2] in _SIGNED else 0
    if not least <= number <= most:  # NaN as well
        raise ValueError(f"{place} is {str(number)[:40]}, and lies between {least:g} and {most:g}")
    return number


def _expect(kind: type, data: Any, place: str) -> Any:
    if not isinstance(data, kind) or (kind is not bool and isinstance(data, bool)):
        raise ValueError(f"{place} should be {kind.__name__}, not {type(data).__name__}")
    return data


def _member(kind: type[Enum], data: Any, place: str) -> Enum:
    try:
        return kind(data)
    except ValueError:
        raise ValueError(f"{place}: {data!r} is no {kind.__name__.lower()}") from None


def _decode_timeline(data: dict[str, Any], place: str) -> Timeline:
    columns = {
        name: _column(data.get(name), dtype, f"{place}.{name}") for name, dtype in _COLUMNS.items()
    }
    points = len(columns["time"])
    held = np.zeros((points, len(Category)), np.int64)
    kinds = list(Category)
    for name, values in _expect(dict, data.get("by_category"), f"{place}.by_category").items():
        inner = f"{place}.by_category[{name!r}]"
        column = _column(values, "int64", inner)
        if len(column) == points:
            held[:, kinds.index(Category(_member(Category, name, inner)))] = column
        columns[inner] = column
    peak = _expect(int, data.get("peak"), f"{place}.peak")
    if any(len(column) != points for column in columns.values()) or not -1 <= peak < points:
        raise ValueError(f"{place}: its columns differ in length")
    return Timeline(**{name: columns[name] for name in _COLUMNS}, by_category=held, peak=peak)


def _column(values: Any, dtype: str, place: str) -> Any:
    kinds = (int, float) if dtype == "float64" else (int,)
    if not isinstance(values, list) or not all(type(value) in kinds for value in values):
        raise ValueError(f"{place} should be a list of numbers")
    most = _LATEST if dtype == "float64" else np.iinfo(dtype).max if dtype == "int32" else _MOST
    least = 0 if dtype == "int32" else -most
    if not all(least <= value <= most for value in values):  # NaN as well
        raise ValueError(f"{place} holds a number that no report has there")
    return np.array(values, dtype)
