"""The Hugging Face Hub: what a cell would send is told and counts as done; what it asks for is
looked for in the cache, as without a connection."""

from __future__ import annotations

import concurrent.futures
import functools
from typing import Any, NoReturn

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.effects.network import no_connection
from gpumem_magic.isolation.effects.tracking import Inert
from gpumem_magic.isolation.telling import Effects, described

_SENDING = frozenset(
    "accept add auth cancel change comment create delete disable duplicate edit enable grant like "
    "merge move pause permanently preupload reject rename request restart resume scale set super "
    "unlike update upload whoami".split()
)
"""First words of the methods of HfApi that send something, or ask who is there."""

_LOGGING_IN = "login logout interpreter_login notebook_login auth_switch"

_PUSHING = (("datasets.arrow_dataset", "Dataset"), ("datasets.dataset_dict", "DatasetDict"))
"""What looks at a repository first, to push what is new."""


def install_hub_effects(effects: Effects, arrivals: Arrivals) -> None:
    """Replace it in what is loaded, and in what will be."""
    arrivals.expect("huggingface_hub.hf_api", functools.partial(_skip_sending, effects))
    arrivals.expect("huggingface_hub._login", functools.partial(_skip_login, effects))
    for module in ("_http", "_errors"):
        arrivals.expect(f"huggingface_hub.utils.{module}", _stay_offline, "OfflineModeIsEnabled")
    for module, owner in _PUSHING:
        skip = functools.partial(_skip_push, effects, owner)
        arrivals.expect(module, skip)


def _skip_sending(effects: Effects, module: Any) -> None:
    for name, function in list(vars(module.HfApi).items()):
        if name.partition("_")[0] in _SENDING and callable(function):
            answer = functools.partial(_answer, module, name)
            redirect(function, _skipped(effects, f"HfApi.{name}", answer))


def _answer(
    module: Any, name: str, api: Any, repo_id: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """What a method of HfApi returns."""
    if name == "create_repo":
        kind = kwargs.get("repo_type")
        path = f"{kind}s/{repo_id}" if kind in ("dataset", "space") else repo_id
        return module.RepoUrl(f"{api.endpoint}/{path}", endpoint=api.endpoint)
    if not kwargs.get("run_as_future"):
        return Inert()
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_result(Inert())
    return future


def _skip_login(effects: Effects, module: Any) -> None:
    for name in _LOGGING_IN.split():
        if function := getattr(module, name, None):
            known_as = f"huggingface_hub.{name}"
            redirect(function, _skipped(effects, known_as, lambda *args, **kwargs: None))


def _skip_push(effects: Effects, owner: str, module: Any) -> None:
    effects.skip(getattr(module, owner), "push_to_hub", f"{owner}.push_to_hub", Inert())


def _skipped(effects: Effects, known_as: str, answer: Any) -> Any:
    def skipped(*args: Any, **kwargs: Any) -> Any:
        own = args[1:] if known_as.startswith("HfApi.") else ()  # of others it is a token
        effects.blocked(described(known_as, own, kwargs))
        return answer(*args, **kwargs)

    return skipped


def _stay_offline(module: Any) -> None:
    """Of an empty answer it would say that a firewall is in the way."""

    def fail(*response: Any, **named: Any) -> NoReturn:
        raise module.OfflineModeIsEnabled(str(no_connection("huggingface.co")))

    if "hf_raise_for_status" in vars(module):
        redirect(module.hf_raise_for_status, fail)


def redirect(function: Any, call: Any) -> None:
    """Let a function of Python be `call`, whoever has kept it by another name or as a method."""
    code = _call.__code__.replace(co_freevars=function.__code__.co_freevars)
    function.__defaults__, function.__kwdefaults__ = None, {"instead": call}
    function.__code__ = code


def _call(*args: Any, instead: Any, **kwargs: Any) -> Any:
    return instead(*args, **kwargs)
