"""`python -m gpumem_magic predict train.py --gpu T4 -- arguments of the script`."""

from __future__ import annotations

import argparse
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem_magic.predict import predict

if TYPE_CHECKING:
    from gpumem_magic.values.report import Report

FITS, RUNS_OUT, FAILS, STOPPED = 0, 1, 2, 130
"""How the process ends: the script fits the card, it does not, it fails otherwise, or Ctrl-C ended
the prediction (128 + SIGINT, as a shell counts)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict a script as it is, print its report, and tell whether it fits."""
    options = _options(sys.argv[1:] if arguments is None else list(arguments))
    try:
        report = predict(
            options.script.read_text(),
            _namespace(options.script, options.arguments),
            options.gpu,
            optimizer_steps=options.optimizer_steps,
            name=options.script.name,
            timeout=options.timeout,
            assume=options.assume.split(",") if options.assume else (),
            worst_batch=options.worst_batch,
        )
    except (OSError, RuntimeError, SyntaxError, ValueError) as error:
        sys.stderr.write(f"{options.script}: {error}\n")
        return FAILS
    except KeyboardInterrupt:
        sys.stderr.write(f"{options.script}: prediction stopped\n")
        return STOPPED
    text = json.dumps(report.to_dict(), indent=1) if options.json else report.text()
    sys.stdout.write(text + "\n")
    return _status(report)


def _options(given: list[str]) -> argparse.Namespace:
    at = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser("python -m gpumem_magic", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser(
        "predict",
        help="where a script's memory would go on a card",
        usage="%(prog)s [options] script [-- arguments of the script]",
        epilog="It ends with 0 where the script fits, 1 where memory runs out, 2 where it fails, "
        "130 after Ctrl-C.",
    )
    command.add_argument("script", type=Path)
    command.add_argument("--gpu", help="a card (T4, A100-80GB), or a size (24GiB)")
    command.add_argument("--json", action="store_true", help="print all of the report as JSON")
    command.add_argument("--optimizer-steps", type=int, help="end loops after so many steps")
    command.add_argument("--assume", help="libraries taken as installed: triton,flash_attn")
    command.add_argument("--worst-batch", help="a DataLoader that begins with its largest batch")
    command.add_argument("--timeout", type=float, help="seconds without anything new, then it ends")
    options = parser.parse_args(given[:at])
    options.arguments = given[at + 1 :]
    return options


def _namespace(script: Path, arguments: list[str]) -> dict[str, Any]:
    """The names that a script begins with. From here on this process is its `__main__`."""
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    sys.argv[:] = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    return vars(module)


def _status(report: Report) -> int:
    if report.oom is not None:
        return RUNS_OUT
    ended = report.error is None or report.error.startswith("SystemExit")
    return FITS if ended else FAILS


if __name__ == "__main__":
    sys.exit(main())
