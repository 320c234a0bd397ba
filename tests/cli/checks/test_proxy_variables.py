from __future__ import annotations

from routecodex.cli.checks.proxy_variables import check_proxy
from tests.cli.checks.agent_model import configured

PROXY = "http://user:hidden@proxy.example:3128"
LOOPBACK = {"NO_PROXY": "127.0.0.1,localhost"}
CONFIG = configured(
    """
[providers.far]
protocol = "chat"
base_url = "https://far.example/v1"
auth = [{ value = "secret-far" }]
[providers.far.models.m]
[providers.near]
protocol = "chat"
base_url = "http://127.0.0.1:11434/v1"
auth_style = "none"
[providers.near.models.m]
[routing]
default = ["far.m"]
"""
)


def status(**environ: str) -> str:
    return check_proxy(CONFIG, environ).status


def test_no_variable_is_ok() -> None:
    assert check_proxy(CONFIG, {}).message == "no proxy variable is set"


def test_a_proxy_is_named_with_its_providers_and_without_its_password() -> None:
    result = check_proxy(CONFIG, {"HTTPS_PROXY": PROXY, **LOOPBACK})
    assert result.status == "ok"
    assert result.message == "the proxy of HTTPS_PROXY is proxy.example:3128; providers behind it: far"


def test_agents_must_not_reach_the_gateway_through_a_proxy() -> None:
    result = check_proxy(CONFIG, {"HTTPS_PROXY": PROXY})
    assert result.status == "warn"
    assert "NO_PROXY=127.0.0.1,localhost" in result.fix


def test_loopback_may_be_excluded_in_several_ways() -> None:
    found = [status(http_proxy=PROXY, no_proxy=rule) for rule in ("*", "127.0.0.0/8", "x.example, 127.0.0.1")]
    assert found == ["ok"] * 3
    assert status(http_proxy=PROXY, no_proxy="x.example") == "warn"
    assert status(http_proxy=PROXY, no_proxy="127.0.0.1", NO_PROXY="x.example") == "warn"


def test_different_values_of_one_variable_are_a_warning() -> None:
    result = check_proxy(CONFIG, {"HTTPS_PROXY": PROXY, "https_proxy": "http://other:1", **LOOPBACK})
    assert result.status == "warn"
    assert "different values" in result.message


def test_a_proxy_that_cannot_be_used_fails() -> None:
    result = check_proxy(CONFIG, {"ALL_PROXY": "socks5://127.0.0.1:1080", **LOOPBACK})
    assert result.status == "fail"
    assert "'socks5' proxy" in result.message
    assert check_proxy(None, {"ALL_PROXY": "socks5://127.0.0.1:1080"}).status == "fail"
