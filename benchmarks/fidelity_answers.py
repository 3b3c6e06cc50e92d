"""The same answers on both sides: the real allocator is asked again for a cell whose code reads
values of the card, and hears what the dry run said of them. What still differs is no value's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MARK = "answered: "

_OWN = str(Path(__file__).resolve().parents[1] / "gpumem_magic")

_REPLAY = """
def _answer_as_predicted(answers):
    import os, sys, torch

    def answering(own):
        def read(tensor):
            known, frame = own(tensor), sys._getframe(1)
            name = os.path.basename(frame.f_code.co_filename)
            place = f"{'' if name.startswith('<') else name}:{frame.f_lineno}"
            return answers[place].pop(0) if tensor.is_cuda and answers.get(place) else known

        return read

    for name in ("__bool__", "item"):
        setattr(torch.Tensor, name, answering(getattr(torch.Tensor, name)))

_answer_as_predicted({answers})
"""


@contextmanager
def noting_answers() -> Iterator[None]:
    """Within, dry runs print, each on a line of JSON, what they answer code that asks whether a
    tensor of the card is true, or for its number; and where."""
    from gpumem_magic.dryrun.shapes.read_values import ReadValues
    from gpumem_magic.dryrun.shapes.stand_ins import Guesses

    own = ReadValues._decision, ReadValues._item, Guesses.decision

    def noted(read: Any) -> Any:
        def answer(tensor: Any) -> Any:
            value, frame = read(tensor), sys._getframe(2)
            if tensor.is_cuda and not frame.f_code.co_filename.startswith(_OWN):
                _note(frame, value)
            return value

        return answer

    def decision(guesses: Any, frame: Any, *asked: Any, **named: Any) -> bool:
        value = own[2](guesses, frame, *asked, **named)
        _note(frame, value, instead=True)
        return value

    ReadValues._decision = lambda self, truth: own[0](self, noted(truth))  # type: ignore
    ReadValues._item = lambda self, item: own[1](self, noted(item))  # type: ignore
    Guesses.decision = decision  # type: ignore
    try:
        yield
    finally:
        ReadValues._decision, ReadValues._item, Guesses.decision = own  # type: ignore


def _note(frame: Any, value: Any, instead: bool = False) -> None:
    name = Path(frame.f_code.co_filename).name
    place = f"{'' if name.startswith('<') else name}:{frame.f_lineno}"
    print(f"\n{_MARK}{json.dumps([place, value, instead])}")


def answers_in(printed: str) -> dict[str, list[Any]]:
    """What `noting_answers` has noted, in order, by the place that asked."""
    found: dict[str, list[Any]] = {}
    for line in printed.splitlines():
        if line.startswith(_MARK):
            place, value, instead = json.loads(line.removeprefix(_MARK))
            answers = found.setdefault(place, [])
            answers[len(answers) - instead :] = [value]
    return found


def replaying(answers: dict[str, list[Any]]) -> str:
    """What to put before a cell, on its first line, so that it hears these answers, whatever its
    card says."""
    return f"exec({_REPLAY.replace('{answers}', repr(answers))!r}); "
