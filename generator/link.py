"""Links stage modules into one: which definitions a kernel needs, in which order, as they stand.

The workshop's modules are ordinary Python: stages import primitives, a skeleton imports both. `link` starts
from the names that a generated module needs and follows them through the modules, so that the output has
every definition it uses, none that it doesn't, and each one verbatim: decorators, docstring and comments.

What a module may look like is kept small on purpose, and anything else is refused: at its top level imports,
functions, classes and constants; from its own packages only `from stages.x import name`, without an alias,
because the definitions of all modules end up side by side under the names that they have.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

WORKSHOP = Path(__file__).resolve().parent.parent
"""The checkout: modules are found below it by their dotted names."""

PACKAGES = ("stages", "variants")
"""Packages whose definitions are linked in; everything else stays an import."""


class LinkError(Exception):
    """A workshop module that cannot be linked; a fault of the module, not of a spec."""


@dataclass(frozen=True)
class Definition:
    """One top-level definition of a module: its source text, and the names it refers to."""

    name: str
    text: str
    uses: frozenset[str]


@dataclass(frozen=True)
class Import:
    """A name that a module imports. symbol: None for `import module as name`."""

    name: str
    module: str
    symbol: str | None

    def __str__(self) -> str:
        if self.symbol is None:
            return f"`import {self.module}`"
        return f"`from {self.module} import {self.symbol}`"

    @property
    def internal(self) -> bool:
        """Whether the name is one of the workshop's own definitions."""
        return self.module.split(".")[0] in PACKAGES


@dataclass(frozen=True)
class Module:
    """A parsed workshop module."""

    name: str
    doc: str
    text: str
    definitions: dict[str, Definition]
    imports: dict[str, Import]

    @property
    def path(self) -> str:
        """The module's file, from the root of the checkout, with forward slashes."""
        return self.name.replace(".", "/") + ".py"


@dataclass(frozen=True)
class Section:
    """What one module contributes to the output, in the module's own order."""

    module: Module
    definitions: tuple[Definition, ...]


@dataclass(frozen=True)
class Linked:
    """Everything that some roots need: sections in the order of definition, and outside imports."""

    sections: tuple[Section, ...]
    imports: tuple[Import, ...]


class Linker:
    """Reads workshop modules, each once."""

    def __init__(self, root: Path = WORKSHOP) -> None:
        self._root = root
        self._modules: dict[str, Module] = {}

    def module(self, name: str) -> Module:
        """The parsed module of this dotted name. Raises LinkError if it cannot be linked."""
        if name not in self._modules:
            path = self._root / (name.replace(".", "/") + ".py")
            try:
                text = path.read_text(encoding="utf-8")
            except OSError as error:
                raise LinkError(f"module {name} cannot be read: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise LinkError(f"module {name} cannot be read: it is not UTF-8") from error
            self._modules[name] = parse(name, text)
        return self._modules[name]

    def link(self, roots: Iterable[tuple[str, str]], provided: Collection[str] = ()) -> Linked:
        """Everything that the roots, (module, name) pairs, need.

        provided: names that the output defines itself, in place of what a module says.

        Raises LinkError for a name that is nowhere defined, and for two definitions of one name.
        """
        order: list[str] = []
        needed: dict[str, set[str]] = {}
        outside: dict[str, Import] = {}
        owners: dict[str, str] = {}

        def visit(module: Module) -> None:
            """Put a module behind the ones it imports from."""
            if module.name not in needed:
                needed[module.name] = set()
                for imported in module.imports.values():
                    if imported.internal:
                        visit(self.module(imported.module))
                order.append(module.name)

        def claim(name: str, owner: str) -> None:
            """One name, one meaning in the whole output."""
            other = owners.setdefault(name, owner)
            if other != owner:
                raise LinkError(f"{name!r} is both {other} and {owner}; rename one of them")

        def need(module: Module, name: str) -> None:
            visit(module)
            if name in needed[module.name] or name in provided:
                return
            if name in module.definitions:
                claim(name, f"a definition of {module.path}")
                needed[module.name].add(name)
                for used in sorted(module.definitions[name].uses):
                    if used in module.definitions or used in module.imports:
                        need(module, used)
            elif name in module.imports:
                imported = module.imports[name]
                if imported.internal:
                    need(self.module(imported.module), imported.symbol or "")
                else:
                    claim(name, str(imported))
                    outside[name] = imported
            else:
                raise LinkError(f"{module.path} has no definition of {name!r}")

        for module_name, name in roots:
            need(self.module(module_name), name)
        sections = tuple(
            Section(
                self.module(name),
                tuple(d for d in self.module(name).definitions.values() if d.name in needed[name]),
            )
            for name in order
            if needed[name]
        )
        return Linked(sections, tuple(outside.values()))


def parse(name: str, text: str) -> Module:
    """Parse the text of a workshop module. Raises LinkError for what cannot be linked."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise LinkError(f"{name}, line {getattr(error, 'lineno', None) or 1}: not valid Python") from error
    lines = text.splitlines()
    definitions: dict[str, Definition] = {}
    imports: dict[str, Import] = {}
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    for node, following in zip(body, [*body[1:], None], strict=True):
        where = f"{name}, line {node.lineno}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            for imported in _imports(node, where):
                imports[imported.name] = imported
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = _definition(node.name, node, None, lines)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in _targets(node, where):
                definitions[target] = _definition(target, node, following, lines)
        elif not _is_string(node):
            raise LinkError(f"{where}: only imports, functions, classes and constants can be linked")
    doc = ast.get_docstring(tree)
    if not doc:
        raise LinkError(f"{name}: a workshop module opens with a docstring, its contract")
    return Module(name, doc, text, definitions, imports)


def _imports(node: ast.Import | ast.ImportFrom, where: str) -> list[Import]:
    if isinstance(node, ast.ImportFrom) and (node.level or node.module is None):
        raise LinkError(f"{where}: relative imports cannot be linked")
    found = []
    for alias in node.names:
        bound = alias.asname or alias.name
        if isinstance(node, ast.ImportFrom):
            imported = Import(bound, str(node.module), alias.name)
        else:
            imported = Import(bound, alias.name, None)
        if imported.internal and imported.symbol != bound:
            raise LinkError(f"{where}: write `from {imported.module} import name`, without an alias")
        found.append(imported)
    return found


def _targets(node: ast.Assign | ast.AnnAssign, where: str) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if not all(isinstance(target, ast.Name) for target in targets):
        raise LinkError(f"{where}: a constant must be assigned to a plain name")
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _definition(name: str, node: ast.stmt, following: ast.stmt | None, lines: Sequence[str]) -> Definition:
    """A definition with the comment right above it, and the docstring right below a constant."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)])
    while first > 1 and lines[first - 2].startswith("#"):
        first -= 1
    last = following.end_lineno if following is not None and _is_string(following) else node.end_lineno
    return Definition(name, "\n".join(lines[first - 1 : last]), frozenset(_uses(node)))


def _is_string(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _uses(node: ast.stmt) -> set[str]:
    """The names that a definition reads from its module: all it loads, less what its scopes bind."""
    found: set[str] = set()

    def walk(item: ast.AST, bound: frozenset[str]) -> None:
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load) and item.id not in bound:
            found.add(item.id)
        if isinstance(item, ast.FunctionDef | ast.Lambda):
            # Decorators, defaults and annotations belong to the scope outside.
            inner = bound | _bound(item)
            outer = [*item.args.defaults, *(d for d in item.args.kw_defaults if d is not None)]
            if isinstance(item, ast.FunctionDef):
                arguments = [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]
                outer += [a.annotation for a in arguments if a.annotation is not None]
                outer += [*item.decorator_list, *([item.returns] if item.returns else [])]
            for part in outer:
                walk(part, bound)
            for statement in item.body if isinstance(item.body, list) else [item.body]:
                walk(statement, inner)
        else:
            if isinstance(item, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                bound = bound | _stored(item)
            for child in ast.iter_child_nodes(item):
                walk(child, bound)

    walk(node, frozenset())
    return found


def _bound(function: ast.FunctionDef | ast.Lambda) -> frozenset[str]:
    arguments = function.args
    names = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    names |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
    return frozenset(names) | _stored(function)


def _stored(scope: ast.AST) -> frozenset[str]:
    """Names that are assigned, or defined, anywhere below a scope."""
    names: set[str] = set()
    for item in ast.walk(scope):
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            names.add(item.id)
        elif isinstance(item, ast.FunctionDef) and item is not scope:
            names.add(item.name)
    return frozenset(names)
