"""Tasks as plain data and as TOML files."""

import json
import os
import tomllib
from collections.abc import Mapping
from typing import Any

from flowsim._files import as_path, write_text
from flowsim.errors import FileProblem, InvalidInput
from flowsim.task import BinomialContext, Context, FixedContext, Group, MixtureContext, Task

_TASK_KEYS = ("classes", "query", "attend_query", "other_outputs", "groups", "context", "distinct", "common", "null")
_CONTEXT_KEYS = {
    "fixed": ("kind", "distinct", "common", "null", "counts"),
    "binomial": ("kind", "length", "gamma"),
    "mixture": ("kind", "compositions"),
}


def task_to_dict(task: Task) -> dict[str, Any]:
    """Plain nested data from which `task_from_dict` rebuilds an equal task."""
    context: dict[str, Any]
    match task.context:
        case FixedContext(distinct=distinct, common=common, null=null, counts=counts):
            given = {"distinct": distinct, "common": common, "null": null}
            context = {"kind": "fixed"}
            context |= {name: value for name, value in given.items() if value is not None}
            if counts is not None:
                context["counts"] = list(counts)
        case BinomialContext(length=length, gamma=gamma):
            context = {"kind": "binomial", "length": length, "gamma": gamma}
        case MixtureContext(items=items):
            compositions = [{"probability": p, "counts": list(counts)} for p, counts in items]
            context = {"kind": "mixture", "compositions": compositions}
    return {
        "classes": task.classes,
        "query": task.query,
        "attend_query": task.attend_query,
        "other_outputs": task.other_outputs,
        "groups": [{"name": group.name, "role": group.role, "types": group.types} for group in task.groups],
        "context": context,
    }


def task_from_dict(data: Mapping) -> Task:
    """Rebuilds a task; the short form (`distinct`, `common`, `null`) is read too.

    Raises:
        InvalidInput: naming the key, its value and the fix.
    """
    _known_keys("task", data, _TASK_KEYS)
    for key in ("classes", "context"):
        if key not in data:
            raise InvalidInput(f"the task has no {key!r}; add it.")
    arguments = {key: value for key, value in data.items() if key not in ("groups", "context")}
    if "groups" in data:
        arguments["groups"] = [_group(item) for item in _list("groups", data["groups"])]
    return Task(**arguments, context=_context(data["context"]))


def task_to_toml(task: Task, path: str | os.PathLike | None = None) -> str:
    """TOML text of a task, also written to `path` when given.

    Raises:
        FileProblem: if the folder of `path` does not exist.
    """
    data = task_to_dict(task)
    groups, context = data.pop("groups"), data.pop("context")
    lines = [f"{key} = {_toml_value(value)}" for key, value in data.items()]
    for group in groups:
        lines += ["", "[[groups]]", *(f"{key} = {_toml_value(value)}" for key, value in group.items())]
    lines += ["", "[context]", *(f"{key} = {_toml_value(value)}" for key, value in context.items())]
    text = "\n".join(lines) + "\n"
    if path is not None:
        write_text(path, text)
    return text


def task_from_toml(path: str | os.PathLike) -> Task:
    """Reads a task from a TOML file.

    Raises:
        FileProblem: if the file is missing or is no TOML.
        InvalidInput: if a key is unknown or a value is not usable.
    """
    path = as_path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileProblem(f"task file {str(path)!r} cannot be read ({error.strerror}); check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileProblem(
            f"task file {str(path)!r} is not valid TOML ({error}); write one with Task.to_toml."
        ) from error
    try:
        return task_from_dict(data)
    except InvalidInput as error:
        raise InvalidInput(f"task file {str(path)!r}: {error}") from error


def _context(data) -> Context:
    if not isinstance(data, Mapping):
        raise InvalidInput(f"context={data!r} must be a table with a kind: fixed, binomial or mixture.")
    kind = data.get("kind")
    if kind not in _CONTEXT_KEYS:
        raise InvalidInput(f"context kind={kind!r} is unknown; use one of {', '.join(_CONTEXT_KEYS)}.")
    _known_keys("context", data, _CONTEXT_KEYS[kind])
    arguments = {key: value for key, value in data.items() if key != "kind"}
    if kind == "fixed":
        return FixedContext(**arguments)
    if kind == "binomial":
        for key in ("length", "gamma"):
            if key not in arguments:
                raise InvalidInput(f"context of kind 'binomial' has no {key!r}; add it.")
        return BinomialContext(**arguments)
    items = []
    for item in _list("compositions", data.get("compositions")):
        if not isinstance(item, Mapping) or set(item) != {"probability", "counts"}:
            raise InvalidInput(f"compositions entry {item!r} must have exactly probability and counts.")
        items.append((item["probability"], item["counts"]))
    return MixtureContext(items)


def _group(item) -> Group:
    if not isinstance(item, Mapping):
        raise InvalidInput(f"groups entry {item!r} must be a table with name, role and types.")
    _known_keys("groups entry", item, ("name", "role", "types"))
    for key in ("name", "role"):
        if key not in item:
            raise InvalidInput(f"groups entry {dict(item)!r} has no {key!r}; add it.")
    return Group(**item)


def _known_keys(where: str, data: Mapping, known) -> None:
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{where}={data!r} must be a table.")
    unknown = [key for key in data if key not in known]
    if unknown:
        raise InvalidInput(f"{where} has the unknown key {unknown[0]!r}; known are {', '.join(known)}.")


def _list(name: str, value) -> list:
    if not isinstance(value, (list, tuple)):
        raise InvalidInput(f"{name}={value!r} must be a list.")
    return list(value)


def _toml_value(value) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    # JSON's strings, booleans, integers and round-trip floats are TOML's too, except that TOML also forbids DEL.
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")
