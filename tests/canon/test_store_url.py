"""URLs of Redis stores."""

from __future__ import annotations

import pytest

from routecodex.canon.store_url import (
    HostPort,
    RedisAddress,
    StoreUrlError,
    is_redis_url,
    parse_redis_url,
)

VALID = {
    "redis://cache": RedisAddress(mode="single", tls=False, hosts=(HostPort("cache", 6379),)),
    "REDIS://cache/": RedisAddress(mode="single", tls=False, hosts=(HostPort("cache", 6379),)),
    "redis://cache:7000/3": RedisAddress(mode="single", tls=False, hosts=(HostPort("cache", 7000),), db=3),
    "redis://[::1]:7000": RedisAddress(mode="single", tls=False, hosts=(HostPort("::1", 7000),)),
    "redis://:p%40w@cache": RedisAddress(
        mode="single", tls=False, hosts=(HostPort("cache", 6379),), password="p@w"
    ),
    "rediss://ann:p@w:/x@cache": RedisAddress(
        mode="single", tls=True, hosts=(HostPort("cache", 6379),), username="ann", password="p@w:/x"
    ),
    "redis+sentinel://a,b:7000/mymaster": RedisAddress(
        mode="sentinel", tls=False, hosts=(HostPort("a", 26379), HostPort("b", 7000)), master="mymaster"
    ),
    "rediss+sentinel://ann@a/my-master/2": RedisAddress(
        mode="sentinel", tls=True, hosts=(HostPort("a", 26379),), master="my-master", db=2, username="ann"
    ),
    "redis+cluster://a:7000,b:7001": RedisAddress(
        mode="cluster", tls=False, hosts=(HostPort("a", 7000), HostPort("b", 7001))
    ),
    "redis+cluster://:p,w@a,b": RedisAddress(
        mode="cluster", tls=False, hosts=(HostPort("a", 6379), HostPort("b", 6379)), password="p,w"
    ),
    "redis://ann:1234,5@a": RedisAddress(
        mode="single", tls=False, hosts=(HostPort("a", 6379),), username="ann", password="1234,5"
    ),
    "rediss+cluster://a": RedisAddress(mode="cluster", tls=True, hosts=(HostPort("a", 6379),)),
}


@pytest.mark.parametrize("url", VALID)
def test_a_url_names_servers_login_and_database(url: str) -> None:
    assert is_redis_url(url)
    assert parse_redis_url(url) == VALID[url]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis:", "has no host"),
        ("redis://", "has no host"),
        ("redis:///0", "has no host"),
        ("redis://pw@/0", "has no host"),
        ("redis://a,b", "names several hosts, and one server has one"),
        ("redis+cluster://a,", "has no host"),
        ("redis://a b", "has an invalid host"),
        ("redis://a:b:1", "has an invalid host"),
        ("redis://a:0", "has the port 0"),
        ("redis://a:70000", "has the port 70000"),
        ("redis://a/x", "has a path that is not the number of a database"),
        ("redis://a/0/1", "has a path that is not the number of a database"),
        ("redis://a?db=1", "has parameters, which are keys of [store] here"),
        ("redis+sentinel://a", "names no master"),
        ("redis+sentinel://a/", "names no master"),
        ("redis+sentinel://a/m/x", "has a path that is not the number of a database"),
        ("redis+cluster://u:p@a,u:p@b", "has a login behind its first host"),
        ("redis+cluster://u:p@a:7000,b,u:p@[::1]:7001", "has a login behind its first host"),
        ("redis+cluster://a:7000,u:p@b", "has a login behind its first host"),
        ("redis+sentinel://a,u:p@b/m", "has a login behind its first host"),
        ("redis://u:p@a,u:p@b", "has a login behind its first host"),
        ("redis+cluster://a/1", "names a database, and a cluster has only one"),
    ],
)
def test_a_wrong_url_is_refused_without_being_quoted(url: str, message: str) -> None:
    with pytest.raises(StoreUrlError) as found:
        parse_redis_url(url)
    assert found.value.message == message
    assert found.value.fix


def test_other_schemes_are_not_redis() -> None:
    assert not any(map(is_redis_url, ["file:", "memory:", "redis", "redisx://a", "http://redis:1", ""]))


def test_neither_user_nor_password_is_shown() -> None:
    address = parse_redis_url("rediss+sentinel://ann:pass@a,b:7000/m/2")
    assert address.shown == "rediss+sentinel://a:26379,b:7000/m/2"
    assert repr(address) == "RedisAddress('rediss+sentinel://a:26379,b:7000/m/2')"
    assert parse_redis_url("redis://[::1]/").shown == "redis://[::1]:6379"
