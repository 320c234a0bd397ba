"""Checks the configuration file, and finds the targets that it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from routecodex.cli.checks.result import CheckResult, failed, passed, warned
from routecodex.cli.config import examine_file
from routecodex.config import Config, Problem

_MOST_SHOWN = 3
_ALL = "`routecodex config check` shows every problem"


def check_config(file: Path) -> tuple[Config | None, CheckResult]:
    """Check the file; return the configuration too, None if it cannot be used."""
    if not file.exists():
        message = f"{file} does not exist"
        return None, failed("config", message, "run `routecodex init`, or name another file with --config")
    config, problems = examine_file(file)
    errors = [problem for problem in problems if problem.severity == "error"]
    if config is None:
        return None, failed("config", _summary(file, errors), _fix(errors))
    if problems:
        return config, warned("config", _summary(file, problems), _fix(problems))
    counts = f"{_counted(len(config.providers), 'provider')}, {_counted(len(config.routing), 'route')}"
    return config, passed("config", f"{file} is valid: {counts}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _summary(file: Path, problems: Sequence[Problem]) -> str:
    shown = "; ".join(_line(problem) for problem in problems[:_MOST_SHOWN])
    more = len(problems) - _MOST_SHOWN
    return f"{file}: {shown}" + (f"; and {more} more" if more > 0 else "")


def _line(problem: Problem) -> str:
    line = f"line {problem.line}" if problem.line else ""
    return ": ".join(filter(None, (line, problem.path, problem.message)))


def _fix(problems: Sequence[Problem]) -> str:
    first = problems[0].fix.splitlines()[0] if problems[0].fix else ""
    return "; ".join(filter(None, (first, _ALL)))


def named_targets(config: Config) -> list[str]:
    """Return the targets of the routes and aliases as `provider.model`; without routes, every model."""
    found = dict.fromkeys(_targets_in_use(config))
    return list(found) or every_target(config)


def _targets_in_use(config: Config) -> Iterator[str]:
    from routecodex.gateway import build

    registry = build.registry(config)
    names = [name for route in config.routing for pool in config.pools(route) for name in pool.targets]
    for name in (*names, *config.models.values()):
        for target in registry.targets_of(name):
            yield f"{target.provider}.{target.model}"


def every_target(config: Config) -> list[str]:
    """Return every model of every provider as `provider.model`."""
    return [f"{name}.{model}" for name, row in config.providers.items() for model in row.models]
