"""What code does, by name: what it loads, sets and imports. All notes about a call take it from here."""

from __future__ import annotations

import dis
import functools
import types
from typing import NamedTuple

_SKIPPED = ("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME")
# The code around these runs them at once, so a call in them is as certain as one beside them.
_AT_ONCE = ("<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>")
_FROM_SCOPE = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_READS = (*_FROM_SCOPE, *_ATTRIBUTES, "LOAD_NAME", "LOAD_SUPER_ATTR", "IMPORT_FROM")
COMPUTED = object()


class Use(NamedTuple):
    """A variable that code loads, and the attributes that it takes at once: of `conf.model.map`, "model" and "map".

    Attributes:
        is_outside: Whether it is a variable from outside of the function.
        is_certain: Whether each run of the code comes to it.
    """

    name: str
    attributes: tuple[str, ...]
    is_outside: bool
    is_certain: bool


class Store(NamedTuple):
    """A name that code sets or deletes; local variables are left out.

    Attributes:
        kind: "ATTR", "GLOBAL", or "NAME" in the body of a module or class.
        value: The constant that it gets, or `COMPUTED`.
    """

    kind: str
    name: str
    value: object


class Facts(NamedTuple):
    """What one code does, without those inside it.

    Attributes:
        names: The names in it of all that is not local.
        reads: Those of them that it reads.
        keys: Strings by which it sets members, as in `environ["NAME"] = value`.
        imports: The modules that it imports; "" for a relative import.
    """

    names: tuple[str, ...]
    constants: tuple[object, ...]
    reads: frozenset[str]
    uses: tuple[Use, ...]
    stores: tuple[Store, ...]
    keys: frozenset[str]
    imports: frozenset[str]


@functools.lru_cache(maxsize=1024)
def read(code: types.CodeType, is_certain: bool = True) -> tuple[Facts, ...]:
    """Return the facts of a code and of all codes inside it, each before those inside it.

    Args:
        is_certain: Whether it always runs.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SKIPPED]
    # Code that handles exceptions itself may not come to what follows.
    table = getattr(code, "co_exceptiontable", None)
    catches = bool(table) if table is not None else any(step.opname == "SETUP_FINALLY" for step in steps)
    is_certain = is_certain and not catches
    uses, stores, keys, imports = list[Use](), list[Store](), set[str](), set[str]()
    for at, step in enumerate(steps):
        before, (kind, _, to) = steps[at - 1], step.opname.partition("_")
        if step.opname in _FROM_SCOPE or step.opname.startswith(("LOAD_FAST", "LOAD_NAME")):
            end = at + 1
            while end < len(steps) and steps[end].opname in _ATTRIBUTES:
                end += 1
            attributes = tuple(each.argval for each in steps[at + 1 : end])
            # Python 3.13 loads two local variables at once.
            name = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
            uses.append(Use(name, attributes, step.opname in _FROM_SCOPE, is_certain))
        elif kind in ("STORE", "DELETE") and to in ("ATTR", "GLOBAL", "NAME"):
            is_constant = before.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT"))
            stores.append(Store(to, step.argval, before.argval if is_constant and kind == "STORE" else COMPUTED))
        elif step.opname == "STORE_SUBSCR" and isinstance(before.argval, str):
            keys.add(before.argval)
        elif step.opname == "IMPORT_NAME":
            # The level of the import and the names that it takes are put on the stack before it.
            imports.add("" if steps[at - 2].argval else step.argval)
        is_certain = is_certain and not step.opname.startswith(("POP_JUMP", "JUMP_IF"))
    reads = frozenset(step.argval for step in steps if step.opname in _READS)
    facts = Facts(code.co_names, code.co_consts, reads, tuple(uses), tuple(stores), frozenset(keys), frozenset(imports))
    inside = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return facts, *(part for each in inside for part in read(each, is_certain and each.co_name in _AT_ONCE))
