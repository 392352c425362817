"""The fields of a class, each with its docstring."""

import ast
import re
import sys
from inspect import getsource
from itertools import pairwise
from textwrap import dedent


def meanings(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a class, with those of its bases. Empty if a field has none."""
    source = ast.parse(dedent(getsource(kind)))
    tree = next(node for node in ast.walk(source) if isinstance(node, ast.ClassDef))
    # A TypedDict does not know its bases.
    known = vars(sys.modules[kind.__module__])
    bases = [known.get(base.id) for base in tree.bases if isinstance(base, ast.Name)]
    found: dict[str, str] = {}
    for base in bases:
        if isinstance(base, type) and base.__module__.startswith(("proxy.", "replay.")):
            found |= meanings(base)
    for field, after in pairwise([*tree.body, ast.Pass()]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = ast.get_docstring(ast.Module([after], []))
            found[field.target.id] = null(text or "")
    return found


def null(text: str) -> str:
    """Return a text in which None is called null, as it is in files."""
    return re.sub(r"\bNone\b", "null", text)
