"""The result of one check."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Status = Literal["ok", "warn", "fail", "skip"]


class CheckResult(Struct, frozen=True):
    """Id, status, message and fix of one check; a check that is ok needs no fix."""

    id: str
    status: Status
    message: str
    fix: str = ""


def passed(check_id: str, message: str) -> CheckResult:
    """Return the result of a check that found nothing wrong."""
    return CheckResult(check_id, "ok", message)


def warned(check_id: str, message: str, fix: str) -> CheckResult:
    """Return the result of a check that found something which may cause trouble."""
    return CheckResult(check_id, "warn", message, fix)


def failed(check_id: str, message: str, fix: str) -> CheckResult:
    """Return the result of a check that found something broken."""
    return CheckResult(check_id, "fail", message, fix)


def skipped(check_id: str, message: str) -> CheckResult:
    """Return the result of a check that was not made, with the reason."""
    return CheckResult(check_id, "skip", message)
