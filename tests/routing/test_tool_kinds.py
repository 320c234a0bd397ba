from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.request import CalledTool
from routecodex.routing.tool_kinds import command_kind, kind_of

NAMES = {
    "read": """
        Read NotebookRead read_file read_many_files view_image read view mcp__files__read_file
        mcp__server__read_multiple_files files.open_file get_file_contents ReadMcpResource
    """,
    "write": """
        Write Edit MultiEdit NotebookEdit apply_patch write_file replace write edit patch multiedit
        write_to_file replace_in_file mcp__files__edit_file create_text_file str_replace insert_edit_into_file
        delete_file mcp__ide__rename_path
    """,
    "search": """
        Grep Glob LS list_directory search_file_content glob grep list search_files list_files codebase_search
        mcp__files__directory_tree find_symbol list_code_usages search_tickets grep_search
    """,
    "web": "WebSearch WebFetch web_search google_web_search mcp__brave__brave_web_search fetch search_in_web",
    "other": """
        Task TodoWrite update_plan write_todos ask_followup_question get_weather create_issue write_stdin
        mcp__linear__list_issues save_memory BashOutput ExitPlanMode x __
    """,
}

COMMANDS = {
    "read": [
        "cat src/a.py",
        "head -n 5 a; tail -n 5 a",
        "sed -n '1,200p' a.py",
        "nl -ba a.py | sed -n '1,20p'",
        "/usr/bin/less a",
        "bat a.py 2>/dev/null",
        "cat a > /dev/null 2>&1",
        "cd src && cat a.py | grep foo",
        "git show HEAD:a.py",
        "git --no-pager -C repo diff",
        "sudo cat /etc/hosts",
        "LANG=C timeout 10 cat a",
        "for f in *.py; do cat $f; done",
        "awk '$1 > 3' a.txt",
        'bash -lc "cat a.py"',
        "jq '.a | .b' x.json",
        "Get-Content a.txt",
    ],
    "search": [
        "rg -n foo src",
        "grep -rn 'a > b' .",
        "find . -name '*.py'",
        "ls -la",
        "fd foo | head",
        "tree -L 2",
        "git grep foo",
        "git log --oneline",
        "cd x; ls",
        "rg foo && cat a",
        "find . -name '*.py' | xargs cat",
        "rg 'x >> y' 2>&1",
    ],
    "write": [
        "echo hi > a.txt",
        "echo hi >>a.txt",
        "ls &> listing",
        "cat <<EOF > a\nhello\nEOF",
        "python - <<'PY'\nprint(1)\nPY",
        "cat a | tee b",
        "mv a b",
        "cp a b",
        "rm -rf build",
        "mkdir -p x/y && cd x",
        "touch a",
        "sed -i 's/a/b/' x.py",
        "sed -i.bak -e 's/a/b/' x.py",
        "perl -pi -e 's/a/b/' x",
        "git add -A && git commit -m 'x'",
        "git apply x.diff",
        "patch -p1 < x.diff",
        "cat a.py && rm a.py",
        "find . -name '*.pyc' -delete",
        "find . -name x -exec rm {} +",
        "find . -name x | xargs rm",
        "apply_patch <<'EOF'\n*** Begin Patch\nEOF",
        "bash -lc \"sed -i 's/a/b/' x\"",
        "(cd x && touch y)",
        "Set-Content a.txt hi",
    ],
    "other": [
        "",
        "pytest -q",
        "npm test",
        "make",
        "python -c 'print(1 > 0)'",
        "cargo build 2>&1",
        "echo done",
        "# cat a",
        "grepcode foo",
        "cat_things",
        "pytest <<< input",
        "echo $((1<<2))",
        "curl http://127.0.0.1/",
    ],
}


def rows(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(kind, value) for kind, values in table.items() for value in values]


@pytest.mark.parametrize(("kind", "name"), rows({kind: names.split() for kind, names in NAMES.items()}))
def test_a_name_says_what_a_tool_does(kind: str, name: str) -> None:
    assert kind_of(CalledTool(name, '{"path":"a.py"}')) == kind


@pytest.mark.parametrize(("kind", "command"), rows(COMMANDS))
def test_a_command_says_what_a_shell_does(kind: str, command: str) -> None:
    assert command_kind(command) == kind
    arguments = msgspec.json.encode({"description": "x", "command": command}).decode()
    assert kind_of(CalledTool("Bash", arguments)) == kind
    words = msgspec.json.encode({"command": ["bash", "-lc", command], "workdir": "/x"}).decode()
    assert kind_of(CalledTool("shell", words)) == kind


@pytest.mark.parametrize(
    "name", ["Bash", "bash", "shell", "local_shell", "exec_command", "run_shell_command", "execute_command"]
)
def test_shells_of_all_agents_are_known(name: str) -> None:
    assert kind_of(CalledTool(name, '{"cmd":"rg foo"}')) == "search"
    assert kind_of(CalledTool(name, '{"command":"cat foo"}')) == "read"
    assert kind_of(CalledTool(f"mcp__box__{name}", '{"command":"touch foo"}')) == "write"


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ('{"command":["cat","a b"]}', "read"),
        ('{"command":["/bin/zsh","-lc","rg x"]}', "search"),
        ('{"command":["apply_patch","*** Begin Patch\\n"]}', "write"),
        ('{"type":"exec","command":["bash","-lc","ls"],"env":{}}', "search"),
        ('{"commands":["ls"]}', "search"),
        ("rg foo", "search"),
        ('["rm","x"]', "write"),
        ('{"command":"sed -i s/a/b/ x && python run.py --with \\"', "write"),
        ('{"timeout":5,"command":"cat a\\nrm b', "write"),
        ('{"command":["bash","-lc","cat \\u0061', "read"),
        ('{"command":7}', "other"),
        ('{"command":[1,null,{}]}', "other"),
        ('{"nothing":"cat a"}', "other"),
        ("null", "other"),
        ("[" * 5000, "other"),
        ("", "other"),
    ],
)
def test_commands_are_found_in_odd_and_cut_arguments(arguments: str, kind: str) -> None:
    assert kind_of(CalledTool("shell", arguments)) == kind


@pytest.mark.parametrize(
    ("command", "kind"), [("view", "read"), ("str_replace", "write"), ("create", "write")]
)
def test_an_editor_says_by_its_command_what_it_does(command: str, kind: str) -> None:
    call = CalledTool("str_replace_based_edit_tool", msgspec.json.encode({"command": command}).decode())
    assert kind_of(call) == kind


@given(st.text(max_size=200), st.text(max_size=400))
def test_no_call_is_too_odd(name: str, arguments: str) -> None:
    assert kind_of(CalledTool(name, arguments)) in NAMES


@given(st.text(alphabet="'\"\\<>|&;(){}$# \nacr-", max_size=400))
def test_no_command_is_too_odd(command: str) -> None:
    assert command_kind(command) in NAMES
    assert kind_of(CalledTool("bash", f'{{"command":"{command}')) in NAMES


@pytest.mark.parametrize("unit", ["'", '"', "\\", '\\"', "<<", ">", "a'\"", "$(", "bash -c ", "sudo "])
def test_a_huge_command_is_cut_before_it_is_read(unit: str) -> None:
    assert command_kind(unit * 200_000) in NAMES
