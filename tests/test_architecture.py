"""Rules for the source: imports between packages, names of classes, sizes of files and functions.

And for the tests: each asserts something and uses public names only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import source_tree

SOURCE = Path(__file__).parent.parent / "src" / "routecodex"
FILES = sorted(SOURCE.rglob("*.py"))

ARROWS: dict[str, frozenset[str]] = {
    package: frozenset(needs.split())
    for package, needs in {
        "canon": "",
        "wire": "canon",
        "protocols": "canon wire",
        # The catalog is written in the rows the configuration has for providers.
        "providers": "canon wire protocols config",
        "routing": "canon",
        "stores": "canon wire",
        # The prices of models are rows of the configuration.
        "accounting": "canon wire stores config",
        "config": "canon",
        # Spans are sent by the gateway's own HTTP client.
        "telemetry": "canon wire providers",
        # Files of the web page alone.
        "console": "",
        "turns": "canon wire stores",
        "server_tools": "canon wire turns stores",
        "gateway": "canon wire protocols providers routing stores accounting config telemetry turns "
        "server_tools",
        "server": "canon wire protocols providers routing stores accounting config telemetry gateway console",
        "cli": "canon wire protocols providers routing stores accounting config gateway server server_tools "
        "turns",
        "root": "cli",
    }.items()
}
"""Packages that each package may import when it is loaded, besides itself and the version."""

LAZY: dict[str, frozenset[str]] = {"config": frozenset({"protocols", "providers"})}
"""Packages that may be imported inside a function: the reference of all settings is generated from them."""

ALONE: dict[str, frozenset[str]] = {
    "turns/http_sender.py": frozenset({"protocols", "providers"}),
    "__init__.py": frozenset({"compiled"}),
}
"""Packages that a single module may import: conversations load the first only for HTTP; the second selects
between sources and compiled modules before anything else is imported."""

CODECS = frozenset({"chat", "responses", "messages", "gemini"})
MOST_LINES = 600
MOST_LINES_OF_A_FUNCTION = 60


def module_of(path: Path) -> tuple[str, ...]:
    """Return the name of a module below the package, without `__init__`."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def package_of(module: tuple[str, ...], path: Path) -> str:
    return "root" if path.parent == SOURCE else module[0]


def absolute(node: ast.ImportFrom, path: Path) -> tuple[str, ...]:
    """Return the module of a `from … import` below `routecodex`; empty for other packages."""
    module = tuple(node.module.split(".")) if node.module else ()
    if node.level == 0:
        return module[1:] if module[:1] == ("routecodex",) else ()
    return (*path.relative_to(SOURCE).parts[: -node.level], *module)


def imports(path: Path) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the imports of this project as (name, whether inside a function)."""
    tree = source_tree.read(path)
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = tuple(alias.name.split("."))
                if parts[0] == "routecodex" and len(parts) > 1:
                    yield parts[1:], id(node) in lazy
        elif isinstance(node, ast.ImportFrom):
            internal = node.level > 0 or (node.module or "").partition(".")[0] == "routecodex"
            for alias in node.names if internal else ():
                yield (*absolute(node, path), alias.name), id(node) in lazy


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.fixture(params=FILES, ids=relative)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_every_package_has_its_row() -> None:
    packages = {directory.name for directory in SOURCE.iterdir() if (directory / "__init__.py").exists()}
    assert packages <= ARROWS.keys()


def test_arrows_have_no_circle() -> None:
    layers: list[str] = []
    left = dict(ARROWS)
    while left:
        free = [name for name, needs in left.items() if needs <= set(layers)]
        assert free, f"these packages need each other: {sorted(left)}"
        layers.extend(free)
        left = {name: needs for name, needs in left.items() if name not in free}


def test_imports_follow_the_arrows(path: Path) -> None:
    package = package_of(module_of(path), path)
    for name, lazy in imports(path):
        target = name[0]
        if target in (package, "__version__"):
            continue
        allowed = ARROWS[package] | (LAZY.get(package, frozenset()) if lazy else frozenset())
        allowed |= ALONE.get(relative(path), frozenset())
        assert target in allowed, f"{relative(path)} imports routecodex.{'.'.join(name)}"


def test_codecs_do_not_know_each_other(path: Path) -> None:
    module = module_of(path)
    if module[:1] != ("protocols",) or len(module) < 2 or module[1] not in CODECS:
        return
    others = (CODECS | {"codecs"}) - {module[1]}
    for name, _ in imports(path):
        assert name[0] != "protocols" or name[1] not in others, f"{relative(path)} imports {'.'.join(name)}"


BORDERS: dict[str, tuple[str, ...]] = {
    "context": ("context", "state"),
    "state": ("state", "context.identity"),
    "answer": ("answer", "context", "state"),
    "internal": ("internal", "answer", "context", "state"),
}
"""Groups of `gateway/`, and the modules of `gateway/` that each may import; `gateway.py` joins them."""

SHARED = ("request", "records", "services", "capture", "call_record", "request_limits", "limit_headers")
"""Modules of `gateway/` that every group may import."""

CROSSINGS: frozenset[tuple[str, str]] = frozenset()
"""Imports (file, module) that break the borders; the list only shrinks."""


def crossings() -> Iterator[tuple[str, str]]:
    for path in sorted((SOURCE / "gateway").rglob("*.py")):
        group = module_of(path)[1] if path.parent.name in BORDERS else ""
        own = (*BORDERS[group], *SHARED) if group else ()
        for name, _ in imports(path):
            inner = ".".join(name[1:])
            if group and name[0] == "gateway" and not f"{inner}.".startswith(tuple(f"{one}." for one in own)):
                yield relative(path), inner


def test_groups_of_the_gateway_keep_their_borders() -> None:
    assert set(crossings()) == CROSSINGS


def test_records_of_the_gateway_import_no_group() -> None:
    for module in ("records", "request"):
        names = {name[1] for name, _ in imports(SOURCE / "gateway" / f"{module}.py") if name[0] == "gateway"}
        assert not names & BORDERS.keys()


ROLES = frozenset(
    {
        *("RequestBody", "CountRequestBody", "RequestView", "ModelTraits"),
        *("WireMessage", "WirePart", "WireTool", "WireToolCall", "WireToolChoice", "WireFunctionCall"),
        *("WireThinking", "WireDelta", "WireUsage"),
        *("StreamChunk", "ChunkDecoder", "StreamDecoder", "StreamEncoder", "Relay"),
    }
)
"""Classes of one role, which have the same name in every codec."""

REPEATED: dict[str, str] = {
    "Message": "public in canon (every protocol) and in turns (chat)",
    "Tool": "public in canon (every protocol) and in turns (chat)",
    "ToolCall": "public in canon (every protocol) and in turns (chat)",
}
"""Other names of more than one class, and why; the list only shrinks."""


def class_files() -> dict[str, list[str]]:
    """Return the files that define each public class."""
    files: dict[str, list[str]] = {}
    for path in FILES:
        for node in source_tree.read(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(relative(path))
    return files


def test_a_class_name_has_one_meaning() -> None:
    found = class_files()
    assert {name for name in found.keys() - ROLES if len(found[name]) > 1} == REPEATED.keys()


def test_role_names_are_used_by_codecs_alone() -> None:
    found = class_files()
    others = {file for role in ROLES for file in found.get(role, ()) if not file.startswith("protocols/")}
    assert others == set()


def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text("utf-8").splitlines())
    assert lines <= MOST_LINES, f"{relative(path)} has {lines} lines"


def test_no_function_is_too_long(path: Path) -> None:
    for node in ast.walk(source_tree.read(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MOST_LINES_OF_A_FUNCTION, f"{relative(path)}: {node.name} has {lines} lines"


FORBIDDEN_NAMES = frozenset({"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"})


def test_files_are_named_for_what_they_hold(path: Path) -> None:
    assert not FORBIDDEN_NAMES & set(module_of(path)), relative(path)


def test_the_readers_of_this_test_see_imports() -> None:
    assert ("gateway", "state", "sessions", "Sessions") in {
        name for name, _ in imports(SOURCE / "gateway" / "context" / "routing_context.py")
    }
    found = {name for name, _ in imports(SOURCE / "protocols" / "chat" / "__init__.py")}
    assert ("protocols", "chat", "relay") in found
    assert ("protocols", "codec", "Codec") in found
    events = {name for name, _ in imports(SOURCE / "canon" / "events.py")}
    assert ("canon", "errors", "GatewayError") in events
    assert {name[0] for name, lazy in imports(SOURCE / "config" / "reference.py") if lazy} >= LAZY["config"]


IGNORE = re.compile(r"#\s*(?:type: ignore|noqa)(?P<code>\[[\w, -]+\]|: [A-Z0-9, ]+)?")


def test_every_ignore_carries_its_code_and_a_reason() -> None:
    root = SOURCE.parent.parent
    files = [
        file for folder in ("src", "tests", "bench", "compile") for file in (root / folder).rglob("*.py")
    ]
    bare = []
    for file in files:
        if "node_modules" in file.parts or file == Path(__file__):
            continue
        for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
            found = list(IGNORE.finditer(line))
            reason = line[found[-1].end() :].strip("# ") if found else "none is needed"
            if not reason or not all(one["code"] for one in found):
                bare.append(f"{file.relative_to(root)}:{number}")
    assert bare == []


TESTS = Path(__file__).parent
FAILS = re.compile(
    r"(?:(?:asking|grammar|pytest)\.)?(?:check|assert|raises|fail|expect)\w*|(?:\w+\.)*until\w*"
)
"""Calls that can fail a test; helpers that assert are named so, or are defined in the same file;
`expect` is that of Playwright."""

SILENT: dict[str, str] = {
    "test_what_the_compiler_learns_from_runs_to_its_end": "the run raises when it breaks",
    "test_a_long_text_is_utf_8_wherever_its_characters_stand": "the check returns None when it passes",
}
"""Tests that only check that no error is raised, and why; the list only shrinks."""

PRIVATE: dict[tuple[str, str], str] = {
    ("bench", "_parser"): "the public function would run the benchmark",
    ("protocols/messages", "_SCANS"): "code that only a build uses is tried without one",
    ("turns/plugins", "_exit"): "a public function of os",
}
"""Private names that the tests of a folder use, and why; the list only shrinks."""


def name_of(node: ast.AST) -> str:
    found: str = getattr(node, "id", getattr(node, "attr", ""))
    return found


def called_by(function: ast.AST) -> list[ast.expr]:
    return [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]


def can_fail(function: ast.AST) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(function)) or any(
        FAILS.fullmatch(ast.unparse(called)) for called in called_by(function)
    )


def silent_tests(tree: ast.AST) -> set[str]:
    """Return the tests that neither assert nor call a function of their file that does."""
    functions = {
        node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    failing = {name for name, node in functions.items() if can_fail(node)}
    calls = {name: set(map(name_of, called_by(functions[name]))) for name in functions.keys() - failing}
    while more := {name for name, called in calls.items() if called & failing} - failing:
        failing |= more
    return {name for name in functions if name.startswith("test_")} - failing


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield private attributes of other objects than `self`, used or patched."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and name_of(node.value) not in ("self", "cls"):
            names = [node.attr]
        elif isinstance(node, ast.Call) and name_of(node.func) == "setattr":
            texts = (arg.value for arg in node.args if isinstance(arg, ast.Constant))
            names = [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
        yield from (name for name in names if re.match(r"_(?!_)", name))


def test_tests_assert_something_and_keep_to_public_names() -> None:
    silent: set[str] = set()
    private: set[tuple[str, str]] = set()
    for file in sorted(TESTS.rglob("*.py")):
        if "node_modules" not in file.parts:
            tree = source_tree.read(file)
            silent |= silent_tests(tree)
            folder = file.parent.relative_to(TESTS).as_posix()
            private |= {(folder, name) for name in private_names(tree)}
    assert silent == set(SILENT)
    assert private == set(PRIVATE)


def test_the_readers_of_this_test_see_what_tests_do() -> None:
    tree = source_tree.parse(
        "def look(x): assert x._a\n"
        "def test_a(): look(1)\n"
        "def test_b(): len([])\n"
        "def test_c(m): m.setattr('p.q._b', 1), pytest.raises(E), self._c, m.__d__\n"
        "def test_d(access): access.check_host('x')\n"
    )
    assert silent_tests(tree) == {"test_b", "test_d"}
    assert sorted(private_names(tree)) == ["_a", "_b"]
