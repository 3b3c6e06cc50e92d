"""What grew because a hook collects it: nothing in the loop itself shows that."""

from __future__ import annotations

import ast
import re

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.tree import FUNCTIONS, root
from gpumem_magic.trace.growth.ways import without_places
from gpumem_magic.values.findings import Growth

_REGISTERS = (
    *(".register_forward_hook", ".register_forward_pre_hook", ".register_full_backward_hook"),
    *("torch.nn.modules.module.register_module_forward_hook", ".register_hook"),
)
_PUTS = frozenset(
    {"append", "appendleft", "extend", "add", "put", "update", "setdefault", "__setitem__"}
)
_STAYS = (
    " The hook registered on {place} puts it there, at every call until it is removed "
    "(handle.remove()); registered again, it does so twice: empty what it fills after each pass."
)


def of_hooks(code: Code, growth: Growth) -> str:
    """That a hook puts it there, and where that is registered; "" where none is seen to."""
    words = re.findall(r"\w+", without_places(growth.name))
    for call in code.calls(*_REGISTERS) if words else ():
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(_fills(code, one, words) for one in given):
            return _STAYS.format(place=code.place(call.lineno))
    return ""


def _fills(code: Code, hook: ast.expr, words: list[str]) -> bool:
    """Whether a hook is the object that holds it, was made with that, or writes into it."""
    if isinstance(hook, ast.Name) and hook.id == words[0] and words[1:]:
        return True
    if isinstance(hook, ast.Call):
        given = [*hook.args, *(keyword.value for keyword in hook.keywords)]
        if any(isinstance(one, ast.Name) and one.id == words[0] for one in given):
            return True
        hook = hook.func
    if isinstance(hook, ast.Lambda):
        return _writes(code, hook, words)
    name = hook.attr if isinstance(hook, ast.Attribute) else root(hook)
    functions = (f for f in code.nodes(*FUNCTIONS) if isinstance(f, FUNCTIONS) and f.name == name)
    return any(_writes(code, function, words) for function in functions)


def _writes(code: Code, function: ast.AST, words: list[str]) -> bool:
    """Whether a function calls a method that puts something into what has the name, or sets it, or
    a part of it."""
    changed: list[ast.expr] = []
    for node in code.nodes(ast.Call, ast.Assign, ast.AugAssign, within=function):
        if isinstance(node, ast.Assign):
            changed += node.targets
        elif isinstance(node, ast.AugAssign):
            changed.append(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed += [node.func.value] if node.func.attr in _PUTS else []
    names = {n.id for one in changed for n in code.nodes(ast.Name, within=one)}
    names |= {n.attr for one in changed for n in code.nodes(ast.Attribute, within=one)}
    return words[-1] in names
