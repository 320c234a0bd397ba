"""`routecodex serve` and `demo` in their own processes: output, logs, errors, answers."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from click.testing import CliRunner

from routecodex.cli import main
from routecodex.protocols import grammar
from tests.cli.process import Command, running, serve, until
from tests.kit import answers, asking
from tests.kit.collector import Collector
from tests.kit.gateway import one_target
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Upstream

DEMO = (
    "[server]\nport = 0\ndrain_seconds = 1\n"
    '[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.demo-1]\n'
    '[routing]\ndefault = ["demo.demo-1"]\n'
)
CLIENT_KEY = "key-of-a-client"


async def test_it_says_on_stderr_where_it_listens_and_serves_there(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO) as command:
        port = await command.port()
        answer = await call(port, "/v1/messages", asking.body("messages", stream=False, model="demo.demo-1"))
        asking.check("messages", answer, stream=False)
        command.signal()
        assert await command.ended() == 0
    assert command.out == []
    assert command.err[0] == f"routecodex listens on http://127.0.0.1:{port}"


OTLP_KEY = "key-of-a-collector"


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_variables_turn_traces_on_and_sigterm_sends_what_waits(
    tmp_path: Path, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-key={OTLP_KEY}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "of-a-process")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        async with serve(tmp_path, DEMO, "--workers", workers) as command:
            port = await command.port()
            body = asking.body("chat", stream=False, model="demo.demo-1")
            assert (await call(port, "/v1/chat/completions", body)).status == 200
            assert collector.requests == []
            command.signal()
            assert await command.ended() == 0
    assert sorted(span.kind for span in collector.spans) == ["CLIENT", "SERVER"]
    assert {span.resource["service.name"] for span in collector.spans} == {"of-a-process"}
    (sent,) = collector.requests
    assert (sent.headers["content-type"], sent.headers["x-key"]) == ("application/json", OTLP_KEY)
    assert OTLP_KEY not in command.text


async def test_a_port_that_is_taken_is_told_with_a_fix_and_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with serve(tmp_path, DEMO, "--port", str(port)) as command:
            assert await command.ended() == 1
        async with running(tmp_path, "demo", "--port", str(port)) as demo:
            assert await demo.ended() == 1
    error = f"error: cannot listen on 127.0.0.1:{port}: Address already in use"
    fix = f"    fix: set another port with --port, or under [server] in {tmp_path}/gateway.toml"
    assert (command.out, command.err) == ([], [error, fix])
    fix = "    fix: choose another port: `routecodex demo --port N` or `make demo PORT=N`"
    assert (demo.out, demo.err) == ([], [error, fix])


async def test_a_host_that_is_not_ours_is_told_with_a_fix(tmp_path: Path) -> None:
    key = DEMO.replace("[server]\n", '[server]\nclient_keys = [{ name = "a", key = "k" }]\n')
    async with serve(tmp_path, key, "--host", "192.0.2.1") as command:
        assert await command.ended() == 1
    fix = f"    fix: set another host with --host, or under [server] in {tmp_path}/gateway.toml"
    assert command.err[1:] == [fix]


async def test_an_ipv6_address_is_shown_in_brackets(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO, "--host", "::1") as command:
        found = await command.wait_for(r"listens on (http://\[::1\]:\d+)$")
        assert urlsplit(found[1]).hostname == "::1"
        command.signal()
        assert await command.ended() == 0


async def test_a_bad_configuration_is_told_whole_and_exit_code_2(tmp_path: Path) -> None:
    text = DEMO.replace("drain_seconds", "drain_second") + 'fast = ["no.body"]\n'
    async with serve(tmp_path, text) as command:
        assert await command.ended() == 2
    file = tmp_path / "gateway.toml"
    assert [line for line in command.err if line.startswith("error: ")] == [
        f"error: {file}:3: server.drain_second",
        f"error: {file}:10: routing.fast[0]",
    ]
    assert len([line for line in command.err if line.startswith("    fix: ")]) == 2
    assert "Traceback" not in command.text


OPEN_DOORS = {
    "in-the-file": (DEMO.replace("[server]", '[server]\nhost = "0.0.0.0"'), []),
    "on-the-command-line": (DEMO, ["--host", "0.0.0.0"]),
    "ipv6": (DEMO, ["--host", "::"]),
}


@pytest.mark.parametrize(("text", "arguments"), OPEN_DOORS.values(), ids=OPEN_DOORS)
def test_an_open_address_without_client_keys_is_refused(
    tmp_path: Path, text: str, arguments: list[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    result = CliRunner().invoke(main, ["serve", "--config", str(file), *arguments])
    assert result.exit_code == 2
    assert "without client keys" in result.stderr
    assert "fix: " in result.stderr


async def test_an_open_address_with_client_keys_serves(tmp_path: Path) -> None:
    text = DEMO.replace("[server]", f'[server]\nclient_keys = [{{ name = "me", key = "{CLIENT_KEY}" }}]')
    async with serve(tmp_path, text, "--host", "0.0.0.0") as command:
        port = await command.port()
        assert (await call(port, "/v1/models", method="GET")).status == 401
        assert (await call(port, f"/v1/models?key={CLIENT_KEY}", method="GET")).status == 200
        command.signal()
        assert await command.ended() == 0


async def test_a_ca_file_that_is_none_is_told_like_any_problem_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("this is no certificate")
    text = DEMO + (
        '[providers.up]\nprotocol = "chat"\nbase_url = "https://127.0.0.1:9/v1"\nauth = [{ value = "k" }]\n'
        f'tls = {{ ca_file = "{tmp_path / "ca.pem"}" }}\n[providers.up.models.m]\n'
    )
    async with serve(tmp_path, text) as command:
        assert await command.ended() == 2
    assert command.err == [
        f"error: {tmp_path}/gateway.toml:14: providers.up.tls.ca_file",
        f"    names {tmp_path}/ca.pem, which has no certificate in PEM form",
        "    fix: name a file with -----BEGIN CERTIFICATE----- in it",
    ]


async def test_warnings_do_not_stop_it_but_are_told(tmp_path: Path) -> None:
    text = DEMO + (
        '[providers.up]\nprotocol = "chat"\nbase_url = "http://127.0.0.1:9"\nauth = [{ value = "k" }]\n'
        "[providers.up.models.m]\n"
    )
    async with serve(tmp_path, text) as command:
        await command.port()
        command.signal()
        assert await command.ended() == 0
    assert command.err[0].startswith("warning: ")


SAID = "words that only the two of us know"


def logged(command: Command) -> list[dict[str, object]]:
    lines = [line for line in command.err if line.startswith("{")]
    return [row for line in lines if (row := msgspec.json.decode(line))["logger"] == "routecodex.access"]


def with_keys(up: Upstream, level: str) -> str:
    keys = f'client_keys = [{{ name = "laptop", key = "{CLIENT_KEY}" }}]'
    return f'[logging]\nlevel = "{level}"\nformat = "json"\n' + one_target("chat", up, server=keys)


async def converse(port: int) -> None:
    """Make three requests: answered, rejected by the provider, rejected by the gateway."""
    body = asking.body("messages", SAID, stream=True)
    headers = {"x-api-key": CLIENT_KEY}
    asking.check("messages", await call(port, "/v1/messages?beta=true", body, headers=headers), stream=True)
    assert (await call(port, f"/v1/messages?key={CLIENT_KEY}", body)).status == 424
    assert (await call(port, "/v1/messages", body, headers={"x-api-key": "wrong-key"})).status == 401


async def test_the_access_log_tells_who_and_where_but_never_what(tmp_path: Path) -> None:
    async with Upstream() as up, serve(tmp_path, with_keys(up, "info")) as command:
        up.queue(answers.text("chat", f"I say {SAID}", True), answers.error("chat", 401, "wrong: secret-up"))
        await converse(await command.port())
        await until(lambda: len(logged(command)) >= 3, "three lines in the log")
        command.signal()
        assert await command.ended() == 0
    answered, failed, refused = logged(command)
    assert {name: answered[name] for name in ("protocol", "model", "status", "target", "client")} == {
        "protocol": "messages",
        "model": "up.m",
        "status": 200,
        "target": "up.primary.m",
        "client": "laptop",
    }
    assert (answered["input_tokens"], answered["output_tokens"]) == (21, 9)
    assert (failed["status"], failed["code"]) == (424, "upstream_auth")
    assert (refused["status"], refused["code"]) == (401, "invalid_api_key")
    for secret in (SAID, CLIENT_KEY, "secret-up", "wrong-key"):
        assert secret not in command.text


async def test_a_file_with_keys_that_others_can_read_is_warned_about_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "open.toml"
    async with Upstream() as up:
        file.write_text(with_keys(up, "error"))
        file.chmod(0o644)
        async with running(tmp_path, "serve", "--config", str(file), "--port", "0") as command:
            await command.port()
            command.signal()
            assert await command.ended() == 0
    assert f"    fix: chmod 600 {file}, or write ${{NAME}} and set the variable" in command.err
    assert CLIENT_KEY not in command.text


async def test_at_level_error_no_request_is_logged(tmp_path: Path) -> None:
    async with Upstream() as up, serve(tmp_path, with_keys(up, "error")) as command:
        up.queue(answers.text("chat", "hi", True), answers.error("chat", 401))
        await converse(await command.port())
        command.signal()
        assert await command.ended() == 0
    assert len(command.err) == 1


STREAMS = {"/v1/chat/completions": "chat", "/v1/messages": "messages", "/v1/responses": "responses"}


async def paste(line: str) -> Answer:
    """Send the request of a curl command."""
    arguments = shlex.split(line)
    url = urlsplit(arguments[2])
    assert arguments[:2] == ["curl", "-N"]
    assert url.port is not None
    headers = dict(arguments[at + 1].split(": ", 1) for at, word in enumerate(arguments) if word == "-H")
    return await call(url.port, url.path, arguments[arguments.index("-d") + 1].encode(), headers=headers)


async def test_the_demo_prints_commands_that_work(tmp_path: Path) -> None:
    async with running(tmp_path, "demo", "--port", "0") as command:
        await command.wait_for(r"routecodex logs")
        commands = [line for line in command.out if line.startswith("curl ")]
        paths = [urlsplit(shlex.split(line)[2]).path for line in commands]
        assert paths == [*STREAMS, "/v1/chat/completions", "/v1/chat/completions"]
        for line, path in zip(commands, STREAMS, strict=False):
            answer = await paste(line)
            assert answer.status == 200
            options = {"include_usage": False} if path == "/v1/chat/completions" else {}
            grammar.check_stream(STREAMS[path], answer.body, **options)
        steered = await paste(commands[3])
        assert (steered.status, steered.headers["x-routecodex-target"]) == (200, "spare.key1.spare-1")
        status = (await paste(commands[4])).json["choices"][0]["message"]["content"]
        assert "| sticky | spare.spare-1 |" in status
        command.signal()
        assert await command.ended() == 0
    assert "Traceback" not in command.text


async def test_the_demo_has_a_name_of_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with running(tmp_path, "demo", "--port", str(port)) as command:
        await command.wait_for(r"routecodex logs")
        assert [file.stem for file in (tmp_path / "user" / "servers").glob("*.json")] == [f"demo-{port}"]
        command.signal()
        assert await command.ended() == 0


async def test_demos_on_any_free_port_are_two_servers(tmp_path: Path) -> None:
    async with (
        running(tmp_path, "demo", "--port", "0") as one,
        running(tmp_path, "demo", "--port", "0") as other,
    ):
        ports = []
        for command in (one, other):
            await command.wait_for(r"routecodex logs")
            url = next(line for line in command.out if line.startswith("curl ")).split()[2]
            ports.append(urlsplit(url).port)
        announced = sorted(file.stem for file in (tmp_path / "user" / "servers").glob("*.json"))
        assert announced == sorted(f"demo-{port}" for port in ports)
